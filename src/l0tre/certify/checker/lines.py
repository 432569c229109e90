"""Two lines around every operation of a network that is not linear, for the checker of certificates."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.checker.curves import CURVES, curve_lines
from l0tre.model.graph import Operation, run_operation

__all__ = ["Around", "Relaxation", "around", "make_lines"]

BISECTIONS = 40  # of the point where a tangent touches: a looser line is as sound as the best one


@dataclass(frozen=True)
class Relaxation:
    """Two lines for every output value of an operation, ``lower <= operation <= upper`` over the range of its input.

    Attributes:
        lower: Slopes and intercepts of the lower lines, float64 ``[regions, values]`` each.
        upper: Likewise.
        index: int64 ``[regions, values]``, which input value the lines of an output value are functions of; ``None``
            when it is the one in the same place.
    """

    lower: tuple[Tensor, Tensor]
    upper: tuple[Tensor, Tensor]
    index: Tensor | None = None


@dataclass(frozen=True)
class Around:
    """The same lines in terms of the difference from the image.

    Attributes:
        maps: float64 ``[4, regions, values]``: slopes of the lower and of the upper lines, then their gaps, that is
            the line minus the operation at the image's own value.
        index: As in :class:`Relaxation`.
    """

    maps: Tensor
    index: Tensor | None = None

    def __getitem__(self, rows: Tensor | slice) -> "Around":
        return Around(self.maps[:, rows], None if self.index is None else self.index[rows])


def around(lines: Relaxation, before: Tensor, after: Tensor) -> Around:
    """Relaxation in terms of the difference from an image.

    Args:
        lines: The lines.
        before: float64, the image's own values of the operation's input, of any shape.
        after: Likewise of its output.
    """
    own = before.flatten() if lines.index is None else before.flatten()[lines.index]
    (below, shift_below), (above, shift_above) = lines.lower, lines.upper
    gaps = (below * own + shift_below - after.flatten(), above * own + shift_above - after.flatten())
    return Around(torch.stack([below, above, *gaps]), lines.index)


def make_lines(operation: Operation, low: Tensor, high: Tensor, own: Tensor | None = None) -> Relaxation:
    """Relaxation that enclose an operation over ranges of its input.

    Args:
        operation: An operation that is not linear and that :func:`make_bounder` accepts.
        low: float64 ``[regions, *shape]``, smallest values of its input.
        high: Likewise, largest values.
        own: float64 ``shape``, the image's own values, where most outputs keep theirs: a kink then gets the line that
            meets it there. Without them it gets the line that is close over the whole range.

    Returns:
        The lines, up to a few units in the last place.
    """
    if operation.kind == "max_pool":
        return _max_lines(operation, low, high)
    low, high = low.flatten(1), high.flatten(1)
    own = None if own is None else own.flatten()
    if operation.kind in CURVES:
        return Relaxation(*curve_lines(operation, low, high, own))
    if operation.kind == "clip":
        return _clip_lines(operation, low, high, own)
    if operation.kind in ("relu", "leaky_relu"):
        return _kink_lines(low, high, 0.0 if operation.kind == "relu" else operation.number("slope"), own)
    slope, shift = _bend_below(operation, low, high)
    # Both functions are symmetric about their value at 0.
    mirrored, mirror = _bend_below(operation, -high, -low)
    middle = 1.0 if operation.kind == "sigmoid" else 0.0
    return Relaxation((slope, shift), (mirrored, middle - mirror))


def _kink_lines(low: Tensor, high: Tensor, slope: float, own: Tensor | None) -> Relaxation:
    """Relaxation for ``x`` above 0 and ``slope * x`` below."""
    one, flat = torch.ones_like(low), torch.full_like(low, slope)
    straight = torch.where(low >= 0, one, flat)
    split = (low < 0) & (high > 0)
    chord = torch.where(split, (high - slope * low) / torch.where(split, high - low, one), straight)
    chord = chord.clamp(min(slope, 1.0), max(slope, 1.0))
    through_zero = torch.where(split, torch.where(high > -low if own is None else own > 0, one, flat), straight)
    over = (chord, torch.where(split, high * (1 - chord), 0.0))
    under = (through_zero, torch.zeros_like(low))
    return Relaxation(under, over) if slope <= 1 else Relaxation(over, under)


def _clip_lines(operation: Operation, low: Tensor, high: Tensor, own: Tensor | None) -> Relaxation:
    """Relaxation for ``bottom + relu(x - bottom) - relu(x - top)``."""
    top = operation.number("high")
    bottom = min(operation.number("low"), top)  # as torch does, where they are the wrong way round
    zero, one = torch.zeros_like(low), torch.ones_like(low)
    under = over = (one, zero)
    if math.isfinite(bottom):
        lines = _kink_lines(low - bottom, high - bottom, 0.0, None if own is None else own - bottom)
        under, over = ((slope, shift + bottom * (1 - slope)) for slope, shift in (lines.lower, lines.upper))
    if math.isfinite(top):
        lines = _kink_lines(low - top, high - top, 0.0, None if own is None else own - top)
        (up, up_shift), (down, down_shift) = lines.lower, lines.upper
        under = (under[0] - down, under[1] - down_shift + top * down)
        over = (over[0] - up, over[1] - up_shift + top * up)
    return Relaxation(under, over)


def _bend_below(operation: Operation, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Lower lines of sigmoid or tanh, which are convex below 0 and concave above."""

    def steepness(x: Tensor) -> Tensor:
        value = run_operation(operation, x)
        return value * (1 - value) if operation.kind == "sigmoid" else 1 - value * value

    start, end = run_operation(operation, low), run_operation(operation, high)
    width = high - low
    chord = ((end - start) / torch.where(width > 0, width, 1.0)).clamp(0.0, 1.0)
    # A tangent on the convex side that is not above the function at the upper end is nowhere above it.
    first, last = low.clamp(max=0), high.clamp(max=0)
    for _ in range(BISECTIONS):
        middle = (first + last) / 2
        below = run_operation(operation, middle) + steepness(middle) * (high - middle) <= end
        first, last = torch.where(below, middle, first), torch.where(below, last, middle)
    point = torch.where(high <= 0, (low + high) / 2, first)
    slope = steepness(point)
    # Otherwise the chord: the function is concave, or steeper than the chord where they meet at the lower end.
    concave = (low >= 0) | ((high > 0) & (steepness(low) * width >= end - start))
    return (
        torch.where(concave, chord, slope),
        torch.where(concave, start - chord * low, run_operation(operation, point) - slope * point),
    )


def _max_lines(operation: Operation, low: Tensor, high: Tensor) -> Relaxation:
    """Lower: the input with the largest lower end; upper: the same where no other can exceed it, else a constant."""
    channels, rows, columns = low.shape[1:]
    numbers = torch.arange(1, rows * columns + 1, dtype=torch.float64, device=low.device).reshape(1, 1, rows, columns)
    kernel, stride, padding, dilation = (operation.ints(key) for key in ("kernel", "stride", "padding", "dilation"))
    windows = F.unfold(numbers, kernel, dilation, padding, stride)[0].long()  # [kernel, places], 0 for padding
    low, high = (F.pad(end.flatten(2), (1, 0), value=-math.inf)[:, :, windows] for end in (low, high))
    floor, which = low.max(2, keepdim=True)
    rival = high.scatter(2, which, -math.inf).amax(2)
    leads = floor[:, :, 0] >= rival
    place = windows.expand_as(low).gather(2, which)[:, :, 0] - 1
    index = place + rows * columns * torch.arange(channels, device=low.device)[:, None]
    slope = leads.double()
    ceiling = torch.where(leads, 0.0, high.amax(2))
    one, zero = torch.ones_like(slope), torch.zeros_like(slope)
    return Relaxation((one.flatten(1), zero.flatten(1)), (slope.flatten(1), ceiling.flatten(1)), index.flatten(1))
