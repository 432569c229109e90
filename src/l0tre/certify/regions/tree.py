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
from l0tre.halting import beat
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
    on_grid = halve is _halve_in_space and bool((places == places.round()).all())
    if on_grid and len(places.unique(dim=0)) == len(places):
        leaves = _halve_grid(places.long())
    else:
        leaves = _halve_all(places, halve)
    # A leaf above the deepest level is moved down its left edge below.
    lengths = torch.tensor([cell.bit_length() for cell in leaves.tolist()])
    depth = int(lengths.max()) - 1
    order = torch.full((2**depth,), -1)
    order[(leaves << (depth + 1 - lengths)) - 2**depth] = torch.arange(domain.groups)
    sizes = torch.zeros(2 ** (depth + 1), dtype=torch.int64)
    level = (order >= 0).long()
    for height in range(depth, -1, -1):
        sizes[2**height : 2 ** (height + 1)] = level
        level = level.view(-1, 2).sum(1) if height else level
    heights = torch.tensor([depth + 1 - max(1, cell).bit_length() for cell in range(2 ** (depth + 1))])
    return Tree(depth, order, sizes, heights)


def _halve_all(places: Tensor, halve: Halve) -> Tensor:
    """Halve cells until each holds one group: the cell of every group, int64 ``[groups]``."""
    leaves = torch.ones(len(places), dtype=torch.int64)
    pending = [(1, torch.arange(len(places)))]
    while pending:
        beat()
        cell, groups = pending.pop()
        if len(groups) == 1:
            leaves[groups] = cell
            continue
        left, right = halve(places[groups])
        pending += [(2 * cell, groups[left]), (2 * cell + 1, groups[right])]
    return leaves


def _halve_grid(places: Tensor) -> Tensor:
    """As :func:`_halve_all` by :func:`_halve_in_space`, for different whole places: all cells of a level at once."""
    leaves = torch.ones(len(places), dtype=torch.int64)
    open_ = torch.arange(len(places))
    while True:
        beat()
        _, cell, size = leaves[open_].unique(return_inverse=True, return_counts=True)
        several = (size > 1)[cell]
        open_, cell = open_[several], cell[several]
        if not len(open_):
            return leaves
        points, spread = places[open_], cell[:, None].expand(-1, places.shape[1])
        ends = places.new_zeros(len(size), places.shape[1])
        low, high = (ends.scatter_reduce(0, spread, points, how, include_self=False) for how in ("amin", "amax"))
        axis = (high - low).argmax(1, keepdim=True)  # the first of equally long sides
        cut = (low.gather(1, axis) + high.gather(1, axis) + 1).div(2, rounding_mode="floor")
        above = points.gather(1, axis[cell]) >= cut[cell]
        leaves[open_] = 2 * leaves[open_] + above[:, 0]


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
