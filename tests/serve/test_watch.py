"""What a list of runs says of each of them."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn

import l0tre
from l0tre.serve.watch import SILENT, silent_if_old, status_of
from l0tre.store import ask_stop, read_snapshot
from tests.tools import NO_ATTACK


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 3))


def test_a_run_has_a_phase(network: nn.Module, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tuning = l0tre.Tuning(record_seconds=0.0)
    steps = l0tre.anytime(network, torch.rand(3, 1, 3, 3), max_t=2, out=run, tuning=tuning, **NO_ATTACK)
    next(steps)
    status = status_of(run, read_snapshot(run))
    assert status["phase"] == "at work"
    assert 0 <= status["share"] <= 1
    assert (status["t"], status["max_t"]) == (1, 2)
    assert abs(status["written"] - time.time()) < 60
    ask_stop(run)
    assert status_of(run, read_snapshot(run))["phase"] == "stopping"
    ended = list(steps)[-1]  # so small a run may have been over before it was asked
    status = status_of(run, read_snapshot(run))
    assert status["phase"] == ("finished" if ended.finished else "stopped")
    assert "share" not in status


def test_a_run_that_is_silent_for_long_may_be_gone() -> None:
    now = time.time()
    fresh = silent_if_old({"phase": "at work", "written": now - 3})
    assert fresh["phase"] == "at work"
    assert 2 <= fresh["age"] <= 60
    assert silent_if_old({"phase": "at work", "written": now - SILENT - 1})["phase"] == "silent"
    assert silent_if_old({"phase": "finished", "written": now - 9 * SILENT})["phase"] == "finished"
    assert silent_if_old({"phase": "damaged", "reason": "gone"}) == {"phase": "damaged", "reason": "gone"}


def test_a_sample_has_no_lower_bound(network: nn.Module, tmp_path: Path) -> None:
    l0tre.evaluate(network, torch.rand(2, 1, 3, 3), max_t=1, sample_ms=5.0, out=tmp_path / "run")
    status = status_of(tmp_path / "run", read_snapshot(tmp_path / "run"))
    assert "lower" not in status
    assert status["images"] == 2


def test_a_run_without_any_witness_has_no_upper_bound(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([1.0, 0.0]))
    l0tre.evaluate(network, torch.rand(2, 3), max_t=1, out=tmp_path / "run", **NO_ATTACK)
    assert "upper" not in status_of(tmp_path / "run", read_snapshot(tmp_path / "run"))
