"""The fuzzer: a short run of it, and what it is worth."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fuzz.calibrate import Flip, Target, calibrate, draw_grid
from fuzz.exact_ops import EXACT, real_arithmetic
from fuzz.ideas import IDEAS
from fuzz.net import Net, biased
from fuzz.onnx_ops import ONNX
from fuzz.regions import Space, box_nodes, cell_nodes, held
from fuzz.run import Tamper, run_case
from fuzz.sources import OPSETS, as_module, normalised, write
from fuzz.subjects import GUARANTEES, SOURCES, Subject, make_subject
from fuzz.tally import Tally
from fuzz.torch_ops import TORCH
from fuzz.truth import ENDS, Truth
from l0tre.certify.regions.nodes import root, split_boxes, split_cells
from l0tre.certify.regions.tree import make_tree
from l0tre.domain import make_domain
from l0tre.model.aten import OPERATORS as ATEN_OPERATORS
from l0tre.model.aten_compositions import COMPOSITIONS as ATEN_COMPOSITIONS
from l0tre.model.graph import Graph, run
from l0tre.model.network import Network
from l0tre.model.onnx_compositions import COMPOSITIONS as ONNX_COMPOSITIONS
from l0tre.model.onnx_operators import OPERATORS as ONNX_OPERATORS
from l0tre.model.operations import KINDS
from tests.certify.proving import sets_of

pytestmark = pytest.mark.slow

# Few and quick ones that together hold every operation, source, idea and guarantee.
SEEDS = (
    *(39, 48, 65, 87, 90, 91, 158, 195, 196, 197, 200, 203, 205, 206, 207, 209, 212, 214, 217, 218, 219, 220, 224, 226),
    *(228, 230, 233, 234),
)
# What no network gets whose batch size is open, on a CPU: torch's exporter writes the same things otherwise.
UNREACHED = {
    "aten.cudnn_batch_norm.default",
    "aten.squeeze.default",
    "_operator.add",
    "_operator.sub",
    "_operator.floordiv",
}


def test_nothing_that_is_proved_holds_a_known_flip() -> None:
    tally = Tally()
    results = [run_case(seed, tally) for seed in SEEDS]
    assert {result.subject.seed: result.complaints for result in results if result.complaints} == {}
    assert set(tally.operations) >= set(KINDS)
    assert set(tally.sources) == set(SOURCES)
    assert set(tally.guarantees) == set(GUARANTEES)
    assert set(tally.ideas) == set(IDEAS)
    assert {"certified", "certified by cells", "grid", "lipschitz"} <= set(tally.proved)
    assert tally.parts > 500
    assert tally.probes > 300
    assert tally.clustered > 2
    assert tally.certificates["confirmed"] > 1


def test_every_operation_is_known_to_all_that_write_networks() -> None:
    assert set(TORCH) == set(EXACT) == set(ONNX)


# Operators of the importers that the fuzzer writes in other ways; tests/model compares them with their sources.
ONE_DIMENSIONAL = ("conv1d.default", "conv1d.padding", "adaptive_avg_pool1d.default", "adaptive_max_pool1d.default")
COMPOSED = {*ATEN_COMPOSITIONS, *ONNX_COMPOSITIONS, *(f"aten.{name}" for name in ONE_DIMENSIONAL)}
NOT_DRAWN = COMPOSED | {
    "aten.selu.default",
    "aten.hardsigmoid.default",
    "Selu",
    "HardSigmoid",
    "Gelu",
    "HardSwish",
    "Softplus",
}


def kinds(net: Net, *, ways: bool) -> set[object]:
    """What a network consists of; with the ways to write it, if these are wanted."""
    if not ways:
        return {op.kind for op in net.ops}
    found: set[object] = set()
    for op in net.ops:
        how, order = (op.settings.get(key) for key in ("how", "order"))
        found.add((op.kind, how, order, "scalar" in op.settings, op.shape[1:] == (1, 1), *op.constants))
    return found


# Seeds whose files hold what no earlier one holds, by source: most others need not be written.
TELLING = {
    "onnx": (22, 140, 126, 19, 1, 256, 2, 7, 169, 396, 18),
    "pt2": (
        *(61, 22, 126, 187, 67, 74, 256, 140, 18, 117, 19, 94, 96, 1, 5, 38, 8, 112, 396, 4, 66, 165, 143, 342),
        *(2, 7, 10),
    ),
    "pt2_core": (10, 38, 2, 22),
}


def test_files_hold_every_operator_that_the_importers_know(tmp_path: Path) -> None:
    left = {*ATEN_OPERATORS, *ONNX_OPERATORS} - UNREACHED - NOT_DRAWN
    met: dict[str, set[object]] = {source: set() for source in TELLING}
    first = [(seed, source) for source, seeds in TELLING.items() for seed in seeds]
    for number, (seed, source) in enumerate((*first, *itertools.product(range(400), TELLING))):
        if not left:
            break
        net = make_subject(seed, [source]).net
        new = kinds(net, ways=source != "pt2_core") - met[source]
        if new or number < len(first):
            path = tmp_path / ("net.onnx" if source == "onnx" else "net.pt2")
            left -= set(write(net, source, path, OPSETS[seed % len(OPSETS)]))
        met[source] |= new
    assert left == set()


def test_a_seed_decides_everything() -> None:
    for seed in SEEDS[:8]:
        one, two = (calibrate(subject, draw_grid(subject)) for subject in (make_subject(seed), make_subject(seed)))
        assert repr(one) == repr(two)


def plain_scores(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Scores at the image in real arithmetic, and by the module in float64; softmaxes left out."""
    net = subject.net
    short = replace(net, ops=net.ops[:-1]) if net.ops[-1].kind in ENDS else net
    real = Truth(net, subject.normalisation).scores(subject.image.flatten().double().numpy())
    by_module = as_module(short).double()(normalised(subject.normalisation, subject.image[None].double()))[0]
    return real.astype(np.float64), by_module.numpy()


def test_real_arithmetic_is_what_torch_computes() -> None:
    met: set[str] = set()
    for seed in range(300):
        subject = make_subject(seed)
        real, floating = plain_scores(subject)
        if "chain" not in subject.ideas:  # where float64 is at its end
            np.testing.assert_allclose(real, floating, rtol=1e-6, atol=1e-6 * np.abs(real).max())
        met.update(op.kind for op in subject.net.ops)
    assert met >= set(TORCH)


@pytest.mark.parametrize("fine", [0, 1, 2])
def test_a_bias_is_moved_down_to_the_next_number(fine: int) -> None:
    seed = next(seed for seed in range(100) if len(make_subject(seed).net.fine) == fine)
    subject = make_subject(seed)
    x, draw = subject.image.flatten().double().numpy(), random.Random(0)
    truth = Truth(subject.net, subject.normalisation)
    for _ in range(20):
        by = Decimal(draw.gauss(0, 10))
        moved = Truth(biased(subject.net, 1, by), subject.normalisation)
        with real_arithmetic():
            short = truth.scores(x)[1] + by - moved.scores(x)[1]
        size = abs(Decimal(float(subject.net.ops[subject.net.head].constants["bias"][1])) + by)
        assert Decimal("-1e-60") <= short <= size * Decimal(2.0 ** -(23 if fine == 0 else 46 if fine == 1 else 52))


def test_nodes_hold_a_flip_if_one_of_their_sets_does() -> None:
    domain = make_domain((7,))
    tree, image = make_tree(domain), torch.full((7,), 0.5)
    rng = np.random.default_rng(0)
    space = Space(tree, domain, image)
    for t in (1, 2, 3):
        nodes = root(0, t, torch.device("cpu"))
        while bool((tree.sizes[nodes.cells] > 1).any(1).all()):
            for count in range(1, t + 1):
                groups = tuple(sorted(rng.permutation(7)[:count].tolist()))
                x = np.full(7, 0.5)
                x[list(groups)] = 0.75
                found = {row for row, _ in held(space, nodes, [Flip(x, groups, -1.0)])}
                cells = nodes.cells.tolist()
                assert found == {
                    row for row in range(len(nodes)) if any(set(groups) <= set(s) for s in sets_of(tree, cells[row]))
                }
            nodes = split_cells(tree, nodes)[0]


def test_probes_hold_their_flip() -> None:
    domain = make_domain((2, 3, 3), low=-1.0, high=2.0)
    image = torch.full((2, 3, 3), 0.5)
    space = Space(make_tree(domain), domain, image)
    x = image.flatten().double().numpy().copy()
    x[[1, 10, 5]] = 0.25, -1.0, 2.0
    flip = Flip(x, (1, 5), -1.0)
    cells, boxes = cell_nodes(space, [flip], 2), box_nodes(space, [flip], 2)
    assert cells is not None
    assert boxes is not None
    for nodes in (cells, boxes):
        assert [row for row, _ in held(space, nodes, [flip])] == list(range(len(nodes)))
    halves = split_boxes(boxes.pick(slice(0, 1)), torch.ones(1, 2, 2))
    assert len(list(held(space, halves, [flip]))) == 1


def favoured(network: Network, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Network:
    """The network with another last layer than its source has; ``change`` gives its weight and bias."""
    if network.exact is None:
        return network
    last = network.exact.operations[-1]
    weight, bias = change(last.tensors["weight"].clone(), last.tensors["bias"].clone())
    exact = Graph((*network.exact.operations[:-1], replace(last, tensors={"weight": weight, "bias": bias})))
    graph = exact.to("cpu", torch.float32)
    # The source in float64 tells the same, else the comparison with it would notice the mistake first.
    changed = replace(network, exact=exact, graph=graph, forward=lambda x: run(graph, x))
    return replace(changed, double=lambda x: run(exact, x), dropped="")


def larger_bias(by: float, network: Network, target: Target) -> Network:
    """A mistake in the label's favour, everywhere."""

    def change(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        bias[target.label] += by * (1 + float(weight.abs().max()))
        return weight, bias

    return favoured(network, change)


def one_weight(network: Network, target: Target) -> Network:
    """A mistake in one weight, in the label's favour at a flip."""
    if network.exact is None:
        return network
    x = torch.from_numpy(target.flips[0].x).reshape(1, *network.input_shape)
    values = run(Graph(network.exact.operations[:-1]), x)[0].flatten()

    def change(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        place = int(values.abs().argmax())
        weight[target.label, place] += 0.01 * (1 + float(weight.abs().max())) * torch.sign(values[place])
        return weight, bias

    return favoured(network, change)


MISTAKES: dict[str, tuple[str, Tamper]] = {
    "a bias": ("certified", partial(larger_bias, 0.01)),
    "a weight": ("certified", one_weight),
    "a bias on a grid": ("grid", partial(larger_bias, 0.01)),
    "a weight on a grid": ("grid", one_weight),
    "a large bias": ("lipschitz", partial(larger_bias, 100.0)),  # what lies between grid points needs room
}


@cache
def complaints(seed: int, guarantee: str) -> tuple[object, ...]:
    """About the prover as it is."""
    return run_case(seed, Tally(), only=[guarantee, "linear", "module"]).complaints


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name: str) -> None:
    guarantee, mistake = MISTAKES[name]
    noticed: Counter[str] = Counter()
    tested = 0
    for seed in range(4, 9):
        assert complaints(seed, guarantee) == ()
        result = run_case(seed, Tally(), only=[guarantee, "linear", "module"], tamper=mistake)
        tested += result.outcome == "tested"
        noticed.update({complaint.check for complaint in result.complaints})
    assert tested > 2
    assert noticed[guarantee] > 1
    if guarantee == "certified":
        assert min(noticed["prover's bounds"], noticed["checker's bounds"]) > 3
        for check in ("parts of a run", "certified by cells", "parts of a search", "accepted certificate"):
            assert noticed[check] > 1
