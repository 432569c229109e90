"""Images ready for bounds: which pixels are near, the weights of each label, what bounds must exceed."""

import itertools

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes.margin_errors import margin_errors
from l0tre.certify.boxes.windowed import can_interact
from l0tre.model.graph import Graph, run
from tests.certify.boxes.cases import make_case, windowed_of
from tests.certify.boxes.recipes import RECIPES


def changed(graph: Graph, image: Tensor, values: Tensor, *sets: Tensor) -> Tensor:
    """What a graph gives for copies of an image; each set has one pixel for each copy, which takes its new value."""
    inputs = image.flatten(1).repeat(len(sets[0]), 1, 1)
    for pixels in sets:
        inputs[torch.arange(len(pixels)), :, pixels] = values[pixels]
    return run(graph, inputs.view(-1, *image.shape)).flatten(1)


@pytest.mark.family
@pytest.mark.parametrize("name", RECIPES)
def test_effects_of_pixels_that_are_not_near_add_up(name: str) -> None:
    """All pairs of pixels; and those that are near by one do disturb each other somewhere."""
    generator, together = torch.Generator().manual_seed(0), 0
    for seed, size in ((0, 2.0),) if name == "wide" else ((0, 1.0), (1, 8.0)):
        case = make_case(RECIPES[name], seed, unit=True)
        local = windowed_of(case, 1, 1).local
        channels, height, width = case.image.shape
        graph, image = Graph(local.plan.graph.operations[: local.plan.tail]), case.image.double()
        first, second = torch.tensor(list(itertools.combinations(range(height * width), 2))).T
        near = can_interact(local, first, second)
        assert bool((near == can_interact(local, second, first)).all())
        down, right = (first // width - second // width).abs(), (first % width - second % width).abs()
        furthest = near & (down == local.sight[0] - 1) & (right == local.sight[1] - 1)
        values = size * torch.randn(height * width, channels, generator=generator, dtype=torch.float64)
        one, other, both = (changed(graph, image, values, *sets) for sets in ((first,), (second,), (first, second)))
        disturbed = (both - one - other + run(graph, image[None]).flatten(1)).abs().amax(1)
        assert bool((disturbed[~near] < 1e-9).all())
        together += int((disturbed[furthest] > 1e-6).sum())
    if local.sight != (1, 1) and name != "skipping":
        assert together > 0, "the sight is larger than it needs to be"


@pytest.mark.parametrize("name", ["plain", "stride, colours", "one hidden", "two branches", "bent scores"])
def test_weights_and_rows_give_the_margins_of_each_label(name: str) -> None:
    """Of images of all labels: what changes before the dense layer, times the weights, is what changes behind."""
    case, generator = make_case(RECIPES[name], 1), torch.Generator().manual_seed(1)
    windowed = windowed_of(case, 2, 4)
    graph, plan, instance = windowed.local.plan.graph, windowed.local.plan, windowed.instance
    assert len(instance.specification.labels.unique()) == case.network.classes
    shape = graph.operations[plan.cut].shape
    change = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    dense = change.flatten(1) @ graph.operations[plan.tail - 1].tensors["weight"].T
    weights = windowed.weights[windowed.kinds]
    found = torch.einsum("nchw,nhwcf->nf", change, weights)
    others = torch.tensor(
        [[n for n in range(case.network.classes) if n != label] for label in instance.specification.labels.tolist()]
    )
    if windowed.local.flat:
        assert torch.allclose(
            found, dense.gather(1, instance.specification.labels[:, None]) - dense.gather(1, others), atol=1e-12
        )
        assert len(windowed.rows) == 0
        return
    assert torch.allclose(found, dense, rtol=0, atol=1e-12)
    last = graph.operations[-1]
    read = torch.randn(4, windowed.rows.shape[2], generator=generator, dtype=torch.float64)
    scores = read @ last.tensors["weight"].T if last.kind == "linear" else read
    margins = scores.gather(1, instance.specification.labels[:, None]) - scores.gather(1, others)
    assert torch.allclose(torch.einsum("nf,nmf->nm", read, windowed.rows), margins, rtol=0, atol=1e-12)


def test_bounds_must_exceed_errors_that_grow_with_the_pixels() -> None:
    windowed = windowed_of(make_case(RECIPES["one hidden"], 1), 2, 3)
    image = torch.tensor([2, 0, 2])
    for t in (1, 2, 3):
        assert torch.equal(margin_errors(windowed.instance, image, t), 4 * (t + 1) * windowed.instance.slack[image])
    assert bool((windowed.instance.slack > 0).all())
