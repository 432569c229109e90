import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from l0tre.data import load_data
from l0tre.errors import DataError

IMAGES = np.random.RandomState(0).randint(0, 256, (4, 6, 7), dtype=np.uint8)
COLOUR = np.random.RandomState(1).randint(0, 256, (4, 6, 7, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 0, 2])


def pixels(images: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(images.astype(np.float32) / np.float32(255))


def save(path: Path, **arrays: npt.NDArray[Any]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    "keys",
    [
        ("x", "y"),
        ("images", "labels"),
        ("test_x", "test_y"),
        ("x_test", "y_test"),
        ("anything", "y"),
        ("images", "y_test"),
    ],
)
def test_npz(tmp_path: Path, keys: tuple[str, str]) -> None:
    path = save(tmp_path / "a.npz", **{keys[0]: IMAGES, keys[1]: LABELS})
    data = load_data(path)
    assert torch.equal(data.images, pixels(IMAGES)[:, None])
    assert data.labels is not None
    assert data.labels.tolist() == LABELS.tolist()
    assert data.name == str(path)
    assert data.indices == (0, 1, 2, 3)


def test_npz_splits(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", train_x=IMAGES, train_y=LABELS, test_x=IMAGES[:2], test_y=LABELS[:2, None])
    assert len(load_data(path).images) == 2
    assert len(load_data(str(path), split="train").images) == 4
    only_train = save(tmp_path / "b.npz", x_train=IMAGES, y_train=LABELS)
    with pytest.raises(DataError, match="choose the split train"):
        load_data(only_train)
    with pytest.raises(DataError, match="expected test or train"):
        load_data(path, split="validation")


def test_npz_without_labels_and_npy(tmp_path: Path) -> None:
    assert load_data(save(tmp_path / "a.npz", pictures=IMAGES, weights=np.ones(4))).labels is None
    np.save(tmp_path / "b.npy", COLOUR)
    data = load_data(tmp_path / "b.npy", input_shape=(3, 6, 7))
    assert data.labels is None
    assert torch.equal(data.images, pixels(COLOUR).permute(0, 3, 1, 2))


def test_npz_scale(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x=IMAGES)
    assert torch.equal(load_data(path, scale=1).images[:, 0], torch.from_numpy(IMAGES.astype(np.float32)))


def test_npz_that_cannot_be_understood(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot tell which array holds the images among a, b"):
        load_data(save(tmp_path / "a.npz", a=IMAGES, b=IMAGES))
    with pytest.raises(DataError, match="2 labels for 4 inputs"):
        load_data(save(tmp_path / "b.npz", x=IMAGES, y=LABELS[:2]))


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_numpy_files_with_objects_or_damage(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    objects = np.array([[{"a": 1}], [None]], dtype=object)
    if suffix == ".npz":
        save(path, x=objects)
    else:
        np.save(path, objects)
    with pytest.raises(DataError, match="save plain numbers"):
        load_data(path)
    for content in (b"", b"nonsense", path.read_bytes()[: path.stat().st_size // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as numpy arrays"):
            load_data(path)


def write_csv(path: Path, rows: list[list[Any]], header: str = "") -> Path:
    path.write_text(header + "".join(",".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["", "label,a,b\n", "\ufefflabel,0,1,2\n", "\ufeff", "\n \nlabel\n"])
def test_csv_of_grey_images(tmp_path: Path, header: str) -> None:
    rows = [[label, *image.flatten()] for label, image in zip(LABELS, IMAGES, strict=True)]
    data = load_data(write_csv(tmp_path / "a.csv", rows, header), input_shape=(1, 6, 7))
    assert torch.equal(data.images, pixels(IMAGES)[:, None])
    assert data.labels is not None
    assert data.labels.tolist() == LABELS.tolist()


def test_csv_of_colour_images_is_interleaved(tmp_path: Path) -> None:
    rows = [[label, *image.flatten()] for label, image in zip(LABELS, COLOUR, strict=True)]
    path = write_csv(tmp_path / "a.csv", rows)
    assert torch.equal(load_data(path, input_shape=(3, 6, 7)).images, pixels(COLOUR).permute(0, 3, 1, 2))
    assert torch.equal(load_data(path, input_shape=(6, 7, 3)).images, pixels(COLOUR))
    for shape in (None, (126,)):  # 126 values could be anything, so they are kept
        assert torch.equal(load_data(path, input_shape=shape).images, 255 * pixels(COLOUR).flatten(1))


def test_csv_of_square_images_can_be_resized(tmp_path: Path) -> None:
    images = COLOUR[:, :, :6]
    rows = [[label, *image.flatten()] for label, image in zip(LABELS, images, strict=True)]
    path = write_csv(tmp_path / "a.csv", rows)
    expected = pixels(images).reshape(4, 3, 2, 3, 2, 3).mean((2, 4))
    torch.testing.assert_close(load_data(path, input_shape=(3, 3, 3), resize=True).images, expected.permute(0, 3, 1, 2))
    with pytest.raises(DataError, match=r"\(108,\).*\(3, 3, 3\)"):
        load_data(path, input_shape=(3, 3, 3))
    with pytest.raises(DataError, match=r"\(108,\).*\(1, 3, 3\)"):  # 108 is no square
        load_data(path, input_shape=(1, 3, 3), resize=True)


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        ([0, 255, 51], None, [0, 255, 51]),
        ([0, 255, 51], 1, [0, 255, 51]),
        ([0, 255, 51], 51, [0, 5, 1]),
        ([0, 1, 1], None, [0, 1, 1]),
        ([0, 0.5, 2], None, [0, 0.5, 2]),
        ([0, 2, 256], None, [0, 2, 256]),
        ([-1, 2, 5], None, [-1, 2, 5]),
        (["1e0", " 0.5", "-.5"], None, [1, 0.5, -0.5]),
    ],
)
def test_csv_scale(tmp_path: Path, values: list[Any], scale: float | None, expected: list[float]) -> None:
    data = load_data(write_csv(tmp_path / "a.csv", [[7, *values]]), scale=scale)
    assert torch.equal(data.images, torch.tensor([expected], dtype=torch.float32))


@pytest.mark.parametrize(
    ("side", "shape", "brightest", "divided"),
    [
        (8, (1, 8, 8), 255, True),
        (8, (1, 8, 8), 128, True),
        (8, (1, 8, 8), 127, False),  # like digits of 16 shades: nobody said what 1.0 is
        (8, None, 255, True),
        (8, (64,), 255, True),
        (8, (64,), 254, False),
        (7, (49,), 255, False),
        (2, (1, 2, 2), 255, True),
    ],
)
def test_csv_of_whole_numbers_is_divided_only_if_it_holds_pictures_of_8_bits(
    tmp_path: Path, side: int, shape: tuple[int, ...] | None, brightest: int, divided: bool
) -> None:
    values = np.zeros(side * side, dtype=np.int64)
    values[-1] = brightest
    path = write_csv(tmp_path / "a.csv", [[1, *values]])
    with warnings.catch_warnings(record=True) as said:
        data = load_data(path, input_shape=shape)
    assert [str(one.message).partition(" (")[0] for one in said] == (
        [f"{path} holds whole numbers as pictures of 8 bits do: they are divided by 255"] if divided else []
    )
    assert float(data.images.max()) == pytest.approx(brightest / 255 if divided else brightest)
    assert data.assumed_scale == (255 if divided else 1)
    assert load_data(tmp_path / "a.csv", input_shape=shape, scale=255).assumed_scale == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n\n1,x,3\n", "line 3, column 2 holds 'x'"),
        ("1,2,abc\n", "line 1, column 3 holds 'abc'"),
        ("label,a,b\n1,2,3\nfour,2,3\n", "line 3, column 1 holds 'four'"),
        ("1,2,3\n1,2,\n", "line 2, column 3 holds ''"),
        ("1,2,3\n1,2\n", "line 2 holds 2 values; expected 3"),
        ("1,2,3\n1,2,3,4\n", "line 2 holds 4 values; expected 3"),
        ("1;2;3\n4;5;6\n", "line 2, column 1 holds '4;5;6'"),
        ("1\n2\n", "line 1 holds a single value"),
        ("", "holds no rows"),
        ("label,a,b\n", "holds no rows"),
        ("1,2,3\n1,nan,3\n", "input 1 holds NaN"),
        ("0.5,2,3\n", "label of input 0 is 0.5"),
        ("1,2,3\n-2,2,3\n", "label of input 1 is -2"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        load_data(path)
    assert "\n" not in str(caught.value)


def test_csv_without_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [[0, 1, 2, 3]] * 2)
    with pytest.raises(DataError, match="expected the label before"):
        load_data(path, input_shape=(1, 2, 2))


def test_csv_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,2\xff\xfe,3\n")
    with pytest.raises(DataError, match="expected UTF-8"):
        load_data(path)


@pytest.mark.parametrize(
    ("source", "near"),
    [
        ("mnist5", "mnist5k"),
        ("MNIST", "mnist"),
        ("cifar-10", "cifar10"),
        ("fashion_mnist", "fashion-mnist"),
        ("digit", "digits"),
    ],
)
def test_near_misses(source: str, near: str) -> None:
    with pytest.raises(DataError, match=rf"did you mean {near}\?"):
        load_data(source)


def test_unknown_sources(tmp_path: Path) -> None:
    for source in ("nowhere.npz", "", tmp_path / "nothing"):
        with pytest.raises(DataError, match=r"no file, folder or known name; expected .*mnist5k.*\.npz.*folder"):
            load_data(source)
    with pytest.raises(DataError):
        load_data("long" * 5000)  # longer than a path may be
    other = tmp_path / "a.pkl"
    other.write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot be read as data; expected .*\.npz"):
        load_data(other)
