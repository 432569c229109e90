"""Inputs that survive storage as 8-bit images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l0tre.api.attack import attack_details
from l0tre.attacks.auto import METHODS
from l0tre.attacks.task import rounded
from l0tre.defaults import Method
from l0tre.domain import make_domain
from l0tre.errors import DataError
from tests.attacks.cases import check_result, make_linear
from tests.attacks.test_methods import bent
from tests.tools import plain_network

SHAPE = (3, 3, 3)


def stored(images: Tensor) -> Tensor:
    """What comes back from a file: whole numbers from 0 to 255, divided by 255 in float32."""
    numbers = (images.double() * 255).round().to(torch.uint8)
    return numbers.to(torch.float32) / 255


def test_every_level_survives() -> None:
    levels = torch.arange(256, dtype=torch.uint8).to(torch.float32) / 255
    assert torch.equal(rounded(levels), levels)
    between = torch.linspace(0, 1, 5001)
    assert torch.equal(stored(rounded(between)), rounded(between))
    assert float((rounded(between) - between).abs().max()) < 0.501 / 255


@pytest.mark.parametrize("method", ["auto", *METHODS])
@settings(max_examples=2, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31))
def test_results_survive_a_round_trip_and_stay_adversarial(method: Method, seed: int) -> None:
    module = bent(seed, SHAPE, 3).eval().requires_grad_(False)
    images = stored(torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(seed)))
    low, high = 0.1, 0.87  # between two levels each
    images = images.clamp(26 / 255, 221 / 255)
    result = attack_details(
        plain_network(module, SHAPE, sample_bytes=2**10),
        images,
        method=method,
        rounding="8bit",
        low=low,
        high=high,
        budget=500,
    )
    assert torch.equal(stored(result.adversarial), result.adversarial)
    check_result(module, images, result, make_domain(SHAPE, low=low, high=high))
    if result.changed.any() and method in ("local", "exact", "greedy"):
        used = result.adversarial[result.adversarial != images] * 255
        assert set(used.round().int().tolist()) <= {26, 221}


@pytest.mark.parametrize("value", [0.5, -1 / 255, 256 / 255])
def test_other_images_are_refused(value: float) -> None:
    case = make_linear(0, SHAPE, 3)
    images = stored(case.images)
    images[1, 0, 0, 0] = value
    with pytest.raises(DataError, match=r"image 1 is no 8-bit image .* round the images first"):
        attack_details(case.network, images, rounding="8bit", low=-1, high=2)


def test_a_wider_range_is_cut_to_what_an_image_can_hold() -> None:
    case = make_linear(0, SHAPE, 3)
    result = attack_details(case.network, stored(case.images), rounding="8bit", low=-1, high=2, budget=500)
    assert bool(result.found.all())
    assert torch.equal(stored(result.adversarial), result.adversarial)


def test_a_range_of_a_single_level_cannot_change_anything() -> None:
    case = make_linear(0, SHAPE, 3)
    images = torch.full((1, *SHAPE), 100 / 255)
    result = attack_details(case.network, images, rounding="8bit", low=99.5 / 255, high=100.5 / 255, budget=200)
    assert result.distance.tolist() == [-1]
    assert torch.equal(result.adversarial, images)


def test_images_of_0_to_255_change_to_whole_numbers() -> None:
    torch.manual_seed(3)
    module = bent(3, SHAPE, 3).eval().requires_grad_(False)
    images = torch.randint(256, (3, *SHAPE)).float()
    result = attack_details(module, images, rounding="8bit", high=255, budget=500)
    assert bool(result.changed.any())
    assert torch.equal(result.adversarial, result.adversarial.round().clamp(0, 255))
    with pytest.raises(DataError, match="not a whole number from 0 to 255"):
        attack_details(module, images + 0.5, rounding="8bit", high=256)
