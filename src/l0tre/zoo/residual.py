"""The residual network of 20 layers for CIFAR-10, with shortcuts that have no weights (option A of its paper)."""

import torch.nn.functional as F
from torch import Tensor, nn

from l0tre.zoo.normalise import Normalise

__all__ = ["resnet"]

# Mean and standard deviation of the pixels of CIFAR-10's training images, for each channel.
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.halve = wider != channels
        self.conv1 = nn.Conv2d(channels, wider, 3, stride=2 if self.halve else 1, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wider)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` to ``[batch, wider, ...]``, half the height and width if wider."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.halve:
            extra = inner.shape[1] - x.shape[1]
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, extra // 2, extra // 2))
        return F.relu(inner + x)


def resnet(width: int = 16, blocks: int = 3) -> nn.Module:
    """The network with fresh weights: ``[batch, 3, 32, 32]`` in [0, 1] to ``[batch, 10]`` scores.

    Args:
        width: Channels of the first third; the others have twice and four times as many.
        blocks: Of two convolutions, for each width.
    """
    layers: list[nn.Module] = [Normalise(_MEAN, _STD), nn.Conv2d(3, width, 3, padding=1, bias=False)]
    layers += [nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for wider in (width, 2 * width, 4 * width):
        for _ in range(blocks):
            layers.append(_Block(channels, wider))
            channels = wider
    return nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(4 * width, 10))
