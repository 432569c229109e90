"""The sizes of interactions: never below what two pixels really do beyond what each does alone."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes import interaction_sizes as sizes_module
from l0tre.certify.boxes.box_bounds import box_items
from l0tre.certify.boxes.interaction_sizes import _bend, interaction_sizes, make_sizes
from l0tre.certify.boxes.pair_forms import PixelForms
from l0tre.certify.boxes.window_forms import gather_dense
from l0tre.certify.boxes.windowed import Windowed
from l0tre.model.graph import Operation, run_operation
from tests.certify.boxes.cases import (
    directions,
    features_at,
    make_case,
    pixel_sets,
    singles_of,
    whole_boxes,
    windowed_of,
)
from tests.certify.boxes.recipes import RECIPES, RELU, Recipe, conv, leaky, pool

MORE = {
    "deep": Recipe((1, 13, 12), (conv(3, 3, 1, 1), RELU, conv(3, 3), RELU, pool(2, 1), conv(2, 2, 1, 1), RELU), (5,)),
    "steep": Recipe((1, 9, 9), (conv(3, 3), leaky(3.0), conv(2, 2), leaky(2.0)), (4,)),
    "pooled twice": Recipe((1, 8, 7), (conv(3, 2), RELU, pool(2, 1), pool(2, 2)), (4,)),
    "pool of signs": Recipe((1, 9, 10), (conv(3, 3), pool(2, 2), RELU), (4,)),
}
ALL = {**RECIPES, **MORE}


def bounds_of(windowed: Windowed, singles: PixelForms, image: Tensor, pairs: Tensor) -> Tensor:
    """The bounds of all pairs, each given once."""
    found = torch.full((len(pairs), windowed.weights.shape[-1]), torch.nan, dtype=torch.float64)
    for which, size in interaction_sizes(windowed, singles, make_sizes(windowed, singles), image, pairs):
        assert bool(found[which].isnan().all())
        found[which] = size
    return found


def interactions_at(windowed: Windowed, sets: list[tuple[int, ...]], image: int, u: Tensor) -> Tensor:
    """The largest interactions of pairs at many points, ``[sets, features]``."""
    width = windowed.instance.members.shape[1]
    both = features_at(windowed, whole_boxes(windowed, sets, image), u)
    alone = [
        features_at(
            windowed, whole_boxes(windowed, [(pair[side],) for pair in sets], image), u[:, width * side :][:, :width]
        )
        for side in (0, 1)
    ]
    return (both - alone[0] - alone[1]).abs().amax(1)


@pytest.mark.family
@pytest.mark.parametrize("name", ALL)
def test_no_interaction_is_larger(name: str) -> None:
    """In every arrangement, for some of the images in another order."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(3):
        case = make_case(ALL[name], seed)
        windowed, images = windowed_of(case, 2, 3), torch.tensor([2, 0])
        singles, number = singles_of(windowed, images)
        sets = pixel_sets(windowed, 2, random.Random(seed), 40)
        pairs = torch.tensor([[number[a], number[b]] for a, b in sets])
        image = torch.arange(2).repeat_interleave(len(sets))
        found = bounds_of(windowed, singles, image, pairs.repeat(2, 1))
        u = directions(2 * windowed.instance.members.shape[1], generator, 64)
        truth = torch.cat([interactions_at(windowed, sets, int(row), u) for row in images])
        assert bool((found >= truth - 1e-9).all())
        assert bool((truth[found.amax(1) == 0] < 1e-9).all())


@pytest.mark.parametrize("name", ["relu", "steep", "flat", "sigmoid", "tanh", "silu", "gelu", "hard_swish"])
def test_the_rest_of_one_operation(name: str) -> None:
    """Over a grid of own values, changes and rests, for changes of either sign."""
    slope = {"steep": 4.0, "flat": 0.25}.get(name)
    operation = Operation(
        name if slope is None else "leaky_relu", (0,), (1, 1, 1), {}, {} if slope is None else {"slope": slope}
    )
    grid = torch.linspace(-2, 2, 17, dtype=torch.float64)
    x, a, b, r = torch.meshgrid(grid, grid, grid, torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64), indexing="ij")

    def f(value: Tensor) -> Tensor:
        return run_operation(operation, value.reshape(-1, 1, 1, 1)).view_as(value)

    truth = (f(x + a + b + r) - f(x + a) - f(x + b) + f(x)).abs()
    alone = [(side.clamp(min=0).reshape(-1, 1, 1, 1), (-side).clamp(min=0).reshape(-1, 1, 1, 1)) for side in (a, b)]
    bound = _bend(operation, alone, r.abs().reshape(-1, 1, 1, 1)).view_as(truth)
    assert bool((bound >= truth - 1e-12).all())
    if name in ("relu", "steep"):  # no factor too large
        assert float((truth / bound.clamp(min=1e-9)).max()) > 0.7


def test_the_rest_of_a_pool() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
    operation = Operation("max_pool", (0,), (1, 1, 1), {}, sizes)
    x, a, b, r = (torch.randn(20000, 1, 2, 2, generator=generator, dtype=torch.float64) for _ in range(4))
    for scale in (0.0, 0.3):
        parts = (x + a + b + scale * r, x + a, x + b, x)
        both, first, second, own = (part.amax((2, 3), keepdim=True) for part in parts)
        truth = (both - first - second + own).abs()
        alone = [(side.clamp(min=0), (-side).clamp(min=0)) for side in (a, b)]
        bound = _bend(operation, alone, scale * r.abs() if scale else None)
        assert bool((bound >= truth - 1e-12).all())
        assert float((truth / bound).max()) > 0.7


def test_sizes_are_no_larger_than_needed() -> None:
    """One layer, one channel: the bound is attained where a kink can lie anywhere."""
    case = make_case(Recipe((1, 5, 5), (conv(3, 2), RELU), (3,)), 1, unit=True)
    windowed = windowed_of(case, 2, 1)
    singles, number = singles_of(windowed, torch.tensor([0]))
    sets: list[tuple[int, ...]] = [(6, 7), (6, 11), (6, 12), (12, 13)]
    pairs = torch.tensor([[number[a], number[b]] for a, b in sets])
    found = bounds_of(windowed, singles, torch.zeros(4, dtype=torch.int64), pairs)
    whole = box_items(windowed, whole_boxes(windowed, sets))
    assert whole.members.shape[1] == 2
    head = singles.head
    alone = (head.centre.abs() + head.radius.abs()).sum(2)[0]
    # Of three channels each neuron of the dense layer sums absolute values at two common positions at the most.
    assert bool((found <= 3 * (alone[pairs[:, 0]].amax(1) + alone[pairs[:, 1]].amax(1))[:, None] + 1e-6).all())


@pytest.mark.parametrize("name", ["two hidden", "pool", "deep"])
def test_rounding_errors_are_added(name: str) -> None:
    windowed = windowed_of(make_case(ALL[name], 1), 2, 1)
    rough = replace(windowed, local=replace(windowed.local, slack=tuple(0.25 for _ in windowed.local.slack)))
    for part in (windowed, rough):
        singles, _ = singles_of(part, torch.tensor([0]))
        sizes = make_sizes(part, singles)
        for phase, tables in sizes.up.items():
            for place, up in tables.items():
                forms = singles.tables[phase][place]
                high, low = (
                    (forms.centre + sign * forms.radius)[:, :, 0]
                    + sign * (forms.centre + sign * forms.radius)[:, :, 1:].abs().sum(2)
                    for sign in (1, -1)
                )
                slack = part.local.slack[place]
                assert torch.allclose(up, (high + slack).clamp(min=0))
                assert torch.allclose(sizes.down[phase][place], (slack - low).clamp(min=0))


@pytest.mark.parametrize("name", ["stride", "padded pool", "two hidden", "hidden, colours"])
def test_batches_of_one_give_the_same(name: str) -> None:
    case = make_case(ALL[name], 1)
    windowed = windowed_of(case, 2, 2)
    singles, number = singles_of(windowed, torch.tensor([0, 1]))
    sets = pixel_sets(windowed, 2, random.Random(1), 12)
    pairs = torch.tensor([[number[a], number[b]] for a, b in sets])
    image = torch.arange(len(sets)) % 2
    many = bounds_of(windowed, singles, image, pairs)
    one = bounds_of(windowed_of(case, 2, 2, memory=1), singles, image, pairs)
    assert torch.allclose(many, one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["two hidden", "deep"])
def test_the_last_sum_is_rounded_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than a million terms can lose, and by next to nothing."""
    windowed = windowed_of(make_case(ALL[name], 1), 2, 1)
    singles, number = singles_of(windowed, torch.tensor([0]))
    sets = pixel_sets(windowed, 2, random.Random(1), 12)
    pairs = torch.tensor([[number[a], number[b]] for a, b in sets])
    sums: list[Tensor] = []

    def spy(*arguments: Any) -> tuple[Tensor, ...]:
        found = gather_dense(*arguments)
        sums.append(found[0][:, 0].clone())
        return found

    monkeypatch.setattr(sizes_module, "gather_dense", spy)
    sizes = make_sizes(windowed, singles)
    image = torch.zeros(len(pairs), dtype=torch.int64)
    bounds = [size for _, size in interaction_sizes(windowed, singles, sizes, image, pairs) if bool(size.any())]
    wide = torch.cat([total for total in sums if bool(total.any())])
    assert len(wide) > 0
    assert bool((torch.cat(bounds) >= wide * (1 + 2.0**20 * 2.0**-53)).all())
    assert torch.allclose(torch.cat(bounds), wide, rtol=1e-8, atol=0)
