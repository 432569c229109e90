"""The first look at a level: every set of pixels at once, those that are far apart decided by sums of tables."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from l0tre.certify.boxes.affine_forms import least
from l0tre.certify.boxes.box_bounds import lower_forms
from l0tre.certify.boxes.disjoint_pairs import coarse_ranges, disjoint_pairs, hulls, table_bytes
from l0tre.certify.boxes.margin_errors import margin_errors
from l0tre.certify.boxes.overlapping_pairs import overlapping_pairs
from l0tre.certify.boxes.range_parts import FirstLook, full_boxes, halved
from l0tre.certify.boxes.windowed import Windowed, can_interact
from l0tre.certify.regions.nodes import join
from l0tre.certify.relax.interval import Interval

__all__ = ["disjoint_by_ranges", "first_pass", "joined", "split_pairs"]

SINGLE_HALVINGS = 4  # of the range of every value, for the table of single pixels
PAIR_HALVINGS = 4  # of the boxes of two pixels that are near
APART_HALVINGS = 4  # of single ranges, where forms decide what ranges leave: of whole pairs, since parts hardly help
TRIPLE_HALVINGS = 2  # of the boxes of three pixels: hardly any is proved whole
ENTRIES = 2**22  # numbers of a table that are worked on at a time


def first_pass(windowed: Windowed, images: Tensor, t: int) -> FirstLook:
    """Look at all sets of ``t`` pixels.

    Args:
        windowed: Network and images.
        images: int64 ``[images]``, rows of the instance's images.
        t: 1, 2, or if scores follow the windows at once 3.

    Returns:
        What is proved, and all else as boxes.
    """
    tree = windowed.instance.tree
    cells = (tree.order >= 0).nonzero()[:, 0] + tree.slots
    if t == 1:
        left = [full_boxes(windowed.instance, image, cells[:, None]) for image in images.tolist()]
        return FirstLook([Fraction(0)] * len(images), join(left), [0] * len(images))
    if t == 3:
        return _triples(windowed, images, cells)
    sets = torch.combinations(torch.arange(len(cells), device=cells.device))
    close, apart = split_pairs(windowed, cells, sets)
    if windowed.local.flat:
        near = overlapping_pairs(windowed, images, cells, close)
        far = _added_pairs(windowed, images, cells, apart)
        return joined([near, *far], [images, *images[:, None]], images)
    found: list[FirstLook] = []
    owners: list[Tensor] = []
    for part, tables in _coarse_tables(windowed, images, cells):
        found.append(overlapping_pairs(windowed, part, cells, close, hulls(tables, cells)))
        found += disjoint_pairs(windowed, part, cells, apart, tables)
        owners += [part, *part[:, None]]
    return joined(found, owners, images)


def split_pairs(windowed: Windowed, cells: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs int64 ``[pairs, 2]`` of cells that a neuron before the dense layer may see together, and all others."""
    close = can_interact(windowed.local, *_pixels(windowed, cells[pairs]).T)
    return pairs[close], pairs[~close]


def disjoint_by_ranges(windowed: Windowed, images: Tensor, cells: Tensor, pairs: Tensor) -> list[FirstLook]:
    """Pairs of pixels that no neuron before the dense layer sees together, if layers follow; a look for each image.

    Whole ranges alone: forms decide what these leave, with fewer boxes than parts would be.
    """
    return [
        found
        for part, tables in _coarse_tables(windowed, images, cells, APART_HALVINGS)
        for found in disjoint_pairs(windowed, part, cells, pairs, tables, ((APART_HALVINGS, 0),))
    ]


def _coarse_tables(
    windowed: Windowed, images: Tensor, cells: Tensor, halvings: int | None = None
) -> Iterator[tuple[Tensor, list[Interval]]]:
    """Some images at a time, and what all their single pixels can do to the dense layer."""
    most = max(1, windowed.budget // (4 * table_bytes(windowed, cells, halvings)))
    for part in images.split(most):
        yield part, coarse_ranges(windowed, part, cells, halvings)


def joined(found: Sequence[FirstLook], owners: Sequence[Tensor], images: Tensor) -> FirstLook:
    """Several looks at different sets as one.

    Args:
        found: What each look found.
        owners: The images of each look.
        images: All images.
    """
    place = {image: row for row, image in enumerate(images.tolist())}
    proved, bounded = [Fraction(0)] * len(place), [0] * len(place)
    for part, owner in zip(found, owners, strict=True):
        for image, share, count in zip(owner.tolist(), part.proved, part.bounded, strict=True):
            proved[place[image]] += share
            bounded[place[image]] += count
    return FirstLook(proved, join([part.left for part in found]), bounded)


def _added_pairs(windowed: Windowed, images: Tensor, cells: Tensor, pairs: Tensor) -> list[FirstLook]:
    """Pairs of pixels that are far apart, if scores follow the windows at once."""
    found = []
    for image in images.tolist():
        change = partial(_add_two, _losses(windowed, image, cells[:, None], SINGLE_HALVINGS))
        safe = _sums_prove(windowed, image, pairs, change)
        left = full_boxes(windowed.instance, image, cells[pairs[~safe]])
        found.append(FirstLook([Fraction(int(safe.sum()))], left, [len(cells) * 2**SINGLE_HALVINGS]))
    return found


def _triples(windowed: Windowed, images: Tensor, cells: Tensor) -> FirstLook:
    """Triples, if scores follow the windows at once."""
    sets, connected, near = _list_triples(windowed, cells)
    proved, left = [], []
    for image in images.tolist():
        singles = _losses(windowed, image, cells[:, None], SINGLE_HALVINGS)
        table = singles[:, None] + singles
        table[near[:, 0], near[:, 1]] = _losses(windowed, image, cells[near], PAIR_HALVINGS)
        safe = torch.zeros_like(connected)
        change = partial(_add_three, table, singles)
        safe[~connected] = _sums_prove(windowed, image, sets[~connected], change)
        apart = full_boxes(windowed.instance, image, cells[sets[~(safe | connected)]])
        together = halved(full_boxes(windowed.instance, image, cells[sets[connected]]), TRIPLE_HALVINGS)
        proved.append(Fraction(int(safe.sum())))
        left.append(join([apart, together]))
    bounded = len(cells) * 2**SINGLE_HALVINGS + len(near) * 2**PAIR_HALVINGS
    return FirstLook(proved, join(left), [bounded] * len(images))


def _add_two(singles: Tensor, sets: Tensor) -> Tensor:
    return singles[sets[:, 0]] + singles[sets[:, 1]]


def _add_three(pairs: Tensor, singles: Tensor, sets: Tensor) -> Tensor:
    return pairs[sets[:, 0], sets[:, 1]] + singles[sets[:, 2]]


def _sums_prove(windowed: Windowed, image: int, sets: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Which sets are proved by the least changes of all margins, bool ``[sets]``."""
    own = torch.tensor([image], device=sets.device)
    floor = margin_errors(windowed.instance, own, sets.shape[1]) - windowed.instance.margins[own]
    safe = torch.zeros(len(sets), dtype=torch.bool, device=sets.device)
    most = max(1, ENTRIES // floor.shape[1])
    for start in range(0, len(sets), most):
        total = change(sets[start : start + most])
        safe[start : start + most] = ((total > floor) & torch.isfinite(total)).all(1)
    return safe


def _pixels(windowed: Windowed, cells: Tensor) -> Tensor:
    """Numbers of the groups' pixels in the input's plane."""
    _, height, width = windowed.local.plan.graph.input_shape
    return windowed.instance.members[cells - windowed.instance.tree.slots][..., 0] % (height * width)


def _list_triples(windowed: Windowed, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All triples, those that are one cluster, and all near pairs; the two that are near come first."""
    count = len(cells)
    pixels = _pixels(windowed, cells)
    near = can_interact(windowed.local, pixels[:, None], pixels[None])
    a, b, c = torch.combinations(torch.arange(count, device=cells.device), 3).T
    ab, ac, bc = near[a, b], near[a, c], near[b, c]
    connected = (ab.int() + ac.int() + bc.int()) > 1
    first = torch.where(bc & ~ab & ~ac, b, a)
    second = torch.where(ac & ~ab, c, torch.where(bc & ~ab, c, b))
    third = a + b + c - first - second
    pairs = near.triu(1).nonzero()
    return torch.stack([first, second, third], 1), connected, pairs


def _losses(windowed: Windowed, image: int, cells: Tensor, halvings: int) -> Tensor:
    """The least that each set of pixels can change each margin of an image, ``[sets, classes - 1]``."""
    nodes = halved(full_boxes(windowed.instance, image, cells), halvings)
    change = least(lower_forms(windowed, nodes)) - windowed.instance.margins[image]
    # What is not a number must not vanish in a minimum: it becomes a change that proves nothing.
    change = torch.where(torch.isfinite(change), change, -torch.inf)
    return change.view(2**halvings, len(cells), change.shape[1]).amin(0)
