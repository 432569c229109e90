"""Relaxation of the nonlinear operations: below and above the function on every range, whatever its size and place."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l0tre.certify.relax.relaxation import relax
from l0tre.model.graph import GraphBuilder, Operation, run_operation

SIZES = [0.0, 5e-324, 1e-17, 1e-12, 1e-6, 9e-5, 1.1e-4, 0.01, 0.5, 3.0, 40.0, 1e3, 1e8]


def operation(op: str, shape: tuple[int, ...] = (1,), **attributes: Any) -> Operation:
    builder = GraphBuilder(shape)
    return builder.build(builder.add(op, [0], **attributes)).operations[-1]


CURVES = [
    operation("relu"),
    *(operation("leaky_relu", slope=slope) for slope in (0.1, 0.0, 1.0, 1.5, -0.5)),
    operation("sigmoid"),
    operation("tanh"),
    *(operation("elu", alpha=alpha) for alpha in (0.0, 0.3, 1.0, 1.7)),
    *(operation(kind) for kind in ("softplus", "silu", "gelu", "gelu_tanh", "hard_swish")),
]


def distances(
    curve: Operation, low: Tensor, high: Tensor, before: Tensor, x: Tensor, *, near: bool
) -> tuple[Tensor, Tensor]:
    """How far the function lies above the lower line and below the upper one, at ``x`` ``[points, *shape]``."""
    after = run_operation(curve, before)
    lines = relax(curve, low, high, before, after, near=near)
    below, above, gap_below, gap_above = lines.maps[:, 0]
    from_own, origin = (x - before).flatten(1), after.flatten(1)
    if lines.index is not None:
        from_own = from_own.gather(1, lines.index.expand(len(x), -1))
    value = run_operation(curve, x).flatten(1)
    return value - (below * from_own + gap_below + origin), above * from_own + gap_above + origin - value


def check_curve(curve: Operation, start: float, size: float, share: float) -> None:
    """Both kinds of lines hold on ``[start, start + size]``; the image's own value is inside, or outside by far."""
    low, high = (torch.tensor([[end]], dtype=torch.float64) for end in (start, start + size))
    x = torch.cat([low + (high - low) * torch.linspace(0, 1, 201, dtype=torch.float64)[:, None], high])
    x = torch.cat([x, x.new_zeros(1, 1)]) if start <= 0 <= start + size else x
    inside = torch.minimum(low + (high - low) * share, high)
    outside = [low - 1.0 - share, high + 1.0 + share]
    for before, near in ((inside, True), (inside, False), *((value, False) for value in outside)):
        scale = float(torch.cat([x, before]).abs().max()) * max(
            1.0, abs(curve.number("slope")) if curve.kind == "leaky_relu" else 1.0
        )
        below, above = distances(curve, low, high, before, x, near=near)
        assert bool((below >= -1e-15 * scale).all()), f"{float(below.min())} from the line below"
        assert bool((above >= -1e-15 * scale).all()), f"{float(above.min())} from the line above"


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: f"{curve.kind} {dict(curve.attributes)}")
@given(
    st.floats(-60, 60) | st.just(0.0), st.sampled_from(SIZES), st.floats(0, 1), st.sampled_from(["from", "to", "at"])
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_lines_enclose_the_function(curve: Operation, place: float, size: float, share: float, how: str) -> None:
    # Ranges that end at a place, that start there, and that hold it: zero is the place of the bends.
    check_curve(curve, place - {"from": 0.0, "to": size, "at": share * size}[how], size, share)


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: f"{curve.kind} {dict(curve.attributes)}")
def test_lines_of_one_value_are_exact(curve: Operation) -> None:
    for value in (-2.0, 0.0, 0.3, 1.0):
        z = torch.full((1, 1), value, dtype=torch.float64)
        below, above = distances(curve, z, z, z, z, near=True)
        assert float(below + above) <= 1e-13


@pytest.mark.parametrize("slope", [0.1, 0.01, 0.3])
def test_slopes_keep_all_their_digits(slope: float) -> None:
    """A slope that was rounded to float32 on its way is off by more than all rounding errors together."""
    curve = operation("leaky_relu", slope=slope)
    low, high = (torch.tensor([[end]], dtype=torch.float64) for end in (-2.0, -1.0))
    maps = relax(curve, low, high, high, run_operation(curve, high)).maps
    assert maps[:2].flatten().tolist() == [slope, slope]
    high = high + 1.5
    maps = relax(curve, low, high, low, run_operation(curve, low), near=True).maps
    assert float(maps[0]) == slope


def test_relus_have_no_gap_on_the_side_of_the_image() -> None:
    low, high = (torch.tensor([[end]], dtype=torch.float64) for end in (-1.0, 2.0))
    for own in (-0.5, 0.5):
        before = torch.full((1, 1), own, dtype=torch.float64)
        maps = relax(operation("relu"), low, high, before, before.relu(), near=True).maps
        assert float(maps[2]) == 0.0
        assert float(maps[3]) > 0.0


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: f"{curve.kind} {dict(curve.attributes)}")
@pytest.mark.parametrize("near", [False, True])
def test_unknown_ranges_prove_nothing(curve: Operation, near: bool) -> None:
    """With NaN in a range a line is NaN, or it holds everywhere: then it claims nothing that is wrong."""
    own = torch.full((1, 1), 0.3, dtype=torch.float64)
    x = torch.linspace(-50, 50, 101, dtype=torch.float64)[:, None]
    for low, high in ((math.nan, math.nan), (math.nan, 1.0), (-1.0, math.nan)):
        least, most = (torch.full((1, 1), end, dtype=torch.float64) for end in (low, high))
        for distance in distances(curve, least, most, own, x, near=near):
            assert bool((distance.isnan() | (distance >= -1e-12)).all())
    unknown = torch.full((1, 1), math.nan, dtype=torch.float64)
    maps = relax(curve, unknown, unknown, own, run_operation(curve, own), near=near).maps
    assert not bool(maps.isfinite().all())


POOLS: list[dict[str, Any]] = [
    {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)},
    {"kernel": (2, 2), "stride": (2, 1), "padding": (1, 1), "dilation": (1, 1)},
    {"kernel": (3, 2), "stride": (1, 1), "padding": (1, 0), "dilation": (1, 1)},  # windows overlap
    {"kernel": (2, 2), "stride": (1, 2), "padding": (1, 1), "dilation": (2, 3)},
    {"kernel": (1, 1), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)},
]


@pytest.mark.parametrize("attributes", POOLS, ids=str)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.02, 0.4, 2.0]))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_lines_enclose_a_maximum(attributes: dict[str, Any], seed: int, spread: float) -> None:
    pool = operation("max_pool", (2, 5, 5), **attributes)
    random = torch.Generator().manual_seed(seed)
    low = torch.randn(1, 2, 5, 5, dtype=torch.float64, generator=random)
    low = (low * 4).round() / 4 if seed % 2 else low  # ties
    high = low + spread * torch.rand(low.shape, dtype=torch.float64, generator=random)
    shares = torch.rand(60, 2, 5, 5, dtype=torch.float64, generator=random)
    shares = torch.where(torch.rand(shares.shape, generator=random) < 0.5, shares.round(), shares)
    x = low + (high - low) * shares
    for before, near in ((x[:1], True), (x[:1], False), (low - 1.0, False), (high + 1.0, False)):
        below, above = distances(pool, low, high, before, x, near=near)
        assert bool((below >= -1e-14).all())
        assert bool((above >= -1e-14).all())
    if not spread:
        assert float(below.abs().max()) <= 1e-14
        assert float(above.abs().max()) <= 1e-14


def test_unknown_ranges_of_a_maximum_prove_nothing() -> None:
    pool = operation("max_pool", (1, 2, 2), **POOLS[0])
    own = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]], dtype=torch.float64)
    x = torch.randn(50, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    low, high = torch.full_like(own, -20.0), torch.full_like(own, 20.0)
    for end in (0, 1):
        ends = [low.clone(), high.clone()]
        ends[end][0, 0, 0, 0] = math.nan
        for distance in distances(pool, ends[0], ends[1], own, x, near=False):
            assert bool((distance.isnan() | (distance >= -1e-12)).all())
