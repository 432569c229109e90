"""One way in for every source of images."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from l0tre.data.dataset import Dataset, from_arrays
from l0tre.data.files import Raw, read_csv, read_numpy
from l0tre.data.folder import PICTURES, read_folder, read_picture
from l0tre.data.named import NAMES, read_named
from l0tre.data.tables import NO_LABEL, TableColumns, is_frame, raw_of_frame, raw_of_table
from l0tre.errors import DataError, warn

__all__ = ["SUITE", "divided", "load_data"]

SUITE = "suite.npz"
_SPLITS = ("test", "train")


def _unknown(source: str | Path, path: Path) -> DataError:
    accepted = f"a name ({', '.join(NAMES)}), a file (.npz, .npy, .csv, a picture) or a folder of pictures"
    if str(source) and path.exists():
        return DataError(f"{source}: cannot be read as data; expected {accepted}")
    near = difflib.get_close_matches(str(source).lower(), NAMES, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    return DataError(f"{str(source)!r} is no file, folder or known name{hint}; expected {accepted}")


def _read(
    source: str | Path,
    input_shape: tuple[int, ...] | None,
    data_dir: Path | None,
    split: str,
    resize: bool,
    columns: TableColumns | None,
) -> Raw:
    path = Path(source).expanduser()
    if columns is not None:
        if path.suffix.lower() != ".csv" or not path.is_file():
            raise DataError(f"{source}: `label_column` and its like are for tables; expected a .csv file with a header")
        return raw_of_table(path, columns)
    if str(source) in NAMES and not (isinstance(source, Path) and path.exists()):
        return read_named(str(source), split, data_dir)
    if str(source) and (path / SUITE).is_file():  # the tests that `l0tre testgen` wrote
        return read_numpy(path / SUITE, split)
    if str(source) and path.is_dir():
        return read_folder(path, input_shape, resize)
    suffix = path.suffix.lower()
    if path.is_file() and suffix in (".npz", ".npy"):
        return read_numpy(path, split)
    if path.is_file() and suffix == ".csv":
        return read_csv(path, input_shape, resize)
    if path.is_file() and suffix in PICTURES:
        return read_picture(path, input_shape)
    raise _unknown(source, path)


def load_data(
    source: str | Path | Any,
    *,
    input_shape: tuple[int, ...] | None = None,
    data_dir: Path | None = None,
    scale: float | None = None,
    split: str = "test",
    resize: bool = False,
    label_column: str | None = None,
    row_name: str | None = None,
    drop: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> Dataset:
    """Load images or a table, and labels.

    Args:
        source: A file (.npz, .npy, .csv, a picture), a folder of pictures, or a name: ``digits``, ``mnist5k``,
            ``mnist``, ``fashion-mnist``, ``cifar10``. A name wins over a file of the same name, unless given as a
            ``Path`` or with a ``./`` before it. Also a DataFrame of pandas, whose index names the rows.
        input_shape: The network's, without the batch; images are brought into it.
        data_dir: Where data sets known by name are looked for first; then in the folder that the variable
            L0TRE_DATA names, then in the cache, and otherwise they are downloaded into the cache.
        scale: Divide the values by this instead of the default (255 for pixels of 8 bits, nothing for floats).
        split: ``"test"`` or ``"train"``, for sources that have both.
        resize: Whether images of another height or width are resized to the network's by area averaging.
        label_column: For a DataFrame or a CSV table with a header: the column with the class, by name or by position
            from 0 (-1 for the last), ``none`` for no labels. All other columns are features, under their names; words
            become whole numbers. Values are taken as they are unless ``scale`` is given.
        row_name: Column that names the rows of a table.
        drop: Columns of a table that are left out.
        classes: Names of the classes in the network's order, for labels that are words (default: alphabetical) and for
            those that are numbers.

    Returns:
        The data set; its indices are the positions in the source.

    Raises:
        DataError: If the source cannot be found, read or used.
        MissingExtraError: If the package that holds or reads it is not installed.
    """
    if split not in _SPLITS:
        raise DataError(f"the split is {split!r}; expected {' or '.join(_SPLITS)}")
    columns = None
    if label_column is not None or row_name is not None or drop:
        if label_column is None and not is_frame(source):
            raise DataError(f"{source}: `row_name` and `drop` need `label_column`; give none if there are no labels")
        columns = TableColumns(label_column or NO_LABEL, row_name, tuple(drop))
    place = None if data_dir is None else Path(data_dir)
    try:
        if is_frame(source):
            raw = raw_of_frame(source, columns or TableColumns(NO_LABEL))
        else:
            raw = _read(source, input_shape, place, split, resize, columns)
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error}); check the path and its permissions") from error
    if classes:
        raw = _with_classes(raw, tuple(classes))
    data = from_arrays(
        raw.images,
        raw.labels,
        input_shape=input_shape,
        scale=raw.scale if scale is None else scale,
        name="table" if is_frame(source) else str(source),
        resize=resize,
        names=raw.names,
    )
    # What a reader took for pictures of 8 bits was its own guess, like that of from_arrays for uint8.
    assumed = raw.scale if scale is None and raw.scale is not None else data.assumed_scale
    if assumed != 1 and str(source).lower().endswith(".csv"):
        warn(divided(data.name, assumed))
    return replace(data, assumed_scale=assumed)


def divided(name: str, scale: float) -> str:
    """What to say of whole numbers in a file that does not tell whether they are pictures."""
    return (
        f"{name} holds whole numbers as pictures of 8 bits do: they are divided by {scale:g} (`scale=1` keeps "
        f"them, `scale={scale:g}` says that this is right)"
    )


def _with_classes(raw: Raw, classes: tuple[str, ...]) -> Raw:
    """Labels by words, to be numbered in the order of the classes; numbers stay numbers and get names."""
    known, labels = raw.names.classes, raw.labels
    if known and labels is not None:
        labels = np.array([known[int(number)] for number in labels])
    return raw._replace(labels=labels, names=replace(raw.names, classes=classes))
