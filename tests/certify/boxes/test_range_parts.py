"""Parts of ranges: numbered as they are laid out, they tile the whole; samples decide what is looked at only."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l0tre.certify.boxes import range_parts as parts_module
from l0tre.certify.boxes.box_bounds import box_items
from l0tre.certify.boxes.range_parts import children, full_boxes, halved, look, pair_boxes, too_many
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import BoxNodes
from tests.certify.boxes.cases import all_cells, make_case, windowed_of
from tests.certify.boxes.recipes import DEEP

Box = tuple[Tensor, Tensor]


def ends_of(nodes: BoxNodes) -> Box:
    """Lowest and highest values ``[nodes, t * width]``."""
    return nodes.low.flatten(1), nodes.high.flatten(1)


def check_tiling(whole: Box, low: Tensor, high: Tensor, sides: int) -> None:
    """Boxes ``[boxes, values]`` lie in the whole, share no inside, and leave nothing out."""
    used = whole[1] > whole[0]
    low, high = (((part - whole[0]) / (whole[1] - whole[0]))[:, used] for part in (low, high))
    assert bool((low >= 0).all())
    assert bool((high <= 1).all())
    # A grid with so many cells on every side: the middle of each is in exactly one box.
    middles = (torch.arange(sides) + 0.5) / sides
    grid = torch.tensor(list(itertools.product(middles.tolist(), repeat=int(used.sum()))))
    inside = ((grid >= low[:, None]) & (grid <= high[:, None])).all(2)
    assert bool((inside.sum(0) == 1).all())


def windowed_for(name: str) -> Windowed:
    return windowed_of(make_case(DEEP[name], 2), 2, 2)  # some channels of some pixels are masked


def test_full_boxes_hold_the_whole_ranges_of_free_values() -> None:
    case = make_case(DEEP["hidden, colours"], 2)
    windowed, domain = windowed_of(case, 2, 2), case.domain
    cells = all_cells(windowed)
    sets = torch.stack([cells, cells.roll(1)], 1)
    nodes = full_boxes(windowed.instance, 1, sets)
    assert nodes.image.tolist() == [1] * len(cells)
    assert not bool(nodes.depth.any())
    for row, cell in ((row, cell) for row in range(len(cells)) for cell in (0, 1)):
        group = int(windowed.instance.tree.order[sets[row, cell] - windowed.instance.tree.slots])
        size = int(domain.sizes[group])
        own = domain.members[group, :size]
        assert torch.allclose(nodes.low[row, cell, :size], domain.low[own].double(), rtol=0, atol=1e-12)
        assert torch.allclose(nodes.high[row, cell, :size], domain.high[own].double(), rtol=0, atol=1e-12)
        assert not bool((nodes.low[row, cell, size:] != nodes.high[row, cell, size:]).any())


@pytest.mark.parametrize("name", ["one hidden", "hidden, colours"])
def test_halves_are_laid_out_as_they_are_numbered(name: str) -> None:
    """Part ``p`` of box ``n`` is row ``p * count + n``; its halves are the parts ``p`` and ``p + 2 ** times``."""
    windowed = windowed_for(name)
    cells = all_cells(windowed)[:, None]
    whole, count = full_boxes(windowed.instance, 1, cells), len(cells)
    for times in range(4):
        before, after = halved(whole, times), halved(whole, times + 1)
        assert torch.equal(after.cells.view(-1, count, 1), cells.expand(2 ** (times + 1), -1, -1))
        assert after.image.tolist() == [1] * len(after)
        assert set(after.depth.tolist()) == {times + 1}
        (low, high), (down, up) = ends_of(before), ends_of(after)
        half = 2**times * count
        assert torch.equal(down[:half], low)
        assert torch.equal(up[half:], high)
        middle = (low + high) / 2
        cut = up[:half] != high
        assert torch.equal(cut, down[half:] != low)
        assert torch.equal(up[:half][cut], middle[cut])
        assert torch.equal(down[half:][cut], middle[cut])
        assert cut.sum(1).tolist() == [1] * half  # one side
        assert torch.equal((high - low)[cut], (high - low).amax(1))  # the longest
    assert halved(whole, 0) is whole


@pytest.mark.parametrize("columns", [4, 5])
def test_children_have_both_halves_of_both_parts(columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for level in range(1, 5):
        open_ = torch.randint(100, (7, columns), generator=generator)
        open_[:, -2:] %= 2 ** (level - 1)
        found = children(open_, level).view(7, 4, columns)
        for row, parent in enumerate(open_.tolist()):
            shifts = itertools.product((0, 2 ** (level - 1)), repeat=2)
            wanted = {(*parent[:-2], parent[-2] + first, parent[-1] + second) for first, second in shifts}
            assert {tuple(child) for child in found[row].tolist()} == wanted
    assert children(open_, 0) is open_
    assert children(open_[:0], 2).shape == (0, columns)


@pytest.mark.parametrize("name", ["one hidden", "hidden, colours"])
def test_pairs_of_parts_tile_pairs_of_ranges(name: str) -> None:
    """At every level the parts of a pair tile its whole box, and children their parent's."""
    windowed = windowed_for(name)
    cells = all_cells(windowed)
    pairs = torch.tensor([[0, 1], [5, 2], [len(cells) - 1, 3]])
    open_ = torch.cat([pairs, torch.zeros_like(pairs)], 1)
    whole = ends_of(full_boxes(windowed.instance, 1, cells[pairs]))
    before, levels = whole, 4 if name == "one hidden" else 2
    for level in range(levels + 1):
        if level:
            open_ = children(open_, level)
        nodes = pair_boxes(windowed, 1, cells, open_, level)
        assert torch.equal(nodes.cells, cells[open_[:, :2]])
        assert nodes.image.tolist() == [1] * len(open_)
        assert nodes.depth.tolist() == [2 * level] * len(open_)
        low, high = ends_of(nodes)
        each = len(open_) // len(pairs)
        for row in range(len(pairs)):
            own = slice(row * each, row * each + each)
            check_tiling((whole[0][row], whole[1][row]), low[own], high[own], 2**levels)
        if level:
            parent = torch.arange(len(open_)) // 4
            assert bool(((low >= before[0][parent]) & (high <= before[1][parent])).all())
        before = (low, high)


@pytest.mark.parametrize("name", ["one hidden", "hidden, colours"])
@pytest.mark.parametrize("level", [0, 1, 3])
def test_pairs_of_parts_are_rows_of_tables(name: str, level: int) -> None:
    """Of tables of single pixels, as both looks at pairs lay them out: row ``part * count + pixel``."""
    windowed = windowed_for(name)
    cells = all_cells(windowed)
    count, generator = len(cells), torch.Generator().manual_seed(level)
    table = box_items(windowed, halved(full_boxes(windowed.instance, 0, cells[:, None]), level))
    pixels = torch.stack([torch.randperm(count, generator=generator)[:2] for _ in range(30)])
    open_ = torch.cat([pixels, torch.randint(2**level, (30, 2), generator=generator)], 1)
    items = box_items(windowed, pair_boxes(windowed, 0, cells, open_, level))
    for side in (0, 1):
        rows = open_[:, 2 + side] * count + open_[:, side]
        assert torch.equal(table.members[rows, 0], items.members[:, side])
        assert torch.equal(table.low[rows, 0], items.low[:, side])
        assert torch.equal(table.high[rows, 0], items.high[:, side])
    none = pair_boxes(windowed, 0, cells, open_[:0], level)
    assert len(none) == 0
    assert none.cells.shape == (0, 2)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), max_size=40))
def test_a_look_never_marks_what_was_not_proved(pairs: Sequence[tuple[bool, bool, int]]) -> None:
    """Each row is asked for once at most; the rest of an image only if it has no sample or enough of it is proved."""
    sample, right = (torch.tensor([pair[side] for pair in pairs], dtype=torch.bool) for side in (0, 1))
    owner = torch.tensor([pair[2] for pair in pairs], dtype=torch.int64)
    open_ = torch.arange(len(pairs))[:, None] + 100
    asked: list[int] = []

    def prove(rows: Tensor) -> Tensor:
        asked.extend(rows[:, 0].tolist())
        return right[rows[:, 0] - 100]

    found = look(open_, owner, sample, prove)
    assert len(asked) == len(set(asked))
    tried = torch.zeros_like(sample)
    tried[torch.tensor(asked, dtype=torch.int64) - 100] = True
    assert torch.equal(found, right & tried)
    for image in range(4):
        own = owner == image
        worth = int((right & sample & own).sum()) >= parts_module.WORTH * int((sample & own).sum())
        assert torch.equal(tried[own], torch.ones_like(sample[own]) if worth else sample[own])


def test_levels_without_room_are_not_gone_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four children of each pair, for so many images; whole ranges are always looked at."""
    monkeypatch.setattr(parts_module, "MOST", 40)
    open_ = torch.zeros(11, 4, dtype=torch.int64)
    assert not too_many(open_, 0, 1)
    assert too_many(open_, 1, 1)
    assert not too_many(open_[:10], 1, 1)
    assert not too_many(open_, 1, 2)
