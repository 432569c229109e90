"""What may change in the rows of a table: ranges from the data, whole numbers, categories, one-hot columns."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from l0tre.data import Dataset, from_arrays, load_data, select
from l0tre.data.tables import is_frame
from l0tre.domain import Domain, Groups, Range, make_domain, restrict
from l0tre.errors import ConfigError, DataError
from l0tre.names import Names

__all__ = ["rows_inside", "table_domain"]

LISTED = 64  # whole numbers of a column that are tried and proved one by one; of wider ranges all between are covered
WHOLE = "auto"  # instead of names: every column whose values are all whole numbers


def table_domain(
    data: Dataset | Any,
    *,
    low: Range | None = None,
    high: Range | None = None,
    quantile: float = 0.0,
    fixed: Sequence[str] = (),
    integer: Sequence[str] = (),
    categorical: Sequence[str] = (),
    one_hot: Sequence[str] = (),
    upwards: Sequence[str] = (),
    downwards: Sequence[str] = (),
) -> Domain:
    """Describe what may change in a table; a column, or a group of one-hot columns, counts as one change.

    Columns are given by name, by a pattern (``job_*``) or by position. Columns of words (``Dataset.names.words``) are
    categorical in any case.

    Args:
        data: The table, also as a DataFrame without its labels or as an array; all of its rows say which values there
            are. Columns of words in tables that are evaluated with this domain are read as here.
        low: Smallest value, one for all columns or one for each; default each column's smallest in the data.
        high: Largest value, likewise.
        quantile: Share of the rows that default ranges leave out at either end, below 0.5, so that single outliers do
            not widen them. Columns that are fixed, categorical or one-hot keep all of their values. Rows with values
            outside cannot be evaluated, see :func:`rows_inside`.
        fixed: Columns that never change.
        integer: Columns that hold whole numbers only; ``auto`` for every column whose values are all whole.
        categorical: Columns that take no other values than those in the data.
        one_hot: Groups of columns of which one is 1: a pattern, or names with ``+`` between. They take the unit vectors
            (also all zeros, if the data holds that), or if they are scaled, the vectors in the data.
        upwards: Columns whose values may only rise.
        downwards: Columns whose values may only fall.

    Returns:
        The domain.

    Raises:
        ConfigError: If a column is not there, is named twice, or nothing may change.
    """
    if is_frame(data):
        data = load_data(data)
    elif not isinstance(data, Dataset):
        data = from_arrays(data, scale=1.0)
    rows = data.images.flatten(1)
    names = data.names.features or tuple(str(place) for place in range(rows.shape[1]))
    grouped = [_find(names, wish.split("+"), "one_hot") for wish in one_hot]
    listed_columns = [*_find(names, categorical, "categorical"), *data.names.words, *_find(names, fixed, "fixed")]
    ends = _ends(rows, quantile, whole=[*listed_columns, *(place for members in grouped for place in members)])
    lows = ends[0] if low is None else low
    highs = ends[1] if high is None else high
    numbers = torch.arange(len(names))
    for members in grouped:
        numbers[members] = members[0]
    mask = torch.ones(len(names), dtype=torch.bool)
    mask[_find(names, fixed, "fixed")] = False
    shape = tuple(data.images.shape[1:])
    if math.prod(shape) != len(names):
        raise ConfigError(f"the data has {len(names)} columns, inputs have shape {shape}: give a table")
    groups: Groups | Tensor = numbers.reshape(shape) if grouped else "feature"
    domain = make_domain(shape, groups=groups, mask=mask.reshape(shape), low=lows, high=highs)
    domain = replace(domain, names=Names(features=data.names.features, words=data.names.words))
    taken: dict[int, Tensor] = {}
    for members in grouped:
        free = [place for place in members if bool(mask[place])]
        if len(free) not in (0, len(members)):
            raise ConfigError(
                f"some of the one-hot columns {names[members[0]]}, ... are fixed: fix all or none of them"
            )
        if free:
            _put(taken, members[0], _one_hot_vectors(rows[:, members]), names)
    kept = set(domain.ids.tolist())
    words = [place for place in data.names.words if place in kept]
    for place in {*_find(names, categorical, "categorical"), *words}:
        values = torch.arange(float(len(data.names.words[place]))) if place in words else rows[:, place].unique()
        _put(taken, place, values[:, None], names)
    whole = _whole(rows, names, integer)
    wide = []
    for place in whole:
        if place in taken or place not in kept:
            continue
        first, last = float(domain.low[place].ceil()), float(domain.high[place].floor())
        if last - first < LISTED:
            _put(taken, place, torch.arange(first, last + 1)[:, None], names)
        else:
            wide.append(place)
    listed = {number: vectors for number, vectors in taken.items() if number in kept}
    rules = {"upwards": _find(names, upwards, "upwards"), "downwards": _find(names, downwards, "downwards")}
    if not listed and not wide and not any(rules.values()):
        return domain
    return restrict(domain, listed=listed, whole=wide, **rules)


def rows_inside(data: Dataset, domain: Domain) -> Dataset:
    """The rows whose values all lie in the ranges of a domain; their ``indices`` still refer to the source.

    Raises:
        DataError: If none does.
    """
    flat = data.images.flatten(1)
    inside = ((flat >= domain.low.cpu()) & (flat <= domain.high.cpu())).all(1).nonzero()[:, 0].tolist()
    if not inside:
        raise DataError(f"{data.name} has no row inside the ranges: give a smaller quantile")
    return select(data, indices=inside)


def _ends(rows: Tensor, quantile: float, *, whole: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each column, without a share of the rows at either end for most columns."""
    if not 0 <= quantile < 0.5:
        raise ConfigError(f"`quantile` is {quantile}: give a share of the rows from 0 to below 0.5, such as 0.01")
    lowest, highest = rows.amin(0), rows.amax(0)
    order = rows.sort(0).values
    out = int(quantile * len(rows))
    lows, highs = order[out].clone(), order[len(rows) - 1 - out].clone()
    kept = [*whole, *(lows == highs).nonzero()[:, 0].tolist()]  # a rare value must not freeze its column
    lows[kept], highs[kept] = lowest[kept], highest[kept]
    return lows, highs


def _find(names: Sequence[str], wishes: Iterable[str], what: str) -> list[int]:
    """Positions of columns given by name, pattern or position."""
    found: list[int] = []
    for wish in wishes:
        wanted = wish.strip()
        places = [place for place, name in enumerate(names) if name == wanted]
        places = places or [place for place, name in enumerate(names) if fnmatchcase(name, wanted)]
        if not places and wanted.isdecimal() and int(wanted) < len(names):
            places = [int(wanted)]
        if not places:
            listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise ConfigError(f"`{what}` names {wanted!r}, which is no column: there are {listed}")
        found += [place for place in places if place not in found]
    return found


def _whole(rows: Tensor, names: Sequence[str], integer: Sequence[str]) -> list[int]:
    if list(integer) == [WHOLE] and WHOLE not in names:
        found: list[int] = (rows == rows.round()).all(0).nonzero()[:, 0].tolist()
        return found
    return _find(names, integer, "integer")


def _one_hot_vectors(columns: Tensor) -> Tensor:
    present: Tensor = columns.unique(dim=0)
    if not bool(((columns == 0) | (columns == 1)).all()):
        return present
    units = torch.eye(columns.shape[1])
    if bool((present == 0).all(1).any()):
        units = torch.cat([units, torch.zeros(1, columns.shape[1])])
    return units


def _put(taken: dict[int, Tensor], place: int, vectors: Tensor, names: Sequence[str]) -> None:
    if place in taken:
        raise ConfigError(f"the column {names[place]!r} is named twice: once as categorical or one-hot is enough")
    taken[place] = vectors
