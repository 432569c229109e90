"""The checker's charged bounds on maps: strides, padding, dilation, pools, branches, and groups of every kind."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from l0tre.certify.checker import margins as margins_module
from l0tre.certify.checker.certificate import Certificate
from l0tre.certify.checker.check import spread_of
from l0tre.certify.checker.cover import Regions, Tree, make_regions, make_tree
from l0tre.certify.checker.layers import Layers, make_layers
from l0tre.certify.checker.lines import make_lines
from l0tre.certify.checker.margins import Bounder, lower_margins, make_bounder
from l0tre.domain import make_domain
from l0tre.model.graph import Graph, GraphBuilder, Operation, run, run_operation
from tests.certify.checker.cases import CPU, Case, as_network, certify

SEEDS = range(40)
BENDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("relu", {}),
    ("relu", {}),
    ("leaky_relu", {"slope": 0.2}),
    ("leaky_relu", {"slope": 2.0}),
    ("clip", {"low": -0.4, "high": 0.9}),
    ("tanh", {}),
    ("sigmoid", {}),
)


def maps(seed: int, *, branches: bool = True) -> Graph:
    """A random stack of operations on maps, then two dense layers."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> Tensor:
        return 1.5 * torch.randn(*shape, generator=generator) / math.sqrt(math.prod(shape[1:]) or 1)

    def conv(source: int, out: int, kernel: int, stride: int, padding: int, dilation: int, groups: int = 1) -> int:
        return graph.add(
            "conv",
            [source],
            {"weight": weights(out, graph.shape(source)[0] // groups, kernel, kernel), "bias": 0.3 * weights(out)},
            stride=(stride, stride),
            padding=(padding, padding),
            dilation=(dilation, dilation),
            groups=groups,
        )

    graph = GraphBuilder((draw.choice([1, 2]), draw.randint(5, 7), draw.randint(5, 7)))
    top = 0
    if draw.random() < 0.5:
        scale = torch.rand(graph.shape(0), generator=generator) + 0.5
        top = graph.add("scale", [0], {"scale": scale, "shift": torch.tensor(-0.4)})
    for _ in range(draw.randint(1, 3)):
        channels, height, width = graph.shape(top)
        small = min(height, width)
        if small < 3:
            break
        kind = draw.choice(["conv", "conv", "groups", "max", "mean", "pad", "branch", "concat"])
        if kind == "conv":
            dilation = draw.choice([1, 1, 2]) if small >= 5 else 1
            top = conv(top, draw.randint(2, 3), draw.randint(1, 3), draw.choice([1, 2]), draw.randint(0, 2), dilation)
        elif kind == "groups":
            top = conv(top, 2 * channels, 2, 1, draw.randint(0, 1), 1, groups=channels)
        elif kind == "max":
            stride, padding = draw.choice([1, 2]), draw.randint(0, 1)
            shape: dict[str, Any] = {
                "kernel": (2, 3),
                "stride": (stride, 1),
                "padding": (padding, padding),
                "dilation": (1, 1),
            }
            top = graph.add("max_pool", [top], **shape)
        elif kind == "mean":
            shape = {"kernel": (2, 2), "stride": (draw.choice([1, 2]), 1), "padding": (1, 1)}
            top = graph.add("avg_pool", [top], **shape, count_include_pad=draw.random() < 0.5)
        elif kind == "pad":
            top = graph.add("pad", [top], padding=(draw.randint(-1, 2), 1, draw.randint(-1, 1), 0), value=0.3)
        elif branches:
            second = conv(top, channels, 3, 1, 1, 1)
            how = draw.choice(["add", "sub"])
            top = graph.add("concat", [top, second], dim=0) if kind == "concat" else graph.add(how, [second, top])
        op, settings = draw.choice(BENDS)
        top = graph.add(op, [top], **settings)
    top = graph.add("reshape", [top], shape=(math.prod(graph.shape(top)),))
    top = graph.add("relu", [graph.add("linear", [top], {"weight": weights(6, graph.shape(top)[0])})])
    return graph.build(graph.add("linear", [top], {"weight": weights(3, 6), "bias": weights(3)})).to("cpu")


def case_of(seed: int, *, branches: bool = True) -> Case:
    """A random network with a domain of pixels, single values, or groups of several pixels; some values frozen."""
    graph, draw = maps(seed, branches=branches), random.Random(seed)
    shape, generator = graph.input_shape, torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"low": -0.2, "mask": torch.rand(shape, generator=generator) < 0.9}
    kind = draw.choice(["pixel", "pixel", "feature", "several"])
    options["groups"] = kind
    if kind == "several":
        options["groups"] = torch.randint(-1, math.prod(shape) // 3, shape, generator=generator)
    domain = make_domain(shape, **options)
    image = torch.rand(shape, generator=generator)
    return Case(as_network(graph), image, domain, int(run(graph, image[None])[0].argmax()))


def prepared(case: Case, made: Certificate, memory: int = 2**22) -> tuple[Bounder, Tree, Regions]:
    assert case.network.exact is not None
    tree = make_tree(made, case.domain.groups)
    order = torch.from_numpy(tree.groups)
    bounder = make_bounder(case.network.exact, case.image, case.domain, order, CPU, memory)
    return bounder, tree, make_regions(made, tree, case.domain)


def points(case: Case, tree: Tree, region: Regions, rng: np.random.Generator, number: int) -> Tensor:
    """Inputs of one region, many of their values at the ends of the ranges."""
    flat = case.image.double().flatten().repeat(number, 1)
    cells = region.cells[0].tolist()
    boxed = bool((tree.count[region.cells[0]] == 1).all())
    for sample in flat:
        for cell in set(cells):
            inside = tree.groups[tree.start[cell] : tree.start[cell] + tree.count[cell]]
            for group in rng.permutation(inside)[: cells.count(cell)]:
                place = case.domain.members[group, : case.domain.sizes[group]]
                low, high = case.domain.low[place].numpy(), case.domain.high[place].numpy()
                if boxed:
                    low, high = (e[0, cells.index(cell), : len(place)] for e in (region.low, region.high))
                share = np.clip(rng.uniform(-1, 2, len(place)), 0, 1)
                sample[place] = torch.from_numpy(np.clip(low + (high - low) * share, low, high)).double()
    return flat.reshape(-1, *case.domain.shape)


def by_kind(regions: Regions, tree: Tree) -> list[Regions]:
    single = (tree.count[regions.cells] == 1).all(1)
    return [part for part in (regions[single], regions[~single]) if len(part)]


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS)
def test_every_range_and_margin_holds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the margins: the ranges of all layers hold at points of the region."""
    case, rng = case_of(seed), np.random.default_rng(seed)
    graph, ranges = case.network.exact, list[tuple[Operation, Tensor, Tensor]]()
    assert graph is not None

    def recorded(node: Operation, low: Tensor, high: Tensor, own: Tensor | None) -> Any:
        ranges.append((node, low, high))
        return make_lines(node, low, high, own)

    monkeypatch.setattr(margins_module, "make_lines", recorded)
    made = certify(case, 1 + seed % 3, seed, stop=0.5)
    bounder, tree, regions = prepared(case, made)
    for part in by_kind(regions, tree):
        part = part[:12]
        ranges.clear()
        bounds = lower_margins(bounder, spread_of(part, tree, case.domain, bounder), case.label)
        assert bool(torch.isfinite(bounds).all())
        for row in range(len(part)):
            x = points(case, tree, part[row : row + 1], rng, 60)
            values = [x]
            for node in graph.operations[1:]:
                values.append(run_operation(node, *(values[source] for source in node.inputs)))
            for node, low, high in ranges:
                value = values[node.inputs[0]]
                assert bool((value >= low[row]).all())
                assert bool((value <= high[row]).all())
            gaps = values[-1][:, [case.label]] - values[-1]
            gaps[:, case.label] = math.inf
            assert float(bounds[row]) <= float(gaps.min())


@pytest.mark.parametrize("seed", SEEDS)
def test_outputs_depend_on_what_they_see_alone(seed: int) -> None:
    graph = maps(seed).to(CPU, torch.float64)
    layers, generator = make_layers(graph.operations), torch.Generator().manual_seed(seed)
    channels, height, width = graph.input_shape
    assert len(layers.reach) > 1
    for _ in range(3):
        start = torch.rand(1, *graph.input_shape, dtype=torch.float64, generator=generator)
        x = start.repeat(1 + height * width, 1, 1, 1)
        for pixel in range(height * width):
            x[1 + pixel, :, pixel // width, pixel % width] += torch.randn(channels, generator=generator)
        values = [x]
        for node in graph.operations[1:]:
            values.append(run_operation(node, *(values[source] for source in node.inputs)))
        for position, reach in layers.reach.items():
            rows, columns = (
                reach.seen(d, graph.operations[position].shape[1 + d], reach.offset[d], (height, width)[d], x)
                for d in (0, 1)
            )
            seen = torch.einsum("yp,xq->pqyx", rows, columns).flatten(0, 1) > 0
            moved = ((values[position][1:] - values[position][:1]).abs() > 1e-9).any(1)
            assert not bool((moved & ~seen).any())


def test_what_outputs_see_is_no_larger_than_the_kernels() -> None:
    builder = GraphBuilder((1, 12, 12))
    shape: dict[str, Any] = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    first = builder.add("conv", [0], {"weight": torch.ones(1, 1, 4, 4)}, **shape)
    second = builder.add("conv", [first], {"weight": torch.ones(1, 1, 3, 3)}, **shape)
    reach = make_layers(builder.build(second).operations).reach[second]
    assert (reach.stride, reach.offset, reach.size) == ((4, 4), (-3, -3), (8, 8))


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS)
def test_windows_give_what_whole_rows_give(seed: int) -> None:
    """Up to where gaps go: a window has pixels outside the input, whose costs can make it prefer the other way."""
    case = case_of(seed, branches=False)
    made = certify(case, 2, seed, stop=0.6)
    bounder, tree, regions = prepared(case, made, 2**18)
    assert len(bounder.layers.windowed) > 1
    layers = Layers(bounder.layers.operations, bounder.layers.reach, frozenset())
    whole = Bounder(layers, bounder.scope, bounder.own, bounder.limit, bounder.slack, 2**26)
    padded = any(any(node.ints("padding")) for node in layers.operations if "padding" in node.attributes)
    for part in by_kind(regions, tree):
        spread = spread_of(part, tree, case.domain, bounder)
        ours, theirs = (lower_margins(b, spread, case.label) for b in (bounder, whole))
        assert bool((ours <= theirs + 1e-9).all())
        if not padded:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_gaps_of_outputs_that_see_no_change_are_not_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many outputs, each seeing one pixel: with all gaps paid the bound is far off, with one pixel's it is exact."""
    builder = GraphBuilder((1, 6, 6))
    top = builder.add("relu", [builder.add("scale", [0], {"shift": torch.tensor(-0.5)})])
    weight = torch.stack([torch.zeros(36), torch.ones(36)])
    flat = builder.add("reshape", [top], shape=(36,))
    graph = builder.build(builder.add("linear", [flat], {"weight": weight, "bias": torch.tensor([0.6, 0.0])})).to("cpu")
    case = Case(as_network(graph), torch.full((1, 6, 6), 0.3), make_domain((1, 6, 6)), 0)
    bounder, tree, regions = prepared(case, certify(case, 1, 0, stop=1.0))
    spread = spread_of(regions, tree, case.domain, bounder)
    assert float(lower_margins(bounder, spread, 0)[0]) == pytest.approx(0.6 - 0.5, abs=1e-6)
    monkeypatch.setattr(margins_module, "_changes", lambda *_: 0)
    assert float(lower_margins(bounder, spread, 0)[0]) < -5


@pytest.mark.parametrize("pixels", [1, 2, 3])
@pytest.mark.parametrize("radius", [1, 2])
def test_every_changed_pixel_pays(pixels: int, radius: int) -> None:
    """Each pixel that is 1 takes 0.1, through two bends with gaps: the bound is exact, with groups of any size."""
    builder = GraphBuilder((2, 6, 6))
    top = builder.add("relu", [builder.add("scale", [0], {"shift": torch.tensor(-0.5)})])
    top = builder.add("relu", [builder.add("scale", [top], {"shift": torch.tensor(-0.4)})])
    weight = torch.stack([torch.zeros(72), torch.ones(72)])
    flat = builder.add("reshape", [top], shape=(72,))
    graph = builder.build(builder.add("linear", [flat], {"weight": weight, "bias": torch.tensor([2.0, 0.0])})).to("cpu")
    groups = (torch.arange(36) // pixels).reshape(6, 6)
    case = Case(as_network(graph), torch.full((2, 6, 6), 0.3), make_domain((2, 6, 6), groups=groups), 0)
    bounder, tree, regions = prepared(case, certify(case, radius, 0, stop=1.0))
    assert (bounder.scope.place is not None) == (pixels == 1)
    bound = lower_margins(bounder, spread_of(regions, tree, case.domain, bounder), 0)
    assert float(bound[0]) == pytest.approx(2.0 - 2 * 0.1 * pixels * radius, abs=1e-6)


@pytest.mark.parametrize("pixels", [1, 2, 3])
@pytest.mark.parametrize("radius", [1, 2])
def test_windows_pay_for_every_changed_pixel(pixels: int, radius: int) -> None:
    """The range of a sum of bends ends exactly where all changed pixels are 1, a little above the next bend."""
    builder, most = GraphBuilder((1, 6, 6)), 0.5 * pixels * radius
    top = builder.add("relu", [builder.add("scale", [0], {"shift": torch.tensor(-0.5)})])
    shape: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    summed = {"weight": torch.ones(1, 1, 6, 6), "bias": torch.tensor([0.1 - most])}
    top = builder.add("relu", [builder.add("conv", [top], summed, **shape)])
    weight, flat = torch.tensor([[0.0], [1.0]]), builder.add("reshape", [top], shape=(1,))
    graph = builder.build(builder.add("linear", [flat], {"weight": weight, "bias": torch.tensor([2.0, 0.0])})).to("cpu")
    groups = (torch.arange(36) // pixels).reshape(6, 6)
    case = Case(as_network(graph), torch.full((1, 6, 6), 0.3), make_domain((1, 6, 6), groups=groups), 0)
    bounder, tree, regions = prepared(case, certify(case, radius, 0, stop=1.0))
    bound = lower_margins(bounder, spread_of(regions, tree, case.domain, bounder), 0)
    assert float(bound[0]) == pytest.approx(2.0 - 0.1, abs=1e-6)
