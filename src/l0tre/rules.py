"""Which values of its box a group may take: all of them, or those that rules allow (tables have such columns)."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

__all__ = ["FREE", "Free", "Restriction", "Rules", "same_rules"]


@dataclass(frozen=True)
class Free:
    """Every real value of the box."""


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Rules:
    """Lists of allowed values, whole numbers, and directions. An original input keeps all of them.

    Attributes:
        counts: int64 ``[groups]``, number of allowed vectors of a group with a list; 0 for one without.
        vectors: float32 ``[groups, most, width]``, these vectors, in the column order of ``Domain.members``; shorter
            lists repeat their last one.
        whole: bool ``[values]``: whole numbers only.
        direction: int8 ``[values]``: 1 for values that may only rise above the original, -1 for those that may only
            fall, 0 for both.
    """

    counts: Tensor
    vectors: Tensor
    whole: Tensor
    direction: Tensor

    @property
    def listed(self) -> Tensor:
        """Places of the groups with a list, int64."""
        return self.counts.nonzero()[:, 0]

    def to(self, device: torch.device) -> "Rules":
        """The same on another device."""
        return replace(self, **{part.name: getattr(self, part.name).to(device) for part in fields(self)})


Restriction = Free | Rules
FREE = Free()


def same_rules(a: Restriction, b: Restriction) -> bool:
    """Whether two restrictions allow the same."""
    if isinstance(a, Rules) and isinstance(b, Rules):
        return all(torch.equal(getattr(a, part.name).cpu(), getattr(b, part.name).cpu()) for part in fields(Rules))
    return isinstance(a, Free) and isinstance(b, Free)
