"""Pairs that are far apart: sums of ranges hold, every pair is proved or left once, hulls hide nothing."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes import disjoint_pairs as disjoint_module
from l0tre.certify.boxes import range_parts as parts_module
from l0tre.certify.boxes.affine_forms import AffineForms
from l0tre.certify.boxes.box_bounds import carry_items
from l0tre.certify.boxes.disjoint_pairs import coarse_ranges, disjoint_pairs, hulls
from l0tre.certify.boxes.head import interval_margins
from l0tre.certify.boxes.margin_errors import is_safe
from l0tre.certify.boxes.range_parts import FirstLook, children, full_boxes, pair_boxes
from l0tre.certify.boxes.window_forms import Items
from l0tre.certify.boxes.windowed import Windowed, can_interact
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.interval import Interval
from tests.certify.boxes.cases import all_cells, balanced, directions, features_at
from tests.certify.boxes.checks import check_counts, check_oracle, check_safe, windowed_with_labels
from tests.certify.boxes.recipes import RELU, SIGMOID, TANH, Recipe, conv, leaky, pool

RECIPES = {
    "hidden": Recipe((1, 4, 5), (conv(3, 2), RELU), (5,)),
    "two hidden": Recipe((1, 5, 4), (conv(2, 2, 1, 1), RELU), (5, 4), leaky(0.2)),
    "pool": Recipe((1, 7, 3), (conv(2, 2), RELU, pool(2, 2)), (5,)),
    "colours": Recipe((3, 4, 4), (conv(3, 2), RELU), (4,)),
    "smooth": Recipe((1, 5, 5), (conv(2, 2), SIGMOID), (4,), TANH),
    "stride": Recipe((1, 6, 5), (conv(2, 2, 2), RELU), (4,)),
    "shortcut": Recipe((1, 4, 4), (conv(2, 2), RELU), (4,), join="sub"),
    "dense": Recipe((1, 4, 5), (), (6,)),
}


def disjoint_of(windowed: Windowed) -> tuple[Tensor, Tensor]:
    """Cells, and pairs of them that are far apart."""
    cells = all_cells(windowed)
    pairs = torch.combinations(torch.arange(len(cells)))
    area = windowed.local.plan.graph.input_shape[1] * windowed.local.plan.graph.input_shape[2]
    pixels = windowed.instance.members[cells - windowed.instance.tree.slots][:, 0] % area
    return cells, pairs[~can_interact(windowed.local, *pixels[pairs].T)]


def one_image(windowed: Windowed, image: int, cells: Tensor, pairs: Tensor) -> FirstLook:
    """What is found for one image, which must be the same beside others."""
    images = torch.tensor([image])
    (found,) = disjoint_pairs(windowed, images, cells, pairs, coarse_ranges(windowed, images, cells))
    return found


def setup_of(name: str, seed: int = 1, share: float = 0.1, images: int = 1) -> tuple[Windowed, Tensor, Tensor]:
    windowed = windowed_with_labels(balanced(RECIPES[name], seed, 2, share), images)
    return windowed, *disjoint_of(windowed)


HALVINGS = [(0,), (0, 1, 2), (1, 3)]


@pytest.mark.family
@pytest.mark.parametrize("halvings", HALVINGS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_pair_is_proved_or_left_and_what_is_proved_is_safe(
    name: str, halvings: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disjoint_module, "HALVINGS", halvings)
    unsafe = proved = 0
    for seed, share, image in ((1, 0.02, 0), (2, 0.3, 0), (2, 0.3, 1))[: 3 if len(halvings) == 2 else 2]:
        case = balanced(RECIPES[name], seed, 2, share)
        windowed = windowed_with_labels(case, 2)
        cells, pairs = disjoint_of(windowed)
        found = one_image(windowed, image, cells, pairs)
        check_counts(windowed, found, len(pairs), [image])
        bad, gone = check_safe(case, windowed, found, full_boxes(windowed.instance, image, cells[pairs]))
        unsafe, proved = unsafe + bad, proved + gone
        assert set(found.left.depth.tolist()) <= {2 * halvings[-1]}
        assert found.bounded[0] >= len(pairs)
        if halvings == HALVINGS[-1] and image == 0:
            check_oracle(case, windowed, found, full_boxes(windowed.instance, 0, cells[pairs]), 4)
    assert unsafe > 0
    assert proved > 0 or name == "smooth"


@pytest.mark.parametrize("together", [1, 2, 16])
def test_several_images_are_as_one_at_a_time(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, in tables of a few images or of all."""
    monkeypatch.setattr(disjoint_module, "TOGETHER", together)
    windowed = windowed_with_labels(balanced(RECIPES["two hidden"], 2, 2, 0.3), 3)
    cells, pairs = disjoint_of(windowed)
    images = [2, 0, 1]
    rows = torch.tensor(images)
    many = disjoint_pairs(windowed, rows, cells, pairs, coarse_ranges(windowed, rows, cells))
    proved = set()
    for image, found in zip(images, many, strict=True):
        alone = one_image(windowed, image, cells, pairs)
        assert (found.proved, found.bounded) == (alone.proved, alone.bounded)
        assert found.left.cells.tolist() == alone.left.cells.tolist()
        assert set(found.left.image.tolist()) <= {image}
        proved.add(found.proved[0])
    assert len(proved) > 1


def test_hulls_hold_what_pixels_do_over_their_ranges() -> None:
    windowed = windowed_with_labels(balanced(RECIPES["two hidden"], 2, 2, 0.3), 2)
    cells, _ = disjoint_of(windowed)
    images = torch.tensor([1, 0])
    low, high = hulls(coarse_ranges(windowed, images, cells), cells)
    assert low.shape == high.shape == (2, len(cells), windowed.weights.shape[-1])
    u = directions(windowed.instance.members.shape[1], torch.Generator().manual_seed(0))
    for row, image in enumerate(images.tolist()):
        truth = features_at(windowed, full_boxes(windowed.instance, image, cells[:, None]), u)
        assert bool(((truth >= low[row][:, None] - 1e-9) & (truth <= high[row][:, None] + 1e-9)).all())
        assert float((high - low)[row].amax()) < 3 * float((truth.amax(1) - truth.amin(1)).amax())


def watched(sums: "disjoint_module._Sums", open_: Tensor, monkeypatch: pytest.MonkeyPatch) -> Interval:
    """The ranges by which pairs would be proved, in their order."""
    seen: list[Interval] = []

    def spy(windowed: Windowed, image: Tensor, ranges: Interval) -> Tensor:
        seen.append(ranges)
        return interval_margins(windowed, image, ranges)

    def spy_safe(instance: Instance, image: Tensor, margins: Tensor, t: int) -> Tensor:
        assert t == 2
        assert image.tolist() == [sums.image]
        return is_safe(instance, image, margins, t)

    with monkeypatch.context() as patch:
        patch.setattr(disjoint_module, "interval_margins", spy)
        patch.setattr(disjoint_module, "is_safe", spy_safe)
        safe = sums.prove(open_)
    low, high = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert len(low) == len(open_)
    image = torch.tensor([sums.image])
    assert torch.equal(
        safe, is_safe(sums.windowed.instance, image, interval_margins(sums.windowed, image, (low, high)), 2)
    )
    return low, high


@pytest.mark.parametrize("rows", [1, 5, 2**12])
@pytest.mark.parametrize("name", ["two hidden", "colours", "stride", "dense"])
def test_sums_hold_what_two_parts_of_two_ranges_do(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row by the parts that its box has, at every level below the finest, however many rows go together."""
    windowed, cells, pairs = setup_of(name, images=2)
    generator, image, finest, count = torch.Generator().manual_seed(rows), 1, 2, len(cells)
    monkeypatch.setattr(disjoint_module, "ROWS", {"cpu": rows})
    leaves = disjoint_module._ranges(windowed, [image], cells, finest)[0]
    assert leaves[0].shape == (2**finest * count, windowed.weights.shape[-1])
    chosen = pairs[torch.randperm(len(pairs), generator=generator)[:12]]
    open_ = torch.cat([chosen, torch.zeros_like(chosen)], 1)
    widths = []
    for level in range(finest + 1):
        open_ = children(open_, level)
        table = disjoint_module._hull(leaves, level, count)
        assert table[0].shape == (2**level * count, windowed.weights.shape[-1])
        low, high = watched(disjoint_module._Sums(windowed, image, table, count), open_, monkeypatch)
        nodes = pair_boxes(windowed, image, cells, open_, level)
        u = directions(nodes.cells.shape[1] * windowed.instance.members.shape[1], generator)
        truth = features_at(windowed, nodes, u)
        assert bool((truth.amin(1) >= low - 1e-9).all())
        assert bool((truth.amax(1) <= high + 1e-9).all())
        widths.append(float((high - low).mean()))
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize("name", ["two hidden", "colours"])
def test_wider_parts_are_hulls_of_their_own_smaller_ones(name: str) -> None:
    windowed, cells, _ = setup_of(name)
    count, finest = len(cells), 3
    leaves = disjoint_module._ranges(windowed, [0], cells, finest)[0]
    assert bool((leaves[0] <= leaves[1]).all())
    for level in range(finest + 1):
        low, high = disjoint_module._hull(leaves, level, count)
        for part, pixel in itertools.product(range(2**level), range(count)):
            # Halves of part ``p`` are the parts ``p`` and ``p + 2 ** times``.
            own = torch.arange(part, 2**finest, 2**level) * count + pixel
            assert torch.equal(low[part * count + pixel], leaves[0][own].amin(0))
            assert torch.equal(high[part * count + pixel], leaves[1][own].amax(0))


def test_finer_parts_prove_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    proved: list[Fraction] = []
    windowed, cells, pairs = setup_of("two hidden", 2, 0.3)
    for halvings in ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)):
        monkeypatch.setattr(disjoint_module, "HALVINGS", halvings)
        proved.append(one_image(windowed, 0, cells, pairs).proved[0])
    assert all(first < second for first, second in itertools.pairwise(proved))


@pytest.mark.parametrize("name", ["two hidden", "colours", "pool"])
def test_batches_of_one_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    windowed, cells, pairs = setup_of(name, 2, 0.3)
    pairs = pairs[::5]
    monkeypatch.setattr(disjoint_module, "HALVINGS", (1, 2))
    many, poor = (one_image(part, 0, cells, pairs) for part in (windowed, replace(windowed, budget=1)))
    assert len(many.left)
    monkeypatch.setattr(disjoint_module, "ROWS", {"cpu": 1})
    for found in (poor, one_image(windowed, 0, cells, pairs)):
        assert found.proved == many.proved
        assert found.bounded == many.bounded
        assert torch.equal(found.left.cells, many.left.cells)
        assert torch.equal(found.left.low, many.left.low)


@pytest.mark.family
@pytest.mark.parametrize(("sample", "worth"), [(1, 0.0), (1, 2.0), (3, 0.9), (3, 2.0), (16, 0.0)])
@pytest.mark.parametrize("name", ["two hidden", "colours"])
def test_samples_decide_only_where_to_look(
    name: str, sample: int, worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If none are worth it, all are looked at on the finest level, and those of a sample before."""
    monkeypatch.setattr(disjoint_module, "HALVINGS", (1, 2))
    case = balanced(RECIPES[name], 2, 2, 0.3)
    windowed = windowed_with_labels(case, 1)
    cells, pairs = disjoint_of(windowed)
    usual = one_image(windowed, 0, cells, pairs)
    monkeypatch.setattr(disjoint_module, "SAMPLE", sample)
    monkeypatch.setattr(parts_module, "WORTH", worth)
    found = one_image(windowed, 0, cells, pairs)
    check_counts(windowed, found, len(pairs), [0])
    check_safe(case, windowed, found, full_boxes(windowed.instance, 0, cells[pairs]))
    # Ranges are hulls of the same leaves: no part is proved that its halves are not.
    assert found.proved == usual.proved
    assert len(found.left) == len(usual.left)


@pytest.mark.parametrize(("most", "level"), [(0, 0), (600, 1), (2000, 2)])
def test_too_many_pairs_stay_as_they_are(most: int, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = balanced(RECIPES["two hidden"], 2, 2, 0.3)
    windowed = windowed_with_labels(case, 1)
    cells, pairs = disjoint_of(windowed)
    usual = one_image(windowed, 0, cells, pairs)
    monkeypatch.setattr(parts_module, "MOST", most)
    found = one_image(windowed, 0, cells, pairs)
    check_counts(windowed, found, len(pairs), [0])
    check_safe(case, windowed, found, full_boxes(windowed.instance, 0, cells[pairs]))
    assert len(found.left) <= max(most, len(pairs))
    assert set(found.left.depth.tolist()) == {2 * level}
    assert found.proved[0] < usual.proved[0]
    assert (found.proved[0] > 0) == (level > 0)


def test_no_pairs_are_proved_and_left() -> None:
    windowed, cells, pairs = setup_of("hidden")
    found = one_image(windowed, 0, cells, pairs[:0])
    assert found.proved == [0]
    assert found.bounded == [0]
    assert len(found.left) == 0


def poisoned(cells: Tensor, value: float, part: str, leaf: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One leaf (part, pixel) of the finest table has a value that is no number, in one feature."""

    def broken(windowed: Windowed, items: Items) -> AffineForms:
        forms = carry_items(windowed, items)
        getattr(forms, part)[leaf[0] * len(cells) + leaf[1], 0, 1] = value
        return forms

    monkeypatch.setattr(disjoint_module, "carry_items", broken)


@pytest.mark.parametrize(("part", "value"), [("centre", v) for v in (torch.nan, torch.inf, -torch.inf)])
@pytest.mark.parametrize("bend", [RELU, TANH, SIGMOID])
def test_a_leaf_that_is_no_number_never_vanishes(
    part: str, value: float, bend: tuple[str, dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of the range holds it, at every level: pairs with it are not proved, all others are."""
    recipe = NO_NUMBERS[bend[0]]
    windowed = windowed_with_labels(balanced(recipe, 1, 2, 0.0, by=50.0), 1)
    cells, pairs = disjoint_of(windowed)
    assert one_image(windowed, 0, cells, pairs).proved == [len(pairs)]
    pixel, number = int(pairs[len(pairs) // 2, 0]), 2
    own = int((pairs == pixel).sum())
    assert own > 1
    for where in (part, "radius") if value > 0 or value != value else (part,):
        with monkeypatch.context() as patch:
            patch.setattr(disjoint_module, "HALVINGS", (2,))
            poisoned(cells, value, where, (number, pixel), patch)
            found = one_image(windowed, 0, cells, pairs)
            check_counts(windowed, found, len(pairs), [0])
            assert found.proved == [len(pairs) - Fraction(own, 4)]
            check_left(windowed, cells, found, pixel, number)
            patch.setattr(disjoint_module, "HALVINGS", (0,))
            poisoned(cells, value, where, (0, pixel), patch)
            found = one_image(windowed, 0, cells, pairs)
            assert found.proved == [len(pairs) - own]
            assert bool((found.left.cells == cells[pixel]).any(1).all())


def check_left(windowed: Windowed, cells: Tensor, found: FirstLook, pixel: int, number: int) -> None:
    """All that is left are pairs with one part of one pixel's range."""
    single = pair_boxes(windowed, 0, cells, torch.tensor([[pixel, pixel, number, number]]), 2)
    mine = found.left.cells == cells[pixel]
    assert mine.sum(1).tolist() == [1] * len(found.left)
    assert bool((found.left.low[mine] == single.low[0, 0]).all())


NO_NUMBERS = {bend[0]: Recipe((1, 4, 4), (conv(2, 2), RELU), (4,), bend) for bend in (RELU, TANH, SIGMOID)}
