"""Sigmoid and tanh: rising, bent upwards below zero and downwards above."""

import torch
from torch import Tensor

from l0tre.model.operations.float32 import curve_errors
from l0tre.model.operations.kind import Curve, CurveBounds, Errors, Interval, Lines, Parallel
from l0tre.model.operations.operation import Operation

__all__ = ["SIGMOID", "TANH"]

# torch's sigmoid and tanh, and so their derivatives, are good to a few units in the last place of 1 in float64; lines
# and derivatives move out by far more.
FUNCTION_ERROR = 2.0**-46
SHORTEST = 1e-4  # the chord of a shorter range would be a quotient of rounding errors


def _value(operation: Operation, z: Tensor) -> Tensor:
    return z.sigmoid() if operation.kind == "sigmoid" else z.tanh()


def _steepness(operation: Operation, z: Tensor) -> Tensor:
    y = _value(operation, z)
    return y * (1 - y) if operation.kind == "sigmoid" else 1 - y * y


def _interval(operation: Operation, low: Tensor, high: Tensor) -> Interval:
    ends = _value(operation, low), _value(operation, high)
    return torch.minimum(*ends), torch.maximum(*ends)


def _lines(operation: Operation, low: Tensor, high: Tensor, _: Tensor | None) -> Lines:
    at_low, at_high, middle = _value(operation, low), _value(operation, high), (low + high) / 2
    # The slope is smallest at an end of the range, so a line of that slope through an end stays on one side.
    flat = torch.minimum(_steepness(operation, low), _steepness(operation, high))
    wide = high - low > SHORTEST
    chord = torch.where(wide, (at_high - at_low) / (high - low), flat)
    tangent, touch = _steepness(operation, middle), _value(operation, middle)
    concave, convex = (low >= 0) & wide, (high <= 0) & wide
    below = torch.where(concave, chord, torch.where(convex, tangent, flat))
    above = torch.where(convex, chord, torch.where(concave, tangent, flat))
    start = torch.where(convex, touch - tangent * middle, at_low - below * low)
    end = torch.where(concave, touch - tangent * middle, at_high - above * high)
    return below, above, start - FUNCTION_ERROR, end + FUNCTION_ERROR


def _parallel(operation: Operation, low: Tensor, high: Tensor) -> Parallel:
    """Both through the ends of the range: what is steeper than a line everywhere only rises above it."""
    flat = torch.minimum(_steepness(operation, low), _steepness(operation, high)).clamp(min=0.0)
    start, end = _value(operation, low) - flat * low, _value(operation, high) - flat * high
    return flat, start - FUNCTION_ERROR, end + FUNCTION_ERROR


def _derivative(operation: Operation, low: Tensor, high: Tensor) -> Interval:
    # Steepest at zero, and less so the further away.
    least = torch.minimum(_steepness(operation, low), _steepness(operation, high)) - FUNCTION_ERROR
    nearest = torch.maximum(low, torch.minimum(high, torch.zeros_like(low)))
    return least, _steepness(operation, nearest) + FUNCTION_ERROR


def _errors(_: Operation, errors: Errors) -> Errors:
    return curve_errors(errors, torch.ones_like(errors[0]), 1.0)


SIGMOID = TANH = Curve(
    forward=_value,
    errors=_errors,
    gate=lambda _: False,
    bounds=CurveBounds(
        refuse=lambda _: "",
        interval=_interval,
        magnitude=lambda _, size: size + 1,  # the lines, of slope 1 at most, are summed too
        lines=_lines,
        parallel=_parallel,
        derivative=_derivative,
        slopes=lambda _: (0.0, 1.0),
        by_sign=False,
    ),
)
