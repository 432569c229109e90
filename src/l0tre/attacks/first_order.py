"""What a linear model of the network promises of changing each group."""

import torch
from torch import Tensor

from l0tre.admission import allowed_vectors, ends
from l0tre.attacks.task import AttackTask
from l0tre.rules import Rules

__all__ = ["first_order_gains", "group_sums"]


def first_order_gains(task: AttackTask, originals: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """How much lower a value gets, to first order, if a group moves from where it is to its best corner.

    Args:
        task: Domain and rules.
        originals: float32 ``[rows, values]``, the input that each row belongs to.
        x: float32 ``[rows, values]``, where groups move from.
        slope: float32 ``[rows, values]``, the gradient.

    Returns:
        float32 ``[rows, groups]``, the change (negative is good), and float32 ``[rows, values]``, the corner: ends of
        the ranges, for a group with a list the vector that promises most.
    """
    domain = task.domain
    low, high = ends(domain, originals)
    down, up = slope * (low - x), slope * (high - x)
    corner = torch.where(down < up, low, high)
    gain = group_sums(task, torch.minimum(down, up))
    if isinstance(domain.rules, Rules) and len(domain.rules.listed):
        return _best_listed(task, domain.rules, originals, x, slope, gain, corner)
    return gain, corner


def _best_listed(
    task: AttackTask, rules: Rules, originals: Tensor, x: Tensor, slope: Tensor, gain: Tensor, corner: Tensor
) -> tuple[Tensor, Tensor]:
    """Gains and values where groups with a list take the vector that a linear model promises most of."""
    listed = rules.listed
    members, vectors = task.domain.members[listed], rules.vectors[listed]
    real = torch.arange(members.shape[1], device=x.device) < task.domain.sizes[listed][:, None]
    moves = (vectors - x[:, members][:, :, None]) * real[:, None]
    promise = (slope[:, members][:, :, None] * moves).sum(3)
    promise = promise.masked_fill(~allowed_vectors(task.domain, rules, originals), float("inf"))
    least, place = promise.min(2)
    chosen = vectors[torch.arange(len(listed), device=x.device), place]
    corner = corner.scatter(1, members.flatten().expand(len(x), -1), chosen.flatten(1))
    return gain.index_copy(1, listed, least), corner


def group_sums(task: AttackTask, values: Tensor) -> Tensor:
    """Sums over the values of each group: ``[rows, groups]`` from ``[rows, values]``."""
    domain = task.domain
    if domain.planes == 1:
        return values
    if domain.planes:
        return domain.by_group(values).sum(2)
    own = torch.arange(domain.members.shape[1], device=values.device) < domain.sizes[:, None]
    return (domain.by_group(values) * own).sum(2)
