"""Normalisation as a part of a network, so that its input is in [0, 1]."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["Normalise"]


class Normalise(nn.Module):
    """``(x - mean) / std`` per channel, with fixed values that travel with the weights.

    Args:
        mean: One value per channel, in the units of the input.
        std: One value per channel, in the units of the input.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[batch, channels, height, width]``; the shape stays."""
        return (x - self.mean) / self.std
