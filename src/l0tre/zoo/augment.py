"""Random changes of training images that keep their class."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["shifted_and_mirrored"]

_FARTHEST = 4  # pixels


def shifted_and_mirrored(images: Tensor) -> Tensor:
    """Images moved by up to 4 pixels, black where nothing was, half of them mirrored left to right.

    Args:
        images: ``[batch, channels, height, width]``, at any device; random numbers are drawn on the CPU.

    Returns:
        The same shape.
    """
    batch, channels, height, width = images.shape
    device = images.device
    wide = F.pad(images, [_FARTHEST] * 4)
    offsets = torch.randint(2 * _FARTHEST + 1, (2, batch, 1)).to(device)
    mirrored = (torch.rand(batch, 1) < 0.5).to(device)
    rows = offsets[0] + torch.arange(height, device=device)
    places = torch.arange(width, device=device).expand(batch, width)
    columns = offsets[1] + torch.where(mirrored, width - 1 - places, places)
    flat = (rows[:, :, None] * wide.shape[3] + columns[:, None, :]).reshape(batch, 1, -1)
    moved = wide.flatten(2).gather(2, flat.expand(batch, channels, -1))
    return moved.reshape(images.shape)
