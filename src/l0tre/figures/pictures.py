"""Inputs as pictures, for reports, figures and files."""

import io

import torch
from torch import Tensor

from l0tre.errors import require
from l0tre.layout import channel_axis

__all__ = ["is_picture", "plane", "png", "shades"]


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape are grey pictures or such of three colours: (H, W), (C, H, W) or (H, W, C)."""
    axis = channel_axis(shape)
    return len(shape) == 2 or (axis is not None and shape[axis] in (1, 3))


def plane(image: Tensor) -> Tensor:
    """An image of shape (H, W), (C, H, W) or (H, W, C) as ``[H, W, channels]``."""
    if image.ndim == 2:
        return image[:, :, None]
    return image.movedim(0, 2) if channel_axis(tuple(image.shape)) == 0 else image


def shades(image: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """An image as uint8 ``[H, W, channels]``.

    Args:
        image: Of a shape that :func:`plane` takes.
        low: The value that becomes 0, for all positions alike.
        high: The value that becomes 255.
    """
    values = (plane(image).double() - low) / (high - low) * 255
    return values.round().clamp(0, 255).to(torch.uint8)


def png(pixels: Tensor) -> bytes:
    """uint8 ``[H, W, 1 or 3]`` as a PNG file.

    Raises:
        MissingExtraError: If pillow is not installed.
    """
    image = require("PIL.Image", "report")
    array = pixels.contiguous().cpu().numpy()
    file = io.BytesIO()
    image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(file, "PNG", optimize=True)
    return file.getvalue()
