"""Databases of older formats."""

import json
import sqlite3
from pathlib import Path

from l0tre.store.connection import FORMAT, guarded
from l0tre.store.rows import LATEST, has_levels
from l0tre.store.tables import TABLES, RowWriter, StateStamp, create_table, file_digest, seal_of

__all__ = ["upgrade"]


def upgrade(connection: sqlite3.Connection, inputs: Path, path: Path) -> None:
    """Bring a database of an older format to this one.

    Of the levels that are over in format 2, only the latest of each image is known. The trees of proofs in formats 2
    and 3 are not: such proofs begin their level anew. From now on what the rows hold is what they must hold.

    Args:
        connection: For writing.
        inputs: The file of the run's inputs.
        path: The database, for messages.

    Raises:
        StoreError: If that fails; the database is then as it was.
    """
    with guarded(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not has_levels(connection):
                connection.execute(create_table("levels"))
                connection.execute(f"INSERT INTO levels SELECT *, '' FROM ({LATEST})")
            _add_column(connection, "images", "attacked", "INTEGER NOT NULL DEFAULT 0")
            _add_column(connection, "proofs", "tree", "TEXT NOT NULL DEFAULT ''")
            for name in ("meta", *TABLES):
                _add_column(connection, name, "digest", "TEXT NOT NULL DEFAULT ''")
            meta = {row["key"]: row["value"] for row in connection.execute("SELECT * FROM meta")}
            meta["inputs"] = json.dumps(file_digest(inputs))
            writer = RowWriter(connection, seal_of(meta), StateStamp(0, 0))
            writer.set("inputs", json.loads(meta["inputs"]))
            writer.set("format", FORMAT)
            writer.seal_rows()
            writer.close()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _add_column(connection: sqlite3.Connection, table: str, name: str, kind: str) -> None:
    if name not in [row["name"] for row in connection.execute(f"PRAGMA table_info({table})")]:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
