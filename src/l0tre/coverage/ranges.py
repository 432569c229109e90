"""The smallest and largest value of every neuron on training data."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Ranges"]


@dataclass(frozen=True)
class Ranges:
    """Of all neurons, in the order of the layers.

    Attributes:
        low: float32 ``[neurons]``.
        high: float32 ``[neurons]``.
        inputs: From how many inputs they come.
        source: Where these come from, in words.
    """

    low: Tensor
    high: Tensor
    inputs: int
    source: str

    @staticmethod
    def nothing(neurons: int, device: torch.device, source: str) -> "Ranges":
        """Before the first input."""
        high = torch.full((neurons,), -torch.inf, device=device)
        return Ranges(-high, high, 0, source)

    def widened(self, values: Sequence[Tensor]) -> "Ranges":
        """With some more inputs, given as ``[batch, values]`` of each layer."""
        every = torch.cat(list(values), 1)
        low, high = torch.minimum(self.low, every.amin(0)), torch.maximum(self.high, every.amax(0))
        return Ranges(low, high, self.inputs + len(every), self.source)

    def same(self, other: "Ranges") -> bool:
        """Whether all ends agree, wherever they lie."""
        low, high = other.low.to(self.low.device), other.high.to(self.high.device)
        return torch.equal(self.low, low) and torch.equal(self.high, high)

    @property
    def words(self) -> str:
        """In words, for definitions."""
        return f"ranges of {self.inputs:,} {self.source}"
