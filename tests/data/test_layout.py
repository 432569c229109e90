import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from l0tre.data import from_arrays
from l0tre.data.layout import channels_height_width
from l0tre.errors import DataError

SIDE = st.integers(5, 9)  # longer than any number of channels
CHANNELS = st.sampled_from([1, 3, 4])


def distinct(*shape: int) -> torch.Tensor:
    """Values that differ everywhere, so that any wrong order of axes shows."""
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


@given(count=st.integers(1, 4), channels=CHANNELS, height=SIDE, width=SIDE)
def test_every_layout_gives_the_same_images(count: int, channels: int, height: int, width: int) -> None:
    chw = distinct(count, channels, height, width)
    hwc = chw.permute(0, 2, 3, 1)
    for shape in ((channels, height, width), None):
        for images in (chw, hwc):
            fitted = from_arrays(images, input_shape=shape).images
            assert torch.equal(fitted, chw)
            assert fitted.is_contiguous()
    for images in (chw, hwc):
        assert torch.equal(from_arrays(images, input_shape=(height, width, channels)).images, hwc)
        flat = from_arrays(images, input_shape=(channels * height * width,)).images
        assert torch.equal(flat, chw.flatten(1))
    assert torch.equal(from_arrays(chw.flatten(1), input_shape=(channels, height, width)).images, chw)


@given(st.permutations([1, 2, 3, 4, 5, 6]))
def test_short_axes_are_told_apart_by_the_network(sizes: list[int]) -> None:
    """Three different lengths fit in one order only, even where all could be channels."""
    chw = (sizes[0], sizes[1], sizes[2])
    assume(channels_height_width(chw) == chw)  # else the network itself reads as one with the channels last
    images = distinct(2, *chw)
    for given_images in (images, images.permute(0, 2, 3, 1)):
        assert torch.equal(from_arrays(given_images, input_shape=chw).images, images)


@given(st.tuples(*[st.integers(1, 4)] * 3))
def test_images_of_the_shape_of_the_network_are_left_alone(shape: tuple[int, int, int]) -> None:
    assert torch.equal(from_arrays(distinct(2, *shape), input_shape=shape).images, distinct(2, *shape))


def test_equal_first_and_last_axis_are_told_apart_by_the_network() -> None:
    images = distinct(2, 3, 5, 3)
    assert torch.equal(from_arrays(images, input_shape=(3, 5, 3)).images, images)
    assert torch.equal(from_arrays(images, input_shape=(3, 3, 5)).images, images.permute(0, 3, 1, 2))
    assert torch.equal(from_arrays(images).images, images)


@pytest.mark.parametrize(
    ("shape", "input_shape"),
    [
        ((6, 7), (1, 6, 7)),
        ((6, 7), (6, 7, 1)),
        ((6, 7), (6, 7)),
        ((1, 6, 7), (6, 7)),
        ((6, 7, 1), (6, 7)),
        ((6, 7), (42,)),
        ((6, 7), (1, 42, 1)),
        ((1, 6, 7), (42, 1, 1)),
        ((42,), (6, 7)),
        ((42,), (6, 7, 1)),
        ((1, 42), (1, 6, 7)),
        ((42,), (42,)),
    ],
)
def test_grey_images_keep_their_order(shape: tuple[int, ...], input_shape: tuple[int, ...]) -> None:
    images = from_arrays(distinct(3, *shape), input_shape=input_shape).images
    assert images.shape == (3, *input_shape)
    assert torch.equal(images.flatten(), torch.arange(126.0))
    assert images.is_contiguous()


@pytest.mark.parametrize(("shape", "expected"), [((6, 7), (1, 6, 7)), ((12,), (12,)), ((2, 6, 7), (2, 6, 7))])
def test_without_a_network(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert from_arrays(distinct(2, *shape)).images.shape == (2, *expected)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("network_last", [False, True])
def test_resize_averages_areas(last: bool, network_last: bool) -> None:
    images = torch.from_numpy(np.random.RandomState(0).rand(2, 3, 8, 6).astype(np.float32))
    expected = images.reshape(2, 3, 4, 2, 3, 2).mean((3, 5))
    shape = (4, 3, 3) if network_last else (3, 4, 3)
    if network_last:
        shape, expected = (8, 2, 3), images.reshape(2, 3, 8, 1, 2, 3).mean((3, 5)).permute(0, 2, 3, 1)
    given_images = images.permute(0, 2, 3, 1) if last else images
    resized = from_arrays(given_images, input_shape=shape, resize=True).images
    assert resized.shape == (2, *shape)
    torch.testing.assert_close(resized, expected)


def test_resize_of_grey_images_and_no_need_to() -> None:
    images = distinct(1, 4, 4)
    assert torch.equal(
        from_arrays(images, input_shape=(2, 2), resize=True).images, torch.tensor([[[2.5, 4.5], [10.5, 12.5]]])
    )
    assert torch.equal(from_arrays(images, input_shape=(1, 4, 4), resize=True).images, images[None])


def test_a_mismatch_names_both_shapes_and_hints_at_resizing_only_where_it_helps() -> None:
    with pytest.raises(DataError, match=r"\(1, 28, 28\).*\(1, 14, 14\); `resize=True`"):
        from_arrays(torch.zeros(2, 1, 28, 28), input_shape=(1, 14, 14))
    with pytest.raises(DataError, match=r"\(8, 8, 3\).*\(3, 6, 6\); `resize=True`"):
        from_arrays(torch.zeros(2, 8, 8, 3), input_shape=(3, 6, 6))
    for images, shape in [
        (torch.zeros(2, 1, 28, 28), (3, 28, 28)),
        (torch.zeros(2, 784), (1, 14, 14)),
        (torch.zeros(2, 1, 28, 28), (783,)),
        (torch.zeros(2, 1, 28, 28), (1, 1, 14, 14)),
    ]:
        for resize in (False, True):
            with pytest.raises(DataError, match="do not fit") as caught:
                from_arrays(images, input_shape=shape, resize=resize)
            assert "resize" not in str(caught.value)
            assert str(shape) in str(caught.value)
            assert "\n" not in str(caught.value)


def test_one_image_without_its_first_axis() -> None:
    with pytest.raises(DataError, match="first axis of length 1"):
        from_arrays(torch.zeros(3, 8, 8), input_shape=(3, 8, 8))


def test_resize_without_a_network() -> None:
    with pytest.raises(DataError, match="input_shape"):
        from_arrays(torch.zeros(2, 8, 8), resize=True)


@pytest.mark.parametrize("shape", [(4,), (2, 2, 2, 2, 2)])
def test_other_numbers_of_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"expected \(N, features\)"):
        from_arrays(torch.zeros(shape))


def test_other_inputs_of_the_right_shape_are_taken() -> None:
    assert from_arrays(torch.zeros(2, 3, 4, 5, 6), input_shape=(3, 4, 5, 6)).images.shape == (2, 3, 4, 5, 6)
