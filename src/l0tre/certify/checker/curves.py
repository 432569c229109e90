"""Smooth curves for the checker of certificates: where each bends which way, and lines around it.

Between two turning points a curve is convex, concave or straight. The least value of ``f(x) - slope * x`` over a part
where ``f`` is not convex is at an end; over a convex part no tangent is above ``f``, so a tangent's smaller end is a
lower bound, whichever point it touches at. The point is found by bisection; a poor one would only make it looser.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.model.graph import Operation, run_operation

__all__ = ["CURVES", "Bent", "curve_lines", "curve_range", "gain_of"]

BISECTIONS = 48
SHORT = 1e-6  # a chord over less is mostly rounding error
Line = tuple[Tensor, Tensor]  # slopes and intercepts


@dataclass(frozen=True)
class Bent:
    """Where a curve bends which way.

    Attributes:
        derivative: On the parts that are not straight.
        turns: Points where the bend changes, in order.
        bends: One more than turns: 1 for convex, -1 for concave, 0 for straight.
        straight: For each part its slope, where it is straight.
        gain: A bound of the absolute derivative; a factor for one that ``alpha`` scales.
        lift: A bound of how far the value exceeds ``gain`` times the input.
    """

    derivative: Callable[[Operation, Tensor], Tensor]
    turns: tuple[float, ...]
    bends: tuple[int, ...]
    straight: tuple[float, ...]
    gain: float
    lift: float


def _silu(_: Operation, x: Tensor) -> Tensor:
    x = x.clamp(-600.0, 600.0)
    share = torch.sigmoid(x)
    return share + x * share * torch.sigmoid(-x)


def _gelu(_: Operation, x: Tensor) -> Tensor:
    x = x.clamp(-60.0, 60.0)
    share: Tensor = torch.special.ndtr(x)
    return share + x * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(_: Operation, x: Tensor) -> Tensor:
    x = x.clamp(-60.0, 60.0)
    rate = math.sqrt(2 / math.pi)
    share = torch.sigmoid(2 * rate * (x + 0.044715 * x * x.square()))  # (1 + tanh(u)) / 2 is the sigmoid of 2 u
    rest = torch.sigmoid(-2 * rate * (x + 0.044715 * x * x.square()))
    return share + x * 2 * share * rest * rate * (1 + 0.134145 * x.square())


def _hard_swish(_: Operation, x: Tensor) -> Tensor:
    return x.clamp(-3.0, 3.0) / 3 + 0.5


def _elu(operation: Operation, x: Tensor) -> Tensor:
    return operation.number("alpha") * torch.exp(x.clamp(max=0.0))


def _softplus(_: Operation, x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def _wave(derivative: Callable[[Operation, Tensor], Tensor], turn: float) -> Bent:
    return Bent(derivative, (-turn, turn), (-1, 1, -1), (0.0, 0.0, 0.0), 2.0, 1.0)


CURVES: Mapping[str, Bent] = {
    "silu": _wave(_silu, 2.3993572805154677),
    "gelu": _wave(_gelu, 2**0.5),
    "gelu_tanh": _wave(_gelu_tanh, 1.4185040087908283),
    "hard_swish": Bent(_hard_swish, (-3.0, 3.0), (0, 1, 0), (0.0, 0.0, 1.0), 2.0, 1.0),
    "elu": Bent(_elu, (0.0,), (1, 0), (0.0, 1.0), 1.0, 1.0),
    "softplus": Bent(_softplus, (), (1,), (0.0,), 1.0, 1.0),
}


def gain_of(operation: Operation) -> tuple[float, float] | None:
    """Bounds of a curve's derivative, and of how far its value exceeds that times the input; ``None`` if unknown."""
    bent = CURVES.get(operation.kind)
    if bent is None:
        return None
    alpha = operation.number("alpha") if operation.kind == "elu" else 1.0
    return (max(1.0, alpha) * bent.gain, max(1.0, alpha) * bent.lift) if 0 <= alpha < math.inf else None


def curve_range(operation: Operation, low: Tensor, high: Tensor) -> Line:
    """The smallest and the largest value of a curve over ranges, up to a few units in the last place."""
    flat = torch.zeros_like(low)
    return _floor(operation, low, high, flat, 1), -_floor(operation, low, high, flat, -1)


def curve_lines(operation: Operation, low: Tensor, high: Tensor, own: Tensor | None) -> tuple[Line, Line]:
    """A line below and a line above a curve over ranges, near it at the image's own values or in the middle."""
    point = (low + high) / 2 if own is None else torch.minimum(torch.maximum(own.expand_as(low), low), high)
    wide = high - low > SHORT
    rise = run_operation(operation, high) - run_operation(operation, low)
    tangent = _slope(operation, point)
    gain = gain_of(operation)
    assert gain is not None
    chord = torch.where(wide, rise / torch.where(wide, high - low, 1.0), tangent).clamp(-gain[0], gain[0])
    lines = []
    for side in (1, -1):
        first, second = (_floor(operation, low, high, slope, side) for slope in (chord, tangent))
        better = side * chord * point + first > side * tangent * point + second
        slope = torch.where(better, chord, tangent)
        lines.append((slope, side * torch.where(better, first, second)))
    return lines[0], lines[1]


def _slope(operation: Operation, x: Tensor) -> Tensor:
    bent = CURVES[operation.kind]
    result, edges = bent.derivative(operation, x), (-math.inf, *bent.turns, math.inf)
    for part, bend in enumerate(bent.bends):
        if bend == 0:
            result = torch.where((x >= edges[part]) & (x <= edges[part + 1]), bent.straight[part], result)
    return result


def _floor(operation: Operation, low: Tensor, high: Tensor, slope: Tensor, side: int) -> Tensor:
    """A lower bound of ``side * (f(x) - slope * x)`` over ranges; NaN where there is none."""
    bent = CURVES[operation.kind]
    edges = (-math.inf, *bent.turns, math.inf)

    def gap(x: Tensor) -> Tensor:
        return side * (run_operation(operation, x) - slope * x)

    found = torch.where(low <= high, math.inf, math.nan)
    for part, bend in enumerate(bent.bends):
        first, last = low.clamp(min=edges[part]), high.clamp(max=edges[part + 1])
        here = first <= last
        if side * bend > 0:
            point = _turning(operation, first, last, slope, side)
            tilt = side * (bent.derivative(operation, point) - slope)
            lowest = gap(point) + torch.minimum(tilt * (first - point), tilt * (last - point))
        else:
            lowest = torch.minimum(gap(first), gap(last))
        found = torch.where(here, torch.minimum(found, lowest), found)
    return found


def _turning(operation: Operation, first: Tensor, last: Tensor, slope: Tensor, side: int) -> Tensor:
    """A point of a part near where the rising derivative of ``side * f`` passes a slope."""
    derivative = CURVES[operation.kind].derivative
    start, end = first, last
    for _ in range(BISECTIONS):
        middle = (start + end) / 2
        falls = side * derivative(operation, middle) < side * slope
        start, end = torch.where(falls, middle, start), torch.where(falls, end, middle)
    return (start + end) / 2
