"""Run folders: what is recorded comes back, whenever the process ends."""

import csv
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import l0tre
from l0tre.errors import StoreError
from l0tre.evaluation.results import Snapshot
from l0tre.store import open_run, read_inputs, read_snapshot
from l0tre.store.connection import connect
from l0tre.tuning import Tuning
from tests.tools import SAMPLE_BYTES, plain_network, tiny_module

TUNING = Tuning(grace_seconds=600.0)
# Few queries of attacks, and no step of one that a clock cuts short: what is tested is what is kept.
OPTIONS: dict[str, Any] = {
    "max_t": 3,
    "epsilon": 0.5,
    "memory_bytes": 30 * SAMPLE_BYTES,
    "attack_queries": 40,
    "tuning": TUNING,
}


def _problem() -> tuple[l0tre.Network, torch.Tensor]:
    module, shape = tiny_module("conv1", 11)
    for parameter in module.parameters():
        parameter.data *= 0.35  # distances of two and more
    torch.manual_seed(1)
    return plain_network(module, shape), torch.rand(6, *shape)


def _essence(result: Snapshot) -> list[object]:
    """All that must not depend on interruptions: bounds, witnesses, queries (no finished chunk is repeated)."""
    return [{key: value for key, value in image.to_dict().items() if key != "seconds"} for image in result.images] + [
        # A level that begins is noted too, but when it changes nothing only if a step ends there.
        list(dict.fromkeys((p.lower, p.upper) for p in result.history)),
        result.finished,
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Snapshot]:
    """A run that ended, for reading only, and what it found."""
    network, images = _problem()
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, l0tre.evaluate(network, images, out=folder, **OPTIONS)


@pytest.fixture
def copied(finished: tuple[Path, Snapshot], tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


@pytest.mark.slow
def test_stopping_after_any_step_and_resuming_changes_nothing(tmp_path: Path) -> None:
    network, images = _problem()
    options = {**OPTIONS, "tuning": replace(TUNING, record_seconds=0.0)}
    whole = list(l0tre.anytime(network, images, out=tmp_path / "whole", **options))
    assert len(whole) > 20
    for steps in (1, 2, 5, len(whole) // 2, len(whole) - 2):
        folder = tmp_path / f"after{steps}"
        for step, _ in enumerate(l0tre.anytime(network, images, out=folder, **options), start=1):
            if step == steps:
                break
        result = l0tre.resume(folder, network)
        assert _essence(result) == _essence(whole[-1])
        assert _essence(read_snapshot(folder)) == _essence(whole[-1])


@pytest.mark.slow
def test_one_step_at_a_time_is_the_same_too(tmp_path: Path) -> None:
    """Every session keeps a step, nothing is counted twice, and the history does not depend on the clock."""
    network, images = _problem()
    whole = l0tre.evaluate(network, images, **{**OPTIONS, "tuning": replace(TUNING, record_seconds=float("inf"))})
    result = l0tre.evaluate(network, images, out=tmp_path / "run", time_budget=0.0, **OPTIONS)
    sessions = 1
    while not result.finished:
        result, sessions = l0tre.resume(tmp_path / "run", network, time_budget=0.0, tuning=TUNING), sessions + 1
        assert sessions < 200
    assert sessions > 40
    assert _essence(result) == _essence(whole)
    assert _essence(l0tre.resume(tmp_path / "run", network)) == _essence(whole)  # finished: nothing left to do


KILLED = """
import sys, torch, l0tre
from tests.store.test_run import OPTIONS, _problem
network, images = _problem()
for step, snapshot in enumerate(l0tre.anytime(network, images, out=sys.argv[1], **OPTIONS)):
    print(step, flush=True)
"""


@pytest.mark.slow
def test_kill_9_leaves_a_run_that_ends_the_same(finished: tuple[Path, Snapshot], tmp_path: Path) -> None:
    network, _ = _problem()
    whole = finished[1]
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 7:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    part = read_snapshot(folder)
    assert not part.finished
    assert part.queries > 0
    assert _essence(l0tre.resume(folder, network)) == _essence(whole)


def test_stored_witnesses_replay(finished: tuple[Path, Snapshot]) -> None:
    network, images = _problem()
    stored = read_snapshot(finished[0])
    shown = 0
    for image in stored.images:
        if image.witness is None:
            continue
        shown += 1
        scores = network.replay(image.witness.apply(images[image.index]))
        assert int(scores.argmax()) == image.witness.label != image.label
        assert image.witness.distance == image.upper
    assert shown > 0


def test_exports_agree_with_the_database(finished: tuple[Path, Snapshot]) -> None:
    network, _ = _problem()
    folder, result = finished
    exported = json.loads((folder / "result.json").read_text())
    assert exported == json.loads(json.dumps(read_snapshot(folder).to_dict()))
    assert exported["global"]["lower"] == result.lower
    assert {"lower", "upper", "estimate", "uncertainty", "images", "converged", "excluded"} <= set(exported["global"])
    keys = {"index", "label", "lower", "upper", "converged", "guarantee", "seconds", "queries"}
    assert all(keys <= set(image) for image in exported["images"])
    assert all({"seconds", "t", "lower", "upper"} == set(point) for point in exported["history"])
    with (folder / "bounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["lower"]), int(row["upper"])) for row in rows] == [(i.lower, i.upper) for i in result.images]
    with np.load(folder / "witnesses.npz", allow_pickle=False) as file:
        differ = (file["original"] != file["adversarial"]).reshape(len(file["index"]), -1).sum(1)
        assert differ.tolist() == file["distance"].tolist()
        scores = network.scores(torch.from_numpy(file["adversarial"]))
        assert scores.argmax(1).tolist() == file["adversarial_label"].tolist()


def test_the_history_of_every_image_has_times(finished: tuple[Path, Snapshot]) -> None:
    folder, result = finished
    connection = sqlite3.connect(folder / "run.db")
    rows = connection.execute("SELECT place, at, seconds, lower, upper FROM bounds ORDER BY id").fetchall()
    connection.close()
    assert all(time.strptime(row[1][:19], "%Y-%m-%dT%H:%M:%S") for row in rows)
    last = {row[0]: row[3:] for row in rows}
    assert [last[place] for place in range(len(result.images))] == [(i.lower, i.upper) for i in result.images]


def test_what_only_a_level_needs_leaves_the_disk(tmp_path: Path) -> None:
    connection = connect(tmp_path / "run.db", create=True)
    empty = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute("INSERT INTO partials VALUES (0, 2, 7, 1, ?, '')", (bytes(1_000_000),))
    assert connection.execute("PRAGMA page_count").fetchone()[0] > empty + 200
    connection.execute("DELETE FROM partials")
    assert connection.execute("PRAGMA page_count").fetchone()[0] <= empty + 2  # SQLite's own map of pages may stay
    connection.close()


def test_the_inputs_come_back(tmp_path: Path) -> None:
    network, images = _problem()
    domain = l0tre.make_domain(network.input_shape, mask=torch.rand(network.input_shape[1:]) > 0.3)
    l0tre.evaluate(network, images, out=tmp_path / "run", domain=domain, max_t=1, attack_queries=0)
    inputs = read_inputs(tmp_path / "run")
    assert torch.equal(inputs.images, images)
    assert torch.equal(inputs.domain.members, domain.members)
    assert inputs.domain.unit == "pixel"


def test_a_second_writer_takes_the_run_over(tmp_path: Path) -> None:
    network, images = _problem()
    first = l0tre.anytime(network, images, out=tmp_path / "run", **OPTIONS)
    next(first)
    second = open_run(tmp_path / "run")
    with pytest.raises(StoreError, match="another process has taken over"):
        for _ in first:
            pass
    second.close()
    assert l0tre.resume(tmp_path / "run", network).finished


def test_a_run_is_never_overwritten(copied: Path, tmp_path: Path) -> None:
    network, images = _problem()
    before = (copied / "result.json").read_bytes()
    with pytest.raises(StoreError, match="holds a run already"):
        l0tre.evaluate(network, images, out=copied, **OPTIONS)
    assert (copied / "result.json").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    with pytest.raises(StoreError, match="not empty"):
        l0tre.evaluate(network, images, out=tmp_path / "other", **OPTIONS)


def test_another_network_cannot_resume(tmp_path: Path) -> None:
    network, images = _problem()
    l0tre.evaluate(network, images, out=tmp_path / "run", time_budget=0.0, **OPTIONS)
    module, _ = tiny_module("conv1", 11)
    with pytest.raises(StoreError, match="not the one"):
        l0tre.resume(tmp_path / "run", module)
    with pytest.raises(StoreError, match="pass the network"):
        l0tre.resume(tmp_path / "run")


@pytest.mark.parametrize("damage", ["random", "truncated", "foreign", "missing", "empty"])
def test_a_damaged_database_is_one_clear_error(copied: Path, damage: str) -> None:
    network, _ = _problem()
    folder = copied
    path = folder / "run.db"
    content = path.read_bytes()
    path.unlink()
    for rest in folder.glob("run.db-*"):
        rest.unlink()
    if damage == "random":
        path.write_bytes(b"nothing like a database" * 500)
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "foreign":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE meta (key, value)")
        connection.close()
    elif damage == "empty":
        path.touch()
    with pytest.raises(StoreError) as shown:
        read_snapshot(folder)
    with pytest.raises(StoreError) as resumed:
        l0tre.resume(folder, network)
    assert "\n" not in str(shown.value) + str(resumed.value)
