"""The order of the axes of images, and fitting them to the input of a network."""

import math

import torch.nn.functional as F
from torch import Tensor

from l0tre.errors import DataError
from l0tre.layout import channel_axis

__all__ = ["channels_height_width", "fit", "resize_area"]

Shape = tuple[int, ...]


def _is_vector(shape: Shape) -> bool:
    """At most one axis is longer than 1: the order of the values is the only thing that counts."""
    return math.prod(shape) == max(shape, default=1)


def channels_height_width(shape: Shape | None) -> tuple[int, int, int] | None:
    """Read a network's input shape as an image.

    Args:
        shape: (H, W), (C, H, W), (H, W, C), or anything else.

    Returns:
        (C, H, W), or None where the network takes no images.
    """
    if shape is None or _is_vector(shape) or len(shape) not in (2, 3):
        return None
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if channel_axis(shape) == 2:
        return shape[2], shape[0], shape[1]
    return shape[0], shape[1], shape[2]


def resize_area(images: Tensor, height: int, width: int) -> Tensor:
    """Resize images by area averaging, from [N, C, h, w] to [N, C, height, width]."""
    return F.interpolate(images, size=(height, width), mode="area")


def _channels_first(images: Tensor, target: tuple[int, int, int] | None = None) -> Tensor:
    """Images [N, H, W], [N, C, H, W] or [N, H, W, C] as [N, C, H, W].

    Args:
        images: The images.
        target: (C, H, W) of the network, which decides where the channels are; else their number does.
    """
    if images.ndim == 3:
        return images.unsqueeze(1)
    first, second, third = images.shape[1:]
    if target is None:
        last = channel_axis((first, second, third)) == 2
    elif first == third:  # either could be the channels, so only a whole match tells
        last = (third, first, second) == target
    else:
        last = third == target[0]
    return images.permute(0, 3, 1, 2) if last else images


def _without_network(images: Tensor, resize: bool, name: str) -> Tensor:
    if resize:
        raise DataError(f"{name}: resizing needs the input shape of the network, give `input_shape`")
    return images if images.ndim == 2 else _channels_first(images)


def _mismatch(images: Tensor, input_shape: Shape, name: str, hint: str = "") -> DataError:
    if tuple(images.shape) == input_shape:
        hint = "; a single image needs a first axis of length 1"
    shape = tuple(images.shape[1:])
    if len(shape) == len(input_shape) == 1:
        return DataError(
            f"{name}: rows have {shape[0]} values, the network takes {input_shape[0]}: leave out columns that are no "
            "inputs (`drop`, `row_name`, `label_column`), or give those that are missing"
        )
    return DataError(f"{name}: inputs of shape {shape} do not fit the network's input shape {input_shape}{hint}")


def fit(images: Tensor, input_shape: Shape | None, *, resize: bool, name: str) -> Tensor:
    """Bring images into the shape that the network takes.

    Args:
        images: [N, features], [N, H, W], [N, C, H, W] or [N, H, W, C].
        input_shape: The network's, without the batch: (features,), (H, W), (C, H, W) or (H, W, C). Without it
            images become [N, C, H, W] and vectors stay vectors.
        resize: Whether images of another height or width are resized by area averaging.
        name: Of the data, for messages.

    Returns:
        [N, *input_shape]. Images for a network that takes vectors are flattened in the order C, H, W.

    Raises:
        DataError: If they do not fit.
    """
    shape = tuple(images.shape[1:])
    if shape == input_shape:
        return images
    if images.ndim not in (2, 3, 4):
        raise DataError(
            f"{name}: inputs come as an array of shape {tuple(images.shape)}; "
            "expected (N, features), (N, H, W), (N, C, H, W) or (N, H, W, C)"
        )
    if input_shape is None:
        return _without_network(images, resize, name)
    count = images.shape[0]
    if math.prod(shape) == math.prod(input_shape):
        if _is_vector(shape):
            return images.reshape(count, *input_shape)
        if _is_vector(input_shape):
            return _channels_first(images).reshape(count, *input_shape)
    target = channels_height_width(input_shape)
    if target is None or len(shape) == 1:
        raise _mismatch(images, input_shape, name)
    channels, height, width = target
    chw = _channels_first(images, target)
    if chw.shape[1] != channels:
        raise _mismatch(images, input_shape, name)
    if tuple(chw.shape[2:]) != (height, width):
        if not resize:
            hint = f"; `resize=True` averages them to {height}x{width}"
            raise _mismatch(images, input_shape, name, hint)
        chw = resize_area(chw, height, width)
    if channel_axis(input_shape) == 2:
        chw = chw.permute(0, 2, 3, 1)
    return chw.reshape(count, *input_shape)
