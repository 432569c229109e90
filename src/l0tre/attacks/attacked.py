"""What an attack gives."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l0tre.errors import require
from l0tre.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Attacked"]


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value to compare by
class Attacked(Shown):
    """Adversarial inputs with as few changed groups as were found; all tensors on the CPU.

    Attributes:
        adversarial: float32 ``[images, *shape]``; the original where none was found or needed.
        found: bool ``[images]``: the input, replayed by the network's own source, has the wanted decision.
        distance: int64 ``[images]``, changed groups; 0 for an image with the wanted decision as it is, -1 if none was
            found.
        labels: int64 ``[images]``, the class to leave (or to reach, for a targeted attack).
        decisions: int64 ``[images]``, the decision for ``adversarial``.
        methods: The method that found each input; empty where none did.
        optimal: bool ``[images]``: no input with fewer changed groups exists, by the lower bounds given (and because a
            decision cannot change if nothing does).
        forwards: int64 ``[images]``, forward passes spent.
        backwards: int64 ``[images]``, backward passes spent.
        seconds: Time for all images together.
        unit: What a group is called.
        notes: What the user should know, such as methods that were left out.
    """

    adversarial: Tensor
    found: Tensor
    distance: Tensor
    labels: Tensor
    decisions: Tensor
    methods: tuple[str, ...]
    optimal: Tensor
    forwards: Tensor
    backwards: Tensor
    seconds: float
    unit: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.adversarial)

    def __repr__(self) -> str:
        count = int(self.changed.sum())
        mean = f", mean {self.mean:.3f} {self.unit}s" if count else ""
        return f"Attacked({count} of {len(self)} inputs changed{mean}, {self.seconds:.1f} s)"

    @property
    def changed(self) -> Tensor:
        """Which images an adversarial input was found for that had to be changed, bool ``[images]``."""
        return self.found & (self.distance > 0)

    @property
    def mean(self) -> float:
        """Mean distance of the images in ``changed``; NaN if there are none."""
        return float(self.distance[self.changed].double().mean())

    @property
    def median(self) -> float:
        """Median distance of the images in ``changed`` (of two middle ones the mean); NaN if there are none."""
        return float(torch.quantile(self.distance[self.changed].double(), 0.5)) if self.changed.any() else float("nan")

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for each image: what was found, by which method, at what cost.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        columns = {
            name: getattr(self, name).tolist()
            for name in ("labels", "decisions", "found", "distance", "optimal", "forwards", "backwards")
        }
        return require("pandas", "tables").DataFrame({**columns, "methods": list(self.methods)})
