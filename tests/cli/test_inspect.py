import json
from pathlib import Path

import pytest

from tests.cli.running import check_error, l0tre


def test_inspect_says_what_was_chosen_and_why() -> None:
    result = l0tre("inspect", "sdnn")
    assert result.code == 0
    for word in (
        "windows for t = 1, 2, 3",
        "dense layer",
        "4 x 4",
        "receptive field",
        "times fewer",
        "cost of a proof",
    ):
        assert word in result.out


@pytest.mark.slow
def test_inspect_as_json() -> None:
    facts = json.loads(l0tre("inspect", "sdnn", "--json").out)
    assert facts["windows"] is True
    assert facts["layers"][-1]["window"] == [4, 4]
    assert facts["proof"][0]["t"] == 1
    assert 0 <= facts["proof"][-1]["share"] <= 1
    assert (facts["unit"], facts["groups"], facts["classes"]) == ("pixel", 196, 10)


def test_inspect_of_a_function_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(x):\n    return x.flatten(1)[:, :3]\n")
    result = l0tre("inspect", f"{tmp_path / 'f.py'}:f", "--input-shape", "1x4x4")
    assert result.code == 0
    assert "whole forward passes" in result.out
    assert "no graph" in result.out
    check_error(l0tre("inspect", f"{tmp_path / 'f.py'}:f"), "give --input-shape")


def test_a_sample_claims_no_lower_bound() -> None:
    result = l0tre("evaluate", "sdnn", "digits", "--resize", "--limit", "2", "--max-t", "1", "--sample", "50")
    assert result.code == 0
    assert "nothing is proved" in result.out
    assert "a sample claims none" in result.out
    check_error(l0tre("evaluate", "sdnn", "digits", "--resize", "--sample", "0"), "--sample", "milliseconds")
