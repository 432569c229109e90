"""All sets of t groups, numbered from 0 to C(n, t) - 1, so that a position in the search is one integer."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from l0tre.errors import ConfigError

__all__ = ["count_sets", "unrank"]


def count_sets(groups: int, t: int) -> int:
    """Number of sets of ``t`` out of ``groups`` groups.

    Raises:
        ConfigError: If there are fewer groups than ``t``, or more sets than could ever be visited.
    """
    if not 1 <= t <= groups:
        raise ConfigError(f"t is {t}, but {groups} groups may change: give a t between 1 and {groups}")
    count = math.comb(groups, t)
    if count >= 2**62:
        raise ConfigError(f"there are {count:.1e} sets of {t} out of {groups} groups: give a smaller t")
    return count


def unrank(ranks: Tensor, groups: int, t: int) -> Tensor:
    """The sets with given numbers, in the combinatorial number system.

    The set ``c_1 < ... < c_t`` has the number ``C(c_1, 1) + ... + C(c_t, t)``.

    Args:
        ranks: int64 ``[sets]``, each below ``C(groups, t)``.
        groups: Number of groups.
        t: Size of a set.

    Returns:
        int64 ``[sets, t]``, each row ascending.
    """
    rest = ranks.clone()
    columns = []
    for size in range(t, 0, -1):
        table = _first_numbers(groups, size).to(ranks.device)
        largest = torch.searchsorted(table, rest, right=True) - 1
        rest = rest - table[largest]
        columns.append(largest)
    return torch.stack(columns[::-1], 1)


@lru_cache(maxsize=16)  # of an image of 224 x 224 it takes as long as several forward passes, and every batch needs it
def _first_numbers(groups: int, size: int) -> Tensor:
    """By largest member the number of the first set, ``C(c, size)``; to be read only."""
    # Entries above C(groups, t) are never reached; cutting them keeps the table inside 64 bits.
    return torch.tensor([min(math.comb(c, size), 2**62) for c in range(groups)])
