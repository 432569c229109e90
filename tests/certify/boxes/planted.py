"""Networks with windows whose smallest changes are known: pixels that must all take chosen values at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from l0tre.domain import make_domain
from l0tre.model.graph import Graph, GraphBuilder, run
from tests.certify.boxes.cases import free_domain, make_case
from tests.certify.boxes.recipes import Recipe
from tests.certify.proving import as_network
from tests.certify.random_networks import Case

Spot = Sequence[tuple[tuple[int, int], float]]  # pixels (row, column) with the values that they must take

START = 0.5  # of all values of the image
RADIUS = 0.04  # how far the distances of all pixels of a spot may add up to, half of where it begins to count

V = (0.2, 0.83, 0.31)  # values to take: inside the ranges, where no corner shows them
# Spots, the windows that see them, and their stride.
PLANTED: dict[str, tuple[Sequence[Spot], tuple[int, int], int]] = {
    "neighbours": ([[((2, 2), V[0]), ((2, 3), V[1])]], (2, 2), 1),
    "in a row": ([[((0, 0), V[0]), ((0, 2), V[1])]], (1, 3), 1),
    "in a column": ([[((3, 5), V[0]), ((5, 5), V[1])]], (3, 1), 1),
    "on a diagonal": ([[((1, 1), V[0]), ((3, 3), V[1])]], (3, 3), 1),
    "on the other diagonal": ([[((5, 0), V[0]), ((3, 2), V[1])]], (3, 3), 1),
    "far apart": ([[((0, 0), V[0])], [((5, 5), V[1])]], (1, 1), 1),
    "at the distance of the sight": ([[((2, 2), V[0])], [((2, 4), V[1])]], (2, 2), 1),
    "with a stride": ([[((2, 2), V[0]), ((3, 3), V[1])]], (2, 2), 2),
    "three together": ([[((1, 1), V[0]), ((1, 2), V[1]), ((2, 1), V[2])]], (2, 2), 1),
    "a chain": ([[((2, 1), V[0]), ((2, 2), V[1])], [((2, 2), V[1]), ((2, 3), V[2])]], (1, 2), 1),
    "two and a later one": ([[((0, 0), V[0]), ((0, 1), V[1])], [((5, 5), V[2])]], (2, 2), 1),
    "two and an earlier one": ([[((0, 1), V[2])], [((4, 4), V[0]), ((5, 5), V[1])]], (2, 2), 1),
    "two around one": ([[((2, 0), V[0]), ((2, 1), V[1])], [((2, 4), V[2])]], (2, 2), 1),
    "one between": ([[((1, 0), V[0]), ((3, 0), V[1])], [((2, 5), V[2])]], (3, 1), 1),
    "three apart": ([[((0, 0), V[0])], [((2, 3), V[1])], [((5, 1), V[2])]], (1, 1), 1),
}
# Three pixels are left to cells where a network has hidden layers.
PLANTED_DEPTHS = [*((name, False) for name in PLANTED), *((name, True) for name in list(PLANTED)[:8])]


def planted_windows(
    spots: Sequence[Spot],
    sight: tuple[int, int],
    shape: tuple[int, int] = (6, 6),
    stride: int = 1,
    *,
    deep: bool = False,
) -> Case:
    """A network whose decision changes only where all pixels of all spots are near their values at once.

    A neuron for each spot sees all its pixels in one window and has the value ``2 * RADIUS`` less their distances from
    the chosen values, or 0. Class 1 beats class 0 where the neurons add up to more than all but half of one of them. So
    the distance is the number of different pixels, the margin of any fewer ``RADIUS`` at the least, and the smallest
    margin ``-RADIUS``.

    Args:
        spots: Each fits into a window; values further than ``2 * RADIUS`` from ``START``.
        sight: Height and width of the windows.
        shape: Height and width of the input.
        stride: Of the windows; each spot begins at a multiple of it.
        deep: Whether a ReLU behind the dense layer does the counting.

    Returns:
        The case; the label is 0.
    """
    graph = GraphBuilder((1, *shape))
    pixels = [(number, place, value) for number, spot in enumerate(spots) for place, value in spot]
    corners = [(min(y for (y, _), _ in spot), min(x for (_, x), _ in spot)) for spot in spots]
    distances = torch.zeros(2 * len(pixels), 1, *sight)
    offsets = torch.zeros(2 * len(pixels))
    gather = torch.zeros(len(spots), 2 * len(pixels), 1, 1)
    for row, (number, (y, x), value) in enumerate(pixels):
        top, left = corners[number]
        assert (top % stride, left % stride) == (0, 0)
        assert abs(value - START) > 2 * RADIUS
        for channel, sign in ((2 * row, 1.0), (2 * row + 1, -1.0)):
            distances[channel, 0, y - top, x - left] = sign
            offsets[channel] = -sign * value
            gather[number, channel] = -1.0
    one: dict[str, Any] = {"padding": (0, 0), "dilation": (1, 1), "groups": 1}
    # Padding behind, so that a window begins at every pixel.
    here = graph.add("pad", [0], padding=(0, sight[1] - 1, 0, sight[0] - 1), value=START)
    here = graph.add("conv", [here], {"weight": distances, "bias": offsets}, stride=(stride, stride), **one)
    here = graph.add("relu", [here])
    spot_bias = torch.full((len(spots),), 2 * RADIUS)
    here = graph.add("conv", [here], {"weight": gather, "bias": spot_bias}, stride=(1, 1), **one)
    here = graph.add("relu", [here])
    count, height, width = graph.shape(here)
    chosen = torch.zeros(count, height, width)
    for number, (top, left) in enumerate(corners):
        chosen[number, top // stride, left // stride] = 1.0
    here = graph.add("reshape", [here], shape=(count * height * width,))
    rows, most = torch.stack([0 * chosen, chosen, 0 * chosen]).flatten(1), (2 * count - 2) * RADIUS
    if deep:
        here = graph.add("linear", [here], {"weight": rows[1:2], "bias": torch.tensor([-most])})
        here = graph.add("relu", [here])
        rows, most = torch.tensor([[0.0], [1.0], [0.0]]), 0.0
    graph.add("linear", [here], {"weight": rows, "bias": torch.tensor([most + RADIUS, 0.0, -1.0])})
    result = Graph(tuple(graph.operations)).to("cpu")
    image = torch.full((1, *shape), START)
    return Case(nn.Identity(), result, as_network(result), image, 0, make_domain((1, *shape)), "planted")


def tied(seed: int, *, deep: bool = False) -> Case:
    """A tie that looks like a margin above zero: no free pixel has any effect, and rounding favours the label.

    The weights of the second class are those of the first in another order, all on the same value, so that the margin
    is zero, but in floating point about the last place of a score. Deep: weights of hidden neurons that are all alike.
    """
    free = (0, 4, 22)
    recipe = Recipe((1, 5, 5), (), (25,) if deep else ())
    case = make_case(recipe, seed, unit=True, classes=2)
    case = replace(case, image=torch.full((1, 5, 5), 0.7), label=0, domain=free_domain((1, 5, 5), free))
    generator = torch.Generator().manual_seed(seed)
    locked = [place for place in range(25) if deep or place not in free]
    operations = list(case.graph.operations)
    if deep:
        operations[2] = replace(operations[2], tensors={"weight": torch.zeros(25, 25), "bias": torch.full((25,), 0.7)})
    while True:
        weight = torch.zeros(2, 25)
        # Of very different sizes, since sums of a few float32 numbers are often exact in float64.
        numbers = torch.randn(len(locked), generator=generator) * 10 ** (
            -6 * torch.rand(len(locked), generator=generator)
        )
        weight[0, locked], weight[1, locked] = numbers, numbers[torch.randperm(len(locked), generator=generator)]
        operations[-1] = replace(operations[-1], tensors={"weight": weight, "bias": torch.zeros(2)})
        graph = Graph(tuple(operations))
        scores = run(graph.to("cpu", torch.float64), case.image[None].double())[0]
        if float(scores[0] - scores[1]) > 0:
            return replace(case, graph=graph, network=as_network(graph))
