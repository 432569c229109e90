"""The nodes of the search: multisets of cells, and for single groups boxes of values; how they are split and counted.

A node stands for every choice of one group for each of its cells (of ``k`` different groups for a cell that it holds
``k`` times) with any values of their ranges. The cells of a node are equal or disjoint. A node whose cells hold one
group each carries a box of values instead, and is split in its values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TypeVar

import torch
from torch import Tensor

from l0tre.certify.regions.tree import Tree

__all__ = ["BoxNodes", "CellNodes", "Kind", "Known", "Nodes", "join", "root", "shares", "split_boxes", "split_cells"]


@dataclass(frozen=True)
class Known:
    """What the bounds of a node say of its parts, by node.

    Attributes:
        margins: float64 ``[nodes, rivals]``, lower bounds of the margins, minus infinity where there is none.
        low: float32 ``[nodes, neurons]``, smallest values of the neurons of ``Plan.handed``.
        high: Largest values, likewise.
        weighty: bool ``[nodes, neurons]``: those whose gaps take a share of the margins worth looking at.
    """

    margins: Tensor
    low: Tensor
    high: Tensor
    weighty: Tensor

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(part.nbytes for part in (self.margins, self.low, self.high, self.weighty))

    def pick(self, rows: Tensor | slice) -> "Known":
        """For some of the nodes."""
        return Known(self.margins[rows], self.low[rows], self.high[rows], self.weighty[rows])

    def to(self, device: torch.device) -> "Known":
        """The same on another device."""
        return Known(*(part.to(device) for part in (self.margins, self.low, self.high, self.weighty)))


def _join_known(parts: Sequence[Known | None]) -> Known | None:
    """Together, unless of some nodes nothing is known."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    names = [field.name for field in fields(Known)]
    return Known(*(torch.cat([getattr(part, name) for part in known]) for name in names))


def _numbers(rows: Tensor | slice) -> Tensor | slice:
    """A mask as numbers, so that it is looked through once for all tensors: on a GPU that waits for the device."""
    return rows if isinstance(rows, slice) or rows.dtype != torch.bool else rows.nonzero()[:, 0]


def _ranks(cells: Tensor) -> Tensor:
    same = cells[:, :, None] == cells[:, None, :]
    return same.tril(-1).sum(2)


@dataclass(frozen=True)
class CellNodes:
    """A batch of nodes of cells, with the whole ranges of their groups' values.

    Attributes:
        image: int64 ``[nodes]``, row of the instance's images.
        cells: int64 ``[nodes, t]``, equal cells beside each other.
        known: From a node around each one, if there is such.
    """

    image: Tensor
    cells: Tensor
    known: Known | None = None

    def __len__(self) -> int:
        return len(self.image)

    def pick(self, rows: Tensor | slice) -> "CellNodes":
        """Some of the nodes, by a mask, numbers or a slice."""
        rows = _numbers(rows)
        return CellNodes(self.image[rows], self.cells[rows], self.known and self.known.pick(rows))

    def to(self, device: torch.device) -> "CellNodes":
        """The same nodes on another device."""
        return CellNodes(self.image.to(device), self.cells.to(device), self.known and self.known.to(device))

    def ranks(self) -> Tensor:
        """For every cell how many equal ones come before it, ``[nodes, t]``."""
        return _ranks(self.cells)

    def of_image(self, image: int) -> "CellNodes":
        """The same nodes for one image, without what is known of them."""
        return CellNodes(torch.full_like(self.image, image), self.cells)


@dataclass(frozen=True)
class BoxNodes:
    """A batch of nodes of single groups, each with a box of values.

    Attributes:
        image: int64 ``[nodes]``, row of the instance's images.
        cells: int64 ``[nodes, t]``, leaves of the tree.
        low: float64 ``[nodes, t, width]``, smallest values.
        high: Largest values, likewise.
        depth: int64 ``[nodes]``, how often the box was halved.
        known: See :class:`CellNodes`.
    """

    image: Tensor
    cells: Tensor
    low: Tensor
    high: Tensor
    depth: Tensor
    known: Known | None = None

    def __len__(self) -> int:
        return len(self.image)

    def pick(self, rows: Tensor | slice) -> "BoxNodes":
        """Some of the nodes, by a mask, numbers or a slice."""
        rows = _numbers(rows)
        image, cells, low, high, depth = (
            part[rows] for part in (self.image, self.cells, self.low, self.high, self.depth)
        )
        return BoxNodes(image, cells, low, high, depth, self.known and self.known.pick(rows))

    def to(self, device: torch.device) -> "BoxNodes":
        """The same nodes on another device."""
        parts = (self.image, self.cells, self.low, self.high, self.depth)
        image, cells, low, high, depth = (part.to(device) for part in parts)
        return BoxNodes(image, cells, low, high, depth, self.known and self.known.to(device))

    def ranks(self) -> Tensor:
        """For every cell how many equal ones come before it, ``[nodes, t]``."""
        return _ranks(self.cells)

    def of_image(self, image: int) -> "BoxNodes":
        """The same nodes for one image, without what is known of them."""
        return BoxNodes(torch.full_like(self.image, image), self.cells, self.low, self.high, self.depth)


Nodes = CellNodes | BoxNodes
Kind = TypeVar("Kind", CellNodes, BoxNodes)


def join(parts: Sequence[Kind]) -> Kind:
    """Several batches of one kind as one."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    values = {field.name: cat(field.name) for field in fields(first) if field.name != "known"}
    return replace(first, **values, known=_join_known([part.known for part in parts]))


def root(image: int, t: int, device: torch.device) -> CellNodes:
    """The node of all sets of ``t`` groups of an image."""
    return CellNodes(torch.tensor([image], device=device), torch.ones(1, t, dtype=torch.int64, device=device))


def split_cells(tree: Tree, nodes: CellNodes, weight: Tensor | None = None) -> tuple[CellNodes, Tensor]:
    """Halve one cell of every node; a cell that is there ``k`` times gives ``k + 1`` children.

    Args:
        tree: The cells.
        nodes: Nodes of cells, each with a cell of two groups or more.
        weight: float64 ``[nodes, t]``, at least 0, how much each cell matters: the largest weight times the root of the
            cell's size is halved. If not given, the largest cell.

    Returns:
        The children, and the row of each one's parent. Children that ask for more different groups than a cell has
        are left out: they stand for nothing.
    """
    sizes = tree.sizes[nodes.cells].double()
    # Where no cell matters, or it is not known, the largest one is halved; never one of a single group.
    score = sizes if weight is None else weight * sizes.sqrt() + 1e-300 * sizes
    chosen = torch.where(sizes > 1, score, -1.0).argmax(1, keepdim=True)
    cell = nodes.cells.gather(1, chosen)
    shared = nodes.cells == cell
    count, place = shared.sum(1), shared.cumsum(1) * shared
    left, right = 2 * cell, 2 * cell + 1
    go_left = torch.arange(nodes.cells.shape[1] + 1, device=cell.device)[:, None]
    fits = (go_left <= count) & (tree.sizes[left[:, 0]] >= go_left) & (tree.sizes[right[:, 0]] >= count - go_left)
    cells = torch.where(shared, torch.where(place <= go_left[:, :, None], left, right), nodes.cells)
    child, parent = fits.nonzero(as_tuple=True)
    return replace(nodes.pick(parent), cells=cells[child, parent]), parent


def split_boxes(nodes: BoxNodes, weight: Tensor) -> BoxNodes:
    """Halve every box along one value.

    Args:
        nodes: Box nodes.
        weight: ``[nodes, t, width]``, how much each value matters; the largest weight times width is halved.

    Returns:
        Two children for every node, the lower halves first.
    """
    extent = nodes.high - nodes.low
    # Where no value matters to the bound, the longest side does.
    score = extent * (weight.abs() + 1e-9 * weight.abs().amax((1, 2), keepdim=True) + 1e-300)
    axis = score.flatten(1).argmax(1, keepdim=True)
    low, high = nodes.low.flatten(1), nodes.high.flatten(1)
    middle = (low.gather(1, axis) + high.gather(1, axis)) / 2
    shape, depth = nodes.low.shape, nodes.depth + 1
    lower = replace(nodes, high=high.scatter(1, axis, middle).view(shape), depth=depth)
    upper = replace(nodes, low=low.scatter(1, axis, middle).view(shape), depth=depth)
    return join([lower, upper])


def shares(tree: Tree, nodes: Nodes) -> dict[int, Fraction]:
    """How many sets of groups the nodes of each image stand for, exactly; a box counts as its share of a set.

    Returns:
        By row of the instance's images.
    """
    sizes = tree.sizes[nodes.cells]
    depth = nodes.depth if isinstance(nodes, BoxNodes) else torch.zeros_like(nodes.image)
    keys = torch.cat([nodes.image[:, None], depth[:, None], nodes.ranks(), sizes], 1)
    kinds, counts = keys.unique(dim=0, return_counts=True)
    t = nodes.cells.shape[1]
    totals: dict[int, Fraction] = {}
    for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        image, halvings, ranks, numbers = kind[0], kind[1], kind[2 : 2 + t], kind[2 + t :]
        sets = math.prod(math.comb(size, times) for size, times in _multiplicities(ranks, numbers))
        totals[image] = totals.get(image, Fraction(0)) + Fraction(count * sets, 2**halvings)
    return totals


def _multiplicities(ranks: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Size and number of occurrences of each different cell: equal cells lie together, ranks count them from 0."""
    runs: list[tuple[int, int]] = []
    for rank, size in zip(ranks, sizes, strict=True):
        if rank == 0:
            runs.append((size, 1))
        else:
            runs[-1] = (size, rank + 1)
    return runs
