"""Run databases as older versions left them, and edited ones whose checksums fit: as if they had been written so."""

import json
import sqlite3
from pathlib import Path

from l0tre.store.connection import connect, transaction
from l0tre.store.tables import TABLES


def make_old(folder: Path, number: int) -> None:
    """Turn a run into one of an older format: without checksums, and without what came later."""
    with sqlite3.connect(folder / "run.db") as connection:
        for name in ("meta", *TABLES):
            connection.execute(f"ALTER TABLE {name} DROP COLUMN digest")
        connection.execute("DELETE FROM meta WHERE key IN ('inputs', 'state', 'exported')")
        connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (json.dumps(number),))
        if number < 3:
            connection.execute("DROP TABLE levels")
            connection.execute("ALTER TABLE images DROP COLUMN attacked")
        if number < 4:
            connection.execute("ALTER TABLE proofs DROP COLUMN tree")
    connection.close()


def edit(folder: Path, *statements: str) -> None:
    """Change rows and give all of them the checksums that fit."""
    connection = connect(folder / "run.db")
    for statement in statements:
        connection.execute(statement)
    with transaction(connection, folder / "run.db") as writer:
        writer.seal_rows()
    connection.close()
