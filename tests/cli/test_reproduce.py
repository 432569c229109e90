"""l0tre reproduce: runs, tables and figures in one folder, stopped and resumed, drawn later and elsewhere."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from l0tre.defaults import ATTACK_QUERIES
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


def test_case_1_makes_runs_and_tables_of_every_kind(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # thirty figures take their time; others draw
    result = l0tre(*words(small, tmp_path / "out"), "--images", "4", "--max-t", "2")
    assert result.code == 0, result
    assert "sdnn: paper against ours" in result.out
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())
    runs = {row["run"]: row for row in facts["runs"]}
    kinds = ["paper", "grid", "certified"]
    assert list(runs) == [f"{network}-{kind}" for network in ("dnn-0", "sdnn") for kind in kinds]
    for name, row in runs.items():
        stored = json.loads((tmp_path / "out" / name / "result.json").read_text())
        assert row["lower"] == stored["global"]["lower"]
        settings = stored["config"]["settings"]
        assert name == f"{row['network']}-{row['kind']}"
        assert settings["guarantee"] == row["guarantee"] == ("certified" if row["kind"] == "certified" else "grid")
        assert settings["attack_queries"] == row["attack"] == (0 if row["kind"] == "paper" else ATTACK_QUERIES)
        assert row["images"] == 4
        assert row["epsilon"] == 0.25
        assert row["complete"] is True
    figures = [file for figure in facts["figures"] for file in figure["files"]]
    parts = ("image", "global", "seconds", "images", "adversarial")
    assert figures == [f"figures/{name}-{part}.csv" for name in runs for part in parts]
    assert all((tmp_path / "out" / file).is_file() for file in figures)
    levels = {(r["network"], r["kind"], r["t"]): r for r in facts["levels"]}
    assert len(levels) == len(facts["levels"]) == 12
    tables = {}
    for network, rows in facts["paper"].items():
        assert all(list(row) == ["quantity", "the paper says", *kinds] for row in rows)
        tables[network] = {row["quantity"]: row for row in rows}
        assert len(tables[network]) == len(rows)
        assert sum("converged" in name or name.endswith("known exactly") for name in tables[network]) == 1
    row = tables["sdnn"]["estimate U_c at t = 1 (pixels)"]
    assert row["the paper says"] == "1.97"
    assert [row[kind] for kind in kinds] == pytest.approx([levels["sdnn", kind, 1]["estimate"] for kind in kinds])
    two = levels["dnn-0", "certified", 2]
    interval = f"{two['lower']:.3f} to {two['upper']:.3f}"
    assert tables["dnn-0"]["bounds at t = 2 (pixels)"]["certified"] == interval
    assert tables["dnn-0"]["global interval at the end (pixels)"]["certified"] == interval
    said = {n: {name: row["the paper says"] for name, row in rows.items()} for n, rows in tables.items()}
    assert said["sdnn"]["converged images"] == "98% (t <= 3)"
    assert said["sdnn"]["global interval at the end (pixels)"] == "-"
    assert said["dnn-0"]["global interval at the end (pixels)"] == "2 to 12.8"
    assert said["dnn-0"]["width of the global interval at the end (pixels)"] == "10.8"


@pytest.mark.slow
def test_case_4_answers_and_goes_on_after_ctrl_c(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = [*words(small, tmp_path / "out", "case-4", "dnn-2,dnn-3"), "--images", "5", "--json"]

    @contextmanager
    def soon() -> Iterator[Callable[[], bool]]:
        asked: list[int] = []
        yield lambda: bool(asked) or bool(asked.append(1))  # type: ignore[func-returns-value]

    with monkeypatch.context() as patch:
        patch.setattr("l0tre.cli.signals.stop_on_signal", soon)
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
    assert [row["kind"] for row in facts["runs"]] == ["grid", "grid"]
    for figure in facts["figures"]:
        assert any(file.endswith("-grid.png") for file in figure["files"])
        assert all((tmp_path / "out" / file).is_file() for file in figure["files"])
    check_error(l0tre(*line[:-2], "3"), "5 inputs, not on the 3")


@pytest.mark.slow
def test_figures_are_drawn_later_and_on_another_machine(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        line = [*words(small, out, names="sdnn"), "--images", "2", "--kinds", "paper", "--max-t", "1"]
        result = l0tre(*line)
        assert result.code == 0
        assert "l0tre[figures]" in result.out
        assert "--figures-only" in result.out
        check_error(l0tre("reproduce", "case-1", "--figures-only", "--out", out), "l0tre[figures]")
    assert not list(out.rglob("*.png"))
    assert len(list((out / "figures").glob("*.csv"))) == 5
    shutil.copytree(out, copy)
    before = contents(copy / "sdnn-paper")
    assert l0tre("reproduce", "case-1", "--figures-only", "--out", copy, "-q").code == 0
    assert len(list((copy / "figures").glob("*.png"))) == 5
    assert contents(copy / "sdnn-paper") == before


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ("both", ["unknown kind 'both'", "give some of paper, grid, certified"]),
        ("paper,Grid", ["unknown kind 'Grid'"]),
        ("grid,paper,grid", ["repeated"]),
        ("grid,", ["empty"]),
        ("", ["empty"]),
    ],
)
@pytest.mark.parametrize("case", ["case-1", "case-4"])
def test_kinds_that_make_no_sense_give_one_line(tmp_path: Path, case: str, kinds: str, words: list[str]) -> None:
    check_error(l0tre("reproduce", case, "--kinds", kinds, "--out", tmp_path), f"--kinds '{kinds}'", *words)
    assert not any(tmp_path.iterdir())


def test_some_kinds_are_made_and_others_later(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = tmp_path / "out"
    line = [*words(small, out, "case-4", "dnn-2"), "--images", "3", "--max-t", "1", "--json", "--kinds"]
    facts = json.loads(l0tre(*line, "certified, paper").out)
    assert [row["run"] for row in facts["runs"]] == ["dnn-2-paper", "dnn-2-certified"]
    assert (set(facts) & {"paper", "grid", "certified"}) == {"paper", "certified"}
    before = contents(out / "dnn-2-paper")
    (out / "dnn-2-certified").rename(out / "dnn-2-grid")
    check_error(l0tre(*line, "paper,grid"), "kind certified, not grid", "rename it to dnn-2-certified", "--out")
    shutil.rmtree(out / "dnn-2-grid")
    facts = json.loads(l0tre(*line, "paper,grid").out)
    assert [row["run"] for row in facts["runs"]] == ["dnn-2-paper", "dnn-2-grid"]
    assert contents(out / "dnn-2-paper") == before


def test_what_cannot_be_reproduced_gives_one_line(small: Path, tmp_path: Path) -> None:
    check_error(l0tre("reproduce", "case-1", "--figures-only", "--out", tmp_path), "no run folders")
    check_error(l0tre("reproduce", "case-1", "--networks", "sdnn,,", "--out", tmp_path), "--networks")
    check_error(l0tre("reproduce", "case-1", "--networks", "sdnn,none", "--out", tmp_path), "none")
    check_error(l0tre("reproduce", "case-1"), "--out")
    check_error(l0tre(*words(small, tmp_path / "out"), "--time-budget", "-1"), "--time-budget")
    assert not any(tmp_path.iterdir())
