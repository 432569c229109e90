"""The command check for runs: what it prints and how it ends."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.running import FEW, Files, check_error, l0tre


@pytest.fixture(scope="module")
def made(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "run"
    words = ("--max-t", "1", "--certificates", "--out", folder, "--guarantee", "certified", "--quiet", *FEW)
    result = l0tre("evaluate", files.model, files.data, *words)
    assert result.code == 0, result
    return folder


@pytest.fixture
def kept(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "kept"))


def test_a_run_that_holds(kept: Path) -> None:
    first = l0tre("check", kept, "--sample", "50%")
    assert (first.code, first.out.splitlines()[0]) == (0, "valid")
    found = json.loads(l0tre("check", kept, "--json").out)
    assert (found["valid"], found["checked"], found["before"], found["left"]) == (True, 3, 3, 0)
    assert (found["refused"], found["missing"]) == ([], [])
    again = l0tre("check", kept)
    assert again.code == 0
    assert "checked before: 6" in again.out
    assert (l0tre("check", kept, "--again", "--quiet").out, l0tre("check", kept, "-q").code) == ("valid\n", 0)


def test_what_was_checked_is_shown_wherever_bounds_are(kept: Path) -> None:
    assert "by other code" not in l0tre("show", kept).out
    assert f"l0tre report {kept}" in l0tre("check", kept).out.replace("\n", "")
    assert "checked by other code: 6 of 6 images" in l0tre("show", kept).out
    shown = json.loads(l0tre("show", kept, "--json").out)
    assert shown["global"]["checked"] == sum(image["checked"] for image in shown["images"]) == 6
    assert l0tre("report", kept).code == 0
    assert "6 of 6 images checked" in (kept / "report.html").read_text()
    assert json.loads((kept / "result.json").read_text())["global"]["checked"] == 6


def test_a_check_that_is_not_over_says_so(kept: Path) -> None:
    result = l0tre("check", kept, "--time-budget", "0")
    assert (result.code, result.out.splitlines()[0]) == (3, "nothing was checked: give more time")
    assert "not checked yet: 6; the same command goes on" in result.out
    assert l0tre("check", kept, "--time-budget", "0", "-q").out == "nothing was checked\n"
    assert l0tre("check", kept, "--sample", "50%").code == 0
    again = l0tre("check", kept, "--time-budget", "0")
    assert (again.code, again.out.splitlines()[0]) == (0, "valid so far")


def test_a_run_that_does_not_hold_ends_with_1(kept: Path) -> None:
    first, second, *_ = sorted((kept / "certificates").iterdir())
    shutil.copy(second, first)
    result = l0tre("check", kept)
    assert (result.code, result.out.splitlines()[0]) == (1, "not valid")
    assert f"input {int(first.name[:5])}: the certificate is for another input" in result.out
    first.unlink()
    found = l0tre("check", kept, "--json")
    assert (found.code, json.loads(found.out)["missing"]) == (1, [int(first.name[:5])])
    assert l0tre("check", kept, "--quiet").out == "not valid\n"


def test_wrong_uses_are_errors(kept: Path, run: Path, files: Files) -> None:
    check_error(l0tre("check", kept, "--sample", "0"), "--sample 0 is no share")
    check_error(l0tre("check", kept, files.model, files.data), "a run folder holds its own data")
    check_error(l0tre("check", kept, "--vnnlib", kept / "x"), "--vnnlib writes the boxes of one proof")
    check_error(l0tre("check", kept / "certificates" / "00000-t1.l0cert"), "a certificate is checked for a model")
    check_error(l0tre("check", kept.parent / "nowhere"), "there is no certificate")
    assert l0tre("check", run).out.splitlines()[0] == "valid"  # by a grid, and no level is finished
