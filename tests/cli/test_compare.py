"""l0tre compare: the same bounds as evaluate, the order of the networks, and going on after a stop."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import Files, check_error, l0tre, save_classifier


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("other") / "other.onnx"
    save_classifier(path, seed=12)
    return str(path)


OPTIONS = ("--guarantee", "grid", "--epsilon", "0.5", "--max-t", "2", "--device", "cpu")


@pytest.mark.slow
def test_each_network_has_the_bounds_of_evaluate(files: Files, other: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = l0tre("compare", files.model, other, files.data, *OPTIONS, "--out", out, "--json")
    assert (result.code, result.err) == (0, "")
    answer = json.loads(result.out)
    assert answer == json.loads((out / "comparison.json").read_text())
    assert [network["network"] for network in answer["networks"]] == ["tiny", "other"]
    for network, model in zip(answer["networks"], (files.model, other), strict=True):
        alone = json.loads(l0tre("evaluate", model, files.data, *OPTIONS, "--json").out)
        assert (network["lower"], network["upper"]) == (alone["global"]["lower"], alone["global"]["upper"])
        assert network["misclassified"] == [image["index"] for image in alone["excluded"]]
        stored = json.loads((out / network["network"] / "result.json").read_text())
        assert stored["global"]["lower"] == network["lower"]
    names = {f"comparison{end}" for end in (".json", ".csv", "-pairs.csv", "-splits.csv", ".png")} | {"tiny", "other"}
    assert {path.name for path in out.iterdir()} == names
    rows = list(csv.DictReader((out / "comparison-splits.csv").open()))
    (pair,) = answer["pairs"]
    assert [int(row["t"]) for row in rows] == [1, 2]
    for row, split in zip(rows, pair["splits"], strict=True):
        assert (row["first"], row["second"]) == ("tiny", "other")
        assert int(row["only_first_fooled"]) == split["first"]
        assert int(row["only_second_fooled"]) == split["second"]
        assert (int(row["unknown"]), row["scope"]) == (split["unknown"], split["scope"])
        assert float(row["chance"]) == split["chance"]


def test_the_text_says_order_intervals_and_misclassified_images(files: Files, other: str, tmp_path: Path) -> None:
    result = l0tre("compare", files.model, other, files.data, *OPTIONS)
    assert result.code == 0
    (pair,) = json.loads(l0tre("compare", files.model, other, files.data, *OPTIONS, "--json").out)["pairs"]
    assert pair["words"] in result.out
    low, high = pair["difference"]
    assert f"difference: {low:.3f} to {high:.3f} on {pair['common']} input" in result.out
    for split in pair["splits"]:
        fools = f"{split['t']} pixels fool" if split["t"] > 1 else "1 pixel fools"
        images = "1 input" if split["first"] == 1 else f"{split['first']} inputs"
        assert f"  {fools} only tiny on {images}, only other on {split['second']} (" in result.out
    assert "(on the grid; p = " in result.out
    assert "misclassified by other: " in result.out
    assert "misclassified by tiny" not in result.out
    quiet = l0tre("compare", files.model, other, files.data, *OPTIONS, "--quiet", "--out", tmp_path / "out")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


@pytest.mark.slow
def test_a_stopped_comparison_goes_on(
    files: Files, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", files.model, other, files.data, *OPTIONS, "--out", tmp_path / "out")

    @contextmanager
    def at_once() -> Iterator[Callable[[], bool]]:
        asked: list[int] = []
        yield lambda: bool(asked) or bool(asked.append(1))  # type: ignore[func-returns-value]

    with monkeypatch.context() as patch:
        patch.setattr("l0tre.cli.signals.stop_on_signal", at_once)
        stopped = l0tre(*words)
    assert stopped.code == 130
    assert "not begun: other" in stopped.out
    check_error(l0tre(*words), "--resume")
    assert l0tre(*words, "--resume").code == 0
    whole = json.loads(l0tre(*words[:-2], "--json").out)
    again = json.loads(l0tre(*words, "--resume", "--json").out)
    assert again["pairs"] == whole["pairs"]
    check_error(l0tre(*words, "--resume", "--max-t", "1"), "--max-t 2, not 1")


def test_without_matplotlib_there_is_no_picture_and_the_text_says_why(
    files: Files, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = l0tre("compare", files.model, other, files.data, *OPTIONS, "--out", tmp_path / "out")
    assert result.code == 0
    assert "l0tre[figures]" in result.out
    assert (tmp_path / "out" / "comparison.csv").is_file()
    assert not (tmp_path / "out" / "comparison.png").exists()


def test_too_few_words_and_bad_networks_give_one_line(files: Files, other: str) -> None:
    check_error(l0tre("compare", files.model, files.data), "at least two networks")
    check_error(l0tre("compare", files.model, "none.onnx", files.data), "none.onnx")
    check_error(l0tre("compare", files.model, other, files.data, "--resume"), "--out")
    check_error(l0tre("compare", files.model, other, files.data, "--time-budget", "-1"), "--time-budget")
