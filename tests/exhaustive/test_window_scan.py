"""Windows and sums give the numbers of whole forward passes, over random architectures."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import l0tre
from l0tre.domain import Domain, make_domain
from l0tre.exhaustive import settled, window_scan
from l0tre.exhaustive.grid_scan import Chunk, Level, make_level, scan, scan_sets, solutions
from l0tre.exhaustive.scanner import Engine, ForwardScanner, choose_engine, make_scanner
from l0tre.exhaustive.window_scan import WindowScanner
from l0tre.grid import make_grid
from l0tre.locality.interactions import interactions
from l0tre.locality.local_part import LocalPlan, Span, plan_local, reach, spans
from l0tre.locality.single_pixels import Locality, make_locality
from l0tre.memory import Batcher
from l0tre.model.graph import Graph, GraphBuilder
from l0tre.model.network import Network, margins
from l0tre.model.rounding import Error, RoundOff
from l0tre.objective import AllRivals
from l0tre.tuning import DEFAULT_TUNING, Tuning
from tests.tools import graph_network

POINTWISE = ["relu", "leaky_relu", "sigmoid", "tanh", "clip"]


@st.composite
def graphs(draw: st.DrawFn, head: str | None = None) -> Graph:
    """A random network: local operations, residual and concatenated branches, then a head and maybe a tail."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    shape = (draw(st.sampled_from([1, 2, 3])), draw(st.integers(4, 6)), draw(st.integers(4, 6)))
    build = GraphBuilder(shape)
    at = 0

    def conv(source: int, out: int, kernel: int, stride: int, padding: int, dilation: int, groups: int) -> int:
        channels = build.shape(source)[0]
        weight = random(out, channels // groups, kernel, kernel) / (kernel * channels**0.5)
        settings_: dict[str, Any] = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (dilation,) * 2}
        return build.add("conv", [source], {"weight": weight, "bias": random(out)}, groups=groups, **settings_)

    for _ in range(draw(st.integers(1, 4))):
        channels, height, width = build.shape(at)
        kind = draw(st.sampled_from(["conv", "conv", "pointwise", "pool", "scale", "residual", "concat", "pad"]))
        small = min(height, width)
        if kind == "conv" and small >= 2:
            kernel = draw(st.integers(1, min(3, small)))
            groups = channels if draw(st.booleans()) else 1
            at = conv(at, 2 * groups, kernel, draw(st.integers(1, 2)), draw(st.integers(0, kernel - 1)), 1, groups)
            at = build.add(draw(st.sampled_from(["relu", "tanh"])), [at])
        elif kind == "pointwise":
            op = draw(st.sampled_from(POINTWISE))
            extra: dict[str, Any] = {"leaky_relu": {"slope": 0.1}, "clip": {"low": 0.1, "high": 0.8}}.get(op, {})
            at = build.add(op, [at], **extra)
        elif kind == "pool" and small >= 2:
            op = draw(st.sampled_from(["max_pool", "avg_pool"]))
            stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, 1))
            pool: dict[str, Any] = {"kernel": (2, 2), "stride": (stride, stride), "padding": (padding, padding)}
            more: dict[str, Any] = {"dilation": (1, 1)} if op == "max_pool" else {"count_include_pad": True}
            at = build.add(op, [at], **pool, **more)
        elif kind == "scale":
            at = build.add("scale", [at], {"scale": random(channels, 1, 1), "shift": random(channels, height, width)})
        elif kind == "residual":
            inner = build.add("relu", [conv(at, channels, 3, 1, 1, 1, 1)])
            at = build.add(draw(st.sampled_from(["add", "sub"])), [at, inner])
        elif kind == "concat":
            at = build.add("concat", [at, build.add("sigmoid", [conv(at, 2, 1, 1, 0, 1, 1)])], dim=0)
        elif kind == "pad":
            at = build.add("pad", [at], padding=(1, 0, 0, 1), value=0.3)
    head = head or draw(st.sampled_from(["linear", "linear tail", "mean", "map"]))
    if head == "mean":
        at = build.add("mean", [at], dims=(1, 2), keepdim=draw(st.booleans()))
    if head == "map":  # a product of two branches is not local
        at = build.add("mul", [at, build.add("sigmoid", [at])])
    size = torch.Size(build.shape(at)).numel()
    at = build.add("reshape", [at], shape=(size,))
    if head in ("linear tail", "mean", "map"):
        at = build.add("linear", [at], {"weight": random(5, size) / size**0.5, "bias": random(5)})
        at = build.add("relu", [at])
        size = 5
    at = build.add("linear", [at], {"weight": random(3, size) / size**0.5, "bias": 3 * random(3)})
    return build.build(at).to("cpu")


def _network(graph: Graph) -> Network:
    return graph_network(graph, name="random")


def _setup(
    graph: Graph, t: int, images: int, domain: Domain | None = None, tuning: Tuning = DEFAULT_TUNING
) -> tuple[Locality, Level, Batcher, Tensor, Tensor] | None:
    plan = plan_local(graph, {"linear": 1.0, "mean": 1.0, "map": 1.0}, tuning)
    if isinstance(plan, str):
        return None
    domain = domain or make_domain(graph.input_shape)
    grid = make_grid(domain, 0.5 if t < 3 else 1.0, colours="corners" if graph.input_shape[0] > 1 else "grid")
    if t == 3 or graph.input_shape[0] == 3:
        grid = grid[:, :2]
    locality = make_locality(plan, domain, grid)
    assert isinstance(locality, Locality)
    network = _network(graph)
    x = torch.rand(images, *graph.input_shape, generator=torch.Generator().manual_seed(5))
    return locality, make_level(domain, grid, t), Batcher(network, 2**26), x.flatten(1), network.scores(x).argmax(1)


def _same(found: Chunk, wanted: Chunk, size: float) -> None:
    assert torch.equal(found.sets, wanted.sets)
    assert torch.allclose(found.score, wanted.score, atol=2e-5 * size)
    assert torch.allclose(found.margin, wanted.margin, atol=2e-5 * size)
    assert torch.equal(found.safe, wanted.safe)


def _attained(chunk: Chunk, level: Level, batcher: Batcher, x: Tensor, labels: Tensor, size: float) -> None:
    """The grid points named as the worst ones really have the worst score and margin."""
    for row, label in enumerate(labels):
        for points, worst, what in (
            (chunk.margin_point, chunk.margin, lambda s, y: margins(s, y)),
            (chunk.score_point, chunk.score, lambda s, y: s.gather(1, y[:, None])[:, 0]),
        ):
            groups, values = solutions(level, chunk.sets, points[row])
            count = len(chunk.sets)
            positions = level.domain.members[groups].reshape(count, -1)
            changed = x[row].expand(count, -1).clone().scatter_(1, positions, values.reshape(count, -1))
            scores = batcher.network.scores(changed.reshape(-1, *level.domain.shape))
            assert torch.allclose(what(scores, label.expand(count)), worst[row], atol=2e-5 * size)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(graph=graphs(), images=st.integers(1, 2), split=st.floats(0, 1))
def test_singles_equal_forward_passes(graph: Graph, images: int, split: float) -> None:
    _compare(graph, 1, images, split)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(graph=graphs(), images=st.integers(1, 2), split=st.floats(0, 1))
def test_pairs_equal_forward_passes(graph: Graph, images: int, split: float) -> None:
    _compare(graph, 2, images, split)


@pytest.mark.slow
@settings(max_examples=3, deadline=None, derandomize=True)
@given(graph=graphs(head="linear"), split=st.floats(0, 1))
def test_triples_equal_forward_passes(graph: Graph, split: float) -> None:
    _compare(graph, 3, 1, split)


def _compare(
    graph: Graph, t: int, images: int, split: float, domain: Domain | None = None, tuning: Tuning = DEFAULT_TUNING
) -> LocalPlan | None:
    setup = _setup(graph, t, images, domain, tuning)
    if setup is None:
        return None
    locality, level, batcher, x, labels = setup
    scanner, _, _ = make_scanner(Engine(locality, ""), level, batcher, 2**24)
    if isinstance(scanner, ForwardScanner):
        return None
    wanted = scan(batcher, level, x, AllRivals(labels), 0, level.sets)
    found = scanner.prepare(x, AllRivals(labels))
    middle = int(split * level.sets)
    size = float(wanted.margin.abs().max() + wanted.score.abs().max())
    ranges = [r for r in ((0, middle), (middle, level.sets)) if r[0] < r[1]]
    for start, stop in ranges:
        chunk = found(start, stop)
        _same(chunk, scan(batcher, level, x, AllRivals(labels), start, stop), size)
        _attained(chunk, level, batcher, x, labels, size)
    return locality.plan


def _paper_like(kind: str) -> tuple[nn.Module, tuple[int, int, int]]:
    torch.manual_seed(1)
    if kind == "sdnn":
        layers = [nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 9 * 9, 4)), (1, 7, 7)
    if kind == "dnn-0":
        layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 9, 6), nn.ReLU(), nn.Linear(6, 4)), (1, 10, 10)
    if kind == "strided":
        layers = [nn.Conv2d(1, 3, 4, stride=2), nn.ReLU(), nn.Conv2d(3, 4, 2, stride=2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 4)), (1, 10, 10)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, 4)), (1, 6, 6)


@pytest.mark.family
@pytest.mark.parametrize("t", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sdnn", "dnn-0", "strided", "dense"])
def test_the_papers_kinds_of_network(kind: str, t: int) -> None:
    module, shape = _paper_like(kind)
    network = l0tre.load(module, input_shape=shape, device="cpu")
    assert network.graph is not None
    mask = torch.zeros(shape[1:], dtype=torch.bool)
    mask[: (shape[1], 6, 4)[t - 1], : (shape[2], shape[2], 3)[t - 1]] = True  # all pixels, two corners, one
    plan = _compare(network.graph, t, 2 if t == 1 else 1, 0.4, make_domain(shape, mask=mask))
    assert plan is not None
    assert plan.head == "linear"


def test_single_features_of_a_pixel_are_groups_of_their_own() -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))
    network = l0tre.load(module, input_shape=(3, 4, 4), device="cpu")
    assert network.graph is not None
    domain = make_domain((3, 4, 4), groups="feature")
    assert _compare(network.graph, 2, 1, 0.5, domain) is not None


def test_vectors_are_maps_of_one_row() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))
    network = l0tre.load(module, input_shape=(9,), mean=[0.3], std=[0.5], device="cpu")
    assert network.graph is not None
    for t in (1, 2, 3):
        assert _compare(network.graph, t, 2, 0.3) is not None


class Forked(nn.Module):
    """Two dense layers read what a curve leaves of a vector: nothing after it is local."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.beside = nn.Linear(9, 6), nn.Linear(6, 3), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        bent = torch.relu(2 * x - 0.7)
        scores: Tensor = self.second(torch.relu(self.first(bent))) + self.beside(bent)
        return scores


def test_vectors_that_end_early_as_maps_are_scanned_by_differences() -> None:
    torch.manual_seed(3)
    network = l0tre.load(Forked(), input_shape=(9,), device="cpu")
    assert network.graph is not None
    plan = _compare(network.graph, 1, 2, 0.3)
    assert plan is not None
    assert plan.head == "map"


def test_doubtful_sets_are_decided_by_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    module, shape = _paper_like("sdnn")
    network = l0tre.load(module, input_shape=shape, device="cpu")
    assert network.graph is not None
    setup = _setup(network.graph, 2, 1)
    assert setup is not None
    locality, level, batcher, x, labels = setup
    asked = []

    def counted(*arguments: object) -> Chunk:
        asked.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    real = scan_sets
    ready = WindowScanner(locality, level, batcher, 2**22).prepare(x, AllRivals(labels))
    monkeypatch.setattr(settled, "scan_sets", counted)
    monkeypatch.setattr(RoundOff, "error", lambda *_: Error(math.inf, math.inf))
    found = ready(0, level.sets)
    wanted = scan(batcher, level, x, AllRivals(labels), 0, level.sets)
    assert asked
    assert torch.equal(found.margin, wanted.margin)
    assert torch.equal(found.safe, wanted.safe)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), list(itertools.product([1, 2, 3], [1, 2, 3], [0, 1], [1, 2]))
)
def test_reach_is_exactly_what_reads_a_position(kernel: int, stride: int, padding: int, dilation: int) -> None:
    build = GraphBuilder((1, 1, 12))
    padding = padding if kernel > 1 else 0
    pool: dict[str, Any] = {"kernel": (1, kernel), "stride": (1, stride), "padding": (0, padding)}
    operation = build.operations[build.add("max_pool", [0], **pool, dilation=(1, dilation))]
    for first, last in itertools.combinations_with_replacement(range(12), 2):
        readers = [
            out
            for out in range(operation.shape[2])
            if any(first <= out * stride - padding + tap * dilation <= last for tap in range(kernel))
        ]
        span = reach(operation, [Span(first, last)], 1)
        inside = [out for out in range(span.first, span.last + 1) if 0 <= out < operation.shape[2]]
        assert set(readers) <= set(inside)
        if dilation == 1:  # a dilated kernel may skip positions inside its span
            assert inside == readers


def test_what_is_not_local_falls_back_with_a_reason() -> None:
    cpu = torch.device("cpu")
    function = Network(lambda x: x, lambda x: x, (4,), 4, cpu, None, "f", note="a function has no graph")
    domain = make_domain((4,))
    engine = choose_engine(function, domain, make_grid(domain, 1.0))
    assert engine.locality is None
    assert "no graph" in engine.reason
    module, shape = _paper_like("dnn-0")
    network = l0tre.load(module, input_shape=shape, device="cpu")
    wide = make_domain(shape, groups=torch.arange(50).repeat_interleave(2).reshape(1, 10, 10))
    engine = choose_engine(network, wide, make_grid(wide, 1.0))
    assert "several positions" in engine.reason
    torch.manual_seed(0)
    global_ = nn.Sequential(nn.Conv2d(1, 2, 9, padding=4), nn.ReLU(), nn.Flatten(), nn.Linear(200, 3))
    network = l0tre.load(global_, input_shape=(1, 10, 10), device="cpu")
    domain = make_domain((1, 10, 10))
    assert "reaches most" in choose_engine(network, domain, make_grid(domain, 1.0)).reason


@pytest.mark.slow
def test_both_ways_give_the_same_evaluation() -> None:
    module, shape = _paper_like("dnn-0")
    images = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1))
    network = l0tre.load(module, input_shape=shape, device="cpu")
    black_box = l0tre.load(lambda x: module.eval()(x).detach(), input_shape=shape, device="cpu")
    one = l0tre.evaluate(network, images, max_t=2, epsilon=0.5, guarantee="grid")
    two = l0tre.evaluate(black_box, images, max_t=2, epsilon=0.5)
    assert [(i.lower, i.upper) for i in one.images] == [(i.lower, i.upper) for i in two.images]


def test_spans_of_a_residual_branch_are_joined() -> None:
    build = GraphBuilder((1, 8, 8))
    weight = {"weight": torch.ones(1, 1, 3, 3)}
    pairs: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    inner = build.add("conv", [0], weight, groups=1, **pairs)
    build.add("add", [0, inner])
    found = spans(Graph(tuple(build.operations)), 2, Span(4, 4), 0)
    assert found == [Span(4, 4), Span(3, 5), Span(3, 5)]


def _ready(tuning: Tuning = DEFAULT_TUNING) -> tuple[Locality, Level, Batcher, Tensor, Tensor]:
    module, shape = _paper_like("dnn-0")
    network = l0tre.load(module, input_shape=shape, device="cpu")
    assert network.graph is not None
    setup = _setup(network.graph, 2, 1, tuning=tuning)
    assert setup is not None
    return setup


def test_windows_that_give_other_numbers_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    locality, level, batcher, x, labels = _ready()
    real = interactions
    monkeypatch.setattr(window_scan, "interactions", lambda *a: real(*a) + 1.0)  # as if rounding had gone astray
    found = WindowScanner(locality, level, batcher, 2**22).prepare(x, AllRivals(labels))(0, level.sets)
    wanted = scan(batcher, level, x, AllRivals(labels), 0, level.sets)
    assert torch.equal(found.margin, wanted.margin)
    assert torch.equal(found.safe, wanted.safe)


@pytest.mark.parametrize("where", ["base_values", "interactions"])
def test_running_out_of_memory_falls_back_to_forward_passes(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    locality, level, batcher, x, labels = _ready()

    def fail(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    ready = WindowScanner(locality, level, batcher, 2**22)
    if where == "base_values":
        monkeypatch.setattr(window_scan, where, fail)
        scan_ = ready.prepare(x, AllRivals(labels))
    else:
        scan_ = ready.prepare(x, AllRivals(labels))
        monkeypatch.setattr(window_scan, where, fail)
    wanted = scan(batcher, level, x, AllRivals(labels), 0, level.sets)
    assert torch.equal(scan_(0, level.sets).margin, wanted.margin)


@pytest.mark.slow
def test_what_is_kept_between_steps_stays_bounded() -> None:
    tuning = Tuning(layout_sets=300, matrix_entries=0)
    locality, level, batcher, x, labels = _ready(tuning)
    scanner = WindowScanner(locality, level, batcher, 2**22, tuning)
    found = scanner.prepare(x, AllRivals(labels))
    for start in range(0, level.sets, 600):
        stop = min(start + 200, level.sets)
        wanted = scan(batcher, level, x, AllRivals(labels), start, stop)
        _same(found(start, stop), wanted, 1 + float(wanted.score.abs().max()))
        assert sum(len(layout.members) for layout in scanner.layouts.values()) <= 300 + 200
        assert len(locality.plan.matrices) <= 4


@pytest.mark.family
@pytest.mark.parametrize("rows", [0, 10**9])
@pytest.mark.parametrize("kind", ["sdnn", "dnn-0", "strided"])
def test_convolutions_as_matrices_and_not(kind: str, rows: int) -> None:
    tuning = Tuning(matrix_rows=rows)  # a GPU uses matrices far more often than a CPU does
    module, shape = _paper_like(kind)
    network = l0tre.load(module, input_shape=shape, device="cpu")
    assert network.graph is not None
    assert _compare(network.graph, 2, 1, 0.5, tuning=tuning) is not None
