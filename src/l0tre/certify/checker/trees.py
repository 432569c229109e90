"""Sets of groups by their numbers, and the bisection trees of their boxes: the cover of a level set by set.

Sets of ``t`` groups (rows of ``Domain.members``) are numbered in lexicographic order. A set's box, the ranges of all
its values, may be halved again and again: the ``k``-th halving, from 0, cuts every part of it in the middle of its side
``k`` modulo the number of sides; sides that are points do not count. So a part is known by its depth and by which
halves were taken, and a whole tree by the depths of its leaves from the lowest to the highest.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l0tre.certify.checker.minimum import Scope
from l0tre.errors import CertificateError

__all__ = ["DEEPEST", "cover_trees", "halves", "leaf_boxes", "sets_of", "whole_boxes"]

DEEPEST = 62  # halvings that a certificate can name: places in a tree are whole numbers below 2**62


def sets_of(numbers: Tensor, groups: int, t: int) -> Tensor:
    """The groups ``[sets, t]``, ascending, of sets by their numbers int64 ``[sets]``."""
    choose = torch.tensor([[math.comb(n, k) for k in range(t + 1)] for n in range(groups + 1)], device=numbers.device)
    rest = math.comb(groups, t) - 1 - numbers  # counted from the last set, sets are numbers in the base of binomials
    columns = []
    for k in range(t, 0, -1):
        place = torch.searchsorted(choose[:, k].contiguous(), rest, right=True) - 1
        rest = rest - choose[place, k]
        columns.append(groups - 1 - place)
    return torch.stack(columns, 1)


def cover_trees(sets: NDArray[np.int64], depths: NDArray[np.uint8], total: int) -> tuple[NDArray[np.int64], ...]:
    """Establish that the leaves are the leaves of one tree for each of some sets, so that they cover each once.

    Args:
        sets: Numbers of the sets that have trees.
        depths: Of all leaves, tree by tree, from the lowest to the highest.
        total: How many sets there are.

    Returns:
        For each leaf the row in ``sets``, its place in the tree in units of ``2**-62`` of it.

    Raises:
        CertificateError: If a set is named twice, a tree is not whole, or trees are missing or too many.
    """
    if len(sets) and (sets[0] < 0 or sets[-1] >= total or (np.diff(sets) <= 0).any()):
        raise CertificateError(f"the sets with trees must be numbers below {total}, ascending, each named once")
    if (depths > DEEPEST).any():
        raise CertificateError(f"a leaf is deeper than {DEEPEST}")
    sizes = np.left_shift(np.uint64(1), (DEEPEST - depths.astype(np.int64)).astype(np.uint64))
    with np.errstate(over="ignore"):  # places count modulo a power of two that is a multiple of whole trees
        ends = np.cumsum(sizes, dtype=np.uint64)
        starts = ends - sizes
    whole = np.uint64(2**DEEPEST - 1)
    if (starts & (sizes - np.uint64(1))).any() or (len(ends) and ends[-1] & whole):
        raise CertificateError("the leaves of a tree leave a gap or overlap")
    first = (starts & whole) == 0
    if int(first.sum()) != len(sets):
        raise CertificateError(f"there are {int(first.sum())} trees for {len(sets)} sets: one is missing or too many")
    return np.cumsum(first) - 1, (starts & whole).astype(np.int64)


def whole_boxes(scope: Scope, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Ends ``[sets, t, width]`` of the whole ranges of the groups of sets ``[sets, t]``, less the image's values."""
    return scope.low[scope.positions[groups]], scope.high[scope.positions[groups]]


def halves(low: Tensor, high: Tensor, sides: Tensor, level: Tensor | int) -> tuple[Tensor, Tensor]:
    """Both halves of boxes.

    Args:
        low: float64 ``[..., t, width]``.
        high: Likewise.
        sides: The lengths of the sides of the whole boxes that they are parts of, of a shape that fits.
        level: How often they were halved already, int64 ``[...]``.

    Returns:
        Low and high ends ``[2, ..., t, width]``, of the lower halves first.
    """
    real = (sides > 0).flatten(-2)
    count = real.sum(-1)
    wanted = level % count.clamp(min=1)
    cut = (real & (real.cumsum(-1) - 1 == wanted[..., None])).view(sides.shape)
    middle = low + (high - low) / 2
    return torch.stack([low.expand_as(middle), low.where(~cut, middle)]), torch.stack([high.where(~cut, middle), high])


def leaf_boxes(scope: Scope, groups: Tensor, places: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of leaves, less the image's values.

    Args:
        scope: What may change.
        groups: int64 ``[leaves, t]``.
        places: int64 ``[leaves]``, see :func:`cover_trees`.
        depths: int64 ``[leaves]``.

    Returns:
        float64 ``[leaves, t, width]`` each.
    """
    low, high = whole_boxes(scope, groups)
    sides = high - low
    for level in range(int(depths.max()) if len(depths) else 0):
        upper = (places >> (DEEPEST - 1 - level)) & 1
        lows, highs = halves(low, high, sides, level)
        deeper = (depths > level)[:, None, None]
        taken = (upper == 1)[:, None, None]
        low, high = (
            torch.where(deeper, torch.where(taken, x[1], x[0]), old) for x, old in ((lows, low), (highs, high))
        )
    return low, high
