from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from l0tre.data import Dataset, from_arrays, select
from l0tre.errors import DataError


def numbered(count: int) -> Dataset:
    """Image i holds i, its label is 2 i."""
    return from_arrays(torch.arange(count, dtype=torch.float32)[:, None], [2 * i for i in range(count)])


def test_bytes_are_divided_by_255_exactly() -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    expected = [float(np.float32(value) / np.float32(255)) for value in range(256)]
    for values in (images, torch.from_numpy(images)):
        data = from_arrays(values)
        assert data.images.dtype == torch.float32
        assert data.images.flatten().tolist() == expected


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.dtype(">f8")])
def test_floats_stay_as_they_are(kind: Any) -> None:
    images = np.array([[0.5, -3.25], [200.0, 1.0]]).astype(kind)
    assert from_arrays(images).images.tolist() == [[0.5, -3.25], [200.0, 1.0]]
    assert from_arrays(images, scale=4).images.tolist() == [[0.125, -0.8125], [50.0, 0.25]]


def test_tensors_of_any_sort() -> None:
    images = torch.tensor([[0.5, 1.5]], dtype=torch.bfloat16, requires_grad=True)
    data = from_arrays(images)
    assert data.images.tolist() == [[0.5, 1.5]]
    assert not data.images.requires_grad


def test_values_are_copied() -> None:
    images = np.ones((2, 3), dtype=np.float32)
    data = from_arrays(images)
    images[:] = 7
    assert data.images.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("kind", [np.int16, np.int64, np.uint16])
def test_other_whole_numbers_need_a_scale(kind: type[Any]) -> None:
    images = np.array([[0, 100]], dtype=kind)
    with pytest.raises(DataError, match="give the `scale`"):
        from_arrays(images)
    assert from_arrays(images, scale=200).images.tolist() == [[0, 0.5]]


@pytest.mark.parametrize("images", [np.zeros((2, 2), bool), np.zeros((2, 2), complex), np.array([["a", "b"]])])
def test_unsupported_types(images: npt.NDArray[Any]) -> None:
    with pytest.raises(DataError, match="expected uint8 or a float"):
        from_arrays(images)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_a_positive_number(scale: float) -> None:
    with pytest.raises(DataError, match="scale"):
        from_arrays(np.zeros((2, 2)), scale=scale)


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (3, 0), (0,)])
def test_an_empty_set(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="holds no inputs"):
        from_arrays(np.zeros(shape))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_values_that_are_not_finite_name_the_image(value: float) -> None:
    images = np.zeros((5, 2, 2))
    images[3, 1, 0] = value
    with pytest.raises(DataError, match="mine: input 3 holds NaN or infinite"):
        from_arrays(images, name="mine")


@pytest.mark.parametrize(
    "labels",
    [
        [1, 0, 2],
        np.array([1.0, 0.0, 2.0]),
        np.array([[1], [0], [2]], np.uint8),
        torch.tensor([1, 0, 2], dtype=torch.int32),
    ],
)
def test_labels_become_int64(labels: Any) -> None:
    data = from_arrays(np.zeros((3, 2)), labels)
    assert data.labels is not None
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == [1, 0, 2]
    assert data.indices == (0, 1, 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 0], "2 labels for 3 inputs"),
        ([1, 0, 2, 3], "4 labels for 3 inputs"),
        ([1.0, 0.5, 2.0], "label of input 1 is 0.5; expected a whole number"),
        ([1.0, 2.0, float("nan")], "label of input 2 is nan"),
        ([1.0, float("inf"), 2.0], "label of input 1 is inf"),
        ([1, 2, -1], "label of input 2 is -1; expected 0 or more"),
        ([b"a", b"b", b"c"], "expected whole numbers or names of classes"),
        (np.eye(3), r"shape \(3, 3\); expected one whole number for each input"),
    ],
)
def test_bad_labels(labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(np.zeros((3, 2)), labels)


def test_no_labels() -> None:
    data = select(from_arrays(np.zeros((3, 2)), name="mine"), limit=2)
    assert data.labels is None
    assert data.name == "mine"


@given(count=st.integers(1, 30), data=st.data(), seed=st.integers(0, 2**32 - 1), shuffle=st.booleans())
def test_selected_images_keep_labels_and_indices(count: int, data: st.DataObject, seed: int, shuffle: bool) -> None:
    indices = data.draw(st.none() | st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    limit = data.draw(st.none() | st.integers(1, 40))
    chosen = select(numbered(count), limit=limit, indices=indices, shuffle=shuffle, seed=seed)
    wanted = list(range(count)) if indices is None else indices
    assert len(chosen.indices) == min(len(wanted), limit or len(wanted))
    if shuffle:
        assert set(chosen.indices) <= set(wanted)
        assert len(set(chosen.indices)) == len(chosen.indices)
    else:
        assert list(chosen.indices) == wanted[:limit]
    assert chosen.labels is not None
    assert chosen.images[:, 0].tolist() == list(chosen.indices)
    assert chosen.labels.tolist() == [2 * index for index in chosen.indices]
    # A second selection still speaks of the source.
    last = select(chosen, indices=[len(chosen.indices) - 1])
    assert last.indices == chosen.indices[-1:]
    assert last.images.tolist() == [[chosen.indices[-1]]]


def test_shuffling_is_seeded_and_a_smaller_limit_is_the_start_of_a_larger() -> None:
    data = numbered(50)
    full = select(data, shuffle=True, seed=3).indices
    assert sorted(full) == list(range(50))
    assert full != tuple(range(50))
    assert select(data, shuffle=True, seed=3, limit=7).indices == full[:7]
    assert select(data, shuffle=True, seed=4).indices != full
    # The same on every machine and under every release.
    assert select(numbered(5), shuffle=True, seed=0).indices == (2, 0, 1, 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit is 0; expected 1 or more"),
        ({"limit": -3}, "limit is -3"),
        ({"indices": [0, 5]}, "index 5 is out of range; expected 0 to 4"),
        ({"indices": [-1]}, "index -1 is out of range"),
        ({"indices": [1, 2, 1]}, "index 1 is given twice"),
        ({"indices": []}, "no indices"),
        ({"shuffle": True, "seed": -1}, "seed is -1"),
    ],
)
def test_bad_selections(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        select(numbered(5), **options)
