"""A run folder knows when it was touched: every flip, swap and loss is noticed, and only its owner writes its files."""

import csv
import io
import json
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import l0tre
from l0tre.errors import StoreError
from l0tre.evaluation.exports import export_writes
from l0tre.evaluation.results import HistoryPoint
from l0tre.report import write_report
from l0tre.store import connection as connecting
from l0tre.store import export_run, open_run, read_inputs, read_levels, read_snapshot
from l0tre.store.tables import TABLES
from tests.store.editing import edit, make_old
from tests.tools import NO_ATTACK, SAMPLE_BYTES, plain_network, tiny_module

OPTIONS: dict[str, Any] = {"max_t": 2, "epsilon": 0.5, "memory_bytes": 30 * SAMPLE_BYTES, **NO_ATTACK}


def problem(seed: int = 1) -> tuple[l0tre.Network, torch.Tensor]:
    module, shape = tiny_module("conv1", 11)
    for parameter in module.parameters():
        parameter.data *= 0.35  # distances of two and more
    return plain_network(module, shape), torch.rand(4, *shape, generator=torch.Generator().manual_seed(seed))


def begun(folder: Path, seed: int = 1, steps: int = 5) -> l0tre.Network:
    """A run that was left in the middle of a level, with rows in most tables."""
    network, images = problem(seed)
    for step, _ in enumerate(l0tre.anytime(network, images, out=folder, **OPTIONS), start=1):
        if step == steps:
            break
    return network


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    begun(folder)
    # Rows of the two tables that this run has no use for.
    nothing = io.BytesIO()
    np.savez(nothing)
    front = f"INSERT INTO proofs VALUES (3, 1, '0', '4', 0, x'{nothing.getvalue().hex()}', '', '')"
    edit(folder, "INSERT INTO excluded VALUES (99, 1, 2, '')", front)
    connection = sqlite3.connect(folder / "run.db")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def change(folder: Path, statement: str) -> int:
    """Change rows behind the back of their checksums; gives their number."""
    connection = sqlite3.connect(folder / "run.db")
    count = connection.execute(statement).rowcount
    connection.commit()
    connection.close()
    return count


def refused(folder: Path, words: str = "damaged|impossible") -> None:
    network, _ = problem()
    for use in (read_snapshot, read_levels, lambda place: l0tre.resume(place, network)):
        with pytest.raises(StoreError, match=words) as caught:
            use(folder)
        assert "\n" not in str(caught.value)


COLUMNS = [(table, column) for table in TABLES for column in TABLES[table].columns]


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_every_changed_value_is_noticed(table: str, column: str, run: Path) -> None:
    kind = TABLES[table].columns[column]
    other = {"INTEGER": '"{0}" + 100', "REAL": '"{0}" + 0.5', "TEXT": "'7' || \"{0}\"", "BLOB": "x'00'"}[kind]
    assert change(run, f'UPDATE {table} SET "{column}" = {other.format(column)}') > 0
    refused(run)


@pytest.mark.parametrize("key", ["config", "created", "inputs", "seconds", "finished", "owner", "state"])
def test_every_changed_entry_is_noticed(key: str, run: Path) -> None:
    digit = "CASE substr(value, -2, 1) WHEN '7' THEN '3' ELSE '7' END"
    changed = f"replace(value, substr(value, -2, 1), {digit})"
    assert change(run, f"UPDATE meta SET value = {changed} WHERE key = '{key}'") == 1
    refused(run)


@pytest.mark.parametrize("table", ["images", "witnesses", "levels", "history"])
def test_lost_and_doubled_rows_are_noticed(table: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "other")
    assert change(run, f"DELETE FROM {table} WHERE rowid = (SELECT max(rowid) FROM {table})") == 1
    refused(run)
    number = {"images": "place", "witnesses": "id", "history": "id", "levels": "t"}[table]
    rest = ", ".join(f'"{column}"' for column in (*TABLES[table].columns, "digest") if column != number)
    doubled = f"INSERT INTO {table} ({number}, {rest}) SELECT {number} + 50, {rest} FROM {table} LIMIT 1"
    assert change(tmp_path / "other", doubled) == 1
    refused(tmp_path / "other")


def test_rows_of_an_older_state_are_noticed(original: Path, run: Path) -> None:
    """Their own checksums fit."""
    network, _ = problem()
    l0tre.resume(run, network)
    connection = sqlite3.connect(run / "run.db")
    connection.execute("ATTACH ? AS older", (str(original / "run.db"),))
    connection.execute("REPLACE INTO images SELECT * FROM older.images WHERE place = 0")
    connection.commit()
    connection.close()
    refused(run)


def test_bits_that_flip_in_the_file_change_nothing_in_silence(original: Path, tmp_path: Path) -> None:
    wanted = read_snapshot(original).to_dict()
    whole = (original / "run.db").read_bytes()
    chance, noticed = random.Random(0), 0
    for number in range(80):
        folder = tmp_path / str(number)
        folder.mkdir()
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (folder / "run.db").write_bytes(content)
        try:
            assert read_snapshot(folder).to_dict() == wanted
        except StoreError:
            noticed += 1
    assert noticed > 5


def test_an_older_format_is_not_claimed_by_a_damaged_digit(run: Path) -> None:
    assert change(run, "UPDATE meta SET value = '4' WHERE key = 'format'") == 1
    refused(run)


def test_other_inputs_are_refused(run: Path, tmp_path: Path) -> None:
    begun(tmp_path / "other", seed=2)
    shutil.copyfile(tmp_path / "other" / "inputs.npz", run / "inputs.npz")
    network, _ = problem()
    with pytest.raises(StoreError, match="not the file that the run began with"):
        l0tre.resume(run, network)
    with pytest.raises(StoreError, match="not the file that the run began with"):
        read_inputs(run)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE images SET lower = upper",
        "UPDATE images SET lower = -1",
        "UPDATE images SET upper = upper - 1 WHERE upper > lower + 1",
        "UPDATE images SET groups = 1",
        "UPDATE images SET guarantee = 'absolute'",
        "DELETE FROM witnesses",
        'UPDATE images SET "index" = 0',
        "UPDATE images SET place = place + 1 WHERE place = (SELECT max(place) FROM images)",
    ],
)
def test_impossible_states_are_refused_whatever_their_checksums(statement: str, run: Path) -> None:
    edit(run, statement)
    refused(run, "impossible|not numbered|twice")


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_older_formats_are_read_and_sealed_when_resumed(number: int, run: Path) -> None:
    network, images = problem()
    before = read_snapshot(run)
    make_old(run, number)
    assert [(i.lower, i.upper) for i in read_snapshot(run)] == [(i.lower, i.upper) for i in before]
    whole = l0tre.evaluate(network, images, **OPTIONS)
    assert [(i.lower, i.upper) for i in l0tre.resume(run, network)] == [(i.lower, i.upper) for i in whole]
    assert read_snapshot(run).state
    assert change(run, "UPDATE images SET lower = lower + 1 WHERE place = 0") == 1
    refused(run)


def exports(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("run.db")}


@pytest.mark.parametrize("how", ["goes on", "ends"])
def test_a_process_that_lost_its_run_writes_no_files(how: str, tmp_path: Path) -> None:
    """As one that was stopped, and woken when another one had taken over."""
    network, images = problem()
    first = l0tre.anytime(network, images, out=tmp_path / "run", **OPTIONS)
    next(first)
    assert l0tre.resume(tmp_path / "run", network).finished
    written = exports(tmp_path / "run")
    with pytest.raises(StoreError, match="another process has taken over"):
        next(first) if how == "goes on" else first.close()  # type: ignore[attr-defined]
    assert exports(tmp_path / "run") == written
    assert json.loads(written["result.json"])["global"]["finished"]


def test_files_are_not_replaced_by_those_of_an_older_state(run: Path) -> None:
    network, _ = problem()
    older, inputs = read_snapshot(run), read_inputs(run)
    l0tre.resume(run, network)
    written = exports(run)
    with pytest.raises(StoreError, match="went on meanwhile"):
        export_run(run, export_writes(run, older, inputs.images, inputs.indices), older)
    assert exports(run) == written
    latest = read_snapshot(run)
    export_run(run, export_writes(run, latest, inputs.images, inputs.indices), latest)
    again, stored = (json.loads(files["result.json"]) for files in (exports(run), written))
    assert (again["state"], again["images"]) == (stored["state"], stored["images"])


def test_exports_name_the_state_that_they_were_made_from(run: Path) -> None:
    network, _ = problem()
    before = read_snapshot(run).state
    result = l0tre.resume(run, network)
    stored = json.loads((run / "result.json").read_text())
    with (run / "bounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    with np.load(run / "witnesses.npz") as arrays:
        held = str(arrays["state"])
    assert {stored["state"], held, result.state, *(row["state"] for row in rows)} == {read_snapshot(run).state}
    assert result.state not in ("", before)
    assert result.state in write_report(run).read_text()


def test_a_full_disk_is_one_line_and_loses_nothing(run: Path) -> None:
    network, _ = problem()
    opened = open_run(run)
    state = opened.load_state()
    before = read_snapshot(run).to_dict()
    (pages,) = opened.connection.execute("PRAGMA page_count").fetchone()
    opened.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="cannot be written") as caught:  # noqa: PT012  # some steps fit
        for _ in range(200):
            opened.record(state, [], HistoryPoint(1.0, 1, 0.0, 1.0))
            before = read_snapshot(run).to_dict()
    assert "\n" not in str(caught.value)
    opened.close()
    assert read_snapshot(run).to_dict() == before
    assert l0tre.resume(run, network).finished


def test_a_locked_database_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "WAIT", 0.05)
    other = sqlite3.connect(run / "run.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another process"):
        open_run(run)
    assert len(read_snapshot(run)) == 4  # readers are not kept out
    other.execute("ROLLBACK")
    other.close()
    open_run(run).close()


def test_a_run_that_cannot_be_begun_leaves_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = problem()
    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(StoreError, match="No space left"):
        l0tre.evaluate(network, images, out=tmp_path / "run", **OPTIONS)
    assert list((tmp_path / "run").iterdir()) == []
    monkeypatch.undo()
    assert l0tre.evaluate(network, images, out=tmp_path / "run", **OPTIONS).finished


def full(file: Any, **_: Any) -> None:
    file.write(b"PK")
    raise OSError(28, "No space left on device")
