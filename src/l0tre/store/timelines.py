"""The bounds of every image over time, as a run recorded them."""

from pathlib import Path
from typing import NamedTuple

from l0tre.store.connection import DATABASE, reading

__all__ = ["Moment", "read_timelines"]


class Moment(NamedTuple):
    """Bounds of one image from a moment on.

    Attributes:
        seconds: Work of the whole run up to then.
        t: The last level of the image that was over.
        lower: Its lower bound.
        upper: Its upper bound.
    """

    seconds: float
    t: int
    lower: int
    upper: int


def read_timelines(folder: Path) -> tuple[tuple[Moment, ...], ...]:
    """When the bounds of each image changed, in the order of ``Snapshot.images``.

    Args:
        folder: The run folder.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    with reading(folder / DATABASE, rows=False) as stored:
        (count,) = stored.connection.execute("SELECT count(*) FROM images").fetchone()
        found: list[list[Moment]] = [[] for _ in range(count)]
        for row in stored.connection.execute("SELECT * FROM bounds ORDER BY id"):
            if 0 <= row["place"] < count:
                found[row["place"]].append(Moment(row["seconds"], row["t"], row["lower"], row["upper"]))
    return tuple(map(tuple, found))
