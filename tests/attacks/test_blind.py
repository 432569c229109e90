"""Networks that are blind to small changes, as training against large L-infinity perturbations makes them."""

import pytest
import torch
from torch import Tensor, nn

from l0tre.api.attack import attack_details
from l0tre.defaults import Method
from tests.tools import plain_network

SHAPE = (1, 12, 12)


class Steps(nn.Module):
    """A step at 0.5 for each pixel, then a linear score: gradients at an image say little about what pixels can do."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weights = torch.randn(144, generator=torch.Generator().manual_seed(seed))

    def steps(self, x: Tensor) -> Tensor:
        return torch.sigmoid(20 * (x - 0.5)) * self.weights

    def forward(self, x: Tensor) -> Tensor:
        lead = 8 + self.steps(x.flatten(1)).sum(1)
        return torch.stack([lead, torch.zeros_like(lead)], 1)

    def distance(self, image: Tensor) -> int:
        """The smallest number of changed pixels: pixels do not act together."""
        here = self.steps(image.flatten())
        ends = torch.stack([self.steps(torch.full((144,), end)) for end in (0.0, 1.0)])
        fall = (here - ends).amax(0).sort(descending=True).values.cumsum(0)
        return int((fall <= 8 + here.sum()).sum()) + 1


@pytest.mark.parametrize("method", ["linear", "auto"])
@pytest.mark.parametrize("seed", [0, 2])
def test_gradients_between_the_ends_show_what_those_at_the_image_hide(method: Method, seed: int) -> None:
    module = Steps(seed)
    images = 0.4 * torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(seed + 10))
    result = attack_details(plain_network(module, SHAPE), images, budget=200, method=method)
    assert bool(result.found.all())
    assert int((result.forwards + result.backwards).max()) <= 200 or method == "auto"
    least = sum(module.distance(image) for image in images)
    assert least <= int(result.distance.sum()) <= 1.5 * least
