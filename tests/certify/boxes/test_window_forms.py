"""Windows: which networks have them, what they cover, and forms that hold behind them."""

import itertools
import random

import pytest
import torch

from l0tre.certify.boxes.affine_forms import AffineForms
from l0tre.certify.boxes.box_bounds import box_items, carry_items
from l0tre.certify.boxes.window_forms import LocalNetwork, dense, make_local, stages
from l0tre.certify.regions.nodes import join
from l0tre.certify.relax.plan import make_plan
from l0tre.domain import make_domain
from l0tre.model.graph import Graph, GraphBuilder
from l0tre.tuning import Tuning
from tests.certify.boxes.cases import (
    directions,
    features_at,
    make_case,
    nodes_of,
    pixel_sets,
    random_boxes,
    values_of,
    windowed_of,
)
from tests.certify.boxes.recipes import DEEP, FLAT, RECIPES, RELU, Recipe, build, conv, pool
from tests.certify.proving import layer_values

# By hand: kernels, strides and dilations of the layers.
SIGHTS = {
    "plain": (3, 3),
    "stride": (5, 5),
    "pool": (4, 4),
    "padded pool": (6, 6),
    "overlapping pools": (5, 5),
    "pool after stride": (4, 4),
    "pads": (3, 3),
    "dilated": (4, 4),
    "grouped": (3, 3),
    "narrow kernels": (2, 3),
    "wide": (6, 6),
    "skipping": (3, 3),
    "linear": (1, 1),
    "hidden, stride": (3, 3),
    "only dense": (1, 1),
}


def local_of(graph: Graph) -> LocalNetwork | None:
    exact = graph.to("cpu", torch.float64)
    return make_local(make_plan(exact, make_domain(graph.input_shape), torch.device("cpu")))


@pytest.mark.parametrize("name", RECIPES)
def test_windows_are_found(name: str) -> None:
    graph = build(RECIPES[name], 0)
    local = local_of(graph)
    assert local is not None
    assert local.flat == (name in FLAT)
    assert local.plan.cut == len(RECIPES[name].layers)
    assert local.sight == SIGHTS.get(name, local.sight)
    slack = make_plan(graph.to("cpu", torch.float64), make_domain(graph.input_shape), torch.device("cpu")).slack
    assert len(local.slack) == len(graph.operations)
    assert all(own >= 2 * float(part.max()) > 0 for own, part in zip(local.slack, slack, strict=True))


def extended(recipe: Recipe, behind: str) -> Graph:
    """A network with maps again behind its dense layer."""
    graph = GraphBuilder(recipe.shape)
    graph.operations = list(build(recipe, 0, classes=18).operations)
    here = graph.add("reshape", [len(graph.operations) - 1], shape=(2, 3, 3))
    here = graph.add(behind, [here], **(pool(2, 1)[1] if behind == "max_pool" else {}))
    wide = 18 if behind != "max_pool" else 8
    here = graph.add("reshape", [here], shape=(wide,))
    graph.add("linear", [here], {"weight": torch.ones(3, wide)})
    return Graph(tuple(graph.operations))


def test_what_has_no_windows_or_another_end_is_left_to_cells() -> None:
    """Windowed forms do not go through a max pool on whole layers, nor past shortcuts of maps, nor through vectors."""
    assert local_of(extended(FLAT["plain"], "relu")) is not None
    assert local_of(extended(FLAT["plain"], "max_pool")) is None
    wide = build(Recipe((1, 4, 4), (conv(2, 3, padding=1), RELU, conv(2, 3, padding=1), RELU)), 0)
    assert local_of(wide) is not None  # a pixel reaches everything, and windows are no gain
    maps = GraphBuilder((1, 6, 6))
    weight = {"weight": torch.ones(1, 1, 3, 3)}
    one = maps.add("conv", [0], weight, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    joined = maps.add("add", [maps.add("relu", [one]), 0])
    flat = maps.add("reshape", [maps.add("relu", [joined])], shape=(36,))
    maps.add("linear", [flat], {"weight": torch.ones(3, 36)})
    assert local_of(Graph(tuple(maps.operations))) is None
    vector = GraphBuilder((5,))
    vector.add("linear", [vector.add("relu", [0])], {"weight": torch.ones(3, 5)})
    assert local_of(Graph(tuple(vector.operations))) is None


@pytest.mark.parametrize("name", FLAT)
def test_nothing_changes_outside_the_windows(name: str) -> None:
    """At every layer, for pixels in every phase and on every edge."""
    graph = build(FLAT[name], 1).to("cpu", torch.float64)
    local = local_of(graph)
    assert local is not None
    (channels, height, width), stride = graph.input_shape, local.plan.stride
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, channels, height, width, generator=generator, dtype=torch.float64)
    before = layer_values(graph, image)
    reached = 0
    for rows, columns in ((1, 1), (2, 1), (1, 3), (min(3, height), min(2, width))):
        for top in (0, 1, height // 2, height // 2 + 1, height - rows):
            for left in (0, 1, width // 2, width // 2 + 1, width - columns):
                if top + rows > height or left + columns > width:
                    continue
                changed = image.clone()
                part = changed[..., top : top + rows, left : left + columns]
                part += torch.randn(part.shape, generator=generator, dtype=torch.float64) * 5
                after = layer_values(graph, changed)
                boxes = local.windows((top % stride, left % stride), (rows, columns))
                for place, box in enumerate(boxes):
                    moved = (after[place] != before[place]).any(1)[0].nonzero()
                    for axis, corner in enumerate((top, left)):
                        pace = stride // local.plan.strides[place]
                        first = corner // stride * pace + box[axis].first
                        assert all(first <= int(p) < first + box[axis].size for p in moved[:, axis])
                    reached += len(moved)
    assert reached > 100


@pytest.mark.family
@pytest.mark.parametrize("rows", [0, 10**6])
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_carried_forms_hold_on_both_sides(name: str, t: int, rows: int) -> None:
    """All pixels of a set as one item, however far apart: from below and from above."""
    case, generator = make_case(RECIPES[name], t), torch.Generator().manual_seed(t)
    tuning = Tuning(matrix_rows_64=rows)  # convolutions of windows as such, and as matrices
    windowed = windowed_of(case, t, 3, tuning=tuning)
    sets = pixel_sets(windowed, t, random.Random(t), 12)
    boxes, points = random_boxes(windowed, sets, generator), random_boxes(windowed, sets, generator, 0.0)
    forms = carry_items(windowed, box_items(windowed, join([boxes, points])))
    u = directions(forms.centre.shape[1] - 1, generator)
    centre, radius = (values_of(part[: len(sets)], u) for part in (forms.centre, forms.radius))
    truth = features_at(windowed, boxes, u)
    assert bool((radius >= -1e-9).all())
    assert bool((truth >= centre - radius - 1e-9).all())
    assert bool((truth <= centre + radius + 1e-9).all())
    truth = features_at(windowed, points, u[-1:])[:, 0]
    assert torch.allclose(forms.centre[len(sets) :, 0], truth, rtol=0, atol=1e-9)
    assert float(forms.radius[len(sets) :, 0].abs().max()) < 1e-9


@pytest.mark.family
@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("name", RECIPES)
def test_the_dense_layer_is_the_sum_over_the_whole_map(name: str, t: int) -> None:
    """Random forms in windows inside and over the edges, in every phase, several images, several kinds of weights."""
    case, generator = make_case(RECIPES[name], t, unit=True), torch.Generator().manual_seed(t)
    windowed = windowed_of(case, t, 3)
    local, (height, width) = windowed.local, case.image.shape[1:]
    cut, stride = local.plan.cut, local.plan.stride
    channels, rows, columns = local.plan.graph.operations[cut].shape
    kinds = torch.tensor([2, 0, 1])
    weights = torch.randn(3, rows, columns, channels, 4, generator=generator, dtype=torch.float64)
    for phase in itertools.product(range(stride), range(stride)):
        corners = [(y, x) for y in range(phase[0], height, stride) for x in range(phase[1], width - t + 1, stride)]
        if not corners:
            continue
        sets = [[y * width + x + step for step in range(t)] for y, x in corners]
        nodes = random_boxes(windowed, sets, generator)
        site, values = stages(local, windowed.instance, box_items(windowed, nodes))
        shape = values[cut].centre.shape
        forms = AffineForms(*(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)))
        forms = site.inside(cut, forms)
        box, pace = site.windows[cut], stride // local.plan.strides[cut]
        maps = torch.zeros(2, *shape[:2], channels, rows, columns, dtype=torch.float64)
        for item, (y, x) in enumerate(corners):
            for i, j in itertools.product(range(box[0].size), range(box[1].size)):
                row, column = y // stride * pace + box[0].first + i, x // stride * pace + box[1].first + j
                if 0 <= row < rows and 0 <= column < columns:
                    for side, part in enumerate((forms.centre, forms.radius)):
                        maps[side, item, :, :, row, column] = part[item, :, :, i, j]
        own = weights[kinds[nodes.image]]
        found = dense(site, forms, (kinds, weights))
        for part, total, factor in ((found.centre, maps[0], own), (found.radius, maps[1], own.abs())):
            truth = torch.einsum("nvchw,nhwcf->nvf", total, factor)
            assert torch.allclose(part, truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["pool", "stride, colours", "wide", "two hidden"])
def test_items_are_carried_the_same_alone_and_together(name: str) -> None:
    case, generator = make_case(RECIPES[name], 2), torch.Generator().manual_seed(0)
    windowed = windowed_of(case, 2, 3)
    sets = pixel_sets(windowed, 2, random.Random(0), 30)
    items = box_items(windowed, random_boxes(windowed, sets, generator))
    together = carry_items(windowed, items)
    small = carry_items(windowed_of(case, 2, 3, memory=1), items)  # one at a time
    for row in torch.randperm(len(items), generator=generator)[:5].tolist():
        alone = carry_items(windowed, items.pick(torch.tensor([row])))
        assert torch.allclose(alone.centre[0], together.centre[row], rtol=0, atol=1e-12)
    assert torch.allclose(small.centre, together.centre, rtol=0, atol=1e-12)
    assert torch.allclose(small.radius, together.radius, rtol=0, atol=1e-12)


def test_pixels_that_strides_step_over_change_nothing() -> None:
    case = make_case(FLAT["skipping"], 0, unit=True)
    windowed = windowed_of(case, 1, 1)
    whole = torch.tensor([0.0, 1.0], dtype=torch.float64).view(2, 1, 1, 1)
    for pixel in range(64):
        nodes = nodes_of(windowed, [(pixel,)], torch.zeros(1, dtype=torch.int64), whole)
        forms = carry_items(windowed, box_items(windowed, nodes))
        seen = pixel // 8 % 2 == 0 and pixel % 2 == 0
        assert bool(forms.centre.any() or forms.radius.any()) == seen


def test_every_recipe_is_used() -> None:
    """The kinds of layers that are meant to be covered are."""
    kinds = {layer[0] for recipe in RECIPES.values() for layer in recipe.layers}
    assert kinds == {"conv", "relu", "leaky_relu", "sigmoid", "tanh", "max_pool", "scale", "pad"}
    assert {recipe.shape[0] for recipe in RECIPES.values()} >= {1, 3}
    assert {len(recipe.hidden) for recipe in DEEP.values()} == {0, 1, 2}
