"""Keeping changed inputs inside a domain's rules: lists of values, whole numbers, directions."""

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.rules import Free, Rules

__all__ = ["admit", "allowed_vectors", "ends"]


def admit(domain: Domain, originals: Tensor, inputs: Tensor) -> Tensor:
    """The inputs with every value that the rules forbid moved to the nearest one that they allow.

    Args:
        domain: What may change, on the inputs' device.
        originals: float32 ``[rows, values]``, the input that each row belongs to.
        inputs: float32 ``[rows, values]``, in the box.

    Returns:
        float32 ``[rows, values]``; the inputs themselves where there are no rules. Doing it twice changes nothing.
    """
    rules = domain.rules
    if isinstance(rules, Free):
        return inputs
    x = torch.where(rules.whole & (inputs != originals), inputs.round(), inputs)
    x = torch.where(rules.direction > 0, torch.maximum(x, originals), x)
    x = torch.where(rules.direction < 0, torch.minimum(x, originals), x)
    if not len(rules.listed):
        return x
    members = domain.members[rules.listed]
    vectors, own = rules.vectors[rules.listed], originals[:, members]
    scale = (domain.high - domain.low)[members].clamp(min=1e-12)
    real = torch.arange(members.shape[1], device=x.device) < domain.sizes[rules.listed][:, None]
    far = (((x[:, members][:, :, None] - vectors) / scale[:, None]) ** 2 * real[:, None]).sum(3)
    far = far.masked_fill(~allowed_vectors(domain, rules, originals), float("inf"))
    place = far.argmin(2)
    nearest = vectors[torch.arange(len(members), device=x.device), place]
    changed = (x[:, members] != own).any(2, keepdim=True)
    return x.scatter(1, members.flatten().expand(len(x), -1), torch.where(changed, nearest, own).flatten(1))


def allowed_vectors(domain: Domain, rules: Rules, originals: Tensor) -> Tensor:
    """Which vectors of the groups with a list may be taken from an original, bool ``[rows, listed, most]``."""
    listed = rules.listed
    members, vectors = domain.members[listed], rules.vectors[listed]
    rises = vectors - originals[:, members][:, :, None]
    direction = rules.direction[members][:, None]
    inside = torch.arange(vectors.shape[1], device=vectors.device) < rules.counts[listed][:, None]
    return (rises * direction >= 0).all(3) & inside


def ends(domain: Domain, originals: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest values that each row may take, float32 ``[rows, values]`` each."""
    low, high = domain.low.expand_as(originals), domain.high.expand_as(originals)
    if isinstance(domain.rules, Free):
        return low, high
    direction = domain.rules.direction
    return torch.where(direction > 0, originals, low), torch.where(direction < 0, originals, high)
