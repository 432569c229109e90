"""The checker's own bounds: below the margin at every point, lines around every function."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.certify.checker.check import spread_of
from l0tre.certify.checker.cover import make_regions, make_tree
from l0tre.certify.checker.curves import CURVES
from l0tre.certify.checker.lines import make_lines
from l0tre.certify.checker.margins import lower_margins, make_bounder
from l0tre.domain import make_domain
from l0tre.model.graph import GraphBuilder, Operation, run, run_operation
from tests.certify.checker.cases import (
    CPU,
    KINDS,
    Case,
    as_network,
    certify,
    grid_margin,
    make_case,
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_hold_at_random_points(kind: str) -> None:
    case = make_case(kind, 1)
    rng = np.random.default_rng(1)
    made = certify(case, 2, 1, stop=0.15)
    assert case.network.exact is not None
    tree = make_tree(made, case.domain.groups)
    order = torch.from_numpy(tree.groups)
    bounder = make_bounder(case.network.exact, case.image, case.domain, order, CPU, 2**24)
    regions = make_regions(made, tree, case.domain)
    spread = spread_of(regions, tree, case.domain, bounder)
    bounds = lower_margins(bounder, spread, case.label)
    for row in range(len(regions)):
        flat = case.image.double().flatten().repeat(300, 1)
        for sample in flat:
            cells = regions.cells[row].tolist()
            for cell in set(cells):
                inside = tree.groups[tree.start[cell] : tree.start[cell] + tree.count[cell]]
                for group in rng.permutation(inside)[: cells.count(cell)]:
                    place = case.domain.members[group, : case.domain.sizes[group]]
                    low, high = case.domain.low[place].numpy(), case.domain.high[place].numpy()
                    if made.box[row] >= 0:
                        column = cells.index(cell)
                        low, high = (e[row, column, : len(place)] for e in (regions.low, regions.high))
                    share = np.clip(rng.uniform(-0.5, 1.5, len(place)), 0, 1)  # often at an end
                    sample[place] = torch.from_numpy(low + (high - low) * share).double()
        scores = run(case.network.exact, flat.reshape(-1, *case.domain.shape))
        gaps = scores[:, [case.label]] - scores
        gaps[:, case.label] = math.inf
        assert float(bounds[row]) <= float(gaps.min())


def test_bounds_of_a_linear_network_are_exact() -> None:
    """Without lines nothing is lost: the bound is the margin at the worst corner."""
    random = torch.Generator().manual_seed(0)
    builder = GraphBuilder((3, 2, 2))
    top = builder.add("reshape", [0], shape=(12,))
    weight, bias = torch.randn(3, 12, generator=random), torch.randn(3, generator=random)
    graph = builder.build(builder.add("linear", [top], {"weight": weight, "bias": bias})).to("cpu")
    case = Case(as_network(graph), torch.rand(3, 2, 2, generator=random), make_domain((3, 2, 2), low=-0.5), 1)
    for radius in (1, 2):
        made = certify(case, radius, 0, stop=1.0)
        assert case.network.exact is not None
        tree = make_tree(made, case.domain.groups)
        order = torch.from_numpy(tree.groups)
        bounder = make_bounder(case.network.exact, case.image, case.domain, order, CPU, 2**24)
        spread = spread_of(make_regions(made, tree, case.domain), tree, case.domain, bounder)
        bound = float(lower_margins(bounder, spread, case.label)[0])
        truth = grid_margin(case, radius, 2)
        assert truth - 1e-9 < bound <= truth


def single(op: str, **attributes: Any) -> Operation:
    return Operation(op, (0,), (1,), {}, attributes)


LINES = [
    single("relu"),
    single("leaky_relu", slope=0.0),
    single("leaky_relu", slope=0.2),
    single("leaky_relu", slope=3.0),
    single("clip", low=-1.0, high=2.0),
    single("clip", low=-math.inf, high=0.5),
    single("clip", low=0.0, high=math.inf),
    single("clip", low=1.0, high=-1.0),
    single("sigmoid"),
    single("tanh"),
    *(single("elu", alpha=alpha) for alpha in (0.0, 0.3, 1.0, 1.7)),
    *(single(kind) for kind in CURVES if kind != "elu"),
]


@pytest.mark.parametrize("operation", LINES, ids=lambda operation: f"{operation.kind} {dict(operation.attributes)}")
@given(st.floats(-30, 30), st.sampled_from([0.0, 1e-17, 1e-12, 1e-6, 0.1, 1.0, 7.0, 40.0]), st.floats(0, 1))
@settings(max_examples=15, deadline=None)
def test_lines_enclose_the_function(operation: Operation, start: float, size: float, share: float) -> None:
    low, high = start, start + size * share
    x = torch.linspace(low, high, 301, dtype=torch.float64)
    lines = make_lines(
        operation, torch.tensor([[low]], dtype=torch.float64), torch.tensor([[high]], dtype=torch.float64)
    )
    value = run_operation(operation, x[:, None])[:, 0]
    (slope, shift), (over, over_shift) = ((float(a), float(b)) for a, b in (lines.lower, lines.upper))
    tolerance = 1e-14 * (2 + abs(x).max())
    assert bool((slope * x + shift <= value + tolerance).all())
    assert bool((over * x + over_shift >= value - tolerance).all())
    if operation.kind in ("sigmoid", "tanh", "relu"):  # not looser than the function's own range
        assert float((over * x + over_shift).min()) <= float(value.max()) + tolerance
        assert float((slope * x + shift).max()) >= float(value.min()) - tolerance


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_lines_enclose_a_maximum(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    operation = Operation(
        "max_pool", (0,), (2, 3, 2), {}, {"kernel": (2, 2), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    )
    low = torch.randn(4, 2, 4, 3, dtype=torch.float64, generator=random)
    high = low + torch.rand(4, 2, 4, 3, dtype=torch.float64, generator=random) * 1.5
    lines = make_lines(operation, low, high)
    assert lines.index is not None
    for _ in range(50):
        x = low + (high - low) * (torch.rand(low.shape, dtype=torch.float64, generator=random) * 2 - 0.5).clamp(0, 1)
        value, picked = run_operation(operation, x).flatten(1), x.flatten(1).gather(1, lines.index)
        assert bool((lines.lower[0] * picked + lines.lower[1] <= value).all())
        assert bool((lines.upper[0] * picked + lines.upper[1] >= value).all())
    assert bool((lines.upper[0] == 1).any())
    assert bool((lines.upper[0] == 0).any())
