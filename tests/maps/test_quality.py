"""Removing and restoring pixels, and what pixels an attack and an attribution share."""

import math

import torch
from torch import Tensor

from l0tre.maps.quality import overlap, pixel_order, removed, restored


def test_pixels_are_replaced_in_order() -> None:
    image = torch.arange(1.0, 13.0).reshape(3, 2, 2)
    attribution = torch.zeros(3, 2, 2)
    attribution[0, 1, 0], attribution[2, 1, 0], attribution[1, 0, 1] = 1.0, 1.5, 2.0
    order = pixel_order(attribution)
    assert order.tolist() == [2, 1, 0, 3]

    def total(x: Tensor) -> Tensor:
        return x.flatten(1).sum(1)

    values = torch.zeros_like(image)
    assert removed(total, image, order, values, (1, 2, 4)).tolist() == [78 - 21, 78 - 21 - 18, 0]
    assert restored(total, image, order, values, (1, 4)).tolist() == [21, 78]
    assert removed(total, image[0], pixel_order(attribution[0]), image[0] * 0, (1,)).tolist() == [7]


def test_overlap_is_the_share_of_an_attack_that_was_named() -> None:
    changed = torch.zeros(3, 2, 2, dtype=torch.bool)
    changed[0, 1, 0] = changed[2, 1, 1] = True
    assert overlap(torch.tensor([2, 1, 0, 3]), changed) == 0.5
    assert overlap(torch.tensor([3, 2, 0, 1]), changed) == 1
    assert math.isnan(overlap(torch.tensor([0, 1, 2, 3]), changed & False))
