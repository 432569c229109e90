"""Curves against dense sampling: ranges, lines and derivatives hold, and wrong pieces would be found."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l0tre.model.graph import Operation, run_operation
from l0tre.model.operations import KINDS, silu
from l0tre.model.operations.kind import Curve, CurveBounds
from l0tre.model.operations.smooth import Piece, Smooth, smooth_curve

SIZES = [0.0, 5e-324, 1e-17, 1e-9, 1e-6, 1.1e-6, 0.01, 0.5, 3.0, 40.0, 1e3, 1e8]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "leaky_relu": [{"slope": 0.1}, {"slope": 1.5}],
    "elu": [{"alpha": alpha} for alpha in (0.0, 0.4, 1.0, 1.7)],
}
BOUNDED = [
    Operation(name, (0,), (1,), {}, attributes)
    for name, kind in KINDS.items()
    if isinstance(kind, Curve) and isinstance(kind.bounds, CurveBounds)
    for attributes in SETTINGS.get(name, [{}])
]
NAMES = [f"{operation.kind} {dict(operation.attributes)}" for operation in BOUNDED]


def bounds_of(operation: Operation) -> CurveBounds:
    kind = KINDS[operation.kind]
    assert isinstance(kind, Curve)
    assert isinstance(kind.bounds, CurveBounds)
    return kind.bounds


def slopes_at(operation: Operation, x: Tensor) -> Tensor:
    """By automatic differentiation."""
    ones = torch.ones_like(x)
    found: Tensor = torch.func.jvp(lambda z: run_operation(operation, z), (x,), (ones,))[1]
    return found


def points(low: float, high: float) -> Tensor:
    x = torch.linspace(low, high, 401, dtype=torch.float64)
    kinks = torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64)
    x = torch.cat([x, kinks, torch.linspace(-4, 4, 81, dtype=torch.float64)])
    return x[(x >= low) & (x <= high)]


def violation(bounds: CurveBounds, operation: Operation, low: float, high: float, own: float | None) -> float:
    """How far a range or a line is beyond the curve, relative to the range's size."""
    x, (least, most) = points(low, high), (torch.tensor([end], dtype=torch.float64) for end in (low, high))
    value, scale = run_operation(operation, x), 1 + max(abs(low), abs(high))
    floor, top = bounds.interval(operation, least, most)
    before = None if own is None else torch.tensor([own], dtype=torch.float64)
    below, above, start, end = bounds.lines(operation, least, most, before)
    gaps = (floor - value, value - top, below * x + start - value, value - above * x - end)
    return max(float(gap.max()) for gap in gaps) / scale


@pytest.mark.parametrize("operation", BOUNDED, ids=NAMES)
@given(st.floats(-50, 50) | st.sampled_from([-3.0, 0.0, 3.0]), st.sampled_from(SIZES), st.floats(0, 1))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_ranges_and_lines_hold(operation: Operation, place: float, size: float, share: float) -> None:
    low, high = place - share * size, place + (1 - share) * size
    for own in (None, low + share * (high - low), low - 7.0):
        assert violation(bounds_of(operation), operation, low, high, own) <= 2e-15


@pytest.mark.parametrize("operation", BOUNDED, ids=NAMES)
@given(st.floats(-50, 50) | st.sampled_from([-3.0, 0.0, 3.0]), st.sampled_from(SIZES), st.floats(0, 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_parallel_lines_hold(operation: Operation, place: float, size: float, share: float) -> None:
    low, high = place - share * size, place + (1 - share) * size
    x = points(low, high)
    value = run_operation(operation, x)
    ends = (torch.tensor([end], dtype=torch.float64) for end in (low, high))
    slope, start, end = bounds_of(operation).parallel(operation, *ends)
    room = 2e-15 * (1 + value.abs() + x.abs() * slope.abs())
    assert bool((value - slope * x - start >= -room).all())
    assert bool((slope * x + end - value >= -room).all())
    least, most = bounds_of(operation).slopes(operation)
    assert least <= float(slope) <= most


@pytest.mark.parametrize("operation", BOUNDED, ids=NAMES)
def test_no_range_gives_no_parallel_lines(operation: Operation) -> None:
    for low, high in ((math.nan, math.nan), (math.nan, 1.0), (-1.0, math.nan), (-math.inf, math.inf)):
        ends = [torch.tensor([end], dtype=torch.float64) for end in (low, high)]
        lines = torch.cat(bounds_of(operation).parallel(operation, ends[0], ends[1]))
        assert not bool(torch.isfinite(lines).all())


@pytest.mark.parametrize("operation", BOUNDED, ids=NAMES)
@given(st.floats(-50, 50) | st.sampled_from([-3.0, 0.0, 3.0]), st.sampled_from(SIZES), st.floats(0, 1))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_derivatives_lie_in_their_ranges(operation: Operation, place: float, size: float, share: float) -> None:
    low, high = place - share * size, place + (1 - share) * size
    x, bounds = points(low, high), bounds_of(operation)
    least, most = bounds.derivative(operation, *(torch.tensor([end], dtype=torch.float64) for end in (low, high)))
    x = x[(x != 0) & (x.abs() != 3)]  # at a kink there is no derivative
    found = slopes_at(operation, x)
    assert bool((found >= least - 1e-13).all())
    assert bool((found <= most + 1e-13).all())
    least_anywhere, most_anywhere = bounds.slopes(operation)
    assert bool((found >= least_anywhere).all())
    assert bool((found <= most_anywhere + 1e-15).all())


@pytest.mark.parametrize("operation", BOUNDED, ids=NAMES)
def test_lines_are_close_on_short_ranges_and_no_looser_than_the_range(operation: Operation) -> None:
    bounds = bounds_of(operation)
    for place in (-2.5, -1.5, -0.7, 0.4, 1.3, 2.7):
        low, high = (torch.tensor([end], dtype=torch.float64) for end in (place, place + 0.01))
        below, above, start, end = bounds.lines(operation, low, high, None)
        middle = (low + high) / 2
        assert float((above - below) * middle + end - start) < 1e-4


@pytest.mark.parametrize("operation", BOUNDED, ids=NAMES)
def test_no_range_gives_no_numbers(operation: Operation) -> None:
    bounds = bounds_of(operation)
    for low, high in ((math.nan, math.nan), (math.nan, 1.0), (-1.0, math.nan)):
        ends = [torch.tensor([end], dtype=torch.float64) for end in (low, high)]
        x = torch.linspace(-30, 30, 101, dtype=torch.float64)
        value = run_operation(operation, x)
        below, above, start, end = bounds.lines(operation, ends[0], ends[1], None)
        # A line is no number, or holds everywhere.
        for gap in (value - below * x - start, above * x + end - value):
            assert bool((gap.isnan() | (gap >= -1e-12)).all())


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "softplus", "elu", "hard_swish"])
@pytest.mark.parametrize(("low", "high"), [(-math.inf, 1.0), (0.0, math.inf), (-math.inf, math.inf)])
def test_ranges_without_an_end_prove_nothing(kind: str, low: float, high: float) -> None:
    operation = Operation(kind, (0,), (1,), {}, {"alpha": 1.0} if kind == "elu" else {})
    ends = [torch.tensor([end], dtype=torch.float64) for end in (low, high)]
    assert all(not bool(part.isfinite().all()) for part in bounds_of(operation).interval(operation, *ends))
    assert all(
        not bool(part.isfinite().all()) for part in bounds_of(operation).lines(operation, ends[0], ends[1], None)[2:]
    )


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_the_bend_changes_at_the_named_points_alone(kind: str) -> None:
    curve = {"silu": silu._SILU, "gelu": silu._GELU, "gelu_tanh": silu._GELU_TANH}[kind]
    turn = curve.pieces[1].end

    def second(x: Tensor) -> Tensor:
        found: Tensor = torch.func.jvp(curve.derivative, (x,), (torch.ones_like(x),))[1]
        return found

    for sign in (-1.0, 1.0):
        near = torch.tensor([sign * (turn - 1e-7), sign * (turn + 1e-7)], dtype=torch.float64)
        inner, outer = second(near).tolist()
        assert inner > 0 > outer
        assert abs(float(second(torch.tensor([sign * turn], dtype=torch.float64)))) < 1e-14
    inside = torch.linspace(-turn + 1e-6, turn - 1e-6, 20001, dtype=torch.float64)
    outside = torch.linspace(turn + 1e-6, 12, 20001, dtype=torch.float64)
    assert bool((second(inside) > 0).all())
    for x in (outside, -outside):
        bend = second(x)
        assert bool((bend[bend.abs() > 1e-14] < 0).all())


def _moved(curve: Smooth, by: float) -> Smooth:
    first, middle, last = curve.pieces
    return replace(
        curve,
        pieces=(
            replace(first, end=first.end + by),
            Piece(middle.start + by, middle.end - by, middle.bend),
            replace(last, start=last.start - by),
        ),
    )


MUTANTS: dict[str, Callable[[Smooth], Smooth]] = {
    "bends the other way": lambda curve: replace(
        curve, pieces=tuple(replace(piece, bend=-piece.bend) for piece in curve.pieces)
    ),
    "convex too far": lambda curve: _moved(curve, -0.4),
    "concave too far": lambda curve: _moved(curve, 0.4),
    "derivative too small": lambda curve: replace(curve, derivative=lambda x: 0.9 * curve.derivative(x)),
    "no pieces but one": lambda curve: replace(curve, pieces=(Piece(-math.inf, math.inf, 1),)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_curves_are_found(mutant: str) -> None:
    """The sampling above would not pass any of these."""
    right, operation = silu._SILU, Operation("silu", (0,), (1,))
    generator = torch.Generator().manual_seed(0)
    worst = {"right": 0.0, "wrong": 0.0}
    for name, curve in (("right", right), ("wrong", MUTANTS[mutant](right))):
        bounds = smooth_curve(lambda _, curve=curve: curve).bounds  # type: ignore[misc]
        assert isinstance(bounds, CurveBounds)
        for _ in range(100):
            ends = (torch.rand(2, generator=generator, dtype=torch.float64) * 12 - 6).sort().values.tolist()
            worst[name] = max(worst[name], violation(bounds, operation, ends[0], ends[1], None))
    assert worst["right"] <= 2e-15
    assert worst["wrong"] > 1e-6
