"""Tables: columns of numbers and words, from a CSV file with a header or a DataFrame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from l0tre.data.dataset import Dataset
from l0tre.data.files import Raw, is_number, rows_of_csv
from l0tre.errors import DataError
from l0tre.names import Names

__all__ = ["NO_LABEL", "TableColumns", "as_described", "is_frame", "raw_of_frame", "raw_of_table"]

NO_LABEL = "none"
UNNAMED = ("", "Unnamed: 0")  # headers that pandas gives to an index it wrote


@dataclass(frozen=True)
class TableColumns:
    """What the columns of a table are for; all others are features.

    Attributes:
        label: Name of the column with the class, or its position from 0 (-1 for the last); ``none`` for no labels.
        row_name: Name of a column that names the rows; ``None`` for a first column without a name, if there is one.
        drop: Names of columns that are left out.
    """

    label: str
    row_name: str | None = None
    drop: tuple[str, ...] = ()


def raw_of_table(path: Path, wish: TableColumns) -> Raw:
    """Read a CSV file whose first line names its columns.

    Args:
        path: The file.
        wish: What the columns are for.

    Returns:
        The features as float32 ``[rows, features]`` (words as their places in the sorted words), labels and names.

    Raises:
        DataError: If there is no header, a row has another length, a column is not there, or a cell is no number in a
            column of numbers.
    """
    header: list[str] | None = None
    cells: list[list[str]] = []
    for line, row in rows_of_csv(path):
        if header is None:
            header = [cell.strip() for cell in row]
            if all(is_number(cell) for cell in header):
                raise DataError(f"{path}: the first line holds numbers; expected the names of the columns")
        elif len(row) != len(header):
            raise DataError(f"{path}: line {line} holds {len(row)} values; expected {len(header)}, as in the header")
        else:
            cells.append([cell.strip() for cell in row])
    if header is None or not cells:
        raise DataError(f"{path}: holds no rows; expected a header and a row for each input")
    columns = {name: [row[place] for row in cells] for place, name in enumerate(header)}
    if len(columns) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path}: two columns are called {twice!r}; give each a name of its own")
    if wish.row_name is None and header[0] in UNNAMED:
        wish = replace(wish, row_name=header[0])
    return _raw(columns, wish, str(path))


def is_frame(value: object) -> bool:
    """Whether something is a DataFrame; pandas itself need not be installed."""
    return hasattr(value, "columns") and hasattr(value, "iloc") and hasattr(value, "to_numpy")


def raw_of_frame(frame: Any, wish: TableColumns) -> Raw:
    """As :func:`raw_of_table`, from a DataFrame, whose index names the rows if it is not just 0, 1, 2, ..."""
    columns: dict[str, Sequence[Any]] = {}
    for name in frame.columns:
        column = frame[name]
        kind = getattr(column.dtype, "kind", "O")
        if kind in "biuf":
            columns[str(name)] = column.to_numpy(dtype=np.float64)
        else:  # of categories also those that no row has
            gaps = column.isna()
            cells = ["" if gap else str(cell) for cell, gap in zip(column, gaps, strict=True)]
            columns[str(name)] = cells if bool(gaps.any()) or not hasattr(column.array, "categories") else column.array
    if len(columns) < len(frame.columns):
        raise DataError("two columns of the table have the same name; give each a name of its own")
    raw = _raw(columns, wish, "table")
    index = [str(name) for name in frame.index]
    if wish.row_name is not None or index == [str(number) for number in range(len(index))]:
        return raw
    return raw._replace(names=replace(raw.names, inputs=tuple(index)))


def as_described(data: Dataset, described: Names) -> Dataset:
    """A table with the columns of another one, such as that which a domain was made from, and its numbers for words.

    Args:
        data: The table.
        described: Names of the columns and words of the other table, or no names.

    Returns:
        The table; columns that hold numbers in either stay as they are.

    Raises:
        DataError: If it has other columns, the same ones in another order, or a word that the other table does not.
    """
    words, wanted_columns = described.words, described.features
    if wanted_columns and data.names.features and data.names.features != wanted_columns:
        _refuse_columns(data, wanted_columns)
    images, found = data.images.clone(), dict(data.names.words)
    flat = images.flatten(1)
    for place, wanted in words.items():
        given = found.get(place, wanted)
        if given == wanted:
            continue
        for number in flat[:, place].unique().tolist():
            if given[int(number)] not in wanted:
                raise DataError(
                    f"{data.name}: column {data.names.feature(place)!r} holds {given[int(number)]!r}, which the table "
                    f"of the domain does not; it holds {', '.join(wanted[:12])}{', ...' if len(wanted) > 12 else ''}"
                )
        renumbered = torch.tensor([float(wanted.index(word)) if word in wanted else 0.0 for word in given])
        flat[:, place] = renumbered[flat[:, place].long()]
        found[place] = wanted
    return replace(data, images=images, names=replace(data.names, words=found))


def _refuse_columns(data: Dataset, wanted: Sequence[str]) -> NoReturn:
    given = data.names.features
    if missing := [name for name in wanted if name not in given]:
        raise DataError(f"{data.name} has no column {missing[0]!r}, which the table of the domain has")
    if extra := [name for name in given if name not in wanted]:
        raise DataError(f"{data.name} has a column {extra[0]!r}, which the table of the domain does not have")
    listed = ", ".join(wanted[:6]) + (", ..." if len(wanted) > 6 else "")
    raise DataError(f"{data.name} has its columns in another order than the table of the domain: give them as {listed}")


def _raw(columns: Mapping[str, Sequence[Any]], wish: TableColumns, name: str) -> Raw:
    label = None if wish.label == NO_LABEL and NO_LABEL not in columns else _find(columns, wish.label, name)
    drop = [_find(columns, column, name) for column in wish.drop]
    row_name = None if wish.row_name is None else _find(columns, wish.row_name, name)
    features = [column for column in columns if column not in (label, row_name, *drop)]
    if not features:
        raise DataError(f"{name}: no column is left as a feature; expected at least one")
    values, words = [], {}
    for place, column in enumerate(features):
        numbers, meaning = _numbers(columns[column], column, name)
        values.append(numbers)
        if meaning:
            words[place] = meaning
    labels: npt.NDArray[Any] | None = None
    if label is not None:
        labels = np.asarray(columns[label])
        if labels.dtype.kind not in "biuf" and all(is_number(str(cell)) for cell in labels):
            labels = labels.astype(np.float64)
    rows = () if row_name is None else tuple(str(cell) for cell in columns[row_name])
    return Raw(np.stack(values, 1), labels, 1.0, Names(rows, tuple(features), (), words))


def _find(columns: Mapping[str, Sequence[Any]], wish: str, name: str) -> str:
    """A column by its name, or by its position."""
    if wish in columns:
        return wish
    known = list(columns)
    try:
        return known[int(wish)]
    except (ValueError, IndexError) as error:
        listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        raise DataError(f"{name}: has no column {wish!r}; it has {listed}") from error


def _numbers(cells: Sequence[Any], column: str, name: str) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """A column as numbers, and the words that they stand for if it holds words."""
    array = np.asarray(cells)
    if array.dtype.kind in "biuf":
        _refuse_gaps(np.flatnonzero(np.isnan(array)) if array.dtype.kind == "f" else (), column, name)
        return _as_float32(array, column, name), ()
    numeric = [is_number(str(cell)) for cell in cells]
    gaps = [row for row, cell in enumerate(cells) if _is_gap(cell)]
    _refuse_gaps(gaps, column, name)
    if all(numeric):
        return _as_float32(np.array([float(cell) for cell in cells]), column, name), ()
    if sum(numeric) > len(cells) / 2:  # a column of numbers with a gap, not one of words
        row = numeric.index(False)
        raise DataError(f"{name}: column {column!r} holds {str(cells[row])!r} in row {row}; expected a number")
    known = getattr(cells, "categories", None)
    words = tuple(sorted({str(cell) for cell in cells}) if known is None else map(str, known))
    place = {word: number for number, word in enumerate(words)}
    return np.array([place[str(cell)] for cell in cells], dtype=np.float32), words


def _is_gap(cell: object) -> bool:
    """Whether a cell of a table holds nothing, which is no word: NaN, None, pandas' NA, an empty one."""
    return cell is None or str(cell) in ("", "nan", "<NA>", "NaT")


def _refuse_gaps(rows: Sequence[int] | npt.NDArray[np.int64], column: str, name: str) -> None:
    if len(rows):
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        raise DataError(
            f"{name}: column {column!r} has no value in row {rows[0]}{more}: leave such rows out, fill the gaps as for "
            "the model, or leave the column out (`drop`)"
        )


def _as_float32(values: npt.NDArray[Any], column: str, name: str) -> npt.NDArray[np.float32]:
    """Numbers as the network gets them, if it can tell them apart."""
    rounded = values.astype(np.float32)
    whole = values.astype(np.float64) == np.floor(values)
    if bool(whole.all()) and len(np.unique(rounded)) < len(np.unique(values)):
        raise DataError(
            f"{name}: column {column!r} holds whole numbers that 32-bit floats cannot tell apart, such as "
            f"{values[np.abs(values).argmax()]:.0f}: leave it out (`drop`), or give smaller numbers"
        )
    return rounded
