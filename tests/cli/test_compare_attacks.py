"""l0tre compare-attacks, as a user types it."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from l0tre.adapters import compare_attacks as comparing
from l0tre.adapters import peers
from l0tre.adapters.peers import PEERS
from l0tre.cli import render_peers
from l0tre.errors import MissingExtraError
from tests.cli.running import Files, check_error, l0tre, scores

PEER_NAMES = ("sparse-rs", "l0tre-paper")  # ours, so that they are always here


def run(files: Files, *words: str | Path) -> tuple[str, str]:
    common = ("--peers", ",".join(PEER_NAMES), "--budget", "300", "--device", "cpu")
    result = l0tre("compare-attacks", files.model, files.data, *common, *words)
    assert result.code == 0, result
    return result.out, result.err


def test_the_table_has_a_row_for_every_attack_and_says_what_it_shows(files: Files) -> None:
    out, err = run(files, "--limit", "3")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["l0tre", *PEER_NAMES]
    assert "3 inputs, 0 left out" in out
    assert "budget 300 queries for each" in out
    assert max(len(line) for line in lines[:4]) <= 80
    assert err == ""


def test_the_files_hold_adversarial_inputs_that_onnxruntime_agrees_with(files: Files, tmp_path: Path) -> None:
    out, _ = run(files, "--index", "4", "--index", "1", "--out", tmp_path / "out")
    folder = tmp_path / "out"
    names = ["compare.json", "compare.csv", "l0tre.npz", "sparse-rs.npz", "l0tre-paper.npz", "compare.png"]
    assert out.splitlines()[-len(names) :] == [str(folder / name) for name in names]
    stored = json.loads((folder / "compare.json").read_text())
    assert (stored["images"], stored["unit"], stored["budget"]) == (2, "pixel", 300)
    with (folder / "compare.csv").open(newline="") as file:
        lines = {(line["attack"], int(line["index"])): line for line in csv.DictReader(file)}
    assert len(lines) == 3 * 2
    for name in ("l0tre", *PEER_NAMES):
        with np.load(folder / f"{name}.npz") as archive:
            assert archive["index"].tolist() == [4, 1]
            for row, index in enumerate((4, 1)):
                found = scores(files.model, archive["x"][row][None]).argmax() != files.labels[index]
                assert found == archive["found"][row] == bool(int(lines[name, index]["found"]))
                changed = int((archive["x"][row] != files.images[index]).sum())
                assert lines[name, index]["pixels"] == (str(changed) if found else "")


def test_the_page_has_every_budget(files: Files, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    words = ("--limit", "2", "--peers", "sparse-rs", "--budget", "60,200", "--report", page)
    assert l0tre("compare-attacks", files.model, files.data, *words).code == 0
    text = page.read_text(encoding="utf-8")
    assert "## Changes against queries" in text
    assert "A budget of 200 queries" in text
    assert "may change" in text


def test_json_is_all_that_is_printed(files: Files) -> None:
    out, err = run(files, "--limit", "2", "--json")
    result = json.loads(out)
    assert [attack["name"] for attack in result["attacks"]] == ["l0tre", *PEER_NAMES]
    assert result["attacks"][0]["at_least_as_good"] is None
    assert all(0 <= attack["at_least_as_good"] <= 1 for attack in result["attacks"][1:])
    assert err == ""


def test_quiet_prints_nothing(files: Files) -> None:
    assert run(files, "--limit", "1", "--quiet") == ("", "")


def test_the_list_says_what_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtraError("foolbox is needed; install the extra peers: pip install 'l0tre[peers]'")

    table = {"sparse-rs": PEERS["sparse-rs"], "bb-l0": replace(PEERS["bb-l0"], load=missing)}
    monkeypatch.setattr(render_peers, "PEERS", table)
    result = l0tre("compare-attacks", "--list")
    assert result.code == 0
    assert re.search(r"^sparse-rs +own +pixel +scores +yes", result.out, re.MULTILINE)
    assert re.search(r"^bb-l0 +foolbox +feature +gradients +no", result.out, re.MULTILINE)
    assert "pip install 'l0tre[peers]'" in result.out
    listed = json.loads(l0tre("compare-attacks", "--list", "--json").out)
    assert listed["sparse-rs"]["missing"] == ""
    assert "extra peers" in listed["bb-l0"]["missing"]


def test_without_names_all_that_can_be_imported_are_compared(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtraError("not here")

    table = {"gone": replace(PEERS["sparse-rs"], load=missing), "l0tre-paper": PEERS["l0tre-paper"]}
    for module in (peers, render_peers, comparing):
        monkeypatch.setattr(module, "PEERS", table)
    result = l0tre("compare-attacks", files.model, files.data, "--limit", "1", "--budget", "50", "--json")
    assert [attack["name"] for attack in json.loads(result.out)["attacks"]] == ["l0tre", "l0tre-paper"]
    check_error(l0tre("compare-attacks", files.model, files.data, "--peers", "gone"), "not here")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give a model and data"),
        (["MODEL"], "give a model and data"),
        (["MODEL", "DATA", "--peers", "magic"], "no attack 'magic'"),
        (["MODEL", "DATA", "--peers", "sparse-rs", "--budget", "0"], "budget is 0"),
        (["MODEL", "DATA", "--peers", "sparse-rs", "--index", "99"], "99"),
    ],
)
def test_bad_words_give_one_line(files: Files, words: list[str], expected: str) -> None:
    known = {"MODEL": files.model, "DATA": files.data}
    check_error(l0tre("compare-attacks", *(known.get(word, word) for word in words)), expected)
