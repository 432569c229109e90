"""The tables of a run: their columns, and rows that carry a checksum over their content and the run's configuration.

The checksums are about damage, not about forgers: whoever writes a row can write its checksum, too.

The *seal* of a run is the digest of what never changes in it: its configuration and its inputs. The digest of a row
covers the seal, the table and all columns, so that a row of another run or another place does not fit. The digests of
all rows added up are the state of the run, which is stored beside them: a row that is lost, doubled or of an older
state changes the sum.
"""

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from l0tre.errors import StoreError

__all__ = [
    "COUNTERS",
    "TABLES",
    "RowWriter",
    "StateStamp",
    "create_table",
    "file_digest",
    "read_meta",
    "read_state",
    "seal_of",
]

Row = Mapping[str, Any]
DIGITS = 32  # hexadecimal ones of a row's digest
MODULUS = 16**DIGITS
SHOWN = 16  # hexadecimal digits of a state's digest, in files


class Table(NamedTuple):
    """A table without the column ``digest``: its columns with their kinds, and which of them name a row."""

    columns: Mapping[str, str]
    key: tuple[str, ...]


_IMAGE = {"place": "INTEGER", "index": "INTEGER", "label": "INTEGER", "groups": "INTEGER"}
_BOUNDS = {"lower": "INTEGER", "upper": "INTEGER"}
_WORK = {"blocked": "INTEGER", "seconds": "REAL", "queries": "INTEGER"}
_EVENT = {"id": "INTEGER", "place": "INTEGER", "at": "TEXT"}
TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "images": Table(
            {**_IMAGE, **_BOUNDS, "guarantee": "TEXT", "level": "INTEGER", **_WORK, "attacked": "INTEGER"}, ("place",)
        ),
        "excluded": Table({"index": "INTEGER", "label": "INTEGER", "predicted": "INTEGER"}, ("index",)),
        "bounds": Table({**_EVENT, "seconds": "REAL", "t": "INTEGER", **_BOUNDS}, ("id",)),
        "history": Table(
            {"id": "INTEGER", "at": "TEXT", "seconds": "REAL", "t": "INTEGER", "lower": "REAL", "upper": "REAL"},
            ("id",),
        ),
        "witnesses": Table(
            {
                **_EVENT,
                "distance": "INTEGER",
                "label": "INTEGER",
                "margin": "REAL",
                "level": "INTEGER",
                "groups": "TEXT",
                "changes": "TEXT",
            },
            ("id",),
        ),
        "levels": Table({"place": "INTEGER", "t": "INTEGER", **_BOUNDS, **_WORK}, ("place", "t")),
        "partials": Table(
            {"place": "INTEGER", "t": "INTEGER", "position": "INTEGER", "safe": "INTEGER", "rankings": "BLOB"},
            ("place",),
        ),
        "proofs": Table(
            {
                "place": "INTEGER",
                "t": "INTEGER",
                "proved": "TEXT",
                "total": "TEXT",
                "nodes": "INTEGER",
                "fronts": "BLOB",
                "tree": "TEXT",
            },
            ("place",),
        ),
    }
)
META = Table({"key": "TEXT", "value": "TEXT"}, ("key",))
COUNTERS = ("bounds", "history", "witnesses")  # tables whose rows are numbered as they come
SEALED = ("config", "created", "inputs")  # entries of meta that no step changes
KINDS = {"INTEGER": int, "REAL": float, "TEXT": str, "BLOB": bytes}


@dataclass(frozen=True)
class StateStamp:
    """Which state of a run this is.

    Attributes:
        step: Number of recorded steps.
        digest: Sum of the digests of all rows.
    """

    step: int
    digest: int

    @property
    def name(self) -> str:
        """As exports give it."""
        return f"{self.step}-{self.digest:0{DIGITS}x}"[: len(str(self.step)) + 1 + SHOWN]


def create_table(name: str) -> str:
    """The statement that makes a table (of :data:`TABLES`, or ``meta``)."""
    table = _table(name)
    columns = [f'"{column}" {kind} NOT NULL' for column, kind in table.columns.items()]
    key = ", ".join(f'"{column}"' for column in table.key)
    single = table.key == (next(iter(table.columns)),) and table.columns[key.strip('"')] == "INTEGER"
    if single:  # SQLite's own row number
        columns[0] = f"{key} INTEGER PRIMARY KEY"
    rest = [] if single else [f"PRIMARY KEY ({key})"]
    return f"CREATE TABLE {name} ({', '.join([*columns, 'digest TEXT NOT NULL', *rest])})"


def _table(name: str) -> Table:
    return META if name == "meta" else TABLES[name]


def seal_of(meta: Mapping[str, str]) -> str:
    """The digest of what no step of a run changes, from the texts of its table ``meta``."""
    return hashlib.sha256(json.dumps([meta.get(key, "") for key in SEALED]).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(seal: str, name: str, row: Row) -> str:
    values = [row[column] for column in _table(name).columns]
    # What is long is hashed by itself, so that no copy of it in other digits is made.
    plain = [hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value for value in values]
    return hashlib.sha256(json.dumps([seal, name, *plain]).encode()).hexdigest()[:DIGITS]


class RowWriter:
    """Changes rows inside a transaction, keeping digests and their sum."""

    def __init__(self, connection: sqlite3.Connection, seal: str, state: StateStamp) -> None:
        self.connection = connection
        self.seal = seal
        self.state = state

    def put(self, name: str, row: Row) -> None:
        """Insert a row, or replace the one of the same key.

        Args:
            name: The table.
            row: All its columns but the digest; rows of :data:`COUNTERS` without their number.
        """
        table = _table(name)
        if name in COUNTERS:
            (last,) = self.connection.execute(f"SELECT coalesce(max(id), 0) FROM {name}").fetchone()
            row = {"id": last + 1, **row}
        # As SQLite will give it back.
        values = {column: KINDS[kind](row[column]) for column, kind in table.columns.items()}
        digest = _digest(self.seal, name, values)
        before = 0 if name in COUNTERS else self._digest_of(name, values)
        names = ", ".join(f'"{column}"' for column in (*values, "digest"))
        marks = ", ".join("?" * (len(values) + 1))
        self.connection.execute(f"INSERT OR REPLACE INTO {name} ({names}) VALUES ({marks})", (*values.values(), digest))
        if name != "meta":
            self._add(int(digest, 16) - before)

    def drop(self, name: str, key: Row) -> None:
        """Delete the row of a key, if there is one."""
        before = self._digest_of(name, key)
        self.connection.execute(f"DELETE FROM {name} WHERE {_where(name)}", _key(name, key))
        self._add(-before)

    def set(self, key: str, value: object) -> None:
        """Set an entry of ``meta``, as JSON."""
        self.put("meta", {"key": key, "value": json.dumps(value)})

    def set_sealed(self, key: str, value: object) -> None:
        """Set an entry of ``meta`` that the seal is about: every row gets another digest, so check them all before."""
        self.set(key, value)
        meta = {row["key"]: row["value"] for row in self.connection.execute("SELECT * FROM meta")}
        self.seal = seal_of(meta)
        self.seal_rows()

    def step(self) -> None:
        """Count a recorded step."""
        self.state = StateStamp(self.state.step + 1, self.state.digest)

    def close(self) -> None:
        """Store the state that the rows now have."""
        self.set("state", [self.state.step, f"{self.state.digest:x}"])

    def seal_rows(self) -> None:
        """Give every row the digest that fits it as it is, for rows that were written without or under another seal."""
        self.state = StateStamp(self.state.step, 0)
        for name in ("meta", *TABLES):
            for row in self.connection.execute(f"SELECT rowid AS number, * FROM {name}").fetchall():
                digest = _digest(self.seal, name, row)
                self.connection.execute(f"UPDATE {name} SET digest = ? WHERE rowid = ?", (digest, row["number"]))
                if name != "meta":
                    self._add(int(digest, 16))

    def _digest_of(self, name: str, key: Row) -> int:
        found = self.connection.execute(f"SELECT digest FROM {name} WHERE {_where(name)}", _key(name, key)).fetchone()
        return 0 if found is None else int(found["digest"] or "0", 16)

    def _add(self, difference: int) -> None:
        self.state = StateStamp(self.state.step, (self.state.digest + difference) % MODULUS)


def _where(name: str) -> str:
    return " AND ".join(f'"{column}" = ?' for column in _table(name).key)


def _key(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[column] for column in _table(name).key)


def read_meta(connection: sqlite3.Connection, *, sealed: bool) -> dict[str, str]:
    """The table ``meta``.

    Args:
        connection: To the database.
        sealed: Whether its rows carry digests, which are then checked.

    Returns:
        Texts of JSON by key.

    Raises:
        StoreError: If a row is not as it was written.
    """
    rows = connection.execute("SELECT * FROM meta").fetchall()
    meta = {row["key"]: row["value"] for row in rows}
    if sealed:
        seal = seal_of(meta)
        wrong = next((row["key"] for row in rows if row["digest"] != _digest(seal, "meta", row)), None)
        if wrong is not None:
            raise StoreError(f"its entry {wrong!r} is not as it was written")
    return meta


def read_state(connection: sqlite3.Connection, meta: Mapping[str, str]) -> StateStamp:
    """Check every row of a run against its digest, and their sum against the stored state.

    Args:
        connection: To the database, inside a transaction.
        meta: As :func:`read_meta` gives it.

    Returns:
        The state.

    Raises:
        StoreError: If a row is not as it was written, or rows are missing or too many.
    """
    seal, total = seal_of(meta), 0
    for name, table in TABLES.items():
        for row in connection.execute(f"SELECT * FROM {name}"):
            digest = _digest(seal, name, row)
            if row["digest"] != digest:
                place = ", ".join(f"{column} {row[column]}" for column in table.key)
                raise StoreError(f"the row of its table {name} with {place} is not as it was written")
            total = (total + int(digest, 16)) % MODULUS
    step, stored = json.loads(meta["state"])
    if total != int(stored, 16):
        raise StoreError("rows are missing, or older than the rest")
    return StateStamp(int(step), total)
