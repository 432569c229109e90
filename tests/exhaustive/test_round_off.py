"""The grid's decisions are the network's own in float32, however large its inner values are."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import l0tre
from l0tre.domain import make_domain
from l0tre.exhaustive.grid_scan import make_level, scan
from l0tre.exhaustive.scanner import choose_engine, make_scanner
from l0tre.memory import Batcher
from l0tre.model.change_error import ChangeError
from l0tre.model.graph import Graph, run
from l0tre.model.network import Network, margins
from l0tre.model.rounding import Error, Peaks, RoundOff, bends, gates, make_round_off
from l0tre.objective import AllRivals

SIDE, SPOT = 8, 19


class Cancelling(nn.Module):
    """Adds a large number and takes it off again, before a dense layer that looks at one pixel."""

    def __init__(self, large: float, *, curved: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)
        self.out, self.curved = nn.Linear(SIDE * SIDE, 2), curved
        for conv, bias in ((self.first, large), (self.second, -large)):
            conv.weight.data.fill_(1.0)
            assert conv.bias is not None
            conv.bias.data.fill_(bias)
        self.out.weight.data.zero_()
        self.out.weight.data[1, SPOT] = 1.0
        self.out.bias.data = torch.tensor([0.5, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = self.second(torch.relu(y) if self.curved else y)
        return self.out(torch.flatten(y, 1))  # type: ignore[no-any-return]


class Shifted(nn.Module):
    """The same by constants that an importer folds into nothing."""

    def __init__(self, large: float) -> None:
        super().__init__()
        self.large, self.out = large, Cancelling(0.0).out

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.flatten(x + self.large - self.large, 1))  # type: ignore[no-any-return]


class Vector(nn.Module):
    """Without windows: every point by whole forward passes."""

    def __init__(self, large: float) -> None:
        super().__init__()
        self.large, self.out = large, nn.Linear(4, 2)
        self.out.weight.data = torch.tensor([[0.0, 0, 0, 0], [0.0, 1, 0, 0]])
        self.out.bias.data = torch.tensor([0.5, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.large - self.large)  # type: ignore[no-any-return]


class WholeMap(Cancelling):
    """The same before a factor of one that is worked out from the whole map."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        y = y * torch.sigmoid(0.0 * y.mean((2, 3), keepdim=True) + 40.0)
        return self.out(torch.flatten(y, 1))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "around a ReLU": (lambda: Cancelling(1e7), (1, SIDE, SIDE)),
    "folded": (lambda: Cancelling(1e7, curved=False), (1, SIDE, SIDE)),
    "folded constants": (lambda: Shifted(1e7), (1, SIDE, SIDE)),
    "vector": (lambda: Vector(1e7), (4,)),
}


def smallest_margin(module: nn.Module, image: Tensor, values: list[float], t: int = 1) -> float:
    """Over all points of a grid, each by itself through the module."""
    flat = image.flatten()
    found = []
    for groups in itertools.combinations(range(len(flat)), t):
        for point in itertools.product(values, repeat=t):
            x = flat.clone()
            x[list(groups)] = torch.tensor(point)
            with torch.no_grad():
                found.append(float(margins(module(x.view(1, *image.shape)), torch.tensor([0]))))
    return min(found)


@pytest.mark.parametrize("kind", [*MODELS, "whole map"])
def test_large_inner_values_fool_no_grid(kind: str) -> None:
    make, shape = MODELS.get(kind, (lambda: WholeMap(1e7), (1, SIDE, SIDE)))
    module = make().eval()
    image, domain = torch.full(shape, 0.4), make_domain(shape, low=0.0, high=0.6)
    bounds = l0tre.evaluate(
        module, image[None], [0], domain=domain, max_t=1, epsilon=0.2, guarantee="grid", attack_queries=0
    ).images[0]
    # 0.6 is 1.0 after 1e7 was added and taken off; in real numbers it changes the decision too.
    assert smallest_margin(module, image, [0.0, 0.2, 0.4, 0.6]) < 0
    assert (bounds.lower, bounds.upper) == (0, 1)


@pytest.mark.parametrize("kind", MODELS)
def test_what_float32_keeps_is_safe_on_the_grid(kind: str) -> None:
    """The other way round: at 0.49 the real margin is below zero behind a bias of 0.45, the float32 one is not."""
    make, shape = MODELS[kind]
    module = make().eval()
    out = module.out
    assert isinstance(out, nn.Linear)
    out.bias.data = torch.tensor([0.45, 0.0])
    image, domain = torch.zeros(shape), make_domain(shape, low=0.0, high=0.49)
    assert smallest_margin(module, image, [0.0, 0.245, 0.49]) > 0
    network = l0tre.load(module, input_shape=shape, device="cpu")
    options: dict[str, Any] = {"domain": domain, "max_t": 1, "epsilon": 0.25, "attack_queries": 0}
    assert l0tre.evaluate(network, image[None], [0], guarantee="grid", **options).images[0].lower == 1
    # For real values it is not: neither by slopes nor by linear bounds.
    for guarantee in ("lipschitz", "certified"):
        assert l0tre.evaluate(network, image[None], [0], guarantee=guarantee, **options).images[0].lower == 0


def test_margins_between_grid_points_are_real_ones() -> None:
    """A set is judged in float64 where float32 does not do, and found safe where it is."""
    module = Vector(1e4)
    module.out.bias.data = torch.tensor([0.495, 0.0])
    network = l0tre.load(module, input_shape=(4,), device="cpu")
    options: dict[str, Any] = {"max_t": 1, "epsilon": 1e-3, "attack_queries": 0, "guarantee": "lipschitz"}
    for high, lower in ((0.49, 1), (0.4955, 0)):
        domain = make_domain((4,), low=0.0, high=high)
        assert l0tre.evaluate(network, torch.zeros(1, 4), [0], domain=domain, **options).images[0].lower == lower


def network_of(seed: int, large: float) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(seed)
    if seed % 2:
        inner = nn.Hardtanh(0.1, 0.8) if seed % 3 == 2 else nn.Tanh()
        layers = [nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), inner, nn.Linear(8, 3)]
        shape: tuple[int, ...] = (6,)
    else:
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.LeakyReLU(0.1), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(4, 4, 3, padding=1), nn.ReLU6() if seed % 3 == 2 else nn.ReLU()]
        layers += [nn.Flatten(), nn.Linear(36, 3)]
        shape = (1, 6, 6)
    module = nn.Sequential(*layers).eval().requires_grad_(False)
    first = module[0]
    assert isinstance(first, nn.Linear | nn.Conv2d)
    assert first.bias is not None
    first.bias += large * torch.rand(first.bias.shape)
    return module, shape


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 200), large=st.sampled_from([0.0, 10.0, 1e4, 1e7]), t=st.integers(1, 3))
def test_float32_stays_within_its_errors(seed: int, large: float, t: int) -> None:
    module, shape = network_of(seed, large)
    network = l0tre.load(module, input_shape=shape, device="cpu")
    assert network.literal is not None
    assert network.graph is not None
    domain = make_domain(shape)
    image = torch.rand(1, len(domain.low))
    points = image.repeat(50, 1)
    for row in points:
        row[torch.randperm(len(row))[:t]] = torch.rand(t)
    x, peaks = points.view(-1, *shape), Peaks()
    scores = network.watched_scores(x, peaks)
    exact = run(network.literal, x.double())
    rounding = make_round_off(network.literal, *domain.box, domain.members, image)
    error = rounding.error({number: float(value) for number, value in peaks.values.items()}, t)
    for found in (scores, network.source_scores(x)):
        gap = float((found.double() - exact).abs().max())
        assert gap <= error.worst
        assert gap <= error.likely
    assert error.likely <= 1e-2 * (1 + large) * (1 + float(exact.abs().max()))
    after = error_of_changes(network, rounding, image.view(-1, *shape), x)
    assert float((scores.double() - exact).abs().max()) <= min(after.worst, after.likely)


def error_of_changes(network: Network, rounding: RoundOff, image: Tensor, *batches: Tensor) -> Error:
    """Of the changes in all batches, asked for after each."""
    graph, found = network.graph, ChangeError(rounding)
    assert graph is not None
    numbers, own = bends(graph), dict[int, Tensor]()
    run(graph, image, own.__setitem__)

    def see(place: int, value: Tensor) -> None:
        if place in numbers:
            found.see(numbers[place], 0, value - own[place], gate=gates(graph.operations[place]))

    for x in batches:
        run(graph, x, see)
        found.error()
    return found.error()


LIMITS = [(0.0, 6.0, False), (0.25, 6.0, False), (-1.0, 1.0, True), (-math.inf, 6.0, True)]


@pytest.mark.parametrize(("low", "high", "passes"), LIMITS)
def test_errors_pass_clips_where_values_do(low: float, high: float, passes: bool) -> None:
    module = nn.Sequential(nn.Linear(2, 1), nn.Hardtanh(low, high), nn.Linear(1, 2)).eval().requires_grad_(False)
    for layer, weight, bias in ((module[0], [[1e4, -1e4]], [-0.5]), (module[2], [[1.0], [0.0]], [0.0, 0.0])):
        layer.weight.copy_(torch.tensor(weight))  # type: ignore[operator]
        layer.bias.copy_(torch.tensor(bias))  # type: ignore[operator]
    network = l0tre.load(module, input_shape=(2,), device="cpu")
    assert network.literal is not None
    domain, image = make_domain((2,)), torch.tensor([[0.5, 0.5]])
    rounding = make_round_off(network.literal, *domain.box, domain.members, image)
    unchanged = error_of_changes(network, rounding, image, image)
    assert (unchanged.likely > 1e-4) == passes
    assert unchanged.worst >= max(low, 0.0) * 2**-24
    found = ChangeError(rounding)
    found.see(0, 0, torch.tensor([[-3.0], [2.0]]), gate=not passes)
    assert found.seen[0, 0].tolist() == [3.0 if passes else 2.0]
    # Values that are arranged in another way than the source's count for all.
    found.see(0, 0, torch.tensor([[4.0], [1.0]]), gate=False, whole=(2, 1, 1))
    assert found.seen[0, 0].shape == (1,)
    assert float(found.seen[0, 0]) == 4.0
    # A change that takes the value above the lower limit takes the error along, whenever it is seen.
    changed = torch.tensor([[0.6, 0.5]])
    for batches in ((changed,), (image, changed), (changed, image)):
        assert error_of_changes(network, rounding, image, *batches).likely > 1e-4


def without_peaks(graph: Graph, image: Tensor) -> float:
    domain = make_domain(graph.input_shape)
    return make_round_off(graph, *domain.box, domain.members, image).error({}, 1).worst


def test_errors_know_values_that_were_met() -> None:
    module, shape = network_of(1, 0.0)
    network = l0tre.load(module, input_shape=shape, device="cpu")
    assert network.literal is not None
    image = torch.rand(1, 6)
    domain = make_domain(shape)
    rounding = make_round_off(network.literal, *domain.box, domain.members, image)
    small, large = (rounding.error(dict.fromkeys(range(2), size), 1) for size in (1.0, 1e6))
    assert small.worst < large.worst
    assert small.band <= 4 * small.worst
    assert rounding.error({}, 1).worst >= small.worst
    assert rounding.error(dict.fromkeys(range(2), 1.0), 2).worst > small.worst
    assert without_peaks(network.literal, image) == rounding.error({}, 1).worst
    alone = make_round_off(network.literal, *domain.box, None, image)
    assert alone.error({}, 0) == rounding.error({}, 0)
    with pytest.raises(ValueError, match="groups"):
        alone.error({}, 1)


def test_peaks_leave_out_what_pads_a_max_pool() -> None:
    peaks = Peaks()
    peaks.see(0, torch.tensor([-torch.inf, 2.0]))
    peaks.see(0, torch.tensor([-3.0, 1.0]))
    peaks.see(0, torch.tensor([]))
    assert float(peaks.values[0]) == 3.0
    peaks.see(1, torch.tensor([-3.0, 1.0]), relu=True)
    peaks.see(1, torch.tensor([-3.0, -1.0]), relu=True)
    assert float(peaks.values[1]) == 1.0
    peaks.see(0, torch.tensor([torch.nan]))
    assert torch.isnan(peaks.values[0])


def test_numbers_of_operations_survive_folding() -> None:
    module, shape = network_of(0, 0.0)
    network = l0tre.load(module, input_shape=shape, device="cpu")
    assert network.literal is not None
    assert network.graph is not None
    assert len(network.literal.operations) > len(network.graph.operations)
    kinds = [[graph.operations[place].kind for place in bends(graph)] for graph in (network.literal, network.graph)]
    assert kinds[0] == kinds[1] == ["leaky_relu", "max_pool", "relu"]


class Ramp(nn.Module):
    """The rival's score is the largest value of the input, the label's a constant."""

    def __init__(self, own: float) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.out.weight.data = torch.tensor([[0.0, 0, 0], [1.0, 0, 0]])
        self.out.bias.data = torch.tensor([own, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.relu(x))
        return y


@pytest.mark.parametrize(("own", "points"), [(2.0, 0), (1.0 + 1e-6, 1), (0.5 + 1e-6, 1)])
def test_close_points_are_the_sources_to_decide(own: float, points: int) -> None:
    """Within the band the source is asked, and what it says counts; beyond it nobody asks it."""
    network = l0tre.load(Ramp(own), input_shape=(3,), device="cpu")
    asked: list[Tensor] = []

    def source(x: Tensor) -> Tensor:
        asked.append(x)
        return torch.tensor([[1.0, 0.0]]).expand(len(x), -1)

    level = make_level(make_domain((3,)), torch.tensor([0.0, 0.5, 1.0]).view(1, 3, 1).expand(3, -1, -1), 1)
    batcher = Batcher(replace(network, reference=source), 2**20)
    chunk = scan(batcher, level, torch.zeros(1, 3), AllRivals(torch.tensor([0])), 0, 3)
    assert sum(map(len, asked)) == points
    # At 1.0 the third network decides otherwise for certain, whatever its source says of other points.
    assert chunk.safe[0].tolist() == [own > 1, True, True]


class Spot(nn.Module):
    """Inner values are large only where pixels change, alone or two together."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.look, self.raise_ = nn.Conv2d(1, 1, (1, pixels)), nn.Conv2d(1, 1, 1)
        self.out = nn.Linear(4 * (5 - pixels), 2)
        for conv, weight, bias in ((self.look, 1.0, 0.5 - pixels), (self.raise_, 1e7, 0.0)):
            conv.weight.data.fill_(weight)
            assert conv.bias is not None
            conv.bias.data.fill_(bias)
        self.out.weight.data.fill_(1.0)
        self.out.bias.data = torch.tensor([100.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.flatten(torch.relu(self.raise_(torch.relu(self.look(x)))), 1))
        return y


@pytest.mark.parametrize("pixels", [1, 2])
def test_values_that_only_changes_raise_count(pixels: int) -> None:
    network = l0tre.load(Spot(pixels), input_shape=(1, 4, 4), device="cpu")
    assert network.graph is not None
    domain, grid = make_domain((1, 4, 4)), torch.tensor([0.0, 1.0]).view(1, 2, 1).expand(16, -1, -1)
    level, batcher = make_level(domain, grid, pixels), Batcher(network, 2**24)
    engine = choose_engine(network, domain, grid)
    assert engine.locality is not None
    scanner = make_scanner(engine, level, batcher, 2**24)[0]
    chunk = scanner.prepare(torch.zeros(1, 16), AllRivals(torch.tensor([0])))(0, level.sets)
    assert network.literal is not None
    rounding = make_round_off(network.literal, *domain.box, domain.members, torch.zeros(1, 16))
    # At the image itself nothing is above zero, so nothing is lost.
    assert rounding.error({}, 0).margin < 1e-3
    alone, together = ({0: float(pixels), 1: peak} for peak in (0.0, 5e6))
    unseen, seen = (2**pixels * rounding.error(peaks, pixels).margin for peaks in (alone, together))
    assert 1.1 * unseen < seen <= chunk.error


def test_what_margins_lose_between_points_is_taken_off_in_float64_too() -> None:
    """Grid margins of 0.005 in float64 between points that are 0.1 apart: not safe, though float32 cannot tell."""
    module = Vector(1e5)
    module.out.bias.data = torch.tensor([0.5, 0.0])
    network = l0tre.load(module, input_shape=(4,), device="cpu")
    domain = make_domain((4,), low=0.0, high=0.495)
    options: dict[str, Any] = {"domain": domain, "max_t": 1, "attack_queries": 0, "guarantee": "lipschitz"}
    for epsilon, lower in ((0.1, 0), (1e-3, 1)):
        assert l0tre.evaluate(network, torch.zeros(1, 4), [0], epsilon=epsilon, **options).images[0].lower == lower


def test_probabilities_of_tied_scores_are_tied() -> None:
    """Two float32 steps at a score of 77 look like a lead of 4e-6 where a softmax follows."""
    layer = nn.Linear(1, 2)
    layer.weight.data = torch.tensor([[0.0], [1.0]])
    layer.bias.data = torch.tensor([77.0, 76.0 - 2**-16])
    module = nn.Sequential(layer, nn.Softmax(1))
    assert float(module(torch.ones(1, 1)).detach().diff()) < -(2**-18)
    found = l0tre.evaluate(module, torch.zeros(1, 1), [0], epsilon=1.0, max_t=1, guarantee="grid", attack_queries=0)
    assert (found[0].lower, found[0].blocked) == (0, 1)
