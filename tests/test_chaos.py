"""A short version of ``make chaos``, and that it notices what it is for."""

import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.cases import CASES, Subject, flip, make_subject, run_case
from l0tre.store import tables

SEED = 6  # of a case that loses each of them


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return make_subject(tmp_path_factory.mktemp("chaos"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_accidents_break_no_run(kind: str, subject: Subject, tmp_path: Path) -> None:
    assert [run_case(kind, seed, subject, tmp_path) for seed in range(3)] == [[]] * 3
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.xdist_group("cluster")
def test_a_run_outlives_a_worker_a_machine_and_its_driver() -> None:
    """In a process of its own: Ray keeps the first token that a process used, and other tests have theirs."""
    command = [sys.executable, "-m", "chaos", "--only", "cluster", "--cases", "1", "--seed", str(SEED)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert "chaos: 0 of 1 cases broken" in done.stdout, done.stdout + done.stderr


def test_it_notices_a_store_without_checksums(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_digest", lambda *_: "0" * 32)
    run = Path(shutil.copytree(subject.folder, tmp_path / "run"))
    connection = sqlite3.connect(run / "run.db")
    for name in ("meta", *tables.TABLES):
        connection.execute(f"UPDATE {name} SET digest = ?", ("0" * 32,))
    connection.execute("UPDATE meta SET value = json_set(value, '$[1]', '0') WHERE key = 'state'")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    wrong = []
    for seed in range(6):
        copy = Path(shutil.copytree(run, tmp_path / str(seed)))
        wrong += flip(subject, copy, random.Random(seed))
    assert "a flipped bit changed what the run says" in wrong
