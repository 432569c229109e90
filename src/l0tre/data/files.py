"""Reading images from single files: numpy's .npz and .npy, and CSV with one image a row."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from l0tre.arrays import Archive, read_array_or_archive
from l0tre.data.layout import channels_height_width
from l0tre.errors import DataError
from l0tre.limits import refuse_large
from l0tre.names import NO_NAMES, Names

__all__ = ["Raw", "is_number", "read_csv", "read_numpy", "rows_of_csv"]

CLASSES = "classes"  # under which an .npz file says the names of its classes
CSV_COPIES = 4  # bytes in memory for each of a CSV file: "0," becomes a float32, and arrays are put together
LEAST_BRIGHT = 128  # whole numbers that are all below are no 8-bit pictures: somebody has to say what they are
LEAST_PIXELS = 64  # of a picture in a row that no network says to be one


class Raw(NamedTuple):
    """What a source holds, before scaling, checking and fitting.

    Attributes:
        images: [N, features], [N, H, W], [N, C, H, W] or [N, H, W, C], any type.
        labels: [N] or None.
        scale: What the values are divided by unless the user says otherwise; None: by the type of ``images``.
        names: Of inputs, values and classes.
    """

    images: npt.NDArray[Any]
    labels: npt.NDArray[Any] | None = None
    scale: float | None = None
    names: Names = NO_NAMES


def _image_keys(split: str) -> list[str]:
    return [f"{split}_x", f"x_{split}", f"{split}_images"]


def _label_keys(split: str) -> list[str]:
    return [f"{split}_y", f"y_{split}", f"{split}_labels"]


def _pick(archive: Archive, split: str, path: Path) -> Raw:
    other = "train" if split == "test" else "test"
    label_keys = [*_label_keys(split), "y", "labels"]
    names = archive.sizes
    images_key = next((key for key in [*_image_keys(split), "x", "images"] if key in names), None)
    if images_key is None:
        if any(key in names for key in _image_keys(other)):
            raise DataError(f"{path}: holds the {other} split but not {split}; choose the split {other}")
        skip = {*label_keys, *_label_keys(other), CLASSES}
        candidates = [key for key in names if key not in skip and archive.read(key).ndim > 1]
        if len(candidates) != 1:
            raise DataError(
                f"{path}: cannot tell which array holds the images among {', '.join(names) or 'none'}; "
                f"name it x, images or {split}_x (and the labels y, labels or {split}_y)"
            )
        images_key = candidates[0]
    labels_key = next((key for key in label_keys if key in names), None)
    labels = None if labels_key is None else archive.read(labels_key)
    return Raw(archive.read(images_key), labels, names=_named_classes(archive, path))


def _named_classes(archive: Archive, path: Path) -> Names:
    """The names of the classes, if the file says them."""
    if CLASSES not in archive.sizes:
        return NO_NAMES
    words = archive.read(CLASSES)
    if words.dtype.kind != "U" or words.ndim != 1:
        raise DataError(f"{path}: {CLASSES} is {words.dtype} of shape {words.shape}; expected a list of names")
    return Names(classes=tuple(words.tolist()))


def read_numpy(path: Path, split: str) -> Raw:
    """Read images from a .npy file, or images and labels from a .npz file.

    Args:
        path: The file; an .npz holds images under ``x``, ``images``, ``test_x`` or ``x_test`` (or as its only array
            with more than one axis), labels under ``y``, ``labels``, ``test_y`` or ``y_test``, and the names of the
            classes from class 0 on, if there are any, under ``classes``.
        split: ``"test"`` or ``"train"``.

    Raises:
        DataError: If it cannot be read or holds Python objects (which would run code when loaded).
    """
    try:
        with path.open("rb") as stream:
            loaded = read_array_or_archive(stream)
            if isinstance(loaded, np.ndarray):
                return Raw(loaded)
            return _pick(loaded, split, path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as numpy arrays ({error}); save plain numbers with np.savez"
        ) from error


def rows_of_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with its line number, from 1.

    Raises:
        DataError: If the file is no readable CSV.
    """
    try:
        refuse_large(CSV_COPIES * path.stat().st_size, "what it holds")
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            for row in reader:
                if any(cell.strip() for cell in row):
                    yield reader.line_num, row
    except (OSError, ValueError, csv.Error) as error:  # of a wrong encoding, too
        raise DataError(f"{path}: cannot be read as CSV ({error}); expected UTF-8 text") from error


def is_number(cell: str) -> bool:
    """Whether a cell holds a number (NaN and infinities are numbers here)."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(cells: list[str], line: int, path: Path) -> npt.NDArray[np.float32]:
    try:
        return np.array(cells, dtype=np.float32)
    except ValueError as error:
        column, cell = next((i, cell) for i, cell in enumerate(cells, start=2) if not is_number(cell))
        raise DataError(f"{path}: line {line}, column {column} holds {cell!r}; expected a number") from error


def _unfold(
    rows: npt.NDArray[np.float32], input_shape: tuple[int, ...] | None, resize: bool
) -> npt.NDArray[np.float32]:
    """Rows of pixels in the order H, W, C as [N, C, H, W] where the network says they are images."""
    target = channels_height_width(input_shape)
    if target is None:
        return rows
    channels, height, width = target
    pixels = rows.shape[1]
    if resize and pixels != math.prod(target):
        # The rows do not say their height and width; all common sets of images are square.
        height = width = math.isqrt(pixels // channels)
    if pixels != channels * height * width:
        return rows
    return rows.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)


def read_csv(path: Path, input_shape: tuple[int, ...] | None, resize: bool) -> Raw:
    """Read a CSV with one input a row: the label, then the values (of a picture in the order H, W, C).

    Args:
        path: The file; a first line whose first cell is no number is a header, which names the columns.
        input_shape: The network's, without the batch; without it (or for vectors) rows stay vectors.
        resize: Whether rows of another length are taken as square images, to be resized later.

    Returns:
        The rows. The scale is 255 if they are 8-bit pictures: whole numbers of 0 to 255, some of 128 or more, for a
        network that takes images; or in rows of a square number of pixels, some of them 255. Other numbers are kept.

    Raises:
        DataError: If a cell is no number, rows differ in length or have no label.
    """
    labels: list[float] = []
    rows: list[npt.NDArray[np.float32]] = []
    header: list[str] = []
    for position, (line, cells) in enumerate(rows_of_csv(path)):
        if not is_number(cells[0]):
            if position == 0:
                header = [cell.strip() for cell in cells[1:]]
                continue
            raise DataError(
                f"{path}: line {line}, column 1 holds {cells[0]!r}; expected a number, the label (for a table, say "
                "which column it is in: `label_column`)"
            )
        if len(cells) < 2:
            raise DataError(
                f"{path}: line {line} holds a single value; expected a label and pixels with commas between"
            )
        if rows and len(cells) != len(rows[0]) + 1:
            raise DataError(f"{path}: line {line} holds {len(cells)} values; expected {len(rows[0]) + 1} as before")
        labels.append(float(cells[0]))
        rows.append(_numbers(cells[1:], line, path))
    if not rows:
        raise DataError(f"{path}: holds no rows; expected a label and pixels in each row")
    pixels = np.stack(rows)
    if input_shape is not None and pixels.shape[1] == math.prod(input_shape) - 1:
        raise DataError(
            f"{path}: rows hold {pixels.shape[1] + 1} values, as many as the network's inputs {input_shape}; "
            "expected the label before them (for a table, say which column it is in: `label_column`)"
        )
    pictured = channels_height_width(input_shape) is not None
    features = tuple(header) if len(header) == pixels.shape[1] and not pictured else ()
    scale = 255.0 if _are_bytes(pixels, pictured) else None
    return Raw(_unfold(pixels, input_shape, resize), np.array(labels), scale, Names(features=features))


def _are_bytes(rows: npt.NDArray[np.float32], pictured: bool) -> bool:
    """Whether rows are 8-bit pictures, see :func:`read_csv`."""
    if rows.min() < 0 or rows.max() > 255 or bool((rows != np.round(rows)).any()):
        return False
    if pictured:
        return bool(rows.max() >= LEAST_BRIGHT)
    square = any(math.isqrt(rows.shape[1] // c) ** 2 * c == rows.shape[1] for c in (1, 3))
    return square and rows.shape[1] >= LEAST_PIXELS and bool(rows.max() == 255)
