"""Products in which every row has its own matrix, of which there are few."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Groups", "in_groups"]


@dataclass(frozen=True)
class Groups:
    """Rows laid out in batches that share a matrix each, so that one batched product does all.

    Attributes:
        slots: int64 ``[batches, length]``, numbers of rows; places that are left over repeat the batch's first row.
        where: int64 ``[rows]``, the place of each row, counted through all batches.
    """

    slots: Tensor
    where: Tensor

    @property
    def first(self) -> Tensor:
        """A row of each batch, int64 ``[batches]``."""
        return self.slots[:, 0]


def in_groups(key: Tensor, count: int) -> Groups:
    """Lay out rows.

    Args:
        key: int64 ``[rows]``, from 0 to ``count - 1``; rows with the same key share a matrix.
        count: Number of matrices.

    Returns:
        Batches of about equal length: groups that are longer than the average are several.
    """
    counts = key.bincount(minlength=count)
    length = max(1, -(-len(key) // max(1, int(counts.count_nonzero()))))
    batches = -(-counts // length)
    order = key.argsort(stable=True)
    owner = key[order]
    begin = (batches.cumsum(0) - batches) * length - (counts.cumsum(0) - counts)
    place = begin[owner] + torch.arange(len(key), device=key.device)  # a group's batches follow each other
    slots = torch.full((int(batches.sum()) * length,), -1, device=key.device)
    slots[place] = order
    slots = slots.view(-1, length)
    where = torch.empty_like(order)
    where[order] = place
    return Groups(torch.where(slots < 0, slots[:, :1], slots), where)
