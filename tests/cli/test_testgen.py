"""l0tre testgen and l0tre coverage, as a user types them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.cli.running import Files, check_error, l0tre, save_graph, scores


@pytest.fixture(scope="module")
def suite(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated") / "suite"
    result = l0tre("testgen", files.model, files.data, "--limit", "2", "--device", "cpu", "--out", folder)
    assert result.code == 0, result
    assert result.err == ""
    assert "coverage" in result.out
    assert "entropy" in result.out
    assert str(folder) in result.out
    return folder


def test_the_folder_holds_what_the_help_promises(files: Files, suite: Path) -> None:
    facts = json.loads((suite / "suite.json").read_text())
    with (suite / "manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == facts["tests"]
    assert sum(facts["counts"].values()) == facts["neurons"] == 8
    held = np.load(suite / "suite.npz")
    assert (held["images"] != files.images[held["seeds"]]).reshape(len(rows), -1).sum(1).tolist() == [
        int(row["l0"]) for row in rows
    ]
    assert scores(files.model, held["images"]).argmax(1).tolist() == [int(row["label"]) for row in rows]


def test_the_suite_is_measured(files: Files, suite: Path) -> None:
    facts = json.loads((suite / "suite.json").read_text())
    result = l0tre(
        "coverage", files.model, suite, "--criterion", "neuron,kmnc,boundary,top-k", "--device", "cpu", "--json"
    )
    assert result.code == 0, result
    figures = json.loads(result.out)
    assert list(figures) == ["neuron", "kmnc", "boundary", "top-k"]
    assert figures["neuron"]["share"] == facts["coverage"]
    assert "2 seeds of the suite" in figures["kmnc"]["definition"]
    text = l0tre("coverage", files.model, suite, "--device", "cpu")
    assert f"{100 * facts['coverage']:.2f} %" in text.out
    assert "8 neurons of relu1" in text.out
    check_error(l0tre("coverage", files.model, suite, "--limit", "1", "--device", "cpu"), "measured as a whole")


def test_a_suite_without_tests_is_measured_by_its_seeds(files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    words = ("testgen", files.model, files.data, "--limit", "1", "--time-budget", "0", "--device", "cpu")
    assert l0tre(*words, "--out", folder).code == 0
    facts = json.loads((folder / "suite.json").read_text())
    assert facts["tests"] == 0
    figures = json.loads(l0tre("coverage", files.model, folder, "--device", "cpu", "--json").out)
    assert figures["neuron"]["share"] == facts["coverage"]
    assert figures["neuron"]["inputs"] == 1


def test_json_is_all_that_is_printed(files: Files) -> None:
    result = l0tre("testgen", files.model, files.data, "--index", "1", "--max-l0", "1", "--device", "cpu", "--json")
    assert result.code == 0, result
    facts = json.loads(result.out)
    assert facts["seeds"] == [1]
    assert max(row["l0"] for row in facts["curve"]) <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--layers", "conv9"), "no layer 'conv9'; its --layers are relu1 2x2x2"),
        (("--criterion", "branch"), "--criterion"),
        (("--criterion", "strong"), "--ranges"),
        (("--max-l0", "0"), "--max-l0"),
        (("--proofs", "-1"), "--proofs"),
        (("--time-budget", "-1"), "--time-budget"),
    ],
)
def test_bad_words_end_in_one_line(files: Files, words: tuple[str, ...], message: str) -> None:
    check_error(l0tre("testgen", files.model, files.data, "--device", "cpu", *words), message)


def test_a_model_without_activations_is_refused(files: Files, tmp_path: Path) -> None:
    model = tmp_path / "linear.onnx"
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "matrix"], ["scores"])]
    save_graph(model, nodes, {"matrix": np.ones((16, 3), dtype=np.float32)})
    check_error(l0tre("testgen", model, files.data, "--device", "cpu"), "no activations")
    check_error(l0tre("coverage", model, files.data, "--device", "cpu"), "no activations")


def test_seeds_that_do_not_fit_and_folders_that_are_not_suites_are_refused(files: Files, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x=np.zeros((2, 1, 5, 5), dtype=np.float32))
    check_error(l0tre("testgen", files.model, wrong, "--device", "cpu"), "5")
    nothing = tmp_path / "nothing.npz"
    np.savez(nothing, x=np.zeros((0, 1, 4, 4), dtype=np.float32))
    check_error(l0tre("coverage", files.model, nothing, "--device", "cpu"), "at least one")
    (tmp_path / "notes.txt").write_text("mine")
    check_error(l0tre("testgen", files.model, files.data, "--device", "cpu", "--out", tmp_path), "other files")
    check_error(l0tre("coverage", files.model, files.data, "--criterion", "kmnc", "--device", "cpu"), "--ranges")


def test_another_suite_is_not_overwritten(files: Files, suite: Path) -> None:
    words = ("testgen", files.model, files.data, "--limit", "1", "--device", "cpu", "--out", suite)
    check_error(l0tre(*words), "other seeds or settings", "--out")
