"""The estimate of memory covers what a forward pass really holds, and follows the size of the network."""

import pytest
import torch
from torch import Tensor, nn

from l0tre.model.footprint import sample_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(("channels", "size"), [(4, 8), (16, 8), (16, 16), (64, 32)])
def test_the_largest_operation_fits(channels: int, size: int) -> None:
    module = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Flatten())
    activations = 4 * channels * size * size
    estimate = sample_bytes(module, (1, size, size), CPU)
    assert estimate >= 2 * activations  # the input and the output of the ReLU
    assert estimate <= 20 * activations


def test_constants_do_not_count() -> None:
    small = sample_bytes(nn.Linear(64, 64), (64,), CPU)
    wide = nn.Sequential(nn.Linear(64, 64), nn.Flatten(), *(nn.Linear(64, 64) for _ in range(20)))
    assert sample_bytes(wide, (64,), CPU) == small


def test_the_pass_itself_is_a_plain_one() -> None:
    seen: list[tuple[int, ...]] = []

    def function(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        assert not torch.is_grad_enabled()
        return x[:, :2]

    assert sample_bytes(function, (5,), CPU) > 0
    assert len(seen) == 1
    assert seen[0][1:] == (5,)
