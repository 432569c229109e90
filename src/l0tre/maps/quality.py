"""Whether an attribution names the pixels that matter: remove or restore the strongest ones, and look at the score."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.layout import channel_axis

__all__ = ["overlap", "pixel_order", "removed", "restored"]


def pixel_order(attribution: Tensor) -> Tensor:
    """Pixels (positions of the flattened map), the strongest first, by the sum over their channels, int64 ``[pixels]``.

    Args:
        attribution: In the shape of an input.
    """
    axis = channel_axis(tuple(attribution.shape))
    summed = attribution if axis is None else attribution.sum(axis)
    return summed.flatten().argsort(descending=True, stable=True)


def removed(
    number: Callable[[Tensor], Tensor], image: Tensor, order: Tensor, values: Tensor, counts: Sequence[int]
) -> Tensor:
    """Deletion, or pixel flipping: a number of the network after the first pixels of an order were replaced.

    Args:
        number: Of inputs ``[rows, *shape]`` the number of each, ``[rows]``.
        image: ``shape``.
        order: int64 ``[pixels]``, see :func:`pixel_order`.
        values: ``shape``, an image that holds what replaces each pixel.
        counts: How many pixels are replaced.

    Returns:
        float32 ``[counts]``.
    """
    masks = torch.stack([_mask(image, order[:count]) for count in counts])
    return number(torch.where(masks, values, image))


def restored(
    number: Callable[[Tensor], Tensor], image: Tensor, order: Tensor, values: Tensor, counts: Sequence[int]
) -> Tensor:
    """Insertion: the same from the other side, with all but the first pixels replaced."""
    masks = torch.stack([_mask(image, order[:count]) for count in counts])
    return number(torch.where(masks, image, values))


def overlap(order: Tensor, changed: Tensor) -> float:
    """Share of the pixels that an adversarial image changes which are among as many first pixels of an order.

    Args:
        order: int64 ``[pixels]``, see :func:`pixel_order`.
        changed: bool, in the shape of an input, or of its map.

    Returns:
        A share; NaN if nothing is changed.
    """
    axis = channel_axis(tuple(changed.shape))
    pixels = (changed if axis is None else changed.any(axis)).flatten()
    count = int(pixels.sum())
    return float(pixels[order[:count]].sum()) / count if count else float("nan")


def _mask(image: Tensor, pixels: Tensor) -> Tensor:
    """Where some pixels are, bool in the shape of an image (or one that broadcasts to it)."""
    axis = channel_axis(tuple(image.shape))
    shape = [size for place, size in enumerate(image.shape) if place != axis]
    flat = torch.zeros(torch.Size(shape).numel(), dtype=torch.bool)
    flat[pixels] = True
    mask = flat.reshape(shape)
    return mask.expand_as(image) if axis is None else mask.unsqueeze(axis).expand_as(image)
