"""Forward forms through single operations and whole networks: they hold at every point, and NaN proves nothing."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes.forward_forms import Forms, Own, add, bend, make_forward, name_errors, ranges, rounded, select
from l0tre.certify.boxes.rounding import total
from l0tre.certify.relax.plan import make_plan
from l0tre.domain import make_domain
from l0tre.model.graph import Graph, Operation, run_operation
from tests.certify.boxes.cases import directions, values_of
from tests.certify.boxes.test_affine_forms import BENT, NAMES

POOLS = [
    {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)},
    {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 1), "dilation": (1, 1)},
    {"kernel": (2, 2), "stride": (1, 1), "padding": (0, 1), "dilation": (2, 1)},
]


def random_forms(generator: torch.Generator, batch: int, variables: int, *shape: int) -> tuple[Forms, Tensor]:
    """Forms of many widths, some without any, and own values near and far from them."""
    scale = 10.0 ** (torch.rand(batch, *shape, generator=generator, dtype=torch.float64) * 5 - 4)
    scale = torch.where(torch.rand(scale.shape, generator=generator) < 0.1, 0.0, scale)
    linear = scale[:, None] * torch.randn(batch, 1 + variables, *shape, generator=generator, dtype=torch.float64)
    error = 0.3 * scale * torch.rand(scale.shape, generator=generator, dtype=torch.float64)
    before = torch.randn(batch, *shape, generator=generator, dtype=torch.float64)
    return Forms(linear, error), torch.where(torch.rand(before.shape, generator=generator) < 0.2, 0.0, before * 3)


def samples(forms: Forms, u: Tensor, generator: torch.Generator) -> Tensor:
    """Differences that forms allow at ``u``: their ends and points between, ``[samples, batch, points, *shape]``."""
    centre = values_of(forms.linear, u)
    between = torch.rand(4, *centre.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return centre + torch.cat([between, between[:2].sign()]) * forms.error[:, None]


def exact(before: Tensor, after: Tensor) -> Own:
    return Own(before, after, torch.zeros_like(before), torch.zeros_like(after))


def check_holds(found: Forms, change: Tensor, u: Tensor) -> None:
    centre, error = values_of(found.linear, u), found.error[:, None]
    size = 1e-11 * (1 + centre.abs() + error)
    assert bool((change >= centre - error - size).all())
    assert bool((change <= centre + error + size).all())


@pytest.mark.parametrize("operation", BENT, ids=NAMES)
@pytest.mark.parametrize("variables", [1, 3])
def test_bent_forms_hold_at_every_point(operation: Operation, variables: int) -> None:
    generator = torch.Generator().manual_seed(variables)
    forms, before = random_forms(generator, 80, variables, 5)
    u = directions(variables, generator)
    after = run_operation(operation, before)
    values = before[:, None] + samples(forms, u, generator)
    check_holds(bend(operation, forms, exact(before, after)), run_operation(operation, values) - after[:, None], u)


def test_the_lines_of_a_relu_lie_as_close_as_they_can() -> None:
    """From -1 to 3 the chord has slope 3/4, and its parallel through zero is 3/4 below: half of it is the error."""
    forms = Forms(torch.tensor([[[1.0], [2.0]]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found = bend(BENT[0], forms, exact(zero, zero))
    assert found.linear[0, :, 0].tolist() == pytest.approx([0.75 + 0.375, 1.5])
    assert found.error.item() == pytest.approx(0.375)
    wider = bend(BENT[0], forms, Own(zero, zero, zero + 1.0, zero))  # from -2 to 4, and 2/3 of what is off
    assert wider.error.item() == pytest.approx(2 / 3 + 2 / 3)


def test_where_errors_are_large_a_constant_encloses_a_relu() -> None:
    """From -9 to 1 by error alone: a line would carry on a tenth of 5, the constant 1/2 is off by 1/2."""
    forms = Forms(torch.tensor([[[-4.0], [0.0]]], dtype=torch.float64), torch.full((1, 1), 5.0, dtype=torch.float64))
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found = bend(BENT[0], forms, exact(zero, zero))
    assert found.linear[0, :, 0].tolist() == pytest.approx([0.5, 0.0])
    assert found.error.item() == pytest.approx(0.5)


def test_own_values_that_are_off_are_paid_for() -> None:
    """A neuron on its line passes on what its own value is off by, before and after."""
    forms = Forms(torch.tensor([[[0.0], [0.5]]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    three = torch.full((1, 1), 3.0, dtype=torch.float64)
    found = bend(BENT[0], forms, Own(three, three, three / 30, three / 300))
    assert found.error.item() == pytest.approx(0.11)


def test_sums_of_products_pay_by_their_sizes() -> None:
    forms = Forms(torch.tensor([[-2.0, 3.0]]).double(), torch.tensor([5.0]).double())
    assert rounded(forms, 2.0**-10).tolist() == [5.0 + 10 * 2.0**-10]


@pytest.mark.parametrize("count", [1, 4, 99])
def test_named_errors_are_variables_that_neurons_share(count: int) -> None:
    """Each output is its own form at the true errors of the inputs: the named ones by variables, the rest by errors."""
    generator = torch.Generator().manual_seed(count)
    forms, _ = random_forms(generator, 50, 2, 6)
    weight = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    dense = Operation("linear", (0,), (3,), tensors={"weight": weight, "bias": torch.zeros(3, dtype=torch.float64)})
    plan = make_plan(Graph((Operation("input", (), (6,)), dense)), make_domain((6,)), torch.device("cpu"))
    found = name_errors(make_forward(plan), 1, forms, count)
    named = min(count, 6)
    assert found.linear.shape == (50, 3 + named, 3)
    order = forms.error.argsort(1, descending=True)[:, :named]
    signs = torch.rand(50, 6, generator=generator, dtype=torch.float64) * 2 - 1
    u = torch.rand(50, 2, generator=generator, dtype=torch.float64) * 2 - 1
    truth = forms.linear[:, 0] + (forms.linear[:, 1:] * u[:, :, None]).sum(1) + signs * forms.error
    every = torch.cat([torch.ones(50, 1, dtype=torch.float64), u, signs.gather(1, order)], 1)
    off = (truth @ weight.T - (found.linear * every[:, :, None]).sum(1)).abs()
    assert bool((off <= found.error * (1 + 1e-9) + 1e-9).all())
    if named == 6:
        assert float(found.error.max()) < 1e-9 * float(forms.error.max())


def test_many_sizes_add_up_to_no_less_than_they_are() -> None:
    """Each 2**-53 is lost beside 1, in whatever order one begins with that."""
    values = torch.full((4097,), -(2.0**-53), dtype=torch.float64)
    values[0] = 1.0
    assert float(total(values, 0)) >= 1 + 2.0**-41


@pytest.mark.parametrize("operation", BENT, ids=NAMES)
def test_what_is_no_number_stays_none(operation: Operation) -> None:
    zero = torch.zeros(4, 1, dtype=torch.float64)
    linear = torch.ones(4, 2, 1, dtype=torch.float64)
    error = torch.tensor([[0.0], [math.nan], [math.inf], [0.0]], dtype=torch.float64)
    linear[3, 1] = math.nan
    found = bend(operation, Forms(linear, error), exact(zero, run_operation(operation, zero)))
    low, high = ranges(found, zero, zero)
    assert torch.isfinite(low).flatten().tolist() == [True, False, False, False]
    assert torch.isfinite(high).flatten().tolist() == [True, False, False, False]


@pytest.mark.parametrize("attributes", POOLS)
def test_pooled_forms_hold_at_every_point(attributes: dict[str, tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(5)
    forms, before = random_forms(generator, 60, 2, 2, 5, 6)
    forms = Forms(forms.linear, forms.error * 3)
    blank = Operation("max_pool", (0,), (), attributes=attributes)
    after = run_operation(blank, before)
    operation = replace(blank, shape=tuple(after.shape[1:]))
    u = directions(2, generator)
    values = before[:, None] + samples(forms, u, generator)
    change = run_operation(operation, values.flatten(0, 2)).view(*values.shape[:3], *operation.shape)
    found = select(operation, forms, exact(before, after))
    check_holds(found, change - after[:, None], u)
    # Where one input is the largest for certain, it is handed on as it is.
    apart = Forms(forms.linear * 1e-9, forms.error * 1e-9)
    assert float(select(operation, apart, exact(before, after)).error.median()) < 1e-8


def test_of_two_inputs_a_pool_takes_a_line_between() -> None:
    """The larger one of u and -u lies between 0 and 1, halfway between both; a third one far below is not seen."""
    before = torch.zeros(1, 1, 1, 3, dtype=torch.float64)
    before[..., 2] = -9.0
    slopes = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64).view(1, 1, 1, 1, 3)
    forms = Forms(torch.cat([torch.zeros_like(slopes), slopes], 1), torch.zeros_like(before))
    attributes = {"kernel": (1, 3), "stride": (1, 3), "padding": (0, 0), "dilation": (1, 1)}
    operation = Operation("max_pool", (0,), (1, 1, 1), attributes=attributes)
    found = select(operation, forms, exact(before, before[..., :1]))
    assert found.linear.flatten().tolist() == pytest.approx([0.5, 0.0])
    assert found.error.item() == pytest.approx(0.5)
    # Where the second is larger at one end alone, the line lies nearer to the first.
    before[..., 0] = 1.0
    found = select(operation, forms, exact(before, torch.zeros_like(before[..., :1])))
    assert found.linear.flatten().tolist() == pytest.approx([1.125, 0.5])
    assert found.error.item() == pytest.approx(0.375)


def test_a_pool_pays_for_rounding() -> None:
    before = torch.tensor([[[[1.0, 1.0], [1.0, 1.0]]]], dtype=torch.float64)
    operation = Operation("max_pool", (0,), (1, 1, 1), attributes=POOLS[0])
    forms = Forms(torch.zeros(1, 2, 1, 2, 2, dtype=torch.float64), torch.zeros(1, 1, 2, 2, dtype=torch.float64))
    after = before.amax((2, 3), keepdim=True)
    found = select(operation, forms, Own(before, after, before / 4, after / 8))
    assert found.error.item() >= 0.375


def test_no_number_under_a_pool_is_none_behind_it() -> None:
    for bad in (math.nan, math.inf):
        before = torch.tensor([[[[9.0, 1.0], [1.0, 1.0]]]], dtype=torch.float64)
        operation = Operation("max_pool", (0,), (1, 1, 1), attributes=POOLS[0])
        for place in range(4):
            error = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
            error.view(-1)[place] = bad
            forms = Forms(torch.zeros(1, 2, 1, 2, 2, dtype=torch.float64), error)
            found = select(operation, forms, exact(before, before[..., :1, :1]))
            assert not bool(torch.isfinite(found.error).any())


def test_sums_of_forms_keep_variables_apart() -> None:
    first = Forms(torch.tensor([[1.0, 2.0]]).double(), torch.tensor([0.5]).double())
    second = Forms(torch.tensor([[10.0, 3.0, 4.0]]).double(), torch.tensor([0.25]).double())
    both = add([first, second])
    assert both.linear.tolist() == [[11.0, 2.0, 3.0, 4.0]]
    assert both.error.tolist() == pytest.approx([0.75])
    assert both.error.item() >= 0.75 + 11.75 * 2.0**-53
