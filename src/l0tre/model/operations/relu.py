"""ReLU and leaky ReLU: ``x`` above zero, ``slope * x`` below."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.model.operations.float32 import curve_errors
from l0tre.model.operations.kind import Curve, CurveBounds, Errors, Interval, Lines, Parallel
from l0tre.model.operations.operation import Operation

__all__ = ["LEAKY_RELU", "RELU"]


def _slope(operation: Operation) -> float:
    return 0.0 if operation.kind == "relu" else operation.number("slope")


def _interval(operation: Operation, low: Tensor, high: Tensor) -> Interval:
    ends = _leaky(operation, low), _leaky(operation, high)
    # A leaky ReLU of negative slope has its smallest value at zero.
    bend = torch.where((low < 0) & (high > 0), 0.0, ends[0]) if _slope(operation) < 0 else ends[0]
    return torch.minimum(torch.minimum(*ends), bend), torch.maximum(*ends)


def _leaky(operation: Operation, x: Tensor) -> Tensor:
    return x.relu() if operation.kind == "relu" else F.leaky_relu(x, operation.number("slope"))


def _lines(operation: Operation, low: Tensor, high: Tensor, before: Tensor | None) -> Lines:
    slope = _slope(operation)
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


def _parallel(operation: Operation, low: Tensor, high: Tensor) -> Parallel:
    """The chord and its parallel through zero: between them the area is least."""
    slope = _slope(operation)
    at_low, at_high = _leaky(operation, low), _leaky(operation, high)
    still = (low >= 0) | (high <= 0)
    own = torch.where(low >= 0, torch.ones_like(low), slope)
    chord = torch.where(still, own, (at_high - at_low) / (high - low))
    # At the range's ends, and zero at the kink. Without an end there is no chord, and NaN.
    shift = torch.where(still, torch.zeros_like(low), slope * low - chord * low)
    return chord, shift.clamp(max=0.0), shift.clamp(min=0.0)


def _derivative(operation: Operation, low: Tensor, high: Tensor) -> Interval:
    slope = _slope(operation)
    linear, side = (low >= 0) | (high <= 0), torch.where(low >= 0, torch.ones_like(low), slope)
    return torch.where(linear, side, min(slope, 1.0)), torch.where(linear, side, max(slope, 1.0))


def _slopes(operation: Operation) -> tuple[float, float]:
    return min(_slope(operation), 1.0), max(_slope(operation), 1.0)


def _refuse(operation: Operation) -> str:
    return "leaky_relu with a negative slope" if _slope(operation) < 0 else ""


def _gain(operation: Operation) -> float:
    return max(1.0, abs(operation.number("slope")))


def _leaky_errors(operation: Operation, errors: Errors) -> Errors:
    return curve_errors(errors, _gain(operation) * errors[0], _gain(operation))


_BOUNDS = CurveBounds(
    refuse=_refuse,
    interval=_interval,
    magnitude=lambda _, size: size.relu(),
    lines=_lines,
    parallel=_parallel,
    derivative=_derivative,
    slopes=_slopes,
    by_sign=True,
)

RELU = Curve(
    forward=lambda _, x: x.relu(),
    errors=lambda _, errors: errors,  # rounds nothing
    gate=lambda _: True,
    bounds=_BOUNDS,
)

LEAKY_RELU = Curve(
    forward=_leaky,
    errors=_leaky_errors,
    gate=lambda _: False,
    bounds=replace(_BOUNDS, magnitude=lambda operation, size: size * _gain(operation)),
)
