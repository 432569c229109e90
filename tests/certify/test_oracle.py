"""The oracles agree with each other, with brute force on grids and with networks whose answer is known."""

import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import milp
from torch import Tensor, nn

from l0tre.domain import make_domain
from l0tre.errors import ModelError
from l0tre.model.graph import Graph, GraphBuilder
from l0tre.model.module_import import import_module
from l0tre.model.network import margins
from tests.certify import oracle
from tests.certify.oracle import dense_minimum, exact_distance, exact_minimum, piecewise_minimum_1d
from tests.certify.random_networks import KINDS, SMOOTH, Case, planted, random_case
from tests.tools import brute_force, tiny_module

SEEDS = range(3 * len(KINDS))
LINEAR_SEEDS = [seed for seed in SEEDS if list(KINDS)[seed % len(KINDS)] not in SMOOTH]
FEW = settings(max_examples=15, deadline=None, derandomize=True)


def minimum(case: Case, groups: tuple[int, ...], low: Tensor | None = None, high: Tensor | None = None) -> float:
    return exact_minimum(case.graph, case.image, case.label, case.domain, groups, low, high)[0]


@pytest.mark.slow
@FEW
@given(kind=st.sampled_from(["dense", "conv1"]), seed=st.integers(0, 10_000))
def test_the_program_is_below_every_grid_point_and_attained(kind: str, seed: int) -> None:
    module, shape = tiny_module(kind, seed)
    image, domain = torch.rand(shape), make_domain(shape)
    label = int(module(image[None]).argmax())
    graph = import_module(module, shape)
    grid = brute_force(module, image, label, domain, [0.0, 0.5, 1.0])
    for groups in (*itertools.combinations(range(domain.groups), 2), tuple(range(domain.groups))):
        value, x = exact_minimum(graph, image, label, domain, groups)
        assert value <= grid.margins[groups] + 1e-6
        own = margins(module.double()(x[None]).detach(), torch.tensor([label]))
        module.float()
        assert value == pytest.approx(float(own), abs=1e-9)
        changed = (x != image.double()).flatten()
        changed[domain.members[list(groups)].flatten()] = False
        assert not changed.any()
        assert ((x >= 0) & (x <= 1)).all()
    distance = exact_distance(graph, image, label, domain, 2)
    assert distance <= min(grid.distance(), 3)


@pytest.mark.slow
@FEW
@given(seed=st.integers(0, 10_000))
def test_the_distance_of_a_linear_network_is_that_of_the_corners(seed: int) -> None:
    torch.manual_seed(seed)
    module, image, domain = nn.Linear(5, 3), torch.rand(5), make_domain((5,))
    label = int(module(image[None]).argmax())
    corners = brute_force(module, image, label, domain, [0.0, 1.0])
    assume(corners.closest_tie() > 1e-4)
    graph = import_module(module, (5,))
    for most in (1, 2, 5):
        assert exact_distance(graph, image, label, domain, most) == min(corners.distance(), most + 1)
    for groups in itertools.combinations(range(5), 2):
        # A changed value need not go to a corner, but not changing it is no better than the best corner.
        value, _ = exact_minimum(graph, image, label, domain, groups)
        assert value == pytest.approx(corners.margins[groups], abs=1e-6)


@pytest.mark.family
@pytest.mark.parametrize("seed", LINEAR_SEEDS)
def test_the_program_equals_the_sweep_along_every_value(seed: int) -> None:
    case = random_case(seed)
    shape, (low, high) = case.domain.shape, (case.domain.low, case.domain.high)
    single = make_domain(shape, groups="feature", low=low.reshape(shape), high=high.reshape(shape))
    for group, position in enumerate(single.members[:, 0].tolist()):
        value, _ = exact_minimum(case.graph, case.image, case.label, single, [group])
        swept = piecewise_minimum_1d(case.graph, case.image, case.label, single, position)
        assert value == pytest.approx(swept, abs=1e-6)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 0, 2), (2, 1, 2)])
def test_padding_of_a_max_pool_never_wins(stride: int, padding: int, dilation: int) -> None:
    torch.manual_seed(stride + 2 * dilation)
    pool = nn.MaxPool2d(2, stride, padding, dilation)
    shape, wide = (1, 3, 3), pool(torch.zeros(1, 1, 3, 3)).numel()
    graph = import_module(nn.Sequential(pool, nn.Flatten(), nn.Linear(wide, 3)), shape)
    image, domain = -torch.rand(shape), make_domain(shape, low=-1.0, high=0.0)  # all below a padding of zeros
    for group in range(9):
        value, _ = exact_minimum(graph, image, 0, domain, [group])
        assert value == pytest.approx(piecewise_minimum_1d(graph, image, 0, domain, group), abs=1e-6)
        dense, _ = dense_minimum(graph, image, 0, domain, [group, (group + 1) % 9], points=400)
        assert exact_minimum(graph, image, 0, domain, [group, (group + 1) % 9])[0] <= dense + 1e-6


@pytest.mark.family
@pytest.mark.parametrize("seed", LINEAR_SEEDS[::3])
def test_the_program_is_below_a_dense_search_and_near_it(seed: int) -> None:
    case = random_case(seed)
    for groups in itertools.islice(itertools.combinations(range(case.domain.groups), 2), 8):
        value = minimum(case, groups)
        dense, x = dense_minimum(case.graph, case.image, case.label, case.domain, groups)
        assert value - 1e-6 <= dense
        assert dense == pytest.approx(value, abs=0.05 * (1 + abs(value)))
        flat = x.flatten()
        assert ((flat >= case.domain.low.double()) & (flat <= case.domain.high.double())).all()


@pytest.mark.family
@pytest.mark.parametrize("seed", LINEAR_SEEDS[1::4])
def test_halves_of_a_box_have_the_minimum_of_the_box(seed: int) -> None:
    case = random_case(seed)
    groups = tuple(range(min(2, case.domain.groups)))
    members = case.domain.members[list(groups)]
    low, high = case.domain.low[members], case.domain.high[members]
    middle = (low + high) / 2
    left, right = high.clone(), low.clone()
    left[0, 0], right[0, 0] = middle[0, 0], middle[0, 0]
    # A column past the end of a group repeats its first value and must not count.
    left[0, int(case.domain.sizes[0]) :] = right[0, int(case.domain.sizes[0]) :] = math.nan
    halves = minimum(case, groups, low, left), minimum(case, groups, right, high)
    assert min(halves) == pytest.approx(minimum(case, groups), abs=1e-6)


@pytest.mark.parametrize(
    ("pixels", "values", "shape"),
    [
        ((3,), (0.83,), (1, 4, 4)),
        ((5, 10), (0.113, 0.871), (1, 4, 4)),
        ((0, 15), (0.0, 1.0), (1, 4, 4)),
        ((1, 2, 7), (0.9, 0.05, 0.77), (1, 4, 4)),
        ((0, 3), (0.2, 0.9), (3, 2, 2)),
    ],
)
def test_planted_networks_have_their_distance(
    pixels: tuple[int, ...], values: tuple[float, ...], shape: tuple[int, ...]
) -> None:
    case = planted(pixels, values, shape)
    for most in range(1, len(pixels) + 1):
        assert exact_distance(case.graph, case.image, case.label, case.domain, most) == min(len(pixels), most + 1)
    value, x = exact_minimum(case.graph, case.image, case.label, case.domain, pixels)
    assert value == pytest.approx(-0.1, abs=1e-6)
    wanted = torch.tensor(values, dtype=torch.float64)
    assert torch.allclose(x.flatten(1)[:, list(pixels)], wanted.expand(shape[0], -1), atol=1e-5)
    others = [pixel for pixel in range(case.domain.groups) if pixel != pixels[0]]
    assert minimum(case, tuple(others)) > 0


def test_a_planted_value_near_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match="further than"):
        planted((1, 2), (0.9, 0.55))


def smooth_valley() -> Graph:
    """Two scores whose margin is smallest between the ends: ``tanh(4x - 1.6) - tanh(4x - 1.2)``."""
    builder = GraphBuilder((2,))
    tensors = {"weight": torch.tensor([[4.0, 0.0], [4.0, 0.0]]), "bias": torch.tensor([-1.6, -1.2])}
    return builder.build(builder.add("tanh", [builder.add("linear", [0], tensors)]))


def test_the_dense_search_finds_a_smooth_valley() -> None:
    value, x = dense_minimum(smooth_valley(), torch.zeros(2), 0, make_domain((2,)), [0], points=10)
    assert value == pytest.approx(-2 * math.tanh(0.2), abs=1e-6)
    assert float(x[0]) == pytest.approx(0.35, abs=1e-3)
    assert float(x[1]) == 0.0


def test_smooth_networks_are_refused_by_the_exact_oracles() -> None:
    graph, image, domain = smooth_valley(), torch.zeros(2), make_domain((2,))
    with pytest.raises(ModelError, match="tanh"):
        exact_minimum(graph, image, 0, domain, [0])
    with pytest.raises(ModelError, match="tanh"):
        piecewise_minimum_1d(graph, image, 0, domain, 0)


def test_a_program_that_is_not_the_network_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def dishonest(*args: Any, **options: Any) -> Any:
        result = milp(*args, **options)
        result.fun -= 0.1
        return result

    monkeypatch.setattr(oracle, "milp", dishonest)
    case = random_case(0)
    with pytest.raises(AssertionError, match="the network gives"):
        minimum(case, (0,))


@pytest.mark.slow
def test_every_layer_and_every_domain_occurs() -> None:
    cases = [random_case(seed) for seed in SEEDS]
    operations = Counter(operation.kind for case in cases for operation in case.graph.operations)
    wanted = "conv linear scale relu leaky_relu clip max_pool avg_pool mean reshape transpose pad add sub concat"
    assert not set(f"{wanted} sigmoid tanh".split()) - set(operations)
    layers = {type(layer) for case in cases for layer in case.module.modules()}
    assert {nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout, nn.Softmax, nn.LogSoftmax, nn.ReLU6} <= layers
    convs = [operation for case in cases for operation in case.graph.operations if operation.kind == "conv"]
    for setting, plain in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1)), ("groups", (1,))):
        assert any(operation.ints(setting) != plain for operation in convs), setting
    assert {case.domain.unit for case in cases} == {"pixel", "feature", "group"}
    assert any(case.domain.sizes.min() < case.domain.sizes.max() for case in cases)
    assert any((case.domain.low == case.domain.high).any() for case in cases)
    assert any(
        ((case.image.flatten() == case.domain.low) | (case.image.flatten() == case.domain.high)).all() for case in cases
    )
    distances = {
        exact_distance(case.graph, case.image, case.label, case.domain, 3)
        for case in cases[:20]
        if case.kind not in SMOOTH and case.domain.members.shape[1] < 3
    }
    assert {1, 2, 3} <= distances


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS)
def test_a_case_is_sound(seed: int) -> None:
    case = random_case(seed)
    assert case.domain.groups <= 12
    case.domain.check(case.image[None], (0,))
    labels = torch.full((1,), case.label)
    assert float(margins(case.network.scores(case.image[None]), labels)) > 1e-3
    assert torch.allclose(case.module(case.image[None])[0], case.network.replay(case.image), atol=1e-5)
    again = random_case.__wrapped__(seed)
    assert torch.equal(again.image, case.image)
    assert again.network.fingerprint == case.network.fingerprint
    for field in dataclasses.fields(case.domain):
        first, second = getattr(case.domain, field.name), getattr(again.domain, field.name)
        assert torch.equal(first, second) if isinstance(first, Tensor) else first == second
