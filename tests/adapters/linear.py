"""Linear classifiers, for which the fewest changes are found by sorting."""

import torch
from torch import Tensor, nn

from l0tre.model.network import Network
from tests.tools import plain_network

SHAPE = (1, 6, 6)


def make_linear(seed: int = 0, shape: tuple[int, ...] = SHAPE, classes: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    values = int(torch.tensor(shape).prod())
    return nn.Sequential(nn.Flatten(), nn.Linear(values, classes)).eval().requires_grad_(False)


def make_case(count: int = 4, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A classifier, images and its own decisions for them."""
    model = make_linear(seed, shape)
    images = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))
    return model, images, model(images).argmax(1)


def make_network(model: nn.Module, shape: tuple[int, ...] = SHAPE) -> Network:
    return plain_network(model, shape, sample_bytes=2**10)


def fewest_changes(model: nn.Sequential, image: Tensor, label: int, low: float = 0.0, high: float = 1.0) -> int:
    """The L0 distance to another decision, in features: for each other class the largest gains first."""
    weight, bias = (parameter.double() for parameter in model[1].parameters())
    x = image.flatten().double()
    scores = weight @ x + bias
    best = len(x) + 1
    for other in range(len(bias)):
        if other == label:
            continue
        slope = weight[other] - weight[label]
        gain = torch.maximum(slope * (high - x), slope * (low - x)).sort(descending=True).values.cumsum(0)
        enough = (gain > scores[label] - scores[other]).nonzero()
        best = min(best, int(enough[0]) + 1 if len(enough) else best)
    return best
