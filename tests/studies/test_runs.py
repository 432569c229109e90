"""Run folders as read: their kinds, their order, copies of them."""

import shutil
from pathlib import Path

import pytest

from l0tre.defaults import ATTACK_QUERIES
from l0tre.errors import StoreError
from l0tre.studies.runs import kind_of, read_run, read_runs


@pytest.mark.parametrize(
    ("guarantee", "attack", "kind"),
    [
        ("grid", 0, "paper"),
        ("grid", ATTACK_QUERIES, "grid"),
        ("grid", 5, "grid"),
        ("grid", None, "grid"),
        ("certified", ATTACK_QUERIES, "certified"),
        ("certified", 0, "certified"),
        ("lipschitz", 0, "lipschitz"),
        ("sampled", 0, "sampled"),
    ],
)
def test_the_kind_is_told_by_the_configuration(guarantee: str, attack: int | None, kind: str) -> None:
    settings = {} if attack is None else {"attack_queries": attack}
    assert kind_of({"guarantee": {"kind": guarantee}, "settings": settings}) == kind


def test_runs_are_read_by_network_then_kind(study: Path) -> None:
    runs = read_runs(study)
    assert [run.name for run in runs] == ["dnn-2-paper", "dnn-3-paper", "dnn-7-paper", "dnn-7-grid", "dnn-7-certified"]
    assert [run.name for run in runs] == [f"{run.network}-{run.kind}" for run in runs]
    assert {run.kind: (run.guarantee, run.scope, run.words) for run in runs} == {
        "paper": ("grid", "the grid", "paper: grid, no attack"),
        "grid": ("grid", "the grid", "grid"),
        "certified": ("certified", "all real values", "certified"),
    }


def test_two_runs_of_one_network_and_kind_are_refused(study: Path, tmp_path: Path) -> None:
    for name in ("dnn-7-grid", "dnn-7-paper"):
        shutil.copytree(study / "dnn-7-paper", tmp_path / name)
    with pytest.raises(StoreError, match=r"2 runs of dnn-7 of the kind paper \(dnn-7-grid, dnn-7-paper\)"):
        read_runs(tmp_path)


def test_a_copied_run_is_read_the_same(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "dnn-2-paper", tmp_path / "copy")
    here, there = read_run(study / "dnn-2-paper"), read_run(tmp_path / "copy")
    assert (here.network, here.kind, there.name) == (there.network, there.kind, "copy")
    assert [level.to_dict() for level in here.levels] == [level.to_dict() for level in there.levels]
