"""The networks of the zoo: one build function and one entry of :data:`NETWORKS` each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

__all__ = ["NETWORKS", "Entry", "Normalise"]

_PAPER = (
    "Ruan et al., Global Robustness Evaluation of Deep Neural Networks with Provable Guarantees for the L0 Norm, "
    "arXiv 1804.05805"
)

# Mean and standard deviation of all pixels of the 55,000 MNIST digits that sdnn is trained on, at 14 x 14.
_DIGITS_14_MEAN, _DIGITS_14_STD = 0.1306, 0.2801


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    Attributes:
        name: Its key in :data:`NETWORKS`.
        build: Gives the network with fresh weights, drawn from torch's global random numbers. It maps
            ``[batch, *input_shape]`` with values in [0, 1] to ``[batch, classes]`` scores before any softmax.
        input_shape: Shape of one input, ``(channels, height, width)``.
        classes: Number of scores.
        description: One line for people.
        reference: Where the architecture comes from.
    """

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    description: str
    reference: str


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


def _sdnn() -> nn.Module:
    layers: list[nn.Module] = [Normalise([_DIGITS_14_MEAN], [_DIGITS_14_STD])]
    for channels, wider in ((1, 8), (8, 16), (16, 32)):
        # A 2 x 2 window with padding 1 makes the image one pixel larger: 14 -> 15 -> 16 -> 17.
        layers += [nn.Conv2d(channels, wider, 2, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 17 * 17, 10))


_ENTRIES = (
    Entry(
        name="sdnn",
        build=_sdnn,
        input_shape=(1, 14, 14),
        classes=10,
        description="three 2 x 2 convolutions with batch norm and one dense layer, for MNIST digits at 14 x 14",
        reference=f"sDNN of {_PAPER}",
    ),
)

NETWORKS: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
