"""Max pool: kernel, stride, padding, dilation (pairs)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.model.operations.kind import Local, Selection, Window
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import always

__all__ = ["MAX_POOL"]


def _forward(operation: Operation, x: Tensor) -> Tensor:
    kernel, stride, padding, dilation = (operation.pair(k) for k in ("kernel", "stride", "padding", "dilation"))
    return F.max_pool2d(x, kernel, stride, padding, dilation)


def _patches(operation: Operation, x: Tensor) -> Tensor:
    return F.max_pool2d(x, operation.pair("kernel"), operation.pair("stride"), 0, operation.pair("dilation"))


def _window(operation: Operation, axis: int) -> Window:
    return Window(*(operation.ints(key)[axis] for key in ("kernel", "stride", "padding", "dilation")))


def _sees(_: Operation, __: tuple[int, ...]) -> bool:
    return True


def _lines(operation: Operation, low: Tensor, high: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Below: the input that is largest for certain or most likely; above: the same if it dominates, else a constant."""
    batch, channels, height, width = low.shape
    lows, highs = _windows(operation, low), _windows(operation, high)
    best, place = lows.max(2)
    others = highs.scatter(2, place[:, :, None], float("-inf")).amax(2)
    dominates = (best >= others).to(low)
    numbers = torch.arange(height * width, device=low.device, dtype=torch.float64).view(1, 1, height, width)
    sources = _windows(operation, numbers).clamp(min=0).long().expand(batch, channels, -1, -1)
    source = sources.gather(2, place[:, :, None])[:, :, 0]
    index = (source + (torch.arange(channels, device=low.device) * height * width)[:, None]).flatten(1)
    own = before.flatten(1).expand(batch, -1).gather(1, index)
    after, dominates = after.flatten(1).expand(batch, -1), dominates.flatten(1)
    gap = own - after
    above = torch.where(dominates > 0, gap, highs.amax(2).flatten(1) - after)
    return torch.stack([torch.ones_like(gap), dominates, gap, above]), index


def _windows(operation: Operation, maps: Tensor) -> Tensor:
    """The values under each window of a pool, ``[batch, channels, kernel, outputs]``; padding is minus infinity."""
    (top, left), kernel = operation.ints("padding"), operation.ints("kernel")
    padded = F.pad(maps, (left, left, top, top), value=float("-inf"))
    rows, columns = (
        torch.arange(out, device=maps.device)[:, None] * stride + torch.arange(k, device=maps.device) * dilation
        for out, stride, k, dilation in zip(
            operation.shape[1:], operation.ints("stride"), kernel, operation.ints("dilation"), strict=True
        )
    )
    index = rows[:, None, :, None] * padded.shape[3] + columns[None, :, None, :]  # [out h, out w, kernel h, kernel w]
    flat = padded.flatten(2)[:, :, index.flatten()]
    return flat.view(*maps.shape[:2], -1, kernel[0] * kernel[1]).transpose(2, 3)


def _derivative(operation: Operation, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A max pool hands its derivative to the largest input: for certain, perhaps or not at all."""
    places = _places(operation, low.shape[2], low.shape[3], low.device)
    real, index = places >= 0, places.clamp(min=0)
    lows, highs = (side.flatten(2)[:, :, index].masked_fill(~real, -math.inf) for side in (low, high))
    # Every comparison with NaN is false and would look like a decision.
    known = lows <= highs
    least = torch.where(known, (lows > _largest_other(highs)).to(low), math.nan)
    most = torch.where(known, (highs >= _largest_other(lows)).to(low), math.nan) * real
    return places, least, most


def _places(operation: Operation, height: int, width: int, device: torch.device) -> Tensor:
    """Which input of a map lies at each place of each window, int64 ``[kernel, outputs]``; -1 in the padding."""
    (top, left), kernel = operation.ints("padding"), operation.ints("kernel")
    numbers = torch.arange(height * width, device=device, dtype=torch.float64).view(1, 1, height, width)
    padded = F.pad(numbers, (left, left, top, top), value=-1.0)
    return F.unfold(padded, kernel, operation.ints("dilation"), 0, operation.ints("stride"))[0].long()


def _largest_other(values: Tensor) -> Tensor:
    """For every place of windows ``[batch, channels, kernel, outputs]`` the largest value at another place."""
    best, place = values.max(2, keepdim=True)
    second = values.scatter(2, place, -math.inf).amax(2, keepdim=True)
    own = torch.arange(values.shape[2], device=values.device)[:, None] == place
    return torch.where(own, second, best)


MAX_POOL = Selection(
    forward=_forward,
    place=Local(_sees, always, _window, _patches, spills=True),
    places=_places,
    lines=_lines,
    derivative=_derivative,
)
