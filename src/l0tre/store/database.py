"""The tables of a run and the translation between rows and results."""

import io
import json
import sqlite3
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l0tre.certify.proof import Proof
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes
from l0tre.errors import StoreError
from l0tre.evaluation.results import Excluded, HistoryPoint, ImageBounds, Witness
from l0tre.exhaustive.progress import GridProgress
from l0tre.exhaustive.ranking import Ranking

__all__ = [
    "DATABASE",
    "FORMAT",
    "connect",
    "front_bytes",
    "guarded",
    "ranking_bytes",
    "read_bounds",
    "read_excluded",
    "read_history",
    "read_level_rows",
    "read_partials",
    "read_proofs",
    "read_witnesses",
    "upgrade",
    "witness_columns",
    "write_level",
]

DATABASE = "run.db"
FORMAT = 5
# Format 4 names three settings without their units; format 3 besides does not say of which tree the open nodes of
# proofs are; format 2 besides has no table of levels, and its images know of no attacks.
READABLE = (2, 3, 4, FORMAT)
LEVELS = """
CREATE TABLE levels (
    place INTEGER NOT NULL, t INTEGER NOT NULL, lower INTEGER NOT NULL, upper INTEGER NOT NULL,
    blocked INTEGER NOT NULL, seconds REAL NOT NULL, queries INTEGER NOT NULL, PRIMARY KEY (place, t)
)
"""
SCHEMA = f"""
{LEVELS};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE images (
    place INTEGER PRIMARY KEY, "index" INTEGER NOT NULL, label INTEGER NOT NULL, groups INTEGER NOT NULL,
    lower INTEGER NOT NULL, upper INTEGER NOT NULL, guarantee TEXT NOT NULL, level INTEGER NOT NULL,
    blocked INTEGER NOT NULL, seconds REAL NOT NULL, queries INTEGER NOT NULL, attacked INTEGER NOT NULL
);
CREATE TABLE excluded ("index" INTEGER PRIMARY KEY, label INTEGER NOT NULL, predicted INTEGER NOT NULL);
CREATE TABLE bounds (
    id INTEGER PRIMARY KEY, place INTEGER NOT NULL, at TEXT NOT NULL, seconds REAL NOT NULL, t INTEGER NOT NULL,
    lower INTEGER NOT NULL, upper INTEGER NOT NULL
);
CREATE TABLE history (
    id INTEGER PRIMARY KEY, at TEXT NOT NULL, seconds REAL NOT NULL, t INTEGER NOT NULL, lower REAL NOT NULL,
    upper REAL NOT NULL
);
CREATE TABLE witnesses (
    id INTEGER PRIMARY KEY, place INTEGER NOT NULL, at TEXT NOT NULL, distance INTEGER NOT NULL,
    label INTEGER NOT NULL, margin REAL NOT NULL, level INTEGER NOT NULL, groups TEXT NOT NULL,
    changes TEXT NOT NULL
);
CREATE TABLE partials (
    place INTEGER PRIMARY KEY, t INTEGER NOT NULL, position INTEGER NOT NULL, safe INTEGER NOT NULL,
    rankings BLOB NOT NULL
);
CREATE TABLE proofs (
    place INTEGER PRIMARY KEY, t INTEGER NOT NULL, proved TEXT NOT NULL, total TEXT NOT NULL, nodes INTEGER NOT NULL,
    fronts BLOB NOT NULL, tree TEXT NOT NULL
);
CREATE INDEX witnesses_of_image ON witnesses (place, id);
"""
UNREADABLE = (sqlite3.Error, ValueError, KeyError, TypeError, ArithmeticError, EOFError, zipfile.BadZipFile, zlib.error)
LATEST = "SELECT place, level AS t, lower, upper, blocked, seconds, queries FROM images WHERE level > 0"


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn what reading a damaged or foreign file raises into one line for the user."""
    try:
        yield
    except UNREADABLE as error:
        raise StoreError(
            f"{path} cannot be used as a run database ({error}): restore it from a copy, or start again in another "
            "folder (`out`)"
        ) from error


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open a run's database.

    Args:
        path: The database file.
        create: Make the tables first.

    Returns:
        The connection. A commit survives ``kill -9``; readers are not blocked.

    Raises:
        StoreError: If it is missing, damaged, or of another format.
    """
    if not create and not path.is_file():
        raise StoreError(f"{path.parent} is not a run folder: it has no {path.name}; start one with `out`")
    with guarded(path):
        connection = sqlite3.connect(path, isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = NORMAL")
        if create:
            connection.execute("PRAGMA auto_vacuum = FULL")  # positions inside a level leave room behind: give it back
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)
            return connection
        row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        check = connection.execute("PRAGMA quick_check").fetchone()[0]
    if check != "ok":
        raise StoreError(
            f"{path} is damaged ({check}): restore it from a copy, or start again in another folder (`out`)"
        )
    if row is None:
        raise StoreError(f"{path} was left before its first step: remove the folder and start again")
    if row["value"] not in map(json.dumps, READABLE):
        known = ", ".join(map(str, READABLE))
        raise StoreError(f"{path} has format {row['value']}, this version reads {known}: use the version that wrote it")
    return connection


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a database of an older format to this one.

    Of the levels that are over in format 2, only the latest of each image is known. The trees of proofs in formats 2
    and 3 are not: such proofs begin their level anew.
    """
    if not _has_levels(connection):
        connection.execute(LEVELS)
        connection.execute(f"INSERT INTO levels {LATEST}")
    _add_column(connection, "images", "attacked", "INTEGER NOT NULL DEFAULT 0")
    _add_column(connection, "proofs", "tree", "TEXT NOT NULL DEFAULT ''")
    connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (json.dumps(FORMAT),))


def _add_column(connection: sqlite3.Connection, table: str, name: str, kind: str) -> None:
    if name not in [row["name"] for row in connection.execute(f"PRAGMA table_info({table})")]:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


def write_level(connection: sqlite3.Connection, place: int, bounds: ImageBounds) -> None:
    """Keep the bounds with which an image leaves a level."""
    values = (place, bounds.level, bounds.lower, bounds.upper, bounds.blocked, bounds.seconds, bounds.queries)
    connection.execute("INSERT OR REPLACE INTO levels VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def read_level_rows(connection: sqlite3.Connection) -> dict[tuple[int, int], sqlite3.Row]:
    """The bounds at the end of each level that is over, by place of the image and ``t``."""
    rows = connection.execute("SELECT * FROM levels" if _has_levels(connection) else LATEST)
    return {(row["place"], row["t"]): row for row in rows}


def _has_levels(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'levels'").fetchone()
    return found is not None


def read_witnesses(connection: sqlite3.Connection, level: int | None = None) -> dict[int, Witness]:
    """The best witness of every image, by its place: of all, or of those found up to some level."""
    among = "" if level is None else f"WHERE level <= {level}"
    query = f"SELECT * FROM witnesses WHERE id IN (SELECT max(id) FROM witnesses {among} GROUP BY place)"
    return {row["place"]: _witness(row) for row in connection.execute(query)}


def read_bounds(connection: sqlite3.Connection) -> list[ImageBounds]:
    """Bounds of every image with the best witness of each."""
    witnesses = read_witnesses(connection)
    return [
        ImageBounds(
            row["index"],
            row["label"],
            row["groups"],
            row["lower"],
            row["upper"],
            row["guarantee"],
            witnesses.get(row["place"]),
            row["level"],
            row["blocked"],
            row["seconds"],
            row["queries"],
            "attacked" in row.keys() and bool(row["attacked"]),  # noqa: SIM118  # a row is no dictionary
        )
        for row in connection.execute("SELECT * FROM images ORDER BY place")
    ]


def read_excluded(connection: sqlite3.Connection) -> tuple[Excluded, ...]:
    """The images that were left out."""
    rows = connection.execute('SELECT * FROM excluded ORDER BY "index"')
    return tuple(Excluded(row["index"], row["label"], row["predicted"]) for row in rows)


def read_history(connection: sqlite3.Connection) -> list[HistoryPoint]:
    """Global bounds over time."""
    rows = connection.execute("SELECT * FROM history ORDER BY id")
    return [HistoryPoint(row["seconds"], row["t"], row["lower"], row["upper"]) for row in rows]


def read_partials(connection: sqlite3.Connection) -> dict[int, GridProgress]:
    """Positions inside a level, by place of the image."""
    return {row["place"]: _partial(row) for row in connection.execute("SELECT * FROM partials")}


def read_proofs(connection: sqlite3.Connection) -> dict[int, Proof]:
    """Proofs inside a level, by place of the image; those that cannot be in the middle of one are left out."""
    proofs = {row["place"]: _proof(row) for row in connection.execute("SELECT * FROM proofs")}
    # A complete count beside open nodes, or one that is out of range, must never be taken for a proof.
    return {place: proof for place, proof in proofs.items() if proof.partial}


def _proof(row: sqlite3.Row) -> Proof:
    fronts = _fronts(row["fronts"], row["t"])
    return Proof(row["t"], Fraction(row["proved"]), int(row["total"]), fronts, row["nodes"], row["tree"])


def front_bytes(proof: Proof) -> bytes:
    """The open nodes of a proof as an .npz archive."""
    arrays: dict[str, np.ndarray] = {}
    for nodes in proof.fronts:
        kind = "cells" if isinstance(nodes, CellNodes) else "boxes"
        arrays[f"{kind}_cells"] = nodes.cells.numpy().astype(np.int32)
        if isinstance(nodes, BoxNodes):
            arrays |= {f"{kind}_{name}": getattr(nodes, name).numpy() for name in ("low", "high", "depth")}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _fronts(data: bytes, t: int) -> tuple[Nodes, ...]:
    fronts: list[Nodes] = []
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for kind in ("cells", "boxes"):
            if f"{kind}_cells" not in arrays:
                continue
            cells = torch.from_numpy(arrays[f"{kind}_cells"].astype(np.int64)).reshape(-1, t)
            image = torch.zeros(len(cells), dtype=torch.int64)
            if kind == "cells":
                fronts.append(CellNodes(image, cells))
            else:
                low, high, depth = (torch.from_numpy(arrays[f"{kind}_{name}"]) for name in ("low", "high", "depth"))
                fronts.append(BoxNodes(image, cells, low, high, depth))
    return tuple(fronts)


def witness_columns(witness: Witness) -> dict[str, Any]:
    """A witness as a row: its changed values as pairs of position and value."""
    pairs = list(zip(witness.positions.tolist(), witness.values.tolist(), strict=True))
    return {
        "distance": witness.distance,
        "label": witness.label,
        "margin": witness.margin,
        "level": witness.level,
        "groups": json.dumps(witness.groups),
        "changes": json.dumps(pairs),
    }


def _witness(row: sqlite3.Row) -> Witness:
    pairs = json.loads(row["changes"])
    return Witness(
        torch.tensor([position for position, _ in pairs], dtype=torch.int64),
        torch.tensor([value for _, value in pairs], dtype=torch.float32),
        tuple(json.loads(row["groups"])),
        row["label"],
        row["margin"],
        row["level"],
    )


def ranking_bytes(partial: GridProgress) -> bytes:
    """Both rankings of a single image as int64 numbers (float64 values by their bits), ``[2, 3, kept]``."""
    arrays = [
        np.stack(
            [
                ranking.values[0].cpu().double().numpy().view(np.int64),
                ranking.sets[0].cpu().numpy(),
                ranking.points[0].cpu().numpy(),
            ]
        )
        for ranking in (partial.by_score, partial.by_margin)
    ]
    return np.stack(arrays).astype("<i8").tobytes()


def _partial(row: sqlite3.Row) -> GridProgress:
    numbers = np.frombuffer(row["rankings"], dtype="<i8").astype(np.int64).reshape(2, 3, 1, -1)
    rankings = [
        Ranking(
            torch.from_numpy(values.view(np.float64).astype(np.float32)),
            torch.from_numpy(sets.copy()),
            torch.from_numpy(points.copy()),
        )
        for values, sets, points in numbers
    ]
    return GridProgress(row["t"], row["position"], torch.tensor([bool(row["safe"])]), *rankings)
