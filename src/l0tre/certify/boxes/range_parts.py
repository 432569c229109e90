"""Sets of pixels as boxes of values, and the parts of a pixel's range by repeated halving."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import BoxNodes, split_boxes
from l0tre.certify.relax.instance import Instance

__all__ = ["SAMPLE", "FirstLook", "children", "full_boxes", "halved", "look", "pair_boxes", "too_many"]

SAMPLE = 16  # one of so many pairs shows whether it is worth to look at all
MOST = 2**20  # pairs of parts of one image: hopeless ones must not fill the memory
WORTH = 0.25  # of them must be proved: halving both ranges makes four pairs of each


@dataclass(frozen=True)
class FirstLook:
    """What a first look found.

    Attributes:
        proved: For each image how many sets are proved, exactly; a part of a set's values counts as a fraction.
        left: The boxes that are not.
        bounded: For each image how many boxes were bounded.
    """

    proved: list[Fraction]
    left: BoxNodes
    bounded: list[int]


def full_boxes(instance: Instance, image: int, cells: Tensor) -> BoxNodes:
    """Nodes of single groups ``[nodes, t]`` with the whole range of their values."""
    members = instance.members[cells - instance.tree.slots]
    own = torch.nn.functional.pad(instance.images[image], (0, 1))[members]
    low, high = (own + torch.nn.functional.pad(part[image], (0, 1))[members] for part in (instance.down, instance.up))
    images = torch.full((len(cells),), image, device=cells.device)
    return BoxNodes(images, cells, low, high, torch.zeros_like(images))


def halved(nodes: BoxNodes, times: int) -> BoxNodes:
    """Boxes halved so many times, always the longest side.

    Part ``p`` of box ``n`` of ``count`` is row ``p * count + n``: its lower half becomes part ``p``, its upper half
    part ``p + 2 ** times``.
    """
    for _ in range(times):
        nodes = split_boxes(nodes, torch.ones_like(nodes.low))
    return nodes


def children(open_: Tensor, level: int) -> Tensor:
    """Pairs with halves of both parts.

    Args:
        open_: int64 ``[pairs, columns]``, whose last two columns are parts of ranges that were halved ``level - 1``
            times.
        level: How often they are halved now; 0 for whole ranges, which are halved by no one.

    Returns:
        ``[4 * pairs, columns]``, the children of a pair together.
    """
    if not level:
        return open_
    step = 2 ** (level - 1)
    shifts = torch.zeros(4, open_.shape[1], dtype=open_.dtype, device=open_.device)
    shifts[2:, -2] = step
    shifts[1::2, -1] = step
    return (open_[:, None] + shifts).flatten(0, 1)


def pair_boxes(windowed: Windowed, image: int, cells: Tensor, open_: Tensor, level: int) -> BoxNodes:
    """Pairs of parts as nodes.

    Args:
        windowed: Network and images.
        image: Row of the instance's images.
        cells: int64 ``[pixels]``.
        open_: int64 ``[pairs, 4]``: two numbers of pixels and a part of the range of each.
        level: How often the ranges are halved.
    """
    single = halved(full_boxes(windowed.instance, image, cells[:, None]), level)
    rows = open_[:, :2] + open_[:, 2:] * len(cells)
    low, high = (part[rows][:, :, 0] for part in (single.low, single.high))
    images, depth = (torch.full((len(rows),), value, device=cells.device) for value in (image, 2 * level))
    return BoxNodes(images, cells[open_[:, :2]], low, high, depth)


def look(open_: Tensor, owner: Tensor, sample: Tensor, prove: Callable[[Tensor], Tensor]) -> Tensor:
    """Prove pairs, but not those of images where a sample shows that it is cheaper to halve the ranges first.

    Args:
        open_: int64 ``[pairs, columns]``.
        owner: int64 ``[pairs]``, the image of each.
        sample: bool ``[pairs]``, which are tried first; none if all shall be looked at anyway.
        prove: Gives which of some rows are proved, bool ``[rows]``.

    Returns:
        Which are proved, bool ``[pairs]``.
    """
    safe = torch.zeros_like(sample)
    rest = ~sample
    if bool(sample.any()):
        safe[sample] = prove(open_[sample])
        images = int(owner.max()) + 1
        tried, done = (owner[rows].bincount(minlength=images) for rows in (sample, safe))
        rest &= (done >= WORTH * tried)[owner]
    safe[rest] = prove(open_[rest])
    return safe


def too_many(open_: Tensor, level: int, images: int) -> bool:
    """Whether there is no room for the pairs of parts of another level."""
    return level > 0 and 4 * len(open_) > MOST * images
