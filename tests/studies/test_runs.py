"""Several runs in one folder: started, resumed, not repeated."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import l0tre
from l0tre.data import load_data, select
from l0tre.errors import ConfigError, ModelError, StoreError
from l0tre.results import Snapshot
from l0tre.store import read_snapshot
from l0tre.studies.runs import Plan, carry_out, read_run, read_runs


def plans(inputs: Path, images: int = 10) -> list[Plan]:
    return [Plan(str(inputs / f"{name}.onnx"), "grid", 2, images, 0.5) for name in ("dnn-2", "dnn-3")]


def test_a_run_is_the_evaluation_of_a_sample_of_the_data(inputs: Path, study: Path) -> None:
    data = select(load_data(inputs / "data.npz"), limit=10, shuffle=True, seed=0)
    for name in ("dnn-2", "dnn-3", "dnn-7"):
        options: dict[str, Any] = {"max_t": 2, "epsilon": 0.5, "guarantee": "grid", "attack": 0, "device": "cpu"}
        alone = l0tre.evaluate(inputs / f"{name}.onnx", data, **options)
        stored = read_snapshot(study / f"{name}-grid")
        assert [(i.index, i.lower, i.upper) for i in stored.images] == [
            (i.index, i.lower, i.upper) for i in alone.images
        ]
        assert stored.finished


def test_a_stopped_study_goes_on_where_it_stopped(inputs: Path, study: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def watch(name: str, snapshots: Iterator[Snapshot]) -> Snapshot:
        seen.append(name)
        for last in snapshots:
            result = last
        return result

    data = str(inputs / "data.npz")
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", time_budget=0.0, watch=watch)
    assert seen == ["dnn-2-grid", "dnn-3-grid"]
    assert not any(run.latest.finished for run in read_runs(tmp_path))
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", stop=lambda: len(seen) > 2, watch=watch)
    assert seen[2:] == ["dnn-2-grid"]  # asked to stop before the second
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", watch=watch)
    for name in ("dnn-2-grid", "dnn-3-grid"):
        whole, again = read_snapshot(study / name), read_snapshot(tmp_path / name)
        assert [(i.lower, i.upper) for i in again.images] == [(i.lower, i.upper) for i in whole.images]
    before = (tmp_path / "dnn-2-grid" / "run.db").read_bytes()
    carry_out(plans(inputs), tmp_path, data=data, device="cpu", watch=watch)
    assert (tmp_path / "dnn-2-grid" / "run.db").read_bytes() == before


def test_networks_are_loaded_before_any_work(inputs: Path, tmp_path: Path) -> None:
    missing = [*plans(inputs), Plan(str(inputs / "none.onnx"), "grid", 1, 3, 0.5)]
    with pytest.raises(ModelError, match="there is no file"):
        carry_out(missing, tmp_path, data=str(inputs / "data.npz"))
    assert not any(tmp_path.iterdir())


def test_other_images_or_names_are_refused(inputs: Path, study: Path) -> None:
    with pytest.raises(StoreError, match="10 images, not on the 7"):
        carry_out(plans(inputs, 7), study, data=str(inputs / "data.npz"), device="cpu")
    with pytest.raises(ConfigError, match="same name"):
        carry_out(plans(inputs)[:1] * 2, study, data=str(inputs / "data.npz"), device="cpu")
    with pytest.raises(StoreError, match="no run folders"):
        read_runs(inputs)


def test_a_copied_run_is_read_the_same(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "dnn-2-grid", tmp_path / "copy")
    here, there = read_run(study / "dnn-2-grid"), read_run(tmp_path / "copy")
    assert (here.network, here.guarantee, there.name) == (there.network, there.guarantee, "copy")
    assert [level.to_dict() for level in here.levels] == [level.to_dict() for level in there.levels]
