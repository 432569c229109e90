"""Bounds carried forwards, sums and interactions of the checker: below the truth, everywhere."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.certify.checker import windows
from l0tre.certify.checker.clusters import box_margins
from l0tre.certify.checker.forward import Forward, make_forward, near, with_margins
from l0tre.certify.checker.margins import make_bounder
from l0tre.certify.checker.sums import Effects, effects_of, interacting_margins, sizes_of, sum_margins
from l0tre.certify.checker.trees import whole_boxes
from l0tre.domain import make_domain
from l0tre.model.graph import Graph, run
from tests.certify.checker.cases import KINDS, Case, make_case

CPU = torch.device("cpu")
SPARE = 1e-9  # between two ways to compute a margin


def prepared(case: Case, memory: int = 2**24) -> tuple[Graph, Forward]:
    assert case.network.exact is not None
    graph = with_margins(case.network.exact, case.label)
    bounder = make_bounder(graph, case.image.float(), case.domain, torch.arange(case.domain.groups), CPU, memory)
    return graph, make_forward(bounder)


def local_case(seed: int) -> Case:
    """Strides, dilations, a padded pool and layers behind, on maps that are large enough for windows."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1) if seed % 2 else nn.AvgPool2d(2),
        nn.Conv2d(3, 4, (2, 3), padding=(0, 1), dilation=(1, 2)),
        nn.LeakyReLU(0.2) if seed % 3 else nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(6),
        nn.ReLU(),
        nn.Linear(6, 3),
    ).eval()
    module(torch.zeros(1, 1, 20, 22))
    for parameter in module.parameters():
        parameter.data *= 1.6
    network, image = l0tre.load(module, input_shape=(1, 20, 22), device="cpu"), torch.rand(1, 20, 22)
    return Case(network, image, make_domain((1, 20, 22)), int(network.replay(image).argmax()))


def sampled(case: Case, graph: Graph, forward: Forward, groups: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The least margin of many points of each box."""
    place = forward.bounder.scope.positions[groups].flatten(1)
    flat = torch.nn.functional.pad(case.image.double().flatten(), (0, 1))
    worst = torch.full((len(groups),), math.inf, dtype=torch.float64)
    for _ in range(24):
        share = torch.rand_like(low)
        share = torch.where(torch.rand_like(low) < 0.6, share.round(), share)
        points = flat.repeat(len(groups), 1)
        points.scatter_(1, place, flat[place] + (low + (high - low) * share).flatten(1))
        worst = torch.minimum(worst, run(graph, points[:, :-1].reshape(-1, *case.image.shape)).amin(1))
    return worst


def some(case: Case, forward: Forward, t: int, width: float) -> tuple[Tensor, Tensor, Tensor]:
    groups = torch.stack([torch.randperm(case.domain.groups)[:t] for _ in range(12)]).sort(1).values
    low, high = whole_boxes(forward.bounder.scope, groups)
    low = low + (high - low) * torch.rand_like(low) * (1 - width)
    return groups, low, torch.minimum(low + (high - low) * width, high)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [1, 2])
def test_forms_are_below_all_points_and_close_over_small_boxes(kind: str, t: int) -> None:
    torch.manual_seed(t)
    for seed in range(3):
        case = make_case(kind, seed)
        graph, forward = prepared(case)
        for width in (1.0, 0.01):
            boxes = some(case, forward, t, width)
            bounds, truth = box_margins(forward, *boxes), sampled(case, graph, forward, *boxes)
            assert (bounds <= truth + SPARE).all()
            if width < 1:
                assert (truth - bounds).max() < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_windows_give_what_whole_maps_give(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = local_case(seed)
    graph, forward = prepared(case)
    torch.manual_seed(seed)
    boxes = some(case, forward, 2, 0.3)
    boxes[0][:6, 1] = boxes[0][:6, 0] + 1  # neighbours
    boxes[0].clamp_(max=case.domain.groups - 1)
    assert len(forward.local.reach) > 4
    bounds = box_margins(forward, *boxes)
    assert (bounds <= sampled(case, graph, forward, *boxes) + SPARE).all()
    monkeypatch.setattr(windows, "SHARE", 0.0)
    _, whole = prepared(case)
    assert len(whole.local.reach) == 1
    assert torch.allclose(bounds, box_margins(whole, *boxes), atol=0.02, rtol=0.02)
    monkeypatch.undo()
    _, small = prepared(case, memory=2**12)  # one at a time
    assert torch.allclose(bounds, box_margins(small, *boxes), atol=1e-12)


@pytest.mark.parametrize("padding", [0, 1])
def test_pixels_that_no_kernel_reads_change_nothing(padding: int) -> None:
    torch.manual_seed(padding)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 1, stride=2, padding=padding),
        nn.ReLU(),
        nn.ConstantPad2d((1, 0, 1, 0), 0.0),
        nn.Conv2d(2, 3, (1, 2), stride=(3, 1), padding=(1, 0)),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).eval()
    module(torch.zeros(1, 1, 16, 16))
    network, image = l0tre.load(module, input_shape=(1, 16, 16), device="cpu"), torch.rand(1, 16, 16)
    case = Case(network, image, make_domain((1, 16, 16)), int(network.replay(image).argmax()))
    graph, forward = prepared(case)
    assert len(forward.local.reach) > 4
    groups = torch.arange(256)[:, None]
    boxes = (groups, *whole_boxes(forward.bounder.scope, groups))
    bounds, truth = box_margins(forward, *boxes), sampled(case, graph, forward, *boxes)
    assert (bounds <= truth + SPARE).all()
    read = (torch.arange(16) + padding) % 2 == 0
    unread = ~(read[:, None] & read).flatten()
    assert torch.allclose(bounds[unread], forward.own.min(), atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_sums_and_interactions_are_below_all_points(seed: int) -> None:
    case = local_case(seed)
    graph, forward = prepared(case)
    torch.manual_seed(seed)
    groups = torch.arange(case.domain.groups)
    singles = effects_of(forward, groups[:, None], 2)
    hull = singles.hull(1)
    sets = torch.combinations(groups, 2)
    close = near(forward, sets[:, 0], sets[:, 1])
    for rows, kind in ((close, "interactions"), (~close, "sums")):
        chosen = sets[rows][torch.randperm(int(rows.sum()))[:16]]
        boxes = (chosen, *whole_boxes(forward.bounder.scope, chosen))
        if kind == "interactions":
            bounds = interacting_margins(forward, hull, sizes_of(forward, 2), chosen)
        else:
            none = torch.zeros(len(chosen), dtype=torch.int64)

            def added(part: slice, sets: Tensor = chosen, none: Tensor = none) -> list[tuple[Effects, Tensor, Tensor]]:
                return [(hull, none[part], sets[part, k]) for k in (0, 1)]

            bounds = sum_margins(forward, len(chosen), added)
        truth = sampled(case, graph, forward, *boxes)
        assert torch.isfinite(bounds).all()
        assert (bounds <= truth + SPARE).all()
        assert (bounds > truth - 6).all()  # not bounds of nothing at all


def test_numbers_that_are_none_prove_nothing() -> None:
    case = local_case(0)
    _, forward = prepared(case)
    boxes = some(case, forward, 2, 0.5)
    boxes[1][3, 0, 0] = math.nan
    boxes[1][4, 0, 0] = -math.inf
    bounds = box_margins(forward, *boxes)
    assert not (bounds[3:5] > -math.inf).any()
    assert torch.isfinite(bounds[:3]).all()
    sums = effects_of(forward, torch.arange(4)[:, None], 0)
    for place in sums.low:
        sums.low[place][0, 1, 0] = math.nan
    none = torch.zeros(2, dtype=torch.int64)
    found = sum_margins(forward, 2, lambda part: [(sums, none[part], torch.tensor([0, 1])[part])])
    assert bool(torch.isfinite(found[0]))
    assert not bool(found[1] > -math.inf)


def test_a_network_without_a_dense_layer_at_its_end_gives_margins_too() -> None:
    case = make_case("grey", 0)
    assert case.network.exact is not None
    graph = case.network.exact
    last = len(graph.operations) - 1
    top = replace(graph.operations[1], kind="tanh", inputs=(last,), shape=graph.output_shape, tensors={}, attributes={})
    graph = Graph((*graph.operations, top))
    x = torch.rand(5, *graph.input_shape, dtype=torch.float64)
    scores, found = run(graph, x), run(with_margins(graph, 1), x)
    assert torch.allclose(found, scores[:, [1]] - scores[:, [0, 2]])
