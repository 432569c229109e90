"""Case study three on a few digits: which suites are made, which are left alone, what is said of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from l0tre.errors import ConfigError, StoreError
from l0tre.studies.case_three import carry_out_case_three, summarise_case_three


def digits(folder: Path) -> Path:
    """A folder with mnist.npz: images of chance."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 255, (12, 28, 28), dtype=np.uint8)
    labels = np.arange(12) % 10
    np.savez(folder / "mnist.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
    return folder


def test_suites_are_gone_on_with_unless_they_are_whole(tmp_path: Path) -> None:
    data, out = digits(tmp_path), tmp_path / "study"

    def carry_out() -> None:
        carry_out_case_three(out, ["mnist-attack"], seeds=2, max_l0=1, data_dir=data, device="cpu", time_budget=0.0)

    carry_out()
    suites = sorted(out.glob("mnist-attack-*/suite.json"))
    assert len(suites) == 2
    facts = [json.loads(path.read_text()) for path in suites]
    assert not any(suite["complete"] for suite in facts)
    summary = summarise_case_three(out)
    assert not summary.finished
    assert "Not complete" in summary.brief
    assert summary.facts["table"][0]["seeds"] == 2
    mean = 50 * sum(suite["coverage"] for suite in facts)
    assert summary.facts["by_distance"][0]["3"] == pytest.approx(mean)
    apart = 100 * abs(facts[0]["coverage"] - facts[1]["coverage"])
    assert summary.facts["by_distance"][0]["standard error at 3"] == pytest.approx(apart / 2)
    whole = json.dumps({**facts[0], "complete": True, "coverage_of_random": 0.5, "note": "kept"})
    suites[0].write_text(whole)
    suites[1].write_text(json.dumps({**facts[1], "note": "lost"}))
    carry_out()
    assert suites[0].read_text() == whole
    assert "note" not in json.loads(suites[1].read_text())


def test_what_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no network 'sdnn'"):
        carry_out_case_three(tmp_path, ["sdnn"])
    with pytest.raises(StoreError, match="holds no suites"):
        summarise_case_three(tmp_path)
