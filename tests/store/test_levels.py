"""The bounds at the end of each level, read from a run folder."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

import l0tre
from l0tre.evaluation.problem import GuaranteeWish
from l0tre.evaluation.results import Snapshot
from l0tre.store import read_levels, read_snapshot
from tests.store.editing import make_old
from tests.tools import SAMPLE_BYTES, plain_network, tiny_module

# Few queries of attacks: what is tested is what levels keep.
OPTIONS: dict[str, Any] = {"epsilon": 0.5, "memory_bytes": 30 * SAMPLE_BYTES, "attack_queries": 40}


def problem() -> tuple[torch.nn.Module, torch.Tensor]:
    module, shape = tiny_module("conv1", 11)
    for parameter in module.parameters():
        parameter.data *= 0.35  # distances of two and more
    torch.manual_seed(1)
    return module, torch.rand(6, *shape)


def bounds(snapshot: Snapshot) -> list[tuple[int, int]]:
    return [(image.lower, image.upper) for image in snapshot.images]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Snapshot]:
    """A run of three levels on the grid, for reading only, and what it found."""
    module, images = problem()
    network = plain_network(module, tuple(images.shape[1:]))
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, l0tre.evaluate(network, images, out=folder, max_t=3, guarantee="grid", **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["grid", "certified"])
def test_a_level_ends_as_a_search_that_stops_there(tmp_path: Path, guarantee: GuaranteeWish) -> None:
    network, images = problem()
    options = {**OPTIONS, "guarantee": guarantee}
    l0tre.evaluate(network, images, out=tmp_path / "run", max_t=3, **options)
    levels = read_levels(tmp_path / "run")
    assert [level.t for level in levels] == [1, 2, 3]
    alone = [l0tre.evaluate(network, images, max_t=t, **options) for t in (1, 2, 3)]
    for level, shallow in zip(levels, alone, strict=True):
        assert bounds(level) == bounds(shallow)
        assert level.finished
    assert bounds(levels[0]) != bounds(levels[2])  # else nothing was tested


def test_the_witness_of_a_level_is_the_one_behind_its_upper_bound(finished: tuple[Path, Snapshot]) -> None:
    module, images = problem()
    network = plain_network(module, tuple(images.shape[1:]))
    shown = 0
    for level in read_levels(finished[0]):
        for image in level.images:
            if image.witness is None:
                assert image.upper == image.groups + 1
                continue
            shown += 1
            changed = image.witness.apply(images[image.index])
            assert int((changed != images[image.index]).sum()) == image.witness.distance == image.upper
            assert int(network.replay(changed).argmax()) == image.witness.label != image.label
            assert image.witness.level <= level.t
    assert shown > 6


def test_seconds_and_queries_add_up(finished: tuple[Path, Snapshot]) -> None:
    folder, result = finished
    levels = read_levels(folder)
    for place, last in enumerate(result.images):
        over_t = [level.images[place] for level in levels]
        assert [image.queries for image in over_t] == sorted(image.queries for image in over_t)
        assert [image.seconds for image in over_t] == sorted(image.seconds for image in over_t)
        assert (over_t[-1].queries, over_t[-1].seconds) == (last.queries, last.seconds)
    assert [level.seconds for level in levels] == sorted(level.seconds for level in levels)


@pytest.mark.parametrize("guarantee", ["grid", "certified"])
def test_the_seconds_of_the_images_are_those_of_the_run(tmp_path: Path, guarantee: GuaranteeWish) -> None:
    network, images = problem()
    l0tre.evaluate(network, images, out=tmp_path / "run", max_t=2, guarantee=guarantee, **OPTIONS)
    stored = read_snapshot(tmp_path / "run")
    assert sum(image.seconds for image in stored.images) == pytest.approx(stored.seconds)


@pytest.mark.slow
def test_interruptions_change_no_level(finished: tuple[Path, Snapshot], tmp_path: Path) -> None:
    module, images = problem()
    network = plain_network(module, tuple(images.shape[1:]))
    options: dict[str, Any] = {**OPTIONS, "max_t": 3, "guarantee": "grid"}
    wanted = [bounds(level) for level in read_levels(finished[0])]
    result = l0tre.evaluate(network, images, out=tmp_path / "run", time_budget=0.0, **options)
    reached = []
    while not result.finished:
        levels = read_levels(tmp_path / "run")
        reached.append(len(levels))
        for level, final in zip(levels, wanted, strict=False):
            assert not level.finished or bounds(level) == final
        result = l0tre.resume(tmp_path / "run", network, time_budget=0.0)
    assert [bounds(level) for level in read_levels(tmp_path / "run")] == wanted
    assert set(reached) == {1, 2, 3}  # levels not begun are not shown


def test_runs_of_format_2_are_read_and_resumed(finished: tuple[Path, Snapshot], tmp_path: Path) -> None:
    module, images = problem()
    network = plain_network(module, tuple(images.shape[1:]))
    options: dict[str, Any] = {**OPTIONS, "max_t": 3, "guarantee": "grid"}
    whole = finished[1]
    folder = tmp_path / "run"
    for snapshot in l0tre.anytime(network, images, out=folder, **options):
        if snapshot.t == 2:
            break
    make_old(folder, 2)
    latest = read_snapshot(folder)
    assert [bounds(level) for level in read_levels(folder)] == [bounds(latest)] * 2
    assert bounds(l0tre.resume(folder, network)) == bounds(whole)
    assert bounds(read_levels(folder)[-1]) == bounds(whole)
    connection = sqlite3.connect(folder / "run.db")
    assert connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == ("6",)
    connection.close()
