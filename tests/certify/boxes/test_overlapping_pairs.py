"""Pairs that are near: every part is bounded by its own forms, each pair proved or left once, of the right image."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes import overlapping_pairs as overlapping_module
from l0tre.certify.boxes import range_parts as parts_module
from l0tre.certify.boxes.affine_forms import AffineForms
from l0tre.certify.boxes.box_bounds import box_items, carry_items
from l0tre.certify.boxes.disjoint_pairs import coarse_ranges, hulls
from l0tre.certify.boxes.head import interval_margins, proves
from l0tre.certify.boxes.interaction_sizes import interaction_sizes
from l0tre.certify.boxes.overlapping_pairs import overlapping_pairs
from l0tre.certify.boxes.pair_forms import PixelForms, make_singles, pair_forms
from l0tre.certify.boxes.range_parts import FirstLook, children, full_boxes, pair_boxes
from l0tre.certify.boxes.window_forms import Items
from l0tre.certify.boxes.windowed import Windowed, can_interact
from l0tre.certify.regions.nodes import join
from l0tre.certify.relax.interval import Interval
from tests.certify.boxes.cases import (
    all_cells,
    balanced,
    cluster_search,
    directions,
    features_at,
    values_of,
    windows_of,
)
from tests.certify.boxes.checks import check_counts, check_oracle, check_safe, windowed_with_labels
from tests.certify.boxes.recipes import RELU, SIGMOID, TANH, Recipe, conv, leaky, pool

FLAT = {
    "flat": Recipe((1, 4, 4), (conv(3, 2), RELU)),
    "flat pool": Recipe((1, 7, 3), (conv(2, 2), RELU, pool(2, 2))),
    "flat colours": Recipe((3, 4, 3), (conv(3, 2), RELU)),
}
DEEP = {
    "hidden": Recipe((1, 4, 5), (conv(3, 2), RELU), (5,)),
    "two hidden": Recipe((1, 5, 4), (conv(2, 2, 1, 1), RELU), (5, 4), leaky(0.2)),
    "pool": Recipe((1, 7, 3), (conv(2, 2), RELU, pool(2, 2)), (5,)),
    "colours": Recipe((3, 4, 3), (conv(3, 2), RELU), (4,)),
    "smooth": Recipe((1, 4, 4), (conv(2, 2), SIGMOID), (4,), TANH),
    "stride": Recipe((1, 5, 6), (conv(3, 3, 2, 1), RELU), (4,)),
    "shortcut": Recipe((1, 4, 4), (conv(2, 2), RELU), (4,), join="add"),
}
RECIPES = {**FLAT, **DEEP}


@pytest.fixture(autouse=True)
def _go_on_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapping_module, "FEW", {"cpu": 0})


def overlapping_of(windowed: Windowed) -> tuple[Tensor, Tensor]:
    """Cells, and pairs of them that are near."""
    cells = all_cells(windowed)
    pairs = torch.combinations(torch.arange(len(cells)))
    area = windowed.local.plan.graph.input_shape[1] * windowed.local.plan.graph.input_shape[2]
    pixels = windowed.instance.members[cells - windowed.instance.tree.slots][:, 0] % area
    return cells, pairs[can_interact(windowed.local, *pixels[pairs].T)]


@pytest.mark.family
@pytest.mark.parametrize(
    ("name", "halvings"), [*((name, 2) for name in FLAT), *((name, halvings) for name in DEEP for halvings in range(3))]
)
def test_every_pair_is_proved_or_left_and_what_is_proved_is_safe(
    name: str, halvings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlapping_module, "HALVINGS", halvings)
    unsafe = proved = 0
    for seed, share in ((1, 0.02), (2, 0.3)) if halvings == 0 or name in FLAT else ((1, 0.1),):
        case = balanced(RECIPES[name], seed, 2, share)
        windowed = windowed_with_labels(case, 3)
        cells, pairs = overlapping_of(windowed)
        images = [0, 2]
        found = overlapping_pairs(windowed, torch.tensor(images), cells, pairs)
        check_counts(windowed, found, len(pairs), images)
        assert found.left.depth is not None
        # Boxes are left in halves: as a whole they were not proved.
        assert set(found.left.depth.tolist()) <= {1 if name in FLAT else 2 * halvings + 1}
        assert min(found.bounded) >= len(pairs)
        for image in images:
            bad, gone = check_safe(case, windowed, found, full_boxes(windowed.instance, image, cells[pairs]))
            unsafe, proved = unsafe + bad, proved + gone
        if halvings != 1:
            check_oracle(case, windowed, found, full_boxes(windowed.instance, 0, cells[pairs]), 3)
    assert unsafe > 0
    assert proved > 0 or halvings == 0


def same(first: FirstLook, second: FirstLook, row: int, image: int) -> None:
    """What one image has in a first_pass of it alone is what it has, as a row, in one of several."""
    assert first.proved == second.proved[row : row + 1]
    assert first.bounded == second.bounded[row : row + 1]
    own = second.left.pick(second.left.image == image)
    assert torch.equal(first.left.cells, own.cells)
    for part, other in ((first.left.low, own.low), (first.left.high, own.high), (first.left.depth, own.depth)):
        assert part is not None
        assert other is not None
        assert torch.equal(part, other)


@pytest.mark.parametrize("name", ["flat pool", "two hidden", "colours"])
def test_several_images_are_looked_at_as_one_at_a_time(name: str) -> None:
    """In any order; in tables of one image each, too; nothing depends on other images."""
    case = balanced(RECIPES[name], 2, 2, 0.3)
    windowed = windowed_with_labels(case, 4)
    cells, pairs = overlapping_of(windowed)
    images = torch.tensor([3, 0, 2])
    together = overlapping_pairs(windowed, images, cells, pairs)
    check_counts(windowed, together, len(pairs), images.tolist())
    assert len(set(together.proved)) > 1
    for row, image in enumerate(images.tolist()):
        same(overlapping_pairs(windowed, images[row : row + 1], cells, pairs), together, row, image)
    some = pairs[::6]
    rich, poor = (overlapping_pairs(part, images, cells, some) for part in (windowed, replace(windowed, budget=1)))
    assert poor.proved == rich.proved
    assert torch.equal(poor.left.cells, rich.left.cells)


def forms_of(
    table: "overlapping_module._Table", open_: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, AffineForms]:
    """Images and forms by which pairs would be proved, in the order of the pairs."""
    seen: list[tuple[Tensor, AffineForms]] = []
    numbers: list[Tensor] = []

    def spy_forms(*arguments: Any) -> Iterator[tuple[Tensor, AffineForms]]:
        for which, forms in pair_forms(*arguments):
            numbers.append(which)
            yield which, forms

    def spy(windowed: Windowed, image: Tensor, forms: AffineForms, t: int) -> Tensor:
        assert t == 2
        seen.append((image, forms))
        return proves(windowed, image, forms, t)

    with monkeypatch.context() as patch:
        patch.setattr(overlapping_module, "pair_forms", spy_forms)
        patch.setattr(overlapping_module, "proves", spy)
        table.prove(open_)
    order = torch.cat(numbers).argsort()
    assert len(order) == len(open_)
    image = torch.cat([image for image, _ in seen])[order]
    centre, radius = (torch.cat([getattr(forms, side) for _, forms in seen])[order] for side in ("centre", "radius"))
    return image, AffineForms(centre, radius)


@pytest.mark.family
@pytest.mark.parametrize("budget", [1, 2**24])
@pytest.mark.parametrize("name", ["two hidden", "colours", "stride", "flat pool"])
def test_parts_are_bounded_by_their_own_forms(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each pair of parts those of its box, carried as a whole; images in tables of their own or in one."""
    case, generator = balanced(RECIPES[name], 2, 2, 0.3), torch.Generator().manual_seed(0)
    windowed = replace(windowed_with_labels(case, 4), budget=budget)
    cells, pairs = overlapping_of(windowed)
    images = torch.tensor([3, 0, 2])
    chosen = pairs[torch.randperm(len(pairs), generator=generator)[:8]]
    rows = torch.arange(3).repeat_interleave(len(chosen))
    both = chosen.repeat(3, 1)
    open_ = torch.cat([rows[:, None], both, torch.zeros_like(both)], 1)
    for level in range(3):
        open_ = children(open_, level)
        starts = []
        for start, singles in overlapping_module._tables(windowed, images, cells, level):
            starts.append(start)
            own = open_[(open_[:, 0] >= start) & (open_[:, 0] < start + len(singles.images))]
            own = own[torch.randperm(len(own), generator=generator)[:24]]
            table = overlapping_module._Table(windowed, singles, start, len(cells))
            image, forms = forms_of(table, own, monkeypatch)
            assert torch.equal(image, images[own[:, 0]])
            boxes = join([pair_boxes(windowed, int(images[row[0]]), cells, row[None, 1:], level) for row in own])
            whole = carry_items(replace(windowed, budget=2**24), box_items(windowed, boxes))
            assert torch.allclose(forms.centre, whole.centre, rtol=0, atol=1e-9)
            assert torch.allclose(forms.radius, whole.radius, rtol=0, atol=1e-9)
            u = directions(forms.centre.shape[1] - 1, generator)
            centre, radius, truth = (
                values_of(forms.centre, u),
                values_of(forms.radius, u),
                features_at(windowed, boxes, u),
            )
            assert bool(((truth >= centre - radius - 1e-9) & (truth <= centre + radius + 1e-9)).all())
        assert starts == ([0, 1, 2] if budget == 1 else [0])


@pytest.mark.family
@pytest.mark.parametrize(("sample", "worth"), [(1, 2.0), (2, 2.0), (2, 0.9), (3, 0.0), (16, 2.0)])
@pytest.mark.parametrize("name", ["two hidden", "colours"])
def test_samples_decide_only_where_to_look(
    name: str, sample: int, worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = balanced(RECIPES[name], 1, 2, 0.1)
    windowed = windowed_with_labels(case, 2)
    cells, pairs = overlapping_of(windowed)
    monkeypatch.setattr(overlapping_module, "SAMPLE", sample)
    monkeypatch.setattr(parts_module, "WORTH", worth)
    found = overlapping_pairs(windowed, torch.tensor([0, 1]), cells, pairs)
    check_counts(windowed, found, len(pairs), [0, 1])
    for image in (0, 1):
        check_safe(case, windowed, found, full_boxes(windowed.instance, image, cells[pairs]))
        same(overlapping_pairs(windowed, torch.tensor([image]), cells, pairs), found, image, image)
    assert found.left.depth is not None
    assert set(found.left.depth.tolist()) == {5}
    assert all(0 < proved < len(pairs) for proved in found.proved)


@pytest.mark.parametrize(
    ("seed", "most", "few", "level"), [(1, 0, 0, 0), (1, 2**20, 10**9, 0), (1, 200, 0, 1), (2, 2**20, 45, 1)]
)
def test_too_many_or_too_few_pairs_stay_as_they_are(
    seed: int, most: int, few: int, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = balanced(RECIPES["two hidden"], seed, 2, 0.1)
    windowed = windowed_with_labels(case, 2)
    cells, pairs = overlapping_of(windowed)
    usual = overlapping_pairs(windowed, torch.tensor([0, 1]), cells, pairs)
    monkeypatch.setattr(parts_module, "MOST", most)
    monkeypatch.setattr(overlapping_module, "FEW", {"cpu": few})
    found = overlapping_pairs(windowed, torch.tensor([0, 1]), cells, pairs)
    check_counts(windowed, found, len(pairs), [0, 1])
    for image in (0, 1):
        check_safe(case, windowed, found, full_boxes(windowed.instance, image, cells[pairs]))
    assert found.left.depth is not None
    assert set(found.left.depth.tolist()) == {2 * level + 1}
    assert sum(found.proved) < sum(usual.proved)


@pytest.mark.parametrize("name", ["flat", "two hidden"])
def test_no_pairs_are_proved_and_left(name: str) -> None:
    windowed = windowed_with_labels(balanced(RECIPES[name], 1, 2, 0.1), 2)
    cells, pairs = overlapping_of(windowed)
    found = overlapping_pairs(windowed, torch.tensor([0, 1]), cells, pairs[:0])
    assert found.proved == [0, 0]
    assert len(found.left) == 0


NO_NUMBERS = {bend[0]: Recipe((1, 4, 4), (conv(2, 2), RELU), (4,), bend) for bend in (RELU, TANH, SIGMOID)}


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("bend", NO_NUMBERS)
def test_a_part_that_is_no_number_proves_nothing(bend: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part of one pixel's range in one of two images: just the pairs with it are not proved."""
    monkeypatch.setattr(overlapping_module, "HALVINGS", 1)
    case = balanced(NO_NUMBERS[bend], 1, 2, 0.0, by=50.0)
    windowed = windows_of(cluster_search(case, 2, torch.stack([case.image] * 2), [case.label] * 2))
    cells, pairs = overlapping_of(windowed)
    images = torch.tensor([1, 0])
    assert overlapping_pairs(windowed, images, cells, pairs).proved == [len(pairs)] * 2
    pixel = 5
    own = int((pairs == pixel).sum())

    def broken(windowed: Windowed, images: Tensor, items: Items) -> PixelForms:
        singles = make_singles(windowed, images, items)
        part = int(singles.head.centre.shape[1] > len(cells))  # the upper half, if there are halves
        singles.head.centre[1, part * len(cells) + pixel, 0, 2] = value
        return singles

    monkeypatch.setattr(overlapping_module, "make_singles", broken)
    found = overlapping_pairs(windowed, images, cells, pairs)
    check_counts(windowed, found, len(pairs), [1, 0])
    assert found.proved == [len(pairs), len(pairs) - Fraction(own, 2)]
    assert found.left.image.tolist() == [0] * len(found.left)
    assert bool((found.left.cells == cells[pixel]).any(1).all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hidden", "two hidden", "stride"])
def test_a_quick_look_before(name: str) -> None:
    """In tables of one image each, in any order: what is proved is safe, and each image as by itself."""
    unsafe = 0
    for share in (0.02, 0.3):
        case = balanced(DEEP[name], 2, 2, share)
        windowed = windowed_with_labels(case, 2)
        cells, pairs = overlapping_of(windowed)
        images = torch.tensor([1, 0])
        coarse = hulls(coarse_ranges(windowed, images, cells), cells)
        together = overlapping_pairs(windowed, images, cells, pairs, coarse)
        parted = overlapping_pairs(replace(windowed, budget=1), images, cells, pairs, coarse)
        assert parted.proved == together.proved
        check_counts(windowed, together, len(pairs), images.tolist())
        for row, image in enumerate(images.tolist()):
            own = torch.tensor([image])
            alone = overlapping_pairs(windowed, own, cells, pairs, hulls(coarse_ranges(windowed, own, cells), cells))
            assert alone.proved == together.proved[row : row + 1]
            bad, _ = check_safe(case, windowed, alone, full_boxes(windowed.instance, image, cells[pairs]))
            unsafe += bad
    assert unsafe > 0


@pytest.mark.parametrize("name", ["hidden", "two hidden", "stride"])
def test_a_quick_look_proves_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, without any forms; and nothing if the bounds are no numbers."""
    windowed = windowed_with_labels(balanced(DEEP[name], 2, 2, 0.0, by=5.0), 1)
    cells, pairs = overlapping_of(windowed)
    images = torch.tensor([0])
    low, high = hulls(coarse_ranges(windowed, images, cells), cells)
    monkeypatch.setattr(
        overlapping_module, "proves", lambda _, image, __, ___: torch.zeros(len(image), dtype=torch.bool)
    )
    assert overlapping_pairs(windowed, images, cells, pairs, (low, high)).proved[0] > 0
    assert overlapping_pairs(windowed, images, cells, pairs).proved[0] == 0
    assert overlapping_pairs(windowed, images, cells, pairs, (low * torch.nan, high)).proved[0] == 0


@pytest.mark.parametrize("budget", [1, 2**24])
def test_a_quick_look_leaves_room_for_what_two_pixels_do_together(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges hold what each pair really does to the dense layer, which sums of both pixels' ranges do not."""
    seen: list[tuple[Tensor, Interval]] = []
    numbers: list[Tensor] = []

    def spy_sizes(*arguments: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for which, sizes in interaction_sizes(*arguments):
            numbers.append(which)
            yield which, sizes

    def spy_margins(windowed: Windowed, image: Tensor, ranges: Interval) -> Tensor:
        seen.append((image, ranges))
        return interval_margins(windowed, image, ranges)

    monkeypatch.setattr(overlapping_module, "interaction_sizes", spy_sizes)
    monkeypatch.setattr(overlapping_module, "interval_margins", spy_margins)
    generator, below, above = torch.Generator().manual_seed(0), 0, 0
    for name, seed in itertools.product(("hidden", "stride", "colours"), (1, 2)):
        windowed = replace(windowed_with_labels(balanced(DEEP[name], seed, 2, 0.3), 3), budget=budget)
        cells, pairs = overlapping_of(windowed)
        images = torch.tensor([2, 0])
        low, high = hulls(coarse_ranges(replace(windowed, budget=2**24), images, cells), cells)
        for start, singles in overlapping_module._tables(windowed, images, cells, 0):
            seen.clear()
            numbers.clear()
            row = torch.arange(start, start + len(singles.images)).repeat_interleave(len(pairs))
            both = pairs.repeat(len(singles.images), 1)
            open_ = torch.cat([row[:, None], both, torch.zeros_like(both)], 1)
            overlapping_module._Table(windowed, singles, start, len(cells)).glance(open_, (low, high))
            order = torch.cat(numbers).argsort()
            image = torch.cat([image for image, _ in seen])[order]
            least, most = (torch.cat([ranges[side] for _, ranges in seen])[order] for side in (0, 1))
            assert torch.equal(image, images[row])
            boxes = join([full_boxes(windowed.instance, int(number), cells[pairs]) for number in singles.images])
            truth = features_at(windowed, boxes, directions(2 * windowed.instance.members.shape[1], generator, 64))
            assert bool((truth >= least[:, None] - 1e-9).all())
            assert bool((truth <= most[:, None] + 1e-9).all())
            alone = [(side[row, both[:, 0]] + side[row, both[:, 1]])[:, None] for side in (low, high)]
            below += int((truth < alone[0] - 1e-9).sum())
            above += int((truth > alone[1] + 1e-9).sum())
    assert below > 0
    assert above > 0
