"""Opening a run's database, for writing or for reading, and what to tell the user when that fails."""

import json
import lzma
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from l0tre.errors import StoreError
from l0tre.store.tables import TABLES, RowWriter, StateStamp, create_table, read_meta, read_state, seal_of

__all__ = [
    "DATABASE",
    "FORMAT",
    "Reading",
    "check_rows",
    "connect",
    "guarded",
    "is_sealed",
    "reading",
    "refuse_used",
    "transaction",
]

DATABASE = "run.db"
FORMAT = 6
# Format 5 has no checksums; format 4 besides names three settings without their units; format 3 besides does not say of
# which tree the open nodes of proofs are; format 2 besides has no table of levels, and its images know of no attacks.
READABLE = (2, 3, 4, 5, FORMAT)
WAIT = 10.0  # seconds for another process to end its transaction
UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
UNWRITABLE = ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_NOLFS")


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn what a damaged, foreign, locked or unwritable file raises into one line for the user."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(BUSY):
            raise StoreError(
                f"{path} is locked by another process: wait for it, or end it, and go on (`resume`)"
            ) from error
        if name.startswith(UNWRITABLE):
            raise StoreError(
                f"{path} cannot be written ({error}): all steps recorded before are kept; make room or give the folder "
                "back its permissions, and go on (`resume`)"
            ) from error
        raise _unusable(path, error) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read or written: {error}") from error
    except UNREADABLE as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> StoreError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return StoreError(
        f"{path} cannot be used as a run database ({reason}): restore it from a copy, or start again in another folder "
        "(`out`)"
    )


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open a run's database for writing.

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
        connection = _open(path)
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            if create:
                # Positions inside a level leave room: give it back.
                connection.execute("PRAGMA auto_vacuum = FULL")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                for name in ("meta", *TABLES):
                    connection.execute(create_table(name))
                connection.execute("COMMIT")
            else:
                _check_format(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=WAIT)
    connection.row_factory = sqlite3.Row
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is damaged, unfinished or of a format that is not known."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    check = connection.execute("PRAGMA quick_check").fetchone()[0]
    if check != "ok":
        raise _damaged(path, check)
    if row is None:
        raise StoreError(f"{path} was left before its first step: remove the folder and start again")
    if row["value"] not in map(json.dumps, READABLE):
        known = ", ".join(map(str, READABLE))
        raise StoreError(f"{path} has format {row['value']}, this version reads {known}: use the version that wrote it")
    if is_sealed(connection) != (row["value"] == json.dumps(FORMAT)):  # a format that a damaged digit makes another one
        raise _damaged(path, f"it says format {row['value']}, its tables are of another one")


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"{path} is damaged ({' '.join(reason.split())}): restore it from a copy, or start again in another folder "
        "(`out`)"
    )


def is_sealed(connection: sqlite3.Connection) -> bool:
    """Whether the rows of a database carry checksums."""
    return "digest" in [row["name"] for row in connection.execute("PRAGMA table_info(images)")]


class Reading:
    """A run's database at one moment, its rows checked.

    Attributes:
        connection: Inside a transaction: other processes may go on writing.
        meta: The table ``meta``, texts of JSON by key.
        state: The state of the rows; ``None`` for formats that do not know it.
    """

    def __init__(self, connection: sqlite3.Connection, meta: Mapping[str, str], state: StateStamp | None) -> None:
        self.connection = connection
        self.meta = meta
        self.state = state


@contextmanager
def reading(path: Path, *, rows: bool = True) -> Iterator[Reading]:
    """Read a run's database; works while another process writes, and in a folder that cannot be written.

    Args:
        path: The database file.
        rows: Whether all rows are to be checked, not those of ``meta`` alone.

    Yields:
        What can be read.

    Raises:
        StoreError: If it is missing, damaged, or of another format.
    """
    if not path.is_file():
        raise StoreError(f"{path.parent} is not a run folder: it has no {path.name}; start one with `out`")
    with guarded(path), ExitStack() as stack:
        connection = _readable(path, stack)
        _check_format(connection, path)
        yield check_rows(connection, path, rows=rows)


def check_rows(connection: sqlite3.Connection, path: Path, *, rows: bool = True) -> Reading:
    """Check the rows of a database against their checksums, see :func:`reading`."""
    sealed = is_sealed(connection)
    try:
        meta = read_meta(connection, sealed=sealed)
        state = read_state(connection, meta) if sealed and rows else None
    except StoreError as error:
        raise _damaged(path, str(error)) from error
    return Reading(connection, meta, state)


def _readable(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """A connection inside a read transaction: to the file, or to a copy where SQLite cannot make its own files."""
    connection = stack.enter_context(closing(_open(path)))
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        if not getattr(error, "sqlite_errorname", "").startswith(UNWRITABLE):
            raise
    copies = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="l0tre-")))
    for name in (path.name, f"{path.name}-wal"):
        if path.with_name(name).is_file():
            shutil.copyfile(path.with_name(name), copies / name)
    connection = stack.enter_context(closing(_open(copies / path.name)))
    connection.execute("BEGIN")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path, seal: str | None = None) -> Iterator[RowWriter]:
    """Change rows: all or nothing, also when an exception or a kill comes in between.

    Args:
        connection: For writing, to a database of this format.
        path: Its file, for messages.
        seal: Of a run that is being made; default what it has.

    Yields:
        What changes rows.
    """
    with guarded(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            meta = {row["key"]: row["value"] for row in connection.execute("SELECT * FROM meta")}
            step, digest = json.loads(meta.get("state", '[0, "0"]'))
            writer = RowWriter(connection, seal or seal_of(meta), StateStamp(int(step), int(digest, 16)))
            yield writer
            writer.close()
            connection.execute("COMMIT")
        except BaseException:
            # A full disk may have ended the transaction already.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def refuse_used(folder: Path) -> None:
    """Refuse a folder that no run can begin in: before a model is loaded for it, and when it is made.

    Raises:
        StoreError: If it holds a run or other files, or cannot be read.
    """
    if (folder / DATABASE).exists():
        raise StoreError(f"{folder} holds a run already: continue it (`resume`), or give another `out`")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise StoreError(f"{folder} is not empty: give a new or empty folder as `out`")
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error}") from error
