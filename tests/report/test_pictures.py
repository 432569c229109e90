"""Inputs as pictures: which they are, their axes, their shades, their files."""

import io

import numpy as np
import pytest
import torch

from l0tre.figures.pictures import is_picture, plane, png, shades


@pytest.mark.parametrize(
    ("shape", "picture"),
    [
        ((5, 6), True),
        ((1, 5, 6), True),
        ((3, 5, 6), True),
        ((5, 6, 3), True),
        ((5, 6, 1), True),
        ((2, 5, 6), False),
        ((5, 6, 4), False),
        ((30,), False),
        ((1, 3, 5, 6), False),
    ],
)
def test_grey_and_three_colours_are_pictures(shape: tuple[int, ...], picture: bool) -> None:
    assert is_picture(shape) == picture


@pytest.mark.parametrize("shape", [(5, 6), (1, 5, 6), (3, 5, 6), (5, 6, 3)])
def test_a_picture_file_has_the_shades_of_the_image(shape: tuple[int, ...]) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = torch.linspace(0, 1, int(np.prod(shape))).reshape(shape)
    colours = plane(image)
    assert colours.shape[:2] == (5, 6)
    pixels = shades(image)
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels, (colours * 255).round().to(torch.uint8))
    with image_module.open(io.BytesIO(png(pixels))) as file:
        read = np.asarray(file)
    assert np.array_equal(read.reshape(pixels.shape), pixels.numpy())


def test_one_scale_holds_for_all_values() -> None:
    image = torch.tensor([[-1.0, 0.0], [1.0, 5.0]])
    assert shades(image, -1.0, 1.0)[:, :, 0].tolist() == [[0, 128], [255, 255]]
    assert shades(image, 0.0, 5.0)[:, :, 0].tolist() == [[0, 0], [51, 255]]
