"""What rounding can do to forward forms, against exact arithmetic in fractions."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes.form_bounds import FormInstance, form_bounds, make_form_instance
from l0tre.certify.boxes.forward_forms import Forms, Own, bend, carry, make_forward
from l0tre.certify.boxes.rounding import drifts, sum_unit
from l0tre.certify.boxes.tail import lower_margins
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.regions.tree import make_tree
from l0tre.certify.relax.instance import make_instance
from l0tre.certify.relax.plan import make_plan
from l0tre.domain import make_domain
from l0tre.model.graph import Graph, Operation, run_operation
from l0tre.objective import AllRivals

WIDTHS = (4, 12, 12, 3)


def image_of(seed: int) -> Tensor:
    return torch.rand(WIDTHS[0], generator=torch.Generator().manual_seed(1000 + seed))


def graph_of(seed: int) -> Graph:
    """Dense layers, the first one of large weights that cancel at the image: it rounds by far more than all others."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    operations = [Operation("input", (), WIDTHS[:1])]
    for place, (before, after) in enumerate(itertools.pairwise(WIDTHS)):
        weight, bias = draw(after, before), draw(after)
        if not place:
            weight = 1e9 * weight
            bias = bias - weight @ image_of(seed).double()
        operations.append(
            Operation("linear", (len(operations) - 1,), (after,), tensors={"weight": weight, "bias": bias})
        )
        if place < len(WIDTHS) - 2:
            operations.append(Operation("relu", (len(operations) - 1,), (after,)))
    return Graph(tuple(operations))


def exact(graph: Graph, point: Sequence[float]) -> list[list[Fraction]]:
    """The values of all operations at a point."""
    values = [[Fraction(v) for v in point]]
    for operation in graph.operations[1:]:
        source = values[operation.inputs[0]]
        if operation.kind == "relu":
            values.append([max(v, Fraction(0)) for v in source])
            continue
        weight, bias = operation.tensors["weight"].tolist(), operation.tensors["bias"].tolist()
        values.append(
            [
                sum((Fraction(w) * v for w, v in zip(row, source, strict=True)), Fraction(b))
                for row, b in zip(weight, bias, strict=True)
            ]
        )
    return values


def forms_of(graph: Graph, image: Tensor, label: int) -> FormInstance:
    domain = make_domain(WIDTHS[:1])
    plan = make_plan(graph, domain, torch.device("cpu"))
    rivals = AllRivals(torch.tensor([label]))
    instance = make_instance(plan, make_tree(domain, graph), domain, image[None].float(), rivals, 1, 0)
    return make_form_instance(make_forward(plan), None, instance, 2**24, 2**24)


@pytest.mark.parametrize("seed", range(8))
def test_own_values_lie_within_their_drift(seed: int) -> None:
    graph = graph_of(seed)
    image = image_of(seed)
    forms = forms_of(graph, image, 0)
    plan, base = forms.instance.plan, forms.instance.base
    found, true = drifts(plan, forms.instance.images, base), exact(graph, image.double().tolist())
    off = 0
    for place, drift in found.items():
        own = base.get(place, forms.instance.images)
        for value, error, real in zip(own[0].tolist(), drift[0].tolist(), true[place], strict=True):
            off += Fraction(value) != real
            assert abs(Fraction(value) - real) <= Fraction(error)
            assert error <= 1e-2
    assert off  # something was rounded


@pytest.mark.parametrize("seed", range(16))
def test_bounds_of_points_are_below_the_exact_margins(seed: int) -> None:
    """A box without an extent: the bound is the margin, less what rounding can be, and not a thousand times that."""
    graph = graph_of(seed)
    generator = torch.Generator().manual_seed(seed)
    forms = forms_of(graph, image_of(seed), 0)
    instance, count = forms.instance, 12
    cells = torch.randint(WIDTHS[0], (count, 1), generator=generator) + instance.tree.slots
    own = forms.instance.images[0][instance.members[cells - instance.tree.slots]]
    # Near the image's own values the first layer cancels, further away it does not.
    values = own + torch.rand(own.shape, generator=generator, dtype=torch.float64) * 10.0 ** -torch.randint(
        1, 12, own.shape, generator=generator
    )
    values[::4] = own[::4]
    zeros = torch.zeros(count, dtype=torch.int64)
    ends = [replace(forms.tail, start=place) for place in (forms.tail.end, 1)]
    for tail in ends:  # by forms alone, and by rows carried back
        needed = frozenset({tail.start, tail.end, *instance.plan.bounded})
        chosen = replace(forms, tail=replace(tail, needed=needed))
        bounds, _ = form_bounds(chosen, BoxNodes(zeros, cells, values, values, zeros))
        for row in range(count):
            point = instance.images[0].clone()
            point[instance.members[cells[row, 0] - instance.tree.slots, 0]] = values[row, 0, 0]
            scores = exact(graph, point.tolist())[-1]
            for bound, rival in zip(bounds[row].tolist(), (1, 2), strict=True):
                margin = scores[0] - scores[rival]
                assert Fraction(bound) <= margin
                assert float(margin) - bound <= 1e-2 * max(map(abs, map(float, scores))) + 1e-2


def test_sums_are_reckoned_with_all_their_products() -> None:
    plan = forms_of(graph_of(0), image_of(0), 0).instance.plan
    assert [sum_unit(plan, place) * 2.0**53 >= WIDTHS[number] for number, place in enumerate((1, 3, 5))] == [True] * 3


def test_margins_that_are_no_numbers_are_not_bounded() -> None:
    forms = forms_of(graph_of(1), image_of(0), 0)
    end = forms.tail.end
    linear = torch.zeros(1, 2, WIDTHS[2], dtype=torch.float64)
    error = torch.full((1, WIDTHS[2]), torch.nan, dtype=torch.float64)
    tail = replace(forms.tail, start=end, needed=frozenset({end}))
    image = torch.tensor([0])
    bounds, _ = lower_margins(
        forms.forward, forms.instance, tail, forms.drift, forms.errors, image, {end: Forms(linear, error)}
    )
    assert bool(bounds.isnan().all())


def test_errors_hold_what_a_sum_of_many_products_rounds() -> None:
    """Forms without an error, in the middle of a network: what comes out is off by no more than it says."""
    generator, width = torch.Generator().manual_seed(0), 400
    weights = [torch.randn(rows, columns, generator=generator).double() for rows, columns in ((width, 4), (2, width))]
    operations = [Operation("input", (), WIDTHS[:1])]
    for place, weight in enumerate(weights):
        operations.append(Operation("linear", (place,), (len(weight),), tensors={"weight": weight}))
    forms = forms_of(Graph(tuple(operations)), image_of(0), 0)
    linear = torch.randn(1, 3, width, generator=generator, dtype=torch.float64)
    start = Forms(linear, torch.zeros(1, width, dtype=torch.float64))
    found = carry(forms.forward, forms.instance, forms.drift, torch.tensor([0]), 1, start, {2})[2]
    for row, weight in enumerate(weights[1].tolist()):
        off = Fraction(0)  # of the constant and of both coefficients
        for column, own in enumerate(found.linear[0, :, row].tolist()):
            products = zip(weight, linear[0, column].tolist(), strict=True)
            off += abs(sum((Fraction(w) * Fraction(v) for w, v in products), Fraction(0)) - Fraction(own))
        assert 0 < off <= Fraction(float(found.error[0, row]))


@pytest.mark.parametrize("kind", ["relu", "silu", "tanh"])
@pytest.mark.parametrize("own", [-1.0, 0.2, 1.5])
def test_curves_reckon_with_own_values_that_are_off(kind: str, own: float) -> None:
    """Wherever the image's own value really is, the change of the output lies in its form."""
    operation, off = Operation(kind, (0,), (1,)), 0.5
    before = torch.tensor([[own]], dtype=torch.float64)
    after = run_operation(operation, before)
    true = torch.linspace(own - off, own + off, 41, dtype=torch.float64)[:, None]
    after_off = (run_operation(operation, true) - after).abs().amax()[None, None]
    forms = Forms(torch.tensor([[[0.1], [2.0]]], dtype=torch.float64), torch.full((1, 1), 0.05, dtype=torch.float64))
    found = bend(operation, forms, Own(before, after, torch.full_like(before, off), after_off))
    u = torch.linspace(-1, 1, 41, dtype=torch.float64)
    for error in (-0.05, 0.05):
        change = run_operation(operation, true + 0.1 + 2.0 * u + error) - run_operation(operation, true)
        middle = found.linear[0, 0] + found.linear[0, 1] * u
        assert bool(((change - middle).abs() <= found.error[0]).all())


def test_the_largest_value_drifts_as_far_as_the_one_it_is() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 1, 2, 2, generator=generator).double()
    ones, none = (1, 1), (0, 0)
    conv = Operation(
        "conv", (0,), (2, 4, 4), {"weight": weight}, {"stride": ones, "padding": none, "dilation": ones, "groups": 1}
    )
    settings = {"kernel": (2, 2), "stride": (2, 2), "padding": none, "dilation": ones}
    pool = Operation("max_pool", (1,), (2, 2, 2), {}, settings)
    graph, domain = Graph((Operation("input", (), (1, 5, 5)), conv, pool)), make_domain((1, 5, 5))
    plan = make_plan(graph, domain, torch.device("cpu"))
    image = torch.rand(1, 25, generator=generator).double()
    values = {1: run_operation(conv, image.view(1, 1, 5, 5))}
    values[2], place = torch.nn.functional.max_pool2d(values[1], 2, return_indices=True)
    found = drifts(plan, image, values)
    of_largest = found[1].flatten(2).gather(2, place.flatten(2))
    assert bool((of_largest > 0).all())
    assert bool((found[2].flatten(2) >= of_largest).all())
