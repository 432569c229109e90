"""Ranges hold behind borders on any side: windows of neurons must be cut where they leave a map, at its end too."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.domain import make_domain
from l0tre.model.graph import run
from tests.certify.proving import box_nodes, cell_nodes, check_bounds, make
from tests.certify.random_networks import Case

SIDES = [(0, 0, 0, 1), (0, 1, 0, 0), (0, 1, 0, 1), (1, 0, 1, 0), (0, 2, 1, 0)]
BORDERS = [("conv", 0.0), ("conv", 0.7), ("pool", 0.7)]


def padded(padding: tuple[int, int, int, int], value: float, seed: int, reader: str) -> Case:
    """A network with a border (left, right, top, bottom) between two convolutions."""
    torch.manual_seed(seed)
    second = [nn.MaxPool2d(2, 1)] if reader == "pool" else [nn.Conv2d(2, 2, 2), nn.ReLU()]
    module = nn.Sequential(
        nn.Conv2d(1, 2, 2),
        nn.ReLU(),
        nn.ConstantPad2d(padding, value),
        *second,
        nn.Conv2d(2, 2, 2, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).eval()
    domain = make_domain((1, 5, 5))
    image = torch.rand(1, 5, 5)
    with torch.no_grad():
        module(image[None])
        for weights in module.parameters():
            weights.copy_(torch.randn_like(weights))
    network = l0tre.load(module, input_shape=(1, 5, 5))
    assert network.exact is not None
    label = int(run(network.exact, image[None].double()).argmax())
    return Case(module, network.exact, network, image, label, domain, "padded")


@pytest.mark.parametrize(("reader", "value"), BORDERS)
@pytest.mark.parametrize("padding", SIDES)
def test_ranges_hold_behind_borders_on_any_side(padding: tuple[int, int, int, int], reader: str, value: float) -> None:
    for seed in range(3):
        case, rng = padded(padding, value, seed, reader), np.random.default_rng(seed)
        instance = make(case, 2)
        nodes: BoxNodes = box_nodes(instance.tree, case.domain, 2, rng, 12)
        whole = instance.members[nodes.cells - instance.tree.slots]
        check_bounds(case, instance, nodes, rng)
        check_bounds(case, instance, BoxNodes(nodes.image, nodes.cells, *_all(case, whole), 0 * nodes.depth), rng)
        check_bounds(case, instance, cell_nodes(instance.tree, 2, rng, 6), rng)


def _all(case: Case, members: Tensor) -> tuple[Tensor, Tensor]:
    """The whole ranges of values."""
    return case.domain.low.double()[members], case.domain.high.double()[members]
