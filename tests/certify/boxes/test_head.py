"""From the dense layer to the margins: forms and ranges that hold, rounding paid for, nothing proved by no number."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes import head as head_module
from l0tre.certify.boxes.affine_forms import AffineForms, least
from l0tre.certify.boxes.box_bounds import box_items, carry_items
from l0tre.certify.boxes.head import form_ranges, interval_margins, margin_forms, proves
from l0tre.certify.boxes.margin_errors import is_safe, margin_errors
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.relax.interval import Interval
from l0tre.model.graph import run_operation
from tests.certify.boxes.cases import (
    directions,
    make_case,
    margins_at,
    pixel_sets,
    random_boxes,
    values_of,
    windowed_of,
)
from tests.certify.boxes.recipes import DEEP, FLAT, RELU, SIGMOID, TANH, Layer, Recipe, conv, leaky

NOT_NUMBERS = (float("nan"), float("inf"), -float("inf"))
BENDS = {"relu": RELU, "leaky": leaky(0.3), "steep": leaky(2.5), "sigmoid": SIGMOID, "tanh": TANH}
HIDDEN = {
    f"{name}, {len(hidden)} hidden": Recipe((1, 5, 5), (conv(2, 2), RELU), hidden, bend)
    for name, bend in BENDS.items()
    for hidden in ((5,), (5, 4))
}
SMALL = {**DEEP, **HIDDEN}


def random_ranges(windowed: Windowed, generator: torch.Generator, batch: int) -> tuple[Tensor, Interval]:
    """Images, and ranges of the dense layer, wide and narrow, with and without the own value in them."""
    image = torch.randint(len(windowed.instance.images), (batch,), generator=generator)
    shape = (2, batch, windowed.weights.shape[-1])
    ends = torch.randn(shape, generator=generator, dtype=torch.float64)
    ends = ends * 10.0 ** (torch.rand(1, *shape[1:], generator=generator, dtype=torch.float64) * 3 - 2)
    low, high = ends.sort(0).values
    return image, (low, high)


def true_margins(windowed: Windowed, image: Tensor, change: Tensor) -> Tensor:
    """What changes ``[batch, points, features]`` of the dense layer do to the margins: the layers behind themselves."""
    graph, tail = windowed.local.plan.graph, windowed.local.plan.tail
    points = change.shape[1]
    values = {tail - 1: (windowed.instance.base[tail - 1][image][:, None] + change).flatten(0, 1)}
    for place in range(tail, len(graph.operations)):
        operation = graph.operations[place]
        values[place] = run_operation(operation, *(values[source] for source in operation.inputs))
    scores = values[len(graph.operations) - 1].view(len(image), points, -1)
    rows = []
    for own, label in zip(scores, windowed.instance.specification.labels[image].tolist(), strict=True):
        rows.append(own[:, [label]] - own[:, [number for number in range(own.shape[1]) if number != label]])
    return torch.stack(rows)


def corners_of(ranges: Interval, generator: torch.Generator) -> Tensor:
    """Corners and random points of ranges, ``[batch, points, features]``."""
    u = (directions(ranges[0].shape[1], generator, 2**7) + 1) / 2
    return ranges[0][:, None] + u * (ranges[1] - ranges[0])[:, None]


def with_slack(windowed: Windowed, slack: float = 0.0, place: int = -1) -> Windowed:
    """The same network, but rounding may cause an error at one position, and none elsewhere."""
    errors = tuple(slack if place == other else 0.0 for other in range(len(windowed.local.slack)))
    return replace(windowed, local=replace(windowed.local, slack=errors))


@pytest.mark.parametrize("name", SMALL)
def test_margins_of_ranges_are_below_those_of_all_their_points(name: str) -> None:
    case, generator = make_case(SMALL[name], 1), torch.Generator().manual_seed(1)
    windowed = windowed_of(case, 2, 3)
    image, ranges = random_ranges(windowed, generator, 60)
    truth = true_margins(windowed, image, corners_of(ranges, generator))
    bounds = interval_margins(windowed, image, ranges)
    assert bounds.shape == (60, case.network.classes - 1)
    assert bool((bounds <= truth.amin(1)).all()), f"{(bounds - truth.amin(1)).max()} above the margin"
    middle = (ranges[0] + ranges[1]) / 2
    exact = true_margins(windowed, image, middle[:, None])[:, 0]
    assert torch.allclose(interval_margins(with_slack(windowed), image, (middle, middle)), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [f"{bend}, 1 hidden" for bend in BENDS])
def test_behind_one_hidden_layer_each_margin_is_attained_in_a_corner(name: str) -> None:
    """Nothing is lost but the rounding: each neuron is bent on its own, and margins are sums of them."""
    case, generator = make_case(HIDDEN[name], 2), torch.Generator().manual_seed(2)
    windowed = with_slack(windowed_of(case, 2, 3))
    image, ranges = random_ranges(windowed, generator, 60)
    truth = true_margins(windowed, image, corners_of(ranges, generator)).amin(1)
    assert torch.allclose(interval_margins(windowed, image, ranges), truth, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", SMALL)
def test_one_image_for_all_is_each_image_for_itself(name: str) -> None:
    case, generator = make_case(SMALL[name], 3), torch.Generator().manual_seed(3)
    windowed = windowed_of(case, 2, 4)
    image, (low, high) = random_ranges(windowed, generator, 23)
    together = interval_margins(windowed, image, (low, high))
    forms = AffineForms(*(torch.randn(2, 23, 3, low.shape[1], generator=generator, dtype=torch.float64)))
    forms = AffineForms(forms.centre, forms.radius.abs())
    lower = margin_forms(windowed, image, forms)
    for number in range(4):
        own, rows = torch.tensor([number]), (image == number).nonzero()[:, 0]
        assert len(rows) > 1
        alone = interval_margins(windowed, own, (low[rows], high[rows]))
        assert torch.allclose(alone, together[rows], rtol=0, atol=1e-11)
        for row in rows.tolist():
            found = margin_forms(windowed, own, AffineForms(forms.centre[[row]], forms.radius[[row]]))
            assert torch.allclose(found[0], lower[row], rtol=0, atol=1e-11)
    assert interval_margins(windowed, image[:0], (low[:0], high[:0])).shape == together[:0].shape
    assert interval_margins(windowed, image[:1], (low[:0], high[:0])).shape == together[:0].shape
    assert margin_forms(windowed, image[:0], AffineForms(forms.centre[:0], forms.radius[:0])).shape == lower[:0].shape


@pytest.mark.parametrize("name", SMALL)
def test_margins_of_boxes_by_ranges_and_by_forms_are_below_the_true_ones(name: str) -> None:
    case, generator = make_case(SMALL[name], 2), torch.Generator().manual_seed(4)
    windowed = windowed_of(case, 2, 3)
    operations = random_boxes(windowed, pixel_sets(windowed, 2, random.Random(4), 18), generator)
    forms = carry_items(windowed, box_items(windowed, operations))
    truth = margins_at(case, windowed, operations, directions(forms.centre.shape[1] - 1, generator)).amin(1)
    assert bool((interval_margins(windowed, operations.image, form_ranges(forms)) <= truth + 1e-9).all())
    assert bool((least(margin_forms(windowed, operations.image, forms)) <= truth + 1e-9).all())


@pytest.mark.parametrize("variables", [1, 2, 6])
def test_ranges_of_forms_are_attained_in_corners(variables: int) -> None:
    generator = torch.Generator().manual_seed(variables)
    centre, radius = torch.randn(2, 30, 1 + variables, 4, generator=generator, dtype=torch.float64)
    radius[:, 0] = radius[:, 1:].abs().sum(1) + torch.rand(30, 4, generator=generator)
    u = directions(variables, generator, 64)
    middle, spread = values_of(centre, u), values_of(radius, u)
    low, high = form_ranges(AffineForms(centre, radius))
    assert torch.allclose(low, (middle - spread).amin(1), rtol=0, atol=1e-12)
    assert torch.allclose(high, (middle + spread).amax(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_ranges_pay_for_rounding_at_every_position_that_is_read(name: str) -> None:
    """Of the dense layer as wider ranges do; of what the margins read by all that an error can do to them."""
    case, generator = make_case(SMALL[name], 1), torch.Generator().manual_seed(5)
    windowed = windowed_of(case, 2, 2)
    image, (low, high) = random_ranges(windowed, generator, 20)
    operations, tail, slack = windowed.local.plan.graph.operations, windowed.local.plan.tail, 0.1
    exact = with_slack(windowed)
    bounds = interval_margins(exact, image, (low, high))
    wider = interval_margins(exact, image, (low - slack, high + slack))
    assert float((wider - bounds).max()) < 1e-12
    assert float((wider - bounds).min()) < -1e-3
    assert torch.allclose(
        interval_margins(with_slack(windowed, slack, tail - 1), image, (low, high)), wider, atol=1e-12
    )
    last = operations[-1].inputs[0] if operations[-1].kind == "linear" else len(operations) - 1
    for place in range(tail, len(operations) - (operations[-1].kind == "linear")):
        lowered = interval_margins(with_slack(windowed, slack, place), image, (low, high)) - bounds
        assert float(lowered.max()) < 1e-12
        assert float(lowered.min()) < -1e-3
        if place == last:
            assert torch.allclose(lowered, -slack * windowed.rows[image].abs().sum(2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", NOT_NUMBERS)
@pytest.mark.parametrize("name", HIDDEN)
def test_ranges_and_forms_that_are_no_numbers_prove_nothing(name: str, value: float) -> None:
    """Wherever they are: at either end or both, in a constant, a coefficient or a radius; others stay as they are."""
    case, generator = make_case(HIDDEN[name], 1), torch.Generator().manual_seed(6)
    windowed = windowed_of(case, 2, 2)
    image, (low, high) = random_ranges(windowed, generator, 4)
    bounds = interval_margins(windowed, image, (low, high))
    for ends in ((0,), (1,), (0, 1)):
        wrong = [low.clone(), high.clone()]
        for end in ends:
            wrong[end][1, 3] = value
        found = interval_margins(windowed, image, (wrong[0], wrong[1]))
        assert not bool(torch.isfinite(found[1]).any())
        assert torch.equal(found[[0, 2, 3]], bounds[[0, 2, 3]])
        one = interval_margins(windowed, image[1:2], (wrong[0], wrong[1]))
        assert not bool(torch.isfinite(one[1]).any())
    instance = replace(windowed.instance, margins=windowed.instance.margins + 1e6)
    firm = replace(windowed, instance=instance)
    centre, radius = torch.rand(2, 4, 3, low.shape[1], generator=generator, dtype=torch.float64)
    radius[:, 0] += 2
    assert bool(proves(firm, image, AffineForms(centre, radius), 2).all())
    for part, column in itertools.product((0, 1), (0, 1, 2)):
        if (part, value) == (1, -float("inf")):
            continue  # a radius is not below zero
        parts = [centre.clone(), radius.clone()]
        parts[part][1, column, 3] = value
        assert proves(firm, image, AffineForms(parts[0], parts[1]), 2).tolist() == [True, False, True, True]


@pytest.mark.parametrize("name", ["relu, 1 hidden", "tanh, 2 hidden", "hidden, colours", "plain"])
@pytest.mark.parametrize("budget", [1, 2**24])
def test_what_is_proved_is_what_one_of_both_ways_proves(name: str, budget: int) -> None:
    """One at a time or all together; flat networks have no ranges. And what is proved is so at all sampled points."""
    case, generator = make_case({**SMALL, **FLAT}[name], 1), torch.Generator().manual_seed(7)
    windowed = replace(windowed_of(case, 2, 3), budget=budget)
    operations = random_boxes(windowed, pixel_sets(windowed, 2, random.Random(7), 40), generator)
    forms = carry_items(windowed, box_items(windowed, operations))
    truth = margins_at(case, windowed, operations, directions(forms.centre.shape[1] - 1, generator)).amin((1, 2))
    by_forms = least(margin_forms(windowed, operations.image, forms))
    flat = windowed.local.flat
    by_ranges = by_forms if flat else interval_margins(windowed, operations.image, form_ranges(forms))
    seen: set[bool] = set()
    ways: set[tuple[bool, bool]] = set()
    for shift in (-torch.cat([by_forms.amin(1), by_ranges.amin(1), truth]))[:: 16 if budget == 1 else 3].tolist():
        for more in (-1e-6, 1e-6):  # so that just this box is just not proved, or just is
            moved = replace(
                windowed, instance=replace(windowed.instance, margins=windowed.instance.margins + shift + more)
            )
            found = proves(moved, operations.image, forms, 2)
            both = [
                is_safe(moved.instance, operations.image, margins + shift + more, 2)
                for margins in (by_forms, by_ranges)
            ]
            assert torch.equal(found, both[0] | both[1])
            assert bool((truth[found] + shift + more > 0).all())
            seen.update(found.tolist())
            ways.update(zip(both[0].tolist(), both[1].tolist(), strict=True))
    assert seen == {True, False}
    assert flat or {(True, False), (False, True)} & ways


def test_forms_are_tried_only_where_ranges_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(SMALL["relu, 1 hidden"], 1)
    windowed = windowed_of(case, 2, 2)
    firm = replace(windowed, instance=replace(windowed.instance, margins=windowed.instance.margins + 1e3))
    forms = AffineForms(*(torch.zeros(3, 3, 5, dtype=torch.float64) for _ in range(2)))
    forms.radius[2, 0] = 1e6
    image = torch.tensor([0, 1, 1])
    asked: list[int] = []

    def spy(windowed: Windowed, image: Tensor, forms: AffineForms) -> Tensor:
        asked.append(len(image))
        return margin_forms(windowed, image, forms)

    monkeypatch.setattr(head_module, "margin_forms", spy)
    assert proves(firm, image, forms, 2).tolist() == [True, True, False]
    assert asked == [1]


@pytest.mark.parametrize("t", [1, 2, 3])
def test_margins_must_be_above_what_rounding_can_do(t: int) -> None:
    """All margins of a row, by more than its image's own errors; what is no number is not above anything."""
    windowed = windowed_of(make_case(SMALL["one hidden"], 1), 2, 2)
    instance = replace(windowed.instance, slack=torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
    windowed, image = replace(windowed, instance=instance), torch.tensor([0, 1, 1])
    limit = margin_errors(windowed.instance, image, t)
    assert torch.equal(limit, 4.0 * (t + 1) * instance.slack[image])
    assert is_safe(windowed.instance, image, limit, t).tolist() == [False] * 3
    assert is_safe(windowed.instance, image, limit + 1e-9, t).tolist() == [True] * 3
    assert is_safe(windowed.instance, image[:1], limit[:1].expand(3, 2) + 1e-9, t).tolist() == [True] * 3
    for column, value in itertools.product((0, 1), (*NOT_NUMBERS, -1.0, 0.0)):
        margins = limit + 1
        margins[1, column] = value
        assert is_safe(windowed.instance, image, margins, t).tolist() == [True, False, True]
    instance.slack[0, 1] = torch.nan
    assert is_safe(windowed.instance, image, limit + 1, t).tolist() == [False, True, True]


def test_every_bend_is_covered() -> None:
    kinds: set[Layer | str] = {recipe.bend[0] for recipe in HIDDEN.values()}
    assert kinds == {"relu", "leaky_relu", "sigmoid", "tanh"}
    assert {len(recipe.hidden) for recipe in HIDDEN.values()} == {1, 2}
