"""A saliency map: the result, and what is known while it is drawn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l0tre.errors import require
from l0tre.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Audit", "SaliencyMap"]


@dataclass(frozen=True)
class Audit:
    """How good the predictions are, from groups drawn at random among those that had not been measured.

    Attributes:
        groups: How many were drawn and measured.
        beyond: How many of them are as strong as the weakest of the strongest that were found.
        largest: The strongest of them, as a share of that one.
        median: Median error of the predictions, in units of the number.
        most: 95 % of the errors are at most this, likewise.
    """

    groups: int
    beyond: int
    largest: float
    median: float
    most: float


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value to compare by
class SaliencyMap(Shown):
    """How far each group alone can move one number of a network, for one image; tensors on the CPU.

    Attributes:
        shape: Of the input.
        members: int64 ``[groups, width]``, positions of each group's values in the flattened input.
        groups: int64 ``[groups]``, the number of each group (for pixels: row * width of the image + column).
        drop: float32 ``[groups]``, the number for the image less the smallest one over all values that the group can
            take; predicted where it was not measured.
        rise: Likewise the largest one less the number for the image; NaN where it was not measured.
        measured: bool ``[groups]``, whether both were measured in float32.
        colours: float32 ``[groups, width]``, the values that give the drop.
        rise_colours: Likewise the values that give the rise.
        observed: The number, in words.
        unit: What it is measured in, in words.
        base: The number for the image itself.
        points: How many values of each group were tried.
        group: What a group is called.
        audit: Of a map that was not measured everywhere; ``None`` where nothing was drawn.
        evaluations: Values of groups that were looked at in float32.
        ranked: Likewise in half precision, to rank them.
        seconds: What it took.
    """

    shape: tuple[int, ...]
    members: Tensor
    groups: Tensor
    drop: Tensor
    rise: Tensor
    measured: Tensor
    colours: Tensor
    rise_colours: Tensor
    observed: str
    unit: str
    base: float
    points: int
    group: str
    audit: Audit | None
    evaluations: int
    ranked: int
    seconds: float

    def __repr__(self) -> str:
        share = "" if self.complete else f", {self.share:.1%} measured"
        return f"SaliencyMap({self.observed}, {len(self.drop)} {self.group}s{share})"

    @property
    def complete(self) -> bool:
        """Whether every group was measured."""
        return bool(self.measured.all())

    @property
    def share(self) -> float:
        """Share of the groups that were measured."""
        return float(self.measured.float().mean())

    def attribution(self, *, signed: bool = False) -> Tensor:
        """The map in the input's shape, float32: each value has the number of its group, 0 where nothing may change.

        Args:
            signed: Negative, the rise, for groups that can raise the number more than lower it.
        """
        value = torch.where(self.rise > self.drop, -self.rise, self.drop) if signed else self.drop
        result = torch.zeros(torch.Size(self.shape).numel())
        width = self.members.shape[1]
        return result.index_copy_(0, self.members.flatten(), value.repeat_interleave(width)).reshape(self.shape)

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for each group: how far it alone can lower and raise the number, and whether that was measured.

        Returns:
            The table, indexed by the number of each group.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        columns = {name: getattr(self, name).tolist() for name in ("drop", "rise", "measured")}
        frame = require("pandas", "tables").DataFrame(columns, index=self.groups.tolist())
        return frame.rename_axis(self.group)

    def strongest(self, count: int) -> Tensor:
        """Places (rows of ``groups``) of the groups with the largest drops, int64 ``[count]``."""
        return self.drop.argsort(descending=True, stable=True)[:count]

    def change(self, image: Tensor, places: Tensor) -> Tensor:
        """An image with some groups at the values that give their drops.

        Args:
            image: float32 ``shape``.
            places: int64 ``[n]``, see :meth:`strongest`; only groups that were measured.
        """
        flat = image.detach().cpu().flatten().clone()
        flat[self.members[places].flatten()] = self.colours[places].flatten()
        return flat.reshape(self.shape)
