"""The nodes of the search: multisets of cells, and for single groups boxes of values; how they are split and counted.

A node stands for every choice of one group for each of its cells (of ``k`` different groups for a cell that it holds
``k`` times) with any values of their ranges. The cells of a node are equal or disjoint. A node whose cells hold one
group each carries a box of values instead, and is split in its values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.regions.tree import Tree

__all__ = ["Nodes", "join", "root", "shares", "split_boxes", "split_cells"]


@dataclass(frozen=True)
class Nodes:
    """A batch of nodes.

    Attributes:
        image: int64 ``[nodes]``, row of the instance's images.
        cells: int64 ``[nodes, t]``, equal cells beside each other.
        low: float64 ``[nodes, t, width]``, smallest values of a box node; ``None`` for nodes of cells.
        high: Largest values, likewise.
        depth: int64 ``[nodes]``, how often the box was halved.
        signs: int8 ``[nodes, neurons]``, signs of ``Plan.signed`` neurons that are certain, 0 for those that are not;
            ``None`` if nothing is known.
    """

    image: Tensor
    cells: Tensor
    low: Tensor | None = None
    high: Tensor | None = None
    depth: Tensor | None = None
    signs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.image)

    def pick(self, rows: Tensor | slice) -> "Nodes":
        """Some of the nodes, by a mask, numbers or a slice."""
        parts = (self.low, self.high, self.depth, self.signs)
        return Nodes(self.image[rows], self.cells[rows], *(None if p is None else p[rows] for p in parts))

    def to(self, device: torch.device) -> "Nodes":
        """The same nodes on another device."""
        parts = (self.low, self.high, self.depth, self.signs)
        moved = (None if p is None else p.to(device) for p in parts)
        return Nodes(self.image.to(device), self.cells.to(device), *moved)

    def ranks(self) -> Tensor:
        """For every cell how many equal ones come before it, ``[nodes, t]``."""
        same = self.cells[:, :, None] == self.cells[:, None, :]
        return same.tril(-1).sum(2)


def join(parts: Sequence[Nodes]) -> Nodes:
    """Several batches of one kind as one."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def cat(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else torch.cat(values)

    image, cells = (torch.cat([getattr(part, name) for part in parts]) for name in ("image", "cells"))
    return Nodes(image, cells, cat("low"), cat("high"), cat("depth"), cat("signs"))


def root(image: int, t: int, device: torch.device) -> Nodes:
    """The node of all sets of ``t`` groups of an image."""
    return Nodes(torch.tensor([image], device=device), torch.ones(1, t, dtype=torch.int64, device=device))


def split_cells(tree: Tree, nodes: Nodes) -> tuple[Nodes, Tensor]:
    """Halve the largest cell of every node; a cell that is there ``k`` times gives ``k + 1`` children.

    Args:
        tree: The cells.
        nodes: Nodes of cells, each with a cell of two groups or more.

    Returns:
        The children, and the row of each one's parent. Children that ask for more different groups than a cell has
        are left out: they stand for nothing.
    """
    largest = tree.sizes[nodes.cells].argmax(1, keepdim=True)
    cell = nodes.cells.gather(1, largest)
    shared = nodes.cells == cell
    count, place = shared.sum(1), shared.cumsum(1) * shared
    left, right = 2 * cell, 2 * cell + 1
    children, parents = [], []
    for go_left in range(nodes.cells.shape[1] + 1):
        fits = (go_left <= count) & (tree.sizes[left[:, 0]] >= go_left) & (tree.sizes[right[:, 0]] >= count - go_left)
        cells = torch.where(shared, torch.where(place <= go_left, left, right), nodes.cells)
        signs = None if nodes.signs is None else nodes.signs[fits]
        children.append(Nodes(nodes.image[fits], cells[fits], signs=signs))
        parents.append(fits.nonzero()[:, 0])
    return join(children), torch.cat(parents)


def split_boxes(nodes: Nodes, weight: Tensor) -> Nodes:
    """Halve every box along one value.

    Args:
        nodes: Box nodes.
        weight: ``[nodes, t, width]``, how much each value matters; the largest weight times width is halved.

    Returns:
        Two children for every node, the lower halves first.
    """
    assert nodes.low is not None
    assert nodes.high is not None
    assert nodes.depth is not None
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
    depth = torch.zeros_like(nodes.image) if nodes.depth is None else nodes.depth
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
