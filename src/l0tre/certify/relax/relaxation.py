"""Linear relaxations: for each nonlinear operation a line below and a line above it on a range.

Everything is written as differences from the image ``x0``: a line ``a z + b`` is kept as its slope ``a`` and its gap
``a z0 + b - f(z0)`` at the image's own value ``z0``. Constants of the network then drop out of the backward pass, and
an operation whose range shows it to be linear there has gap 0.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.model.graph import Operation

__all__ = ["Relaxation", "relax"]

# torch's sigmoid and tanh are good to a few units in the last place of float64; lines move out by far more.
FUNCTION_ERROR = 2.0**-46


@dataclass(frozen=True)
class Relaxation:
    """Relaxation of one operation for a batch of search nodes.

    Attributes:
        maps: float64 ``[4, batch, outputs]``: slope below, slope above, gap below, gap above.
        index: For a max pool int64 ``[batch, outputs]``: the input (flattened) that both slopes belong to.
    """

    maps: Tensor
    index: Tensor | None = None

    def pick(self, rows: Tensor) -> "Relaxation":
        """The lines of some batch entries, int64 ``[rows]``."""
        return Relaxation(self.maps[:, rows], None if self.index is None else self.index[rows])


def relax(
    operation: Operation, low: Tensor, high: Tensor, before: Tensor, after: Tensor, *, near: bool = False
) -> Relaxation:
    """Relaxation of a nonlinear operation.

    Args:
        operation: Of one of the kinds in ``support.NONLINEAR``.
        low: float64 ``[batch, *input shape]``, smallest input values.
        high: Largest input values, likewise.
        before: The image's own input values, ``[batch or 1, *input shape]``.
        after: The image's own output values, ``[batch or 1, *output shape]``.
        near: Whether most outputs keep the image's own value, so that lines without a gap there are best.

    Returns:
        The lines; NaN in a range gives NaN in the lines, which proves nothing.
    """
    if operation.kind == "max_pool":
        return _max_pool(operation, low, high, before, after)
    if operation.kind in ("relu", "leaky_relu"):
        slope = 0.0 if operation.kind == "relu" else operation.number("slope")
        below, above, shift_below, shift_above = _bend(low, high, slope, before if near else None)
    else:
        below, above, shift_below, shift_above = _bow(operation.kind, low, high)
    gap_below, gap_above = below * before + shift_below - after, above * before + shift_above - after
    return Relaxation(torch.stack([below, above, gap_below, gap_above]).flatten(2))


def _bend(low: Tensor, high: Tensor, slope: float, before: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ReLU and leaky ReLU: ``z`` above zero, ``slope * z`` below."""
    still = (low >= 0) | (high <= 0)
    own = torch.where(low >= 0, torch.ones_like(low), slope)
    # Every slope in between touches at zero. Either the one that touches at the image's own value too, or the one that
    # is closer over the whole range.
    upper_piece = high > -low if before is None else before > 0
    touching = torch.where(still, own, torch.where(upper_piece, torch.ones_like(low), slope))
    chord = torch.where(still, own, (high - slope * low) / (high - low))
    shift = torch.where(still, torch.zeros_like(low), slope * low - chord * low)
    # A NaN range must not look linear: every comparison with it is false, and its chord is NaN.
    none = torch.zeros_like(low)
    if slope <= 1:
        return touching, chord, none, shift
    return chord, touching, shift, none


def _bow(op: str, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sigmoid and tanh: rising, bent upwards below zero and downwards above."""

    def f(z: Tensor) -> Tensor:
        return z.sigmoid() if op == "sigmoid" else z.tanh()

    def steepness(z: Tensor) -> Tensor:
        y = f(z)
        return y * (1 - y) if op == "sigmoid" else 1 - y * y

    at_low, at_high, middle = f(low), f(high), (low + high) / 2
    # The slope is smallest at an end of the range, so a line of that slope through an end stays on one side.
    flat = torch.minimum(steepness(low), steepness(high))
    wide = high - low > 1e-4  # the chord of a shorter range would be a quotient of rounding errors
    chord = torch.where(wide, (at_high - at_low) / (high - low), flat)
    tangent, touch = steepness(middle), f(middle)
    concave, convex = (low >= 0) & wide, (high <= 0) & wide
    below = torch.where(concave, chord, torch.where(convex, tangent, flat))
    above = torch.where(convex, chord, torch.where(concave, tangent, flat))
    start = torch.where(convex, touch - tangent * middle, at_low - below * low)
    end = torch.where(concave, touch - tangent * middle, at_high - above * high)
    return below, above, start - FUNCTION_ERROR, end + FUNCTION_ERROR


def _max_pool(operation: Operation, low: Tensor, high: Tensor, before: Tensor, after: Tensor) -> Relaxation:
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
    return Relaxation(torch.stack([torch.ones_like(gap), dominates, gap, above]), index)


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
