"""What is written as compositions of other operations is bounded too: every engine and the checker, against points."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.certify.checker.clusters import box_margins
from l0tre.certify.checker.forward import make_forward, with_margins
from l0tre.certify.checker.margins import make_bounder
from l0tre.certify.prover import make_prover
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.domain import make_domain
from l0tre.memory import Batcher
from l0tre.model.graph import run
from l0tre.objective import AllRivals
from tests.certify.proving import box_nodes, cell_nodes, check_bounds, make, points_in, true_margins
from tests.certify.random_networks import Case

CPU, MEMORY = torch.device("cpu"), 2**26
Layers = Callable[[], list[nn.Module]]


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


LAYERS: dict[str, Layers] = {
    "transposed": lambda: [nn.ConvTranspose2d(2, 2, 3, 2, 1, 1)],
    "transposed, padding at the end alone": lambda: [nn.ConvTranspose2d(2, 2, 2, 3), nn.Tanh(), nn.Conv2d(2, 2, 2)],
    "prelu": lambda: [nn.PReLU(2, init=-0.3), nn.Conv2d(2, 2, 2), nn.PReLU(init=1.6)],
    "pools over the edge": lambda: [nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(2, 2, ceil_mode=True)],
    "reflection": lambda: [nn.ReflectionPad2d((0, 2, 1, 0)), nn.Conv2d(2, 2, 3, 2)],
    "replication": lambda: [nn.ReplicationPad2d((0, 1, 0, 2)), nn.Conv2d(2, 2, 2)],
    "resizing": lambda: [nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(2, 2, 3, 2)],
    "absolute values": lambda: [Apply(torch.abs), nn.Conv2d(2, 2, 2)],
    "largest": lambda: [nn.Conv2d(2, 4, 2), Apply(lambda x: torch.maximum(x[:, :2], x[:, 2:]))],
    "smallest": lambda: [nn.Conv2d(2, 4, 2), Apply(lambda x: torch.minimum(x[:, :2], x[:, 2:]))],
    "shuffle": lambda: [nn.Conv2d(2, 8, 2), nn.SiLU(), nn.PixelShuffle(2), nn.Conv2d(2, 2, 3, 2)],
    "unshuffle": lambda: [nn.PixelUnshuffle(2), nn.Conv2d(8, 2, 1)],
    "padding at the end alone": lambda: [nn.ZeroPad2d((0, 2, 0, 1)), nn.MaxPool2d(2), nn.ZeroPad2d((0, 1, 0, 1))],
}


def case_of(name: str, seed: int) -> Case:
    torch.manual_seed(seed)
    rest = [nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)]
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.LeakyReLU(0.2), *LAYERS[name](), *rest).eval()
    image = torch.rand(1, 5, 5)
    groups = torch.arange(25).view(5, 5) // (1 + seed % 2)
    with torch.no_grad():
        module(image[None])
        for key, weights in module.named_parameters():
            if weights.ndim > 1 or "bias" in key:
                weights.copy_(0.7 * torch.randn_like(weights))
    network = l0tre.load(module, input_shape=(1, 5, 5))
    assert network.exact is not None
    label = int(run(network.exact, image[None].double()).argmax())
    return Case(module, network.exact, network, image, label, make_domain((1, 5, 5), groups=groups), name)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", LAYERS)
def test_bounds_hold_at_points(name: str, seed: int) -> None:
    case, rng = case_of(name, seed), np.random.default_rng(seed)
    instance = make(case, 2)
    nodes: BoxNodes = box_nodes(instance.tree, case.domain, 2, rng, 8)
    places = instance.members[nodes.cells - instance.tree.slots]
    ends = (nn.functional.pad(end.double(), (0, 1))[places] for end in (case.domain.low, case.domain.high))
    low, high = (torch.cat([whole[:4], part[4:]]) for whole, part in zip(ends, (nodes.low, nodes.high), strict=True))
    nodes = replace(nodes, low=low, high=high)
    check_bounds(case, instance, nodes, rng)
    check_bounds(case, instance, cell_nodes(instance.tree, 2, rng, 4), rng)
    least = torch.stack(
        [true_margins(case, points_in(case, instance.tree, nodes, row, rng)).amin(0) for row in range(len(nodes))]
    )
    prover = make_prover(case.network, case.domain, Batcher(case.network, MEMORY), MEMORY)
    claim = AllRivals(torch.tensor([case.label]))
    for share in (1.0, 0.0):  # in windows, and by forms of whole layers
        tuned = replace(prover, tuning=replace(prover.tuning, meeting_share=share))
        with torch.inference_mode():
            found = tuned.search_boxes(2, case.image.flatten()[None], claim, [None]).bounder.bound(nodes)[0]
        assert bool((found <= least + 1e-9).all())
    bounder = make_bounder(
        with_margins(case.graph, case.label), case.image, case.domain, torch.arange(case.domain.groups), CPU, MEMORY
    )
    groups = instance.tree.order[nodes.cells - instance.tree.slots]
    own = nn.functional.pad(case.image.flatten().double(), (0, 1))[places]
    moves = ((end - own).where(places < case.image.numel(), 0.0) for end in (low, high))
    assert bool((box_margins(make_forward(bounder), groups, *moves) <= least.amin(1) + 1e-9).all())
