"""Forms through single operations: lines hold at every point, rounding is paid for, what is no number stays none."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.boxes.affine_forms import AffineForms, bend, least, pool
from l0tre.model.graph import Operation, run_operation
from tests.certify.boxes.cases import directions, values_of

NOT_NUMBERS = (float("nan"), float("inf"), -float("inf"))
BENT = [
    Operation("relu", (0,), (5,)),
    Operation("leaky_relu", (0,), (5,), attributes={"slope": 0.3}),
    Operation("leaky_relu", (0,), (5,), attributes={"slope": 1.0}),
    Operation("leaky_relu", (0,), (5,), attributes={"slope": 2.5}),
    Operation("sigmoid", (0,), (5,)),
    Operation("tanh", (0,), (5,)),
    Operation("elu", (0,), (5,), attributes={"alpha": 1.3}),
    *(Operation(kind, (0,), (5,)) for kind in ("softplus", "silu", "gelu", "gelu_tanh", "hard_swish")),
]
NAMES = [" ".join([operation.kind, *(str(value) for value in operation.attributes.values())]) for operation in BENT]


def random_forms(generator: torch.Generator, batch: int, variables: int, *shape: int) -> tuple[AffineForms, Tensor]:
    """AffineForms of many widths, some without any, and own values near and far from them."""
    scale = 10.0 ** (torch.rand(batch, *shape, generator=generator, dtype=torch.float64) * 5 - 4)
    scale = torch.where(torch.rand(scale.shape, generator=generator) < 0.1, 0.0, scale)[:, None]
    centre = scale * torch.randn(batch, 1 + variables, *shape, generator=generator, dtype=torch.float64)
    radius = scale * torch.randn(centre.shape, generator=generator, dtype=torch.float64) * 0.3
    radius[:, 0] = radius[:, 1:].abs().sum(1) + scale[:, 0] * torch.rand(batch, *shape, generator=generator)
    before = torch.randn(batch, *shape, generator=generator, dtype=torch.float64)
    before = torch.where(torch.rand(before.shape, generator=generator) < 0.2, 0.0, before * 3)
    return AffineForms(centre, radius), before


def samples(forms: AffineForms, u: Tensor, generator: torch.Generator) -> Tensor:
    """Differences that forms allow at ``u``: their ends and points between, ``[samples, batch, points, *shape]``."""
    centre, radius = values_of(forms.centre, u), values_of(forms.radius, u)
    between = torch.rand(2, *centre.shape, generator=generator, dtype=torch.float64) * 2 - 1
    ends = torch.stack([torch.full_like(centre, end) for end in (-1.0, 0.0, 1.0)])
    return centre + torch.cat([ends, between]) * radius


def check_holds(found: AffineForms, change: Tensor, u: Tensor) -> None:
    centre, radius = values_of(found.centre, u), values_of(found.radius, u)
    size = 1e-11 * (1 + centre.abs() + radius)
    assert bool((change >= centre - radius - size).all())
    assert bool((change <= centre + radius + size).all())


@pytest.mark.parametrize("variables", [1, 2, 6])
@pytest.mark.parametrize("slack", [0.0, 0.25])
def test_ranges_are_attained_and_pay_for_rounding(variables: int, slack: float) -> None:
    """The chord above a ReLU ends where the range does, which lies one error beyond the values at the corners."""
    generator = torch.Generator().manual_seed(variables)
    forms, before = random_forms(generator, 60, variables, 5)
    values = before[:, None] + samples(forms, directions(variables, generator, 64), generator)
    low, high = values.amin((0, 2)) - slack, values.amax((0, 2)) + slack
    bent = (low < -1e-6) & (high > 1e-6)
    assert int(bent.sum()) > 50
    found = bend(BENT[0], forms, before, before.relu(), slack)
    slope = high / (high - low)
    above = slope[:, None] * (forms.centre + forms.radius)
    above[:, 0] += slope * before - slope * low - before.relu()
    bent = bent[:, None].expand_as(above)
    assert torch.allclose((found.centre + found.radius)[bent], above[bent], rtol=1e-9, atol=1e-9)


def test_least_is_the_least_corner() -> None:
    generator = torch.Generator().manual_seed(1)
    lower = torch.randn(7, 4, 1 + 5, generator=generator, dtype=torch.float64)
    corners = directions(5, generator)
    values = values_of(lower.transpose(1, 2), corners)
    assert torch.allclose(values.amin(1), least(lower), rtol=0, atol=1e-12)


@pytest.mark.parametrize("operation", BENT, ids=NAMES)
@pytest.mark.parametrize("variables", [1, 3, 6])
def test_bent_forms_hold_at_every_point(operation: Operation, variables: int) -> None:
    generator = torch.Generator().manual_seed(variables)
    forms, before = random_forms(generator, 80, variables, 5)
    u = directions(variables, generator)
    after = run_operation(operation, before)
    values = before[:, None] + samples(forms, u, generator)
    check_holds(bend(operation, forms, before, after, 0.0), run_operation(operation, values) - after[:, None], u)


@pytest.mark.parametrize("operation", BENT, ids=NAMES)
def test_bent_forms_without_width_are_the_operation_itself(operation: Operation) -> None:
    generator = torch.Generator().manual_seed(3)
    centre = torch.zeros(40, 3, 5, dtype=torch.float64)
    centre[:, 0] = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    before = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    after = run_operation(operation, before)
    found = bend(operation, AffineForms(centre, torch.zeros_like(centre)), before, after, 1e-14)
    assert torch.allclose(
        found.centre[:, 0], run_operation(operation, before + centre[:, 0]) - after, rtol=0, atol=1e-12
    )
    assert float(found.radius.abs().max()) < 1e-12


@pytest.mark.parametrize("operation", BENT, ids=NAMES)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_lines_hold_for_inputs_that_are_off_by_rounding(operation: Operation, side: float) -> None:
    """A range that ends at the kink goes past it by the error: what is left out is the error times the slope."""
    centre = torch.tensor([[[0.5 * side], [0.5]]], dtype=torch.float64)  # from 0 to 1 or to -1, the own value is 0
    before, slack = torch.zeros(1, 1, dtype=torch.float64), 0.1
    forms, after = AffineForms(centre, torch.zeros_like(centre)), run_operation(operation, before)
    found, exact = (bend(operation, forms, before, after, error) for error in (slack, 0.0))
    u = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
    low, high = values_of(found.centre - found.radius, u), values_of(found.centre + found.radius, u)
    for error in (-slack, 0.0, slack):
        change = run_operation(operation, before[:, None] + values_of(centre, u) + error) - after[:, None]
        slopes = 2.5 * slack + 1e-12
        assert bool(((change >= low - slopes) & (change <= high + slopes)).all())
    if operation.kind in ("relu", "leaky_relu") and operation.attributes.get("slope") != 1.0:
        assert float(exact.radius.abs().max()) == 0.0
        assert float(found.radius.abs().max()) > 1e-3


@pytest.mark.parametrize("operation", BENT, ids=NAMES)
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number_stays_none(operation: Operation, value: float) -> None:
    """In a centre, in a radius, in a coefficient or in an own value: no lower bound is finite."""
    forms, before = random_forms(torch.Generator().manual_seed(2), 3, 2, 5)
    for place, column in itertools.product(("centre", "radius", "before"), (0, 1)):
        centre, radius, own = forms.centre.clone(), forms.radius.clone(), before.clone()
        target = {"centre": centre[0, column], "radius": radius[0, column], "before": own[0]}[place]
        target[2] = value
        found = bend(operation, AffineForms(centre, radius), own, run_operation(operation, own), 1e-12)
        low = least((found.centre - found.radius).movedim(1, -1))
        assert not bool(torch.isfinite(low[0, 2])), f"{value} in {place} {column} gives {low[0, 2]}"
        assert bool(torch.isfinite(low[1:]).all())
        assert bool(torch.isfinite(low[0, [0, 1, 3, 4]]).all())


POOLS = [
    {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)},
    {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 0), "dilation": (1, 1)},
    {"kernel": (2, 2), "stride": (1, 1), "padding": (1, 1), "dilation": (2, 1)},
]


def pool_case(
    settings: dict[str, tuple[int, int]], generator: torch.Generator, batch: int
) -> tuple[Operation, AffineForms, Tensor]:
    """A max pool of patches that hang over the edges of the map: what is outside is minus infinity."""
    operation = Operation(
        "max_pool", (0,), (2, 9, 9), attributes=dict(settings)
    )  # the shape is that of the whole map: not used
    size = [
        s * 2 + d * (k - 1) + 1
        for s, d, k in zip(*(settings[n] for n in ("stride", "dilation", "kernel")), strict=True)
    ]
    forms, before = random_forms(generator, batch, 3, 2, *size)
    before[: batch // 2, :, 0] = -torch.inf
    before[: batch // 4, :, :, -1] = -torch.inf
    outside = torch.isinf(before)[:, None]
    return (
        operation,
        AffineForms(forms.centre.masked_fill(outside, 0.0), forms.radius.masked_fill(outside, 0.0)),
        before,
    )


@pytest.mark.parametrize("settings", POOLS)
def test_pooled_forms_hold_at_every_point(settings: dict[str, tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(4)
    operation, forms, before = pool_case(settings, generator, 60)

    def highest(values: Tensor) -> Tensor:
        flat = values.flatten(0, -4)
        found = F.max_pool2d(flat, settings["kernel"], settings["stride"], 0, settings["dilation"])
        return found.view(*values.shape[:-3], *found.shape[1:])

    after = highest(before)
    inside = torch.isfinite(after)
    own = after.masked_fill(~inside, 0.0)
    found = pool(operation, forms, before, own, 0.0, (3, 3))
    assert found.centre.shape == (60, 4, 2, 3, 3)
    found = AffineForms(*(part.masked_fill(~inside[:, None], 0.0) for part in (found.centre, found.radius)))
    u = directions(3, generator)
    change = highest(before[:, None] + samples(forms, u, generator)) - own[:, None]
    check_holds(found, change.masked_fill(~inside[:, None], 0.0), u)
    still = AffineForms(
        *(torch.cat([part[:, :1], torch.zeros_like(part[:, 1:])], 1) for part in (forms.centre, forms.centre * 0))
    )
    exact = pool(operation, still, before, own, 0.0, (3, 3))
    truth = highest(before + still.centre[:, 0]) - own
    assert torch.allclose(exact.centre[:, 0][inside], truth[inside], rtol=0, atol=1e-12)
    assert float(exact.radius[:, 0][inside].abs().max()) < 1e-12


def test_pools_pay_for_rounding() -> None:
    """One input is ahead of the other by less than the error: it does not dominate."""
    operation = Operation("max_pool", (0,), (1, 1, 1), attributes=dict(POOLS[0]))
    before = torch.tensor([[[[1.0, 0.9], [0.0, 0.0]]]], dtype=torch.float64)
    centre = torch.zeros(1, 2, 1, 2, 2, dtype=torch.float64)
    forms, after = AffineForms(centre, torch.zeros_like(centre)), torch.ones(1, 1, 1, 1, dtype=torch.float64)
    assert float(pool(operation, forms, before, after, 0.01, (1, 1)).radius.sum()) == 0.0
    assert float(pool(operation, forms, before, after, 0.2, (1, 1)).radius.sum()) > 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_pool_hides_nothing_that_is_no_number(value: float) -> None:
    generator = torch.Generator().manual_seed(5)
    operation, forms, before = pool_case(POOLS[0], generator, 4)
    before = torch.randn(before.shape, generator=generator, dtype=torch.float64)
    after = F.max_pool2d(before, 2, 2)
    for place, row, column in itertools.product(("centre", "radius"), (0, 1), (0, 1)):
        centre, radius = forms.centre.clone(), forms.radius.clone()
        {"centre": centre, "radius": radius}[place][0, 0, 0, row, column] = value
        found = pool(operation, AffineForms(centre, radius), before, after, 1e-12, (3, 3))
        for part in (found.centre - found.radius, found.centre + found.radius):
            assert not bool(torch.isfinite(least(part.movedim(1, -1))[0, 0, 0, 0]))
            assert bool(torch.isfinite(least(part.movedim(1, -1))[1:]).all())
