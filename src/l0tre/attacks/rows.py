"""Rows that belong to images: which is the lowest of each, the how manyth of its image is each."""

import torch
from torch import Tensor

__all__ = ["lowest", "places"]


def lowest(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """For each owner the place of its lowest finite value, -1 for none; int64 ``[owners]``."""
    order = values.argsort(descending=True, stable=True)
    order = order[torch.isfinite(values[order])]
    place = torch.full((owners,), -1, dtype=torch.int64, device=values.device)
    # Equal places are written in an order that is not defined: give each owner its last one only.
    owned = owner[order]
    by_owner = owned.argsort(stable=True)
    owned = owned[by_owner]
    last = torch.ones_like(owned, dtype=torch.bool)
    last[:-1] = owned[:-1] != owned[1:]
    place[owned[last]] = order[by_owner[last]]
    return place


def places(owner: Tensor) -> Tensor:
    """How many earlier rows have the same owner, int64 ``[rows]``."""
    order = owner.argsort(stable=True)
    owned = owner[order]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(owned, owned)
    return rank
