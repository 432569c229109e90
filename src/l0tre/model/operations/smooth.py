"""Bounds of smooth curves, also of ones that fall and rise: from their value, derivative and where they bend which way.

A curve is cut into pieces: on each it is convex, concave or linear. The least value of ``f(z) - a z`` over a range is
the smallest of those over the pieces. Over a concave or linear piece it is at an end. Over a convex one it is at least
that of a tangent at any point of the piece: ``g(t) + g'(t) (z - t)`` at one of the ends, for ``g(z) = f(z) - a z``. So
no root must be exact; a point near that of ``f'(t) = a``, from a table, makes the bound tight. Likewise above. A line
of any slope ``a`` with these intercepts encloses the curve.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.model.operations.float32 import EXTRA, UNIT
from l0tre.model.operations.kind import Curve, CurveBounds, Errors, Interval, Lines, Parallel
from l0tre.model.operations.operation import Operation

__all__ = ["Piece", "Smooth", "smooth_curve"]

# Values and derivatives are good to a few units in the last place of float64 for numbers of the size of the range; all
# bounds move out by far more.
FUNCTION_ERROR = 2.0**-47
SHORTEST = 1e-6  # the chord of a shorter range would be a quotient of rounding errors
KNOTS = 2049  # of the table of each bent piece
FAR = 32.0  # beyond, a curve is as good as linear: the table ends here


@dataclass(frozen=True)
class Piece:
    """A part of a curve.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        bend: 1 if it is convex, -1 if concave, 0 if linear.
        slope: Its derivative if it is linear; 0 else.
    """

    start: float
    end: float
    bend: int
    slope: float = 0.0


@dataclass(frozen=True)
class Smooth:
    """A continuous curve.

    Attributes:
        value: Its value.
        derivative: Its derivative on the pieces that are not linear, at their ends from inside.
        pieces: Covering all numbers, in order.
        slopes: Its smallest and its largest derivative, or beyond.
        limit: A bound of the absolute value from one of the input.
    """

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    pieces: tuple[Piece, ...]
    slopes: tuple[float, float]
    limit: Callable[[Tensor], Tensor]


def smooth_curve(shape: Callable[[Operation], Smooth], refuse: Callable[[Operation], str] = lambda _: "") -> Curve:
    """The kind of an operation that is a smooth curve.

    Args:
        shape: The curve, from the operation's settings; the same object for the same settings.
        refuse: The operation in words if it cannot be bounded with its settings, else empty.
    """

    def errors(operation: Operation, before: Errors) -> Errors:
        curve = shape(operation)
        size, worst, square = before
        gain, limit = max(map(abs, curve.slopes)), curve.limit(size)
        unit = 4 * EXTRA * UNIT * (1 + size + limit)
        return limit, gain * worst + unit, gain**2 * square + unit**2

    def magnitude(operation: Operation, size: Tensor) -> Tensor:
        # The value, and a line's product and intercept.
        return (1 + 4 * max(map(abs, shape(operation).slopes))) * size + 2 * shape(operation).limit(size) + 1

    return Curve(
        forward=lambda operation, x: shape(operation).value(x),
        errors=errors,
        gate=lambda _: False,
        bounds=CurveBounds(
            refuse=refuse,
            interval=lambda operation, low, high: _interval(shape(operation), low, high),
            magnitude=magnitude,
            lines=lambda operation, low, high, before: _lines(shape(operation), low, high, before),
            parallel=lambda operation, low, high: _parallel(shape(operation), low, high),
            derivative=lambda operation, low, high: _derivative(shape(operation), low, high),
            slopes=lambda operation: shape(operation).slopes,
            by_sign=False,
        ),
    )


@dataclass(frozen=True)
class _Part:
    """What ranges have in common with a piece: both ends and the values there; none where ``start > end``."""

    piece: Piece
    start: Tensor
    end: Tensor
    at_start: Tensor
    at_end: Tensor


@dataclass(frozen=True)
class _Ranges:
    """A curve on ranges, cut into its pieces."""

    curve: Smooth
    low: Tensor
    high: Tensor
    parts: tuple[_Part, ...]


def _cut(curve: Smooth, low: Tensor, high: Tensor) -> _Ranges:
    parts = []
    for piece in curve.pieces:
        start, end = low.clamp(min=piece.start), high.clamp(max=piece.end)
        parts.append(_Part(piece, start, end, curve.value(start), curve.value(end)))
    return _Ranges(curve, low, high, tuple(parts))


def _interval(curve: Smooth, low: Tensor, high: Tensor) -> Interval:
    ranges, flat = _cut(curve, low, high), torch.zeros_like(low)
    return _extreme(ranges, flat, 1), _extreme(ranges, flat, -1)


def _lines(curve: Smooth, low: Tensor, high: Tensor, before: Tensor | None) -> Lines:
    ranges = _cut(curve, low, high)
    focus = (low + high) / 2 if before is None else torch.maximum(low, torch.minimum(high, before))
    tangent = _at(curve, focus)
    chord = _chord(curve, low, high, tangent)
    below, start = _better(ranges, chord, tangent, focus, 1)
    above, end = _better(ranges, chord, tangent, focus, -1)
    return below, above, start, end


def _chord(curve: Smooth, low: Tensor, high: Tensor, tangent: Tensor) -> Tensor:
    """The slope of the chord; of a very short range that of a tangent."""
    rise = (curve.value(high) - curve.value(low)) / (high - low)
    return torch.where(high - low > SHORTEST, rise.clamp(*curve.slopes), tangent)


def _parallel(curve: Smooth, low: Tensor, high: Tensor) -> Parallel:
    ranges = _cut(curve, low, high)
    slope = _chord(curve, low, high, _at(curve, (low + high) / 2))
    return slope, _extreme(ranges, slope, 1), _extreme(ranges, slope, -1)


def _better(ranges: _Ranges, first: Tensor, second: Tensor, focus: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Of two slopes the one whose line is closer to the curve at a point, with the intercept."""
    one, two = (_extreme(ranges, slope, side) for slope in (first, second))
    # NaN is not better, and stays: the other is NaN too where the range is.
    choose = side * (first * focus + one) >= side * (second * focus + two)
    return torch.where(choose, first, second), torch.where(choose, one, two)


def _extreme(ranges: _Ranges, slope: Tensor, side: int) -> Tensor:
    """A bound of ``f(z) - slope * z`` over ranges: from below for ``side`` 1, from above for -1; NaN for no range."""
    curve, low, high = ranges.curve, ranges.low, ranges.high
    best = torch.full_like(low, math.inf)
    for part in ranges.parts:
        start, end = part.start, part.end
        if part.piece.bend == side:
            touch = torch.maximum(start, torch.minimum(end, _touching(curve, part.piece, slope)))
            rest = side * (curve.derivative(touch) - slope)
            tangent = side * (curve.value(touch) - slope * touch)
            # A tangent is never above a convex curve, so the smaller end of the tangent bounds it.
            least = tangent + torch.minimum(rest * (start - touch), rest * (end - touch))
        else:
            least = torch.minimum(side * (part.at_start - slope * start), side * (part.at_end - slope * end))
        best = torch.where(start <= end, torch.minimum(best, least), best)
    size = 1 + torch.maximum(low.abs(), high.abs())
    best = torch.where((low <= high) & torch.isfinite(size), best, math.nan)
    return side * (best - FUNCTION_ERROR * size)


def _at(curve: Smooth, z: Tensor) -> Tensor:
    """The derivative at points, of the later piece where two meet."""
    result = curve.derivative(z)
    for piece in curve.pieces:
        if not piece.bend:
            result = torch.where((z >= piece.start) & (z <= piece.end), piece.slope, result)
    return result


def _derivative(curve: Smooth, low: Tensor, high: Tensor) -> Interval:
    least, most = torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
    for piece in curve.pieces:
        start, end = low.clamp(min=piece.start), high.clamp(max=piece.end)
        meets = start <= end
        # The derivative of a bent piece is monotone.
        ends = [curve.derivative(z) if piece.bend else torch.full_like(z, piece.slope) for z in (start, end)]
        least = torch.where(meets, torch.minimum(least, torch.minimum(*ends)), least)
        most = torch.where(meets, torch.maximum(most, torch.maximum(*ends)), most)
    known = low <= high
    return (
        torch.where(known, least - FUNCTION_ERROR, math.nan),
        torch.where(known, most + FUNCTION_ERROR, math.nan),
    )


def _touching(curve: Smooth, piece: Piece, slope: Tensor) -> Tensor:
    """About where a piece has a slope."""
    knots, slopes = _table(curve, piece)
    knots, slopes = knots.to(slope.device), slopes.to(slope.device)
    later = torch.searchsorted(slopes, (piece.bend * slope).contiguous()).clamp(1, KNOTS - 1)
    first, second = slopes[later - 1], slopes[later]
    share = ((piece.bend * slope - first) / (second - first).clamp(min=1e-300)).clamp(0, 1)
    return knots[later - 1] + share * (knots[later] - knots[later - 1])


@functools.cache
def _table(curve: Smooth, piece: Piece) -> tuple[Tensor, Tensor]:
    """Points of a bent piece and the derivative there, in rising order (turned for a concave one)."""
    knots = torch.linspace(max(piece.start, -FAR), min(piece.end, FAR), KNOTS, dtype=torch.float64)
    return knots, (piece.bend * curve.derivative(knots)).cummax(0).values
