"""Which pixels act together: what two do beyond the sum of what each does alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.maps.perturber import Perturber
from l0tre.maps.work import MapState

__all__ = ["Pairs", "interacting_pairs"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of groups, each group at the value that lowers the number most by itself; sorted by size of interaction.

    Attributes:
        groups: int64 ``[pairs, 2]``, places of the groups.
        together: float32 ``[pairs]``, how far both together lower the number.
        interaction: float32 ``[pairs]``, that less the sum of what each does alone: above zero they help each other,
            below zero they stand for each other.
    """

    groups: Tensor
    together: Tensor
    interaction: Tensor


def interacting_pairs(perturber: Perturber, state: MapState, count: int) -> Pairs:
    """All pairs of the strongest groups that were measured.

    Args:
        perturber: The number.
        state: What is known of the map.
        count: Of how many groups.

    Returns:
        ``count * (count - 1) / 2`` pairs.
    """
    drop = state.drop.masked_fill(~state.measured, -torch.inf)
    best = drop.topk(min(count, int(state.measured.sum()))).indices
    first, second = torch.triu_indices(len(best), len(best), 1)
    groups = torch.stack([best[first], best[second]], 1)
    together = -perturber.together(groups, state.drop_point[groups])
    interaction = together - state.drop[groups].sum(1)
    order = interaction.abs().argsort(descending=True, stable=True)
    return Pairs(groups[order], together[order], interaction[order])
