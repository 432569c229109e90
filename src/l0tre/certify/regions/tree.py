"""The tree of cells: sets of groups, halved until they hold one group each.

The tree is laid out as a perfect binary tree of ``depth`` levels below the root, so that cells are plain numbers: the
root is 1, the halves of cell ``i`` are ``2 i`` and ``2 i + 1``, and the leaf at slot ``s`` is ``2 ** depth + s``. A
cell is then a contiguous range of slots, and reducing a row of slots to all its cells takes ``depth`` halvings.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.layout import channel_axis
from l0tre.model.graph import Graph

__all__ = ["Tree", "make_tree"]

Halve = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Tree:
    """Cells of groups.

    Attributes:
        depth: Levels below the root.
        order: int64 ``[2 ** depth]``, the group (row of ``Domain.members``) in each slot, -1 for an empty slot.
        sizes: int64 ``[2 ** (depth + 1)]``, number of groups in each cell; entry 0 is unused.
        heights: int64 ``[2 ** (depth + 1)]``, levels between each cell and the leaves.
    """

    depth: int
    order: Tensor
    sizes: Tensor
    heights: Tensor

    @property
    def slots(self) -> int:
        """Number of leaves, empty ones included."""
        return len(self.order)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the order (int64, little-endian), in hexadecimal digits: what numbers of cells refer to."""
        return hashlib.sha256(self.order.cpu().numpy().astype("<i8").tobytes()).hexdigest()

    def to(self, device: torch.device) -> "Tree":
        """The same tree on another device."""
        return Tree(self.depth, self.order.to(device), self.sizes.to(device), self.heights.to(device))


def make_tree(domain: Domain, graph: Graph | None = None) -> Tree:
    """Build the tree of a domain's groups.

    Args:
        domain: The groups. Those of an image are halved in space, along the longer side.
        graph: The network. The features of a vector that enter a dense layer are halved by the direction in which
            their weights vary most, so that features which act alike stay together; without a graph in plain halves.

    Returns:
        The tree, on the CPU.
    """
    places, halve = _strategy(domain, graph)
    cells = {1: torch.arange(domain.groups)}
    depth = 0
    # A cell is halved until it holds one group; a leaf above the deepest level is moved down its left edge below.
    pending = [1]
    while pending:
        cell = pending.pop()
        if len(cells[cell]) > 1:
            groups = cells.pop(cell)
            left, right = halve(places[groups])
            for child, part in ((2 * cell, left), (2 * cell + 1, right)):
                cells[child] = groups[part]
                pending.append(child)
            depth = max(depth, cell.bit_length())
    order = torch.full((2**depth,), -1)
    for cell, groups in cells.items():
        height = depth + 1 - cell.bit_length()
        order[(cell << height) - 2**depth] = groups[0]
    sizes = torch.zeros(2 ** (depth + 1), dtype=torch.int64)
    level = (order >= 0).long()
    for height in range(depth, -1, -1):
        sizes[2**height : 2 ** (height + 1)] = level
        level = level.view(-1, 2).sum(1) if height else level
    heights = torch.tensor([depth + 1 - max(1, cell).bit_length() for cell in range(2 ** (depth + 1))])
    return Tree(depth, order, sizes, heights)


def _strategy(domain: Domain, graph: Graph | None) -> tuple[Tensor, Halve]:
    """What describes each group, and how groups are halved by it."""
    shape = domain.shape
    if len(shape) in (2, 3):
        axis = channel_axis(shape)
        grid = [torch.arange(size) for size in shape]
        full = torch.stack(torch.meshgrid(*grid, indexing="ij"), -1).reshape(-1, len(shape))
        planar = full[:, [d for d in range(len(shape)) if d != axis]].double()
        real = torch.arange(domain.members.shape[1]) < domain.sizes.cpu()[:, None]
        points = planar[domain.members.cpu()]
        return (points * real[..., None]).sum(1) / real.sum(1, keepdim=True), _halve_in_space
    weight = _dense_weight(graph)
    if weight is None or domain.members.shape[1] != 1 or not torch.isfinite(weight).all():
        return torch.arange(domain.groups)[:, None].double(), _halve_in_order
    return weight[:, domain.members[:, 0].cpu()].T.double(), _halve_by_direction


def _dense_weight(graph: Graph | None) -> Tensor | None:
    """Weights ``[out, features]`` of the first dense layer that reads the input."""
    if graph is None:
        return None
    sources = {0}
    for position, operation in enumerate(graph.operations):
        if sources.intersection(operation.inputs):
            if operation.kind == "linear":
                return operation.tensors["weight"].cpu()
            if operation.kind == "scale":
                sources.add(position)
    return None


def _halve_in_space(points: Tensor) -> tuple[Tensor, Tensor]:
    """Cut the bounding box at the middle of its longer side; points that coincide are halved in order."""
    low, high = points.amin(0), points.amax(0)
    extent = high - low
    # The first of equally long sides, as rows come before columns.
    axis = int((extent == extent.max()).nonzero()[0])
    if extent[axis] == 0:
        return _halve_in_order(points)
    if bool((points == points.round()).all()):
        cut = math.ceil((float(low[axis]) + float(high[axis])) / 2)
        below = points[:, axis] < cut
        return below.nonzero()[:, 0], (~below).nonzero()[:, 0]
    # Centres of irregular groups: the middle by count keeps the tree shallow however they lie.
    order = points[:, axis].argsort(stable=True)
    return order[: len(order) // 2], order[len(order) // 2 :]


def _halve_in_order(points: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.arange(len(points))
    return order[: len(order) // 2], order[len(order) // 2 :]


def _halve_by_direction(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Halve by the first principal component of the weights, ``[features, out]``."""
    centred = weights - weights.mean(0)
    scores = torch.linalg.svd(centred, full_matrices=False).U[:, 0]
    # The sign of a singular vector is arbitrary; fix it, so that the tree is the same everywhere.
    scores = scores * torch.sign(scores[scores.abs().argmax()])
    order = scores.argsort(stable=True)
    return order[: len(order) // 2], order[len(order) // 2 :]
