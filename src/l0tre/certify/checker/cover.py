"""Do the nodes of a certificate cover every choice of groups and values exactly once? All comparisons are exact."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l0tre.certify.checker.certificate import Certificate
from l0tre.domain import Domain
from l0tre.errors import CertificateError

__all__ = ["Regions", "Tree", "cover_boxes", "cover_cells", "make_regions", "make_tree", "ranges", "whole_ranges"]

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DEEPEST = 24  # of a tree: 16 million groups


@dataclass(frozen=True)
class Tree:
    """The tree of groups. Arrays of cells are int64 ``[2**(depth + 1)]``, by heap number.

    Attributes:
        depth: Its depth.
        groups: int64 ``[groups]``, the groups from the first slot to the last.
        slots: int64 ``[groups]``, their slots, ascending.
        level: Depth of every cell.
        start: Number of groups in slots before a cell.
        count: Number of groups in a cell.
    """

    depth: int
    groups: Ints
    slots: Ints
    level: Ints
    start: Ints
    count: Ints


@dataclass(frozen=True)
class Regions:
    """Sets of inputs, as nodes of a certificate are.

    Attributes:
        cells: int64 ``[regions, t]``, from left to right in the tree; a cell with one group is its leaf.
        low: float64 ``[regions, t, width]``, smallest values of each group where all cells hold one.
        high: float64 ``[regions, t, width]``, largest values.
        owner: int64 ``[regions]``, the node of the certificate that they are part of.
    """

    cells: Ints
    low: Floats
    high: Floats
    owner: Ints

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, rows: Any) -> "Regions":
        return Regions(self.cells[rows], self.low[rows], self.high[rows], self.owner[rows])


def make_tree(certificate: Certificate, groups: int) -> Tree:
    """The tree of a certificate for a domain with some number of groups.

    Raises:
        CertificateError: If the slots do not hold every group once.
    """
    depth, order = certificate.depth, certificate.order
    if not 0 <= depth <= DEEPEST or order.shape != (2**depth,):
        raise CertificateError(f"order has shape {order.shape} for a tree of depth {depth}, expected 2**depth slots")
    slots = np.flatnonzero(order != -1)
    if not np.array_equal(np.sort(order[slots]), np.arange(groups)):
        raise CertificateError(f"order must hold each of the {groups} groups once and -1 in all other slots")
    level, start, count = (np.zeros(2 ** (depth + 1), np.int64) for _ in range(3))
    full = (order != -1).astype(np.int64)
    before = np.cumsum(full) - full
    for height in range(depth + 1):
        cells = slice(2 ** (depth - height), 2 ** (depth - height + 1))
        level[cells] = depth - height
        start[cells] = before[:: 2**height]
        count[cells] = full.reshape(-1, 2**height).sum(1)
    return Tree(depth, order[slots].astype(np.int64), slots, level, start, count)


def make_regions(certificate: Certificate, tree: Tree, domain: Domain) -> Regions:
    """The nodes of a certificate as regions, each of them well formed and not empty.

    Raises:
        CertificateError: If a node is not.
    """
    cells, box = certificate.cells.astype(np.int64), certificate.box
    _refuse((cells < 1) | (cells >= len(tree.count)), "there is no such cell in its tree", cells)
    _refuse(np.diff(cells, axis=1) < 0, "they must be in ascending order", cells)
    _refuse(
        tree.count[cells] < (cells[:, :, None] == cells[:, None]).sum(2),
        "a cell has fewer groups than are to be taken from it",
        cells,
    )
    rows = np.sort(box[box >= 0])
    if not np.array_equal(rows, np.arange(len(certificate.low))) or (box < -1).any():
        raise CertificateError(f"the {len(certificate.low)} boxes of the certificate must belong to one node each")
    single = tree.count[cells] == 1
    _refuse((box >= 0)[:, None] & ~single, "only groups by themselves can have a box of values", cells)
    group = tree.groups[tree.start[cells]]
    cells = np.where(single, 2**tree.depth + tree.slots[tree.start[cells]], cells)
    low, high = whole_ranges(tree, cells, domain)
    used, boxed = ranges(domain)[2], box >= 0
    for whole, part in ((low, certificate.low), (high, certificate.high)):
        whole[boxed] = np.where(used[group[boxed]], part[box[boxed]], 0.0)
    first = cells << (tree.depth - tree.level[cells])
    place = np.argsort(first, axis=1, kind="stable")
    cells, first = (np.take_along_axis(array, place, 1) for array in (cells, first))
    low, high = (np.take_along_axis(array, place[:, :, None], 1) for array in (low, high))
    after = first + (1 << (tree.depth - tree.level[cells]))
    apart = (cells[:, 1:] == cells[:, :-1]) | (first[:, 1:] >= after[:, :-1])
    _refuse(~apart, "they overlap", cells)
    return Regions(cells, low, high, np.arange(len(cells)))


def ranges(domain: Domain) -> tuple[Floats, Floats, Flags]:
    """Smallest and largest value in each column of ``domain.members``, 0 in unused columns; which columns are used."""
    members, sizes = domain.members.cpu().numpy(), domain.sizes.cpu().numpy()
    used = np.arange(members.shape[1]) < sizes[:, None]
    low, high = (np.where(used, end.double().cpu().numpy()[members], 0.0) for end in (domain.low, domain.high))
    return low, high, used


def whole_ranges(tree: Tree, cells: Ints, domain: Domain) -> tuple[Floats, Floats]:
    """Smallest and largest values of each cell with one group, ``[regions, t, width]``; 0 for other cells."""
    groups, single = tree.groups[tree.start[cells]], tree.count[cells] == 1
    low, high = (np.where(single[..., None], end[groups], 0.0) for end in ranges(domain)[:2])
    return low, high


def _refuse(wrong: Flags, why: str, cells: Ints) -> None:
    """Raise for the first row with anything wrong."""
    if wrong.any():
        row = int(wrong.reshape(len(cells), -1).any(1).argmax())
        raise CertificateError(f"the certificate is wrong about cells {cells[row].tolist()}: {why}")


def cover_cells(tree: Tree, cells: Ints, boxed: NDArray[np.bool_]) -> None:
    """Establish that nodes partition all choices of groups; the nodes of one choice with boxes count as one.

    All nodes begin in one region, that of the root. Every round splits each region at a cell that all nodes in it
    split, until a region is one of the nodes. Nodes that come from splits in any order always have such a cell.

    Args:
        tree: The tree of groups.
        cells: ``[nodes, t]``, as in :class:`Regions`.
        boxed: ``[nodes]``, which have boxes.

    Raises:
        CertificateError: If choices are missing or covered twice.
    """
    together = np.unique(cells[boxed], axis=0)
    cells = np.concatenate([cells[~boxed], together])
    radius, groups = cells.shape[1], len(tree.groups)
    total = sum(
        number * math.prod(map(math.comb, pattern[:radius], pattern[radius:]))
        for pattern, number in _patterns(tree, cells).items()
    )
    if total != math.comb(groups, radius):
        raise CertificateError(
            f"the nodes hold {total} choices of {radius} groups, there are {math.comb(groups, radius)}: "
            "nodes are missing or listed twice"
        )
    current, region = np.ones_like(cells), np.zeros(len(cells), np.int64)
    while len(cells):
        starts, sizes = _runs(region)
        ready = np.logical_or.reduceat((current == cells).all(1), starts)
        _refuse(ready & (sizes > 1), "they are covered more than once", current[starts])
        open_ = np.logical_and.reduceat(current != cells, starts)
        _refuse(~ready & ~open_.any(1), "they are covered in part, or more than once", current[starts])
        cell = current[starts, open_.argmax(1)]
        inside = current == cell[region][:, None]
        child = cells >> np.maximum(tree.level[cells] - tree.level[cell][region][:, None] - 1, 0)
        after = np.where(inside, child, current)
        left = (inside & (child % 2 == 0)).sum(1)
        keys, part = np.unique(region * (radius + 1) + left, return_inverse=True)
        taken = inside.sum(1)[starts]
        first, second = tree.count[2 * cell % len(tree.count)], tree.count[(2 * cell + 1) % len(tree.count)]
        ways = np.minimum(taken, first) - np.maximum(0, taken - second) + 1
        found = np.bincount(keys // (radius + 1), minlength=len(starts))
        _refuse(~ready & (found < ways), "they are covered in part only", current[starts])
        cells, current, region = _still_open(~ready[region], part, cells, after)


def _patterns(tree: Tree, cells: Ints) -> dict[tuple[int, ...], int]:
    """How often each pattern of (groups of a cell, groups taken from it) occurs, for all distinct cells of a node."""
    taken = (cells[:, :, None] == cells[:, None]).sum(2)
    first = np.diff(cells, axis=1, prepend=0) != 0
    pairs = np.concatenate([np.where(first, tree.count[cells], 0), np.where(first, taken, 0)], 1)
    kinds, numbers = np.unique(pairs, axis=0, return_counts=True)
    return dict(zip(map(tuple, kinds.tolist()), numbers.tolist(), strict=True))


def _runs(region: Ints) -> tuple[Ints, Ints]:
    """Where each region begins in an ascending array of region numbers, and how long it is."""
    starts = np.flatnonzero(np.diff(region, prepend=-1))
    return starts, np.diff(starts, append=len(region))


def _still_open(keep: Flags, region: Ints, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Rows of arrays that are kept, by region, and the regions' numbers from 0."""
    rows = np.flatnonzero(keep)
    rows = rows[np.argsort(region[rows], kind="stable")]
    numbers = np.unique(region[rows], return_inverse=True)[1]
    return [*(array[rows] for array in arrays), numbers.reshape(-1)]


def cover_boxes(tree: Tree, boxed: Regions, domain: Domain) -> None:
    """Establish that the boxes of every choice of groups fill its ranges of values and meet in faces only.

    The whole ranges are cut, along one axis at a time, wherever no box is cut, until a part is one of the boxes. Boxes
    that come from bisections in any order can always be cut so.

    Args:
        tree: The tree of groups.
        boxed: The nodes with boxes.
        domain: What may change.

    Raises:
        CertificateError: If values are missing or covered twice.
    """
    if not len(boxed):
        return
    groups = tree.groups[tree.start[boxed.cells]]
    whole_low, whole_high, used = (a[groups].reshape(len(boxed), -1) for a in ranges(domain))
    # Unused columns get the same range in every box, and one that is not empty, so that no cut is found there.
    low, whole_low = (np.where(used, end.reshape(used.shape), 0.0) for end in (boxed.low, whole_low))
    high, whole_high = (np.where(used, end.reshape(used.shape), 1.0) for end in (boxed.high, whole_high))
    wrong = (low < whole_low) | (high > whole_high) | (low >= high)
    _refuse(wrong, "a box is empty or leaves the domain", boxed.cells)
    faces, ranks = np.unique(np.stack([low, high, whole_low, whole_high]), return_inverse=True)
    low, high, least, most = ranks.reshape(4, *low.shape).astype(np.int64)
    region = np.unique(boxed.cells, axis=0, return_inverse=True)[1].reshape(-1)
    low, high, least, most, cells, region = _still_open(
        np.ones(len(boxed), np.bool_), region, low, high, least, most, boxed.cells
    )
    while len(region):
        starts, sizes = _runs(region)
        ready = np.logical_or.reduceat(((low == least) & (high == most)).all(1), starts)
        _refuse(ready & (sizes > 1), "boxes overlap", cells[starts])
        part, cut = region * len(region), ready.copy()
        for axis in np.flatnonzero(used.any(0)):
            rows = np.flatnonzero(~cut[region])
            if not len(rows):
                break
            rows = rows[np.lexsort((low[rows, axis], region[rows]))]
            offset = region[rows] * len(faces)  # keeps the regions apart in the running maximum
            reach = np.maximum.accumulate(offset + high[rows, axis])
            begins = np.diff(region[rows], prepend=-1) != 0
            fresh = ~begins & (offset + low[rows, axis] >= np.concatenate([[0], reach[:-1]]))
            cut[region[rows[fresh]]] = True
            pieces = np.cumsum(begins | fresh) - 1
            heads = np.flatnonzero(begins | fresh)
            face = low[rows[heads], axis]
            lower = np.where(begins[heads], least[rows[heads], axis], face)
            last = np.append(begins[heads][1:], True)
            upper = np.where(last, most[rows[heads], axis], np.append(face[1:], 0))
            least[rows, axis], most[rows, axis] = lower[pieces], upper[pieces]
            part[rows] += pieces - pieces[begins][np.cumsum(begins) - 1]
        _refuse(~cut, "boxes leave gaps or overlap", cells[starts])
        low, high, least, most, cells, region = _still_open(~ready[region], part, low, high, least, most, cells)
