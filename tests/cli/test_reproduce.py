"""l0tre reproduce: runs, tables and figures in one folder, stopped and resumed, drawn later and elsewhere."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import l0tre.cli.reproduce as command
from tests.cli.running import check_error, contents, l0tre, save_classifier, scores


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small classifiers of 4 x 4 images under two of the paper's names, and images of 8 x 8 for them."""
    folder = tmp_path_factory.mktemp("small")
    for name, seed in (("sdnn", 0), ("dnn-0", 4), ("dnn-2", 12), ("dnn-3", 21)):
        save_classifier(folder / f"{name}.onnx", seed=seed)
    images = np.random.default_rng(1).random((6, 1, 8, 8), dtype=np.float32)
    means = images.reshape(6, 1, 4, 2, 4, 2).mean((3, 5))
    np.savez(folder / "data.npz", x=images, y=scores(folder / "sdnn.onnx", means).argmax(1))
    return folder


def words(small: Path, out: Path, case: str = "case-1", names: str = "sdnn,dnn-0") -> list[str | Path]:
    networks = ",".join(str(small / f"{name}.onnx") for name in names.split(","))
    return ["reproduce", case, "--networks", networks, "--data", small / "data.npz", "--device", "cpu", "--out", out]


def test_case_1_makes_runs_tables_and_figures(small: Path, tmp_path: Path) -> None:
    result = l0tre(*words(small, tmp_path / "out"), "--images", "4", "--max-t", "2")
    assert result.code == 0, result
    assert "sdnn: paper against ours" in result.out
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())
    runs = {row["run"]: row for row in facts["runs"]}
    assert list(runs) == ["dnn-0-grid", "dnn-0-certified", "sdnn-grid", "sdnn-certified"]
    for name, row in runs.items():
        stored = json.loads((tmp_path / "out" / name / "result.json").read_text())
        assert row["lower"] == stored["global"]["lower"]
        assert row["images"] == 4
        assert row["epsilon"] == 0.25
        assert row["complete"] is True
    for figure in facts["figures"]:
        assert [(tmp_path / "out" / file).suffix for file in figure["files"]] == [".csv", ".png"]
        assert all((tmp_path / "out" / file).is_file() for file in figure["files"])
    rows = {row["quantity"]: row for row in facts["paper"]["sdnn"]}
    assert rows["estimate U_c at t = 1 (pixels)"]["paper"] == "1.97"
    levels = {(r["network"], r["guarantee"], r["t"]): r for r in facts["levels"]}
    assert rows["estimate U_c at t = 1 (pixels)"]["grid"] == pytest.approx(levels["sdnn", "grid", 1]["estimate"])
    bounds = next(row for row in facts["paper"]["dnn-0"] if row["quantity"].startswith("bounds at t = 2"))
    two = levels["dnn-0", "certified", 2]
    assert bounds["certified"] == f"{two['lower']:.3f} to {two['upper']:.3f}"


def test_case_4_answers_and_goes_on_after_ctrl_c(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = [*words(small, tmp_path / "out", "case-4", "dnn-2,dnn-3"), "--images", "5", "--json"]

    @contextmanager
    def soon() -> Iterator[Callable[[], bool]]:
        asked: list[int] = []
        yield lambda: bool(asked) or bool(asked.append(1))  # type: ignore[func-returns-value]

    with monkeypatch.context() as patch:
        patch.setattr(command, "stop_on_signal", soon)
        stopped = l0tre(*line)
    assert stopped.code == 130
    part = json.loads(stopped.out)
    assert [(row["run"], row["complete"]) for row in part["runs"]] == [("dnn-2-grid", False)]
    assert "Not complete" in (tmp_path / "out" / "summary.md").read_text()
    done = l0tre(*line)
    assert (done.code, done.err) == (0, "")
    facts = json.loads(done.out)
    assert all(row["complete"] for row in facts["runs"])
    answers = {row["topic"]: row["answer"] for row in facts["grid"]["observations"]}
    (pair,) = facts["grid"]["pairs"]
    order = {"less": "holds", "more": "does not hold", "equal": "does not hold", "open": "open"}  # of dnn-2 and dnn-3
    assert answers["batch normalisation"] == order[pair["order"]]
    assert {row["epsilon"] for row in facts["runs"]} == {0.3}
    check_error(l0tre(*line[:-2], "3"), "5 images, not on the 3")


def test_figures_are_drawn_later_and_on_another_machine(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        line = [*words(small, out, names="sdnn"), "--images", "2", "--guarantee", "grid", "--max-t", "1"]
        result = l0tre(*line)
        assert result.code == 0
        assert "l0tre[figures]" in result.out
        assert "--figures-only" in result.out
        check_error(l0tre("reproduce", "case-1", "--figures-only", "--out", out), "l0tre[figures]")
    assert not list(out.rglob("*.png"))
    assert len(list((out / "figures").glob("*.csv"))) == 5
    shutil.copytree(out, copy)
    before = contents(copy / "sdnn-grid")
    assert l0tre("reproduce", "case-1", "--figures-only", "--out", copy, "-q").code == 0
    assert len(list((copy / "figures").glob("*.png"))) == 5
    assert contents(copy / "sdnn-grid") == before


def test_what_cannot_be_reproduced_gives_one_line(small: Path, tmp_path: Path) -> None:
    check_error(l0tre("reproduce", "case-1", "--figures-only", "--out", tmp_path), "no run folders")
    check_error(l0tre("reproduce", "case-1", "--networks", "sdnn,,", "--out", tmp_path), "--networks")
    check_error(l0tre("reproduce", "case-1", "--networks", "sdnn,none", "--out", tmp_path), "none")
    check_error(l0tre("reproduce", "case-1", "--guarantee", "most", "--out", tmp_path), "--guarantee")
    check_error(l0tre("reproduce", "case-1"), "--out")
    check_error(l0tre(*words(small, tmp_path / "out"), "--time-budget", "-1"), "--time-budget")
    assert not any(tmp_path.iterdir())
