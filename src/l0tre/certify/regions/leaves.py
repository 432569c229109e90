"""What a search has closed, kept for a certificate: nodes as they are, or boxes as leaves of their sets' trees.

A certificate of sets knows a box by the number of its set and its place in the tree of halvings of the set's box, where
the ``k``-th halving cuts side ``k`` modulo the number of sides. A box that was halved in another order is cut on until
it has a place there. What a search proves by other means than boxes, sums for instance, is not named: a checker finds
those sets by their absence.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l0tre.certify.regions.nodes import BoxNodes, Nodes
from l0tre.certify.regions.tree import Tree
from l0tre.errors import InternalError

__all__ = ["MOST_LEAVES", "Closed", "ClosedNodes", "ClosedSets", "leaves_of", "trees_of"]

DEEPEST = 62  # halvings that a place can name
MOST_CUTS = 10  # halvings more of a box that has no place; a set that needs more is left to the checker
MOST_LEAVES = 2**23  # kept for an image and a level; a larger proof leaves no certificate
NO_PLACE = -1


@dataclass(frozen=True)
class ClosedNodes:
    """Proved nodes that cover a level once nothing is open.

    Attributes:
        parts: Nodes with row number 0 and their bounds, on the CPU.
    """

    parts: tuple[tuple[Nodes, Tensor], ...] = ()

    def __len__(self) -> int:
        return sum(len(bounds) for _, bounds in self.parts)


@dataclass(frozen=True)
class ClosedSets:
    """Proved boxes of a level all of whose sets are listed; what no box covers was proved by other means.

    Attributes:
        leaves: int64 ``[3, leaves]`` each, on the CPU: number of the set, place in units of ``2**-62``, depth; a place
            of -1 says that the set's boxes have none.
    """

    leaves: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return sum(part.shape[1] for part in self.leaves)


Closed = ClosedNodes | ClosedSets


def leaves_of(tree: Tree, members: Tensor, lengths: Tensor, start: Tensor, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
    """Boxes as leaves of their sets' trees.

    Args:
        tree: The cells.
        members: int64 ``[slots, width]``, positions of each slot's values; the last of ``lengths`` for none.
        lengths: float64 ``[values + 1]``, lengths of the ranges, 0 in the last place.
        start: float64 ``[values + 1]``, their least values.
        nodes: The boxes.

    Returns:
        The image of each leaf, int64 ``[leaves]``, and the leaves, int64 ``[3, leaves]``.
    """
    slots = nodes.cells - tree.slots
    group = tree.order[slots]
    order = group.argsort(1)
    group, slots = group.gather(1, order), slots.gather(1, order)
    wide = order[:, :, None].expand_as(nodes.low)
    low, high = (end.gather(1, wide).flatten(1) for end in (nodes.low, nodes.high))
    index = members[slots].flatten(1)
    whole = lengths[index]
    real = whole > 0
    safe = whole.where(real, 1.0)
    halved = torch.where(real, torch.log2(safe / (high - low).where(real, 1.0)).round(), 0.0).long()
    place = torch.where(real, ((low - start[index]) / safe * torch.exp2(halved.double())).round(), 0.0).long()
    number = _numbers(group, int((tree.order >= 0).sum()))
    image, number, place, halved, real, lost = _in_order(nodes.image, number, place, halved, real)
    depth = halved.sum(1)
    lost |= depth > DEEPEST
    path = torch.zeros_like(depth)
    count = real.sum(1)
    rank = real.cumsum(1) - 1
    for level in range(min(DEEPEST, int(depth.max()) if len(depth) else 0)):
        side = (real & (rank == (level % count.clamp(min=1))[:, None])).int().argmax(1, keepdim=True)
        left = halved.gather(1, side)[:, 0] - 1 - level // count.clamp(min=1)
        bit = (place.gather(1, side)[:, 0] >> left.clamp(min=0)) & 1
        path += torch.where(depth > level, bit << (DEEPEST - 1 - level), 0)
    return image, torch.stack([number, path.masked_fill(lost, NO_PLACE), depth.masked_fill(lost, 0)])


def _numbers(groups: Tensor, count: int) -> Tensor:
    """Numbers of sets ``[sets, t]``, ascending in each, in lexicographic order."""
    t = groups.shape[1]
    choose = torch.tensor([[math.comb(n, k) for k in range(t + 1)] for n in range(count + 1)], device=groups.device)
    last = math.comb(count, t) - 1
    return last - sum((choose[count - 1 - groups[:, k], t - k] for k in range(t)), torch.zeros_like(groups[:, 0]))


def _in_order(
    image: Tensor, number: Tensor, place: Tensor, halved: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cut boxes on until their sides were halved in turn; also which could not be."""
    lost = torch.zeros_like(image, dtype=torch.bool)
    for cut in range(MOST_CUTS + 1):
        count, rank = real.sum(1, keepdim=True).clamp(min=1), real.cumsum(1) - 1
        # The least depth at which every side was halved as often as here, or more often.
        needed = torch.where(real & (halved > 0), (halved - 1) * count + rank + 1, 0).amax(1, keepdim=True)
        wanted = torch.where(real, (needed - rank + count - 1) // count, 0)
        short = (wanted > halved) & ~lost[:, None]
        rows = short.any(1)
        if not bool(rows.any()):
            break
        if cut == MOST_CUTS:
            lost = lost | rows
            break
        side = short.int().argmax(1, keepdim=True)[rows]
        lower, deeper = place[rows], halved[rows]
        lower = lower.scatter(1, side, 2 * lower.gather(1, side))
        deeper = deeper.scatter(1, side, deeper.gather(1, side) + 1)
        upper = lower.scatter(1, side, lower.gather(1, side) + 1)
        image, number, lost = (torch.cat([x[~rows], x[rows], x[rows]]) for x in (image, number, lost))
        real = torch.cat([real[~rows], real[rows], real[rows]])
        place = torch.cat([place[~rows], lower, upper])
        halved = torch.cat([halved[~rows], deeper, deeper])
    return image, number, place, halved, real, lost


def trees_of(closed: ClosedSets) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Whole trees of the sets that boxes were proved of: what no box covers is a leaf too, as wide as it can be.

    Args:
        closed: The proved boxes.

    Returns:
        The numbers of the sets, ascending; the depths of all leaves, tree by tree.

    Raises:
        InternalError: If a part was proved twice.
    """
    leaves = torch.cat([*closed.leaves, torch.zeros(3, 0, dtype=torch.int64)], 1).numpy()
    left = np.unique(leaves[0, leaves[1] == NO_PLACE])
    leaves = leaves[:, ~np.isin(leaves[0], left) & (leaves[2] > 0)]
    number, place, depth = leaves[:, np.lexsort((leaves[1], leaves[0]))]
    end = place + (np.int64(1) << (DEEPEST - depth))
    whole = np.int64(1) << np.int64(DEEPEST)
    head = np.diff(number, prepend=-1) != 0
    tail = np.diff(number, append=-1) != 0
    begin = np.where(head, 0, np.concatenate([[0], end[:-1]])) if len(end) else end
    if (begin > place).any():
        raise InternalError("a part of a level was proved twice: no certificate was written, please report it")
    gaps = [(number, begin, place), (number[tail], end[tail], np.broadcast_to(whole, (int(tail.sum()),)))]
    sets, first, last = (np.concatenate([gap[k] for gap in gaps]) for k in range(3))
    found = [(number, place, depth)]
    while len(sets := sets[open_ := first < last]):
        first, last = first[open_], last[open_]
        room = np.log2((last - first).astype(np.float64)).astype(np.int64)
        room -= (np.int64(1) << room) > last - first  # rounded up to a power of two
        low_bit = np.where(first == 0, whole, first & -first)
        size = np.minimum(low_bit, np.int64(1) << room)
        found.append((sets, first, DEEPEST - np.round(np.log2(size.astype(np.float64))).astype(np.int64)))
        first = first + size
    number, place, depth = (np.concatenate([part[k] for part in found]) for k in range(3))
    order = np.lexsort((place, number))
    return np.unique(number), depth[order].astype(np.uint8)
