"""The runs of a study: their kinds, started, resumed, not repeated."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import l0tre
from l0tre.data import load_data, select
from l0tre.defaults import ATTACK_QUERIES
from l0tre.errors import ConfigError, ModelError, StoreError
from l0tre.evaluation.results import Snapshot
from l0tre.store import read_snapshot
from l0tre.studies.plans import PlannedRun, carry_out
from l0tre.studies.runs import read_runs
from tests.cli.running import contents

# Without an entry for the attack, a kind does what an evaluation does by default.
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {"guarantee": "grid", "attack_queries": 0},
    "grid": {"guarantee": "grid"},
    "certified": {"guarantee": "certified"},
}


def plans(inputs: Path, images: int = 10) -> list[PlannedRun]:
    return [PlannedRun(str(inputs / f"{name}.onnx"), "paper", 2, images, 0.5) for name in ("dnn-2", "dnn-3")]


def bounds(snapshot: Snapshot) -> list[tuple[int, int, int, int]]:
    return [(image.index, image.lower, image.upper, image.level) for image in snapshot.images]


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_run_is_the_evaluation_of_a_sample_of_the_data(inputs: Path, study: Path, kind: str) -> None:
    data = select(load_data(inputs / "data.npz"), limit=10, shuffle=True, seed=0)
    alone = l0tre.evaluate(inputs / "dnn-7.onnx", data, max_t=2, epsilon=0.5, device="cpu", **OPTIONS[kind])
    stored = read_snapshot(study / f"dnn-7-{kind}")
    assert bounds(stored) == bounds(alone)
    assert stored.finished
    assert {image.guarantee for image in stored.images} == {OPTIONS[kind]["guarantee"]}


def test_the_kinds_differ_in_guarantee_and_attack(study: Path) -> None:
    settings = {kind: read_snapshot(study / f"dnn-7-{kind}").config["settings"] for kind in OPTIONS}
    assert {kind: (found["guarantee"], found["attack_queries"]) for kind, found in settings.items()} == {
        "paper": ("grid", 0),
        "grid": ("grid", ATTACK_QUERIES),
        "certified": ("certified", ATTACK_QUERIES),
    }
    attacked = {kind: any(i.attacked for i in read_snapshot(study / f"dnn-7-{kind}").images) for kind in OPTIONS}
    assert attacked == {"paper": False, "grid": True, "certified": True}
    # The fixture would not tell the kinds apart if the attack found nothing.
    assert read_snapshot(study / "dnn-7-grid").upper < read_snapshot(study / "dnn-7-paper").upper


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'both' is unknown: give one of paper, grid, certified"):
        PlannedRun("sdnn", "both", 1, 1, 0.5)


@pytest.mark.parametrize(("held", "asked"), list(itertools.permutations(OPTIONS, 2)))
def test_a_folder_of_one_kind_is_refused_for_another(
    inputs: Path, study: Path, tmp_path: Path, held: str, asked: str
) -> None:
    shutil.copytree(study / f"dnn-7-{held}", tmp_path / f"dnn-7-{asked}")
    before = contents(tmp_path)
    model = str(inputs / "dnn-7.onnx")
    wanted = [PlannedRun(str(inputs / "dnn-2.onnx"), asked, 2, 10, 0.5), PlannedRun(model, asked, 2, 10, 0.5)]
    with pytest.raises(StoreError, match=f"kind {held}, not {asked}: rename it to dnn-7-{held}"):
        carry_out(wanted, tmp_path, data=str(inputs / "data.npz"), device="cpu")
    assert contents(tmp_path) == before  # not even the first run was begun
    (tmp_path / f"dnn-7-{asked}").rename(tmp_path / f"dnn-7-{held}")
    carry_out([PlannedRun(model, held, 2, 10, 0.5)], tmp_path, data=str(inputs / "data.npz"), device="cpu")
    assert contents(tmp_path / f"dnn-7-{held}") == contents(study / f"dnn-7-{held}")


def test_an_attack_of_another_size_is_refused(inputs: Path, tmp_path: Path) -> None:
    data = select(load_data(inputs / "data.npz"), limit=10, shuffle=True, seed=0)
    options: dict[str, Any] = {"max_t": 2, "epsilon": 0.5, "guarantee": "grid", "attack_queries": 5, "device": "cpu"}
    l0tre.evaluate(inputs / "dnn-7.onnx", data, out=tmp_path / "dnn-7-grid", **options)
    wanted = [PlannedRun(str(inputs / "dnn-7.onnx"), "grid", 2, 10, 0.5)]
    with pytest.raises(StoreError, match=f"`attack_queries` 5, not {ATTACK_QUERIES}"):
        carry_out(wanted, tmp_path, data=str(inputs / "data.npz"), device="cpu")


def test_a_stopped_study_goes_on_where_it_stopped(inputs: Path, study: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def watch(name: str, snapshots: Iterator[Snapshot]) -> Snapshot:
        seen.append(name)
        for last in snapshots:
            result = last
        return result

    data = str(inputs / "data.npz")
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", time_budget=0.0, watch=watch)
    assert seen == ["dnn-2-paper", "dnn-3-paper"]
    assert not any(run.latest.finished for run in read_runs(tmp_path))
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", stop=lambda: len(seen) > 2, watch=watch)
    assert seen[2:] == ["dnn-2-paper"]  # asked to stop before the second
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", watch=watch)
    for name in ("dnn-2-paper", "dnn-3-paper"):
        whole, again = read_snapshot(study / name), read_snapshot(tmp_path / name)
        assert [(i.lower, i.upper) for i in again.images] == [(i.lower, i.upper) for i in whole.images]
    before = (tmp_path / "dnn-2-paper" / "run.db").read_bytes()
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", watch=watch)
    assert (tmp_path / "dnn-2-paper" / "run.db").read_bytes() == before


def test_networks_are_loaded_before_any_work(inputs: Path, tmp_path: Path) -> None:
    missing = [*plans(inputs), PlannedRun(str(inputs / "none.onnx"), "paper", 1, 3, 0.5)]
    with pytest.raises(ModelError, match="there is no file"):
        carry_out(missing, tmp_path, data=str(inputs / "data.npz"))
    assert not any(tmp_path.iterdir())


def test_other_images_or_names_are_refused(inputs: Path, study: Path) -> None:
    with pytest.raises(StoreError, match="10 inputs, not on the 7"):
        carry_out(plans(inputs, 7), study, data=str(inputs / "data.npz"), device="cpu")
    with pytest.raises(ConfigError, match=r"same name.*each kind once"):
        carry_out(plans(inputs)[:1] * 2, study, data=str(inputs / "data.npz"), device="cpu")
    with pytest.raises(StoreError, match="no run folders"):
        read_runs(inputs)
