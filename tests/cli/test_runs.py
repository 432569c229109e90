"""Going on with runs, and run folders that are damaged, foreign or belong to another network."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.running import FEW, Files, Result, check_error, contents, l0tre, make_files, save_classifier
from tests.store.editing import edit


def shown(folder: Path) -> dict[str, Any]:
    result = l0tre("show", folder, "--json")
    assert result.code == 0, result
    answer: dict[str, Any] = json.loads(result.out)
    return answer


def essence(answer: dict[str, Any]) -> list[Any]:
    """All that does not depend on the clock."""
    return [{**image, "seconds": 0} for image in answer["images"]]


def everything(folder: Path) -> list[Result]:
    return [l0tre("show", folder), l0tre("evaluate", folder, "--resume"), l0tre("report", folder)]


def test_a_run_goes_on_to_the_bounds_of_one_that_was_never_stopped(files: Files, run: Path) -> None:
    stopped = shown(run)
    assert stopped["global"]["finished"] is False
    assert "stopped before the end" in l0tre("show", run).out
    result = l0tre("evaluate", run, "--resume", "--json")
    assert (result.code, result.err) == (0, "")
    whole = json.loads(l0tre("evaluate", files.model, files.data, "--guarantee", "grid", "--json", *FEW).out)
    assert essence(json.loads(result.out)) == essence(shown(run)) == essence(whole)
    assert json.loads((run / "result.json").read_text())["global"]["finished"] is True
    assert shown(run)["global"]["queries"] > stopped["global"]["queries"]


def test_many_short_sessions_add_up(files: Files, run: Path) -> None:
    sessions = 0
    while not shown(run)["global"]["finished"]:
        assert l0tre("evaluate", run, "--resume", "--time-budget", "0", "--quiet").code == 0
        sessions += 1
        assert sessions < 100
    assert sessions > 1
    whole = json.loads(l0tre("evaluate", files.model, files.data, "--guarantee", "grid", "--json", *FEW).out)
    assert essence(shown(run)) == essence(whole)


@pytest.mark.slow
def test_proofs_of_many_short_sessions_add_up(files: Files, tmp_path: Path) -> None:
    run, sessions = tmp_path / "proofs", 0
    words = ("--guarantee", "certified", "--max-t", "3", *FEW)
    assert l0tre("evaluate", files.model, files.data, *words, "--out", run, "--time-budget", "0", "-q").code == 0
    bounds = [(0, 100)] * 6
    while not shown(run)["global"]["finished"]:
        assert l0tre("evaluate", run, "--resume", "--time-budget", "0", "--quiet").code == 0
        now = [(image["lower"], image["upper"]) for image in shown(run)["images"]]
        assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(bounds, now, strict=True))
        bounds, sessions = now, sessions + 1
        assert sessions < 200
    assert sessions > 2
    whole = json.loads(l0tre("evaluate", files.model, files.data, *words, "--json").out)
    assert bounds == [(image["lower"], image["upper"]) for image in whole["images"]]


def test_going_on_with_a_finished_run_changes_nothing(run: Path) -> None:
    assert l0tre("evaluate", run, "--resume", "--quiet").code == 0
    before = shown(run)
    result = l0tre("evaluate", run, "--resume")
    assert (result.code, result.err) == (0, "")
    assert essence(shown(run)) == essence(before)
    assert shown(run)["history"] == before["history"]


def test_a_run_goes_on_from_another_folder(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    save_classifier(tmp_path / "here" / "net.onnx")
    (tmp_path / "here" / "net.py").write_text("def f(x):\n    return x.flatten(1)[:, :3]\n")
    np.savez(tmp_path / "here" / "images.npz", x=files.images)
    monkeypatch.chdir(tmp_path / "here")
    for model, out in (("net.onnx", "a"), ("net.py:f", "b")):
        assert l0tre("evaluate", model, "images.npz", "--out", f"../{out}", "--time-budget", "0", "-q", *FEW).code == 0
    monkeypatch.chdir(tmp_path / "there")
    for out, words in (("a", []), ("b", ["--model", "../here/net.py:f"])):
        assert l0tre("evaluate", f"../{out}", "--resume", "-q", *words).code == 0
        assert shown(tmp_path / out)["global"]["finished"] is True


@pytest.mark.parametrize("option", ["--epsilon=0.5", "--limit=2", "--mean=0.5", "--out=x", "--shuffle"])
def test_options_that_would_change_a_run_are_refused(run: Path, option: str) -> None:
    before = contents(run)
    check_error(l0tre("evaluate", run, "--resume", option), option.partition("=")[0], "--resume")
    check_error(l0tre("evaluate", run, "data.npz", "--resume"), "DATA", "--resume")
    assert contents(run) == before


def test_a_new_run_never_overwrites_another(files: Files, run: Path) -> None:
    before = contents(run)
    check_error(l0tre("evaluate", files.model, files.data, "--out", run), "holds a run already", "--resume")
    assert contents(run) == before


@pytest.mark.parametrize("kind", ["changed", "missing", "other normalisation"])
def test_a_run_does_not_go_on_with_another_network(tmp_path: Path, kind: str) -> None:
    files = make_files(tmp_path)
    out = tmp_path / "run"
    assert l0tre("evaluate", files.model, files.data, "--out", out, "--time-budget", "0", "-q", *FEW).code == 0
    if kind == "changed":
        save_classifier(Path(files.model), seed=1)
    elif kind == "missing":
        Path(files.model).unlink()
    else:
        edit(out, "UPDATE meta SET value = json_set(value, '$.model.std', json('[2.0]')) WHERE key = 'config'")
    before = shown(out)
    word = "there is no file" if kind == "missing" else "operations differ"
    check_error(l0tre("evaluate", out, "--resume"), word, "tiny.onnx")
    assert shown(out) == before


def test_a_run_does_not_go_on_with_an_edited_function(files: Files, tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", x=files.images)
    model = tmp_path / "net.py"
    model.write_text("def f(x):\n    return x.flatten(1)[:, :3]\n")
    place = f"{model}:f"
    words = ("--out", tmp_path / "run", "--time-budget", "0", "-q")
    assert l0tre("evaluate", place, tmp_path / "images.npz", *words).code == 0
    model.write_text("def f(x):\n    return x.flatten(1)[:, 3:6] * 2  # other weights\n")
    check_error(l0tre("evaluate", tmp_path / "run", "--resume", "--model", place), "net.py:f", "began with")


@pytest.mark.parametrize("kind", ["missing", "empty", "not a run", "file"])
def test_what_is_not_a_run_folder(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    if kind == "file":
        folder.write_text("hello")
    elif kind != "missing":
        folder.mkdir()
    if kind == "not a run":
        (folder / "notes.txt").write_text("hello")
    before = contents(tmp_path)
    for result in everything(folder):
        check_error(result, str(folder), "not a run folder")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["cut", "random", "foreign", "empty", "newer"])
def test_a_damaged_or_foreign_database(run: Path, kind: str) -> None:
    database = run / "run.db"
    whole = database.read_bytes()
    if kind == "newer":
        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
        connection.close()
    else:
        for path in run.glob("run.db*"):
            path.unlink()
    if kind == "cut":
        database.write_bytes(whole[: len(whole) // 2])
    elif kind == "random":
        database.write_bytes(np.random.default_rng(0).bytes(5000))
    elif kind == "empty":
        database.write_bytes(b"")
    elif kind == "foreign":
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.close()
    others = {name: data for name, data in contents(run).items() if not name.startswith("run.db")}
    for result in everything(run):
        check_error(result, str(database), "version" if kind == "newer" else "restore it from a copy")
    assert {name: data for name, data in contents(run).items() if not name.startswith("run.db")} == others


@pytest.mark.parametrize("kind", ["missing", "random"])
def test_missing_or_damaged_inputs(run: Path, kind: str) -> None:
    (run / "inputs.npz").unlink()
    if kind == "random":
        (run / "inputs.npz").write_bytes(b"\x00\x01" * 300)
    assert l0tre("show", run).code == 0  # the bounds do not need them
    check_error(l0tre("evaluate", run, "--resume"), "inputs.npz", "restore it from a copy")
    check_error(l0tre("report", run), "inputs.npz", "restore it from a copy")


def test_a_copied_run_goes_on(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy")
    assert l0tre("evaluate", tmp_path / "copy", "--resume", "-q").code == 0
    assert shown(tmp_path / "copy")["global"]["finished"] is True
    assert shown(run)["global"]["finished"] is False
