"""Lower bounds of margins: below them everywhere, equal to them in a point, sums only where effects add up."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes import box_bounds as margins_module
from l0tre.certify.boxes.affine_forms import AffineForms, least
from l0tre.certify.boxes.box_bounds import lower_bounds, lower_forms
from l0tre.certify.boxes.head import form_ranges, interval_margins
from l0tre.certify.boxes.margin_errors import is_safe
from l0tre.certify.regions.nodes import BoxNodes, join
from l0tre.certify.relax.supported import is_nonlinear
from tests.certify.boxes.cases import (
    cluster_search,
    directions,
    make_case,
    margins_at,
    pixel_sets,
    random_boxes,
    several,
    values_of,
    windowed_of,
    windows_of,
)
from tests.certify.boxes.recipes import RECIPES

SETS = 18


@pytest.mark.family
@pytest.mark.parametrize("t", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_forms_are_below_the_margins_and_meet_them_in_points(name: str, t: int) -> None:
    case, generator = make_case(RECIPES[name], t), torch.Generator().manual_seed(t)
    windowed = windowed_of(case, t, 3)
    sets = pixel_sets(windowed, t, random.Random(t), SETS)
    assert len(sets) == SETS or t == 1
    boxes, points = random_boxes(windowed, sets, generator), random_boxes(windowed, sets, generator, 0.0)
    bounds, both = lower_bounds(windowed, join([boxes, points]))
    assert bool((bounds >= least(both)).all())
    forms, meeting = both[: len(sets)], both[len(sets) :]
    u = directions(forms.shape[2] - 1, generator)
    truth = margins_at(case, windowed, boxes, u)
    lower = values_of(forms.transpose(1, 2), u)
    assert bool((lower <= truth + 1e-9).all()), f"{(lower - truth).max()} above the margin"
    assert bool((bounds[: len(sets)] <= truth.amin(1) + 1e-9).all())
    exact = margins_at(case, windowed, points, u[-1:])[:, 0]
    for found in (least(meeting), bounds[len(sets) :]):
        assert torch.allclose(found, exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", RECIPES)
def test_gaps_close_as_boxes_shrink(name: str) -> None:
    t = 1 + len(name) % 3
    case, widths = make_case(RECIPES[name], 3), (1.0, 0.1, 1e-3, 1e-6)
    windowed = windowed_of(case, t, 2)
    sets = pixel_sets(windowed, t, random.Random(t), 12)
    u = directions(t * case.domain.members.shape[1], torch.Generator().manual_seed(0))
    nodes = join([random_boxes(windowed, sets, torch.Generator().manual_seed(0), width) for width in widths])
    gaps = margins_at(case, windowed, nodes, u).amin(1) - least(lower_forms(windowed, nodes))
    assert float(gaps.min()) > -1e-9
    gaps = gaps.view(len(widths), -1)
    assert all(float(gap.max()) < 40 * width for gap, width in zip(gaps, widths, strict=True))
    mean = gaps.mean(1)
    assert bool((mean[1:] <= mean[:-1] + 1e-9).all())


@pytest.mark.parametrize("name", ["padded pool", "smooth", "two hidden", "hidden, colours"])
def test_rounding_errors_of_every_layer_lower_the_bounds(name: str) -> None:
    case = make_case(RECIPES[name], 1)
    windowed = windowed_of(case, 2, 2)
    nodes = random_boxes(windowed, pixel_sets(windowed, 2, random.Random(0), SETS), torch.Generator().manual_seed(0))
    bounds = lower_bounds(windowed, nodes)[0]
    sources = {operation.inputs[0] for operation in windowed.local.plan.graph.operations if is_nonlinear(operation)}
    assert len(sources) > 1
    for source in sources:
        slack = tuple(0.3 if place == source else error for place, error in enumerate(windowed.local.slack))
        loose = replace(windowed, local=replace(windowed.local, slack=slack))
        lowered = lower_bounds(loose, nodes)[0] - bounds
        assert float(lowered.min()) < -1e-3


@pytest.mark.parametrize("name", ["padded pool", "narrow kernels", "hidden, colours"])
def test_the_order_of_pixels_and_images_is_without_effect(name: str) -> None:
    case, generator = make_case(RECIPES[name], 2), torch.Generator().manual_seed(1)
    windowed = windowed_of(case, 3, 4)
    nodes = random_boxes(windowed, pixel_sets(windowed, 3, random.Random(0), SETS), generator)
    bounds = least(lower_forms(windowed, nodes))
    order = torch.tensor([2, 0, 1])
    turned = BoxNodes(nodes.image, nodes.cells[:, order], nodes.low[:, order], nodes.high[:, order], nodes.depth)
    assert torch.allclose(least(lower_forms(windowed, turned)), bounds, rtol=0, atol=1e-11)
    rows = torch.randperm(len(nodes), generator=generator)
    assert torch.allclose(least(lower_forms(windowed, nodes.pick(rows))), bounds[rows], rtol=0, atol=1e-11)
    small = windowed_of(case, 3, 4, memory=1)
    assert torch.allclose(least(lower_forms(small, nodes)), bounds, rtol=0, atol=1e-11)
    images, labels = several(case, 4)
    for image in range(4):
        alone = windows_of(cluster_search(case, 3, images[image : image + 1], labels[image : image + 1]))
        own = nodes.image == image
        moved = nodes.pick(own)
        moved = BoxNodes(torch.zeros_like(moved.image), moved.cells, moved.low, moved.high, moved.depth)
        assert torch.allclose(least(lower_forms(alone, moved)), bounds[own], rtol=0, atol=1e-11)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["plain", "padded pool", "smooth", "one hidden", "hidden, colours"])
def test_boxes_that_are_no_numbers_have_no_finite_bound(name: str, value: float) -> None:
    case, generator = make_case(RECIPES[name], 0), torch.Generator().manual_seed(1)
    windowed = windowed_of(case, 2, 1)
    nodes = random_boxes(windowed, pixel_sets(windowed, 2, random.Random(0), 20), generator)
    for part in (nodes.low, nodes.high):
        wrong = part.clone()
        wrong[:, 0, 0] = value
        broken = BoxNodes(nodes.image, nodes.cells, wrong if part is nodes.low else nodes.low, nodes.high, nodes.depth)
        if part is nodes.high:
            broken = BoxNodes(nodes.image, nodes.cells, nodes.low, wrong, nodes.depth)
        assert not bool(torch.isfinite(least(lower_forms(windowed, broken))).all(1).any())
        assert not bool(torch.isfinite(lower_bounds(windowed, broken)[0]).all(1).any())


@pytest.mark.parametrize("name", ["one hidden", "two hidden", "shortcut"])
def test_the_better_way_counts_but_not_where_the_other_is_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(RECIPES[name], 0)
    windowed = windowed_of(case, 2, 2)
    nodes = random_boxes(windowed, pixel_sets(windowed, 2, random.Random(0), 20), torch.Generator().manual_seed(1))
    ranges = form_ranges(AffineForms(*margins_module._heads(windowed, nodes)))
    by_ranges, by_forms = interval_margins(windowed, nodes.image, ranges), least(lower_forms(windowed, nodes))
    found, lower = lower_bounds(windowed, nodes)
    assert torch.equal(lower, lower_forms(windowed, nodes))
    assert torch.equal(found, torch.maximum(by_ranges, by_forms))
    assert bool((by_ranges > by_forms).any())
    assert bool((by_ranges < by_forms).any())

    def spoiled(work: Callable[..., Tensor], *arguments: Any) -> Tensor:
        result = work(*arguments).clone()
        result[3, 0] = torch.nan
        return result

    for part in ("interval_margins", "margin_forms"):
        with monkeypatch.context() as patch:
            patch.setattr(margins_module, part, partial(spoiled, getattr(margins_module, part)))
            wrong, _ = lower_bounds(windowed, nodes)
        assert bool(torch.isnan(wrong[3]).any())
        assert not bool(is_safe(windowed.instance, nodes.image, wrong, 2)[3])
        assert torch.equal(wrong[:3], found[:3])
