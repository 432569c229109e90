"""Run folders whose settings have names without units are read, shown and resumed."""

import json
import sqlite3
from pathlib import Path

import pytest
import torch

import l0tre
from l0tre.api.runs import go_on
from l0tre.data import from_arrays
from l0tre.errors import StoreError
from l0tre.evaluation.problem import Settings
from l0tre.store import read_config, read_snapshot
from tests.store.editing import make_old
from tests.tools import SAMPLE_BYTES, plain_network, tiny_module

OLD = {"memory_bytes": "memory", "sample_ms": "sample", "attack_queries": "attack"}


def begun(folder: Path) -> tuple[l0tre.Network, torch.Tensor, Settings]:
    """A run as older versions left it, after one step."""
    module, shape = tiny_module("conv1", 3)
    network = plain_network(module, shape)
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    settings = Settings(max_t=2, epsilon=0.5, memory_bytes=20 * SAMPLE_BYTES, attack_queries=7, guarantee="grid")
    next(go_on(folder, network, from_arrays(images), settings, stop=lambda: True))
    make_old(folder, 4)
    connection = sqlite3.connect(folder / "run.db")
    (text,) = connection.execute("SELECT value FROM meta WHERE key = 'config'").fetchone()
    config = json.loads(text)
    assert set(OLD) <= set(config["settings"])
    config["settings"] = {OLD.get(name, name): value for name, value in config["settings"].items()}
    connection.execute("UPDATE meta SET value = ? WHERE key = 'config'", (json.dumps(config),))
    connection.commit()
    connection.close()
    return network, images, settings


def test_old_names_are_read_as_the_new_ones(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    for config in (read_config(tmp_path / "run"), read_snapshot(tmp_path / "run").config):
        assert not set(OLD.values()) & set(config["settings"])
        assert config["settings"]["attack_queries"] == 7
        assert config["settings"]["memory_bytes"] == 20 * SAMPLE_BYTES


def test_an_old_run_goes_on_to_the_same_bounds(tmp_path: Path) -> None:
    network, images, settings = begun(tmp_path / "run")
    resumed = l0tre.resume(tmp_path / "run", network)
    whole = l0tre.evaluate(
        network,
        images,
        max_t=settings.max_t,
        epsilon=settings.epsilon,
        memory_bytes=settings.memory_bytes,
        attack_queries=settings.attack_queries,
        guarantee="grid",
    )
    assert resumed.finished
    assert [(image.lower, image.upper) for image in resumed] == [(image.lower, image.upper) for image in whole]


def test_an_old_run_is_held_against_what_is_asked_for(tmp_path: Path) -> None:
    network, images, settings = begun(tmp_path / "run")
    data = from_arrays(images)
    with pytest.raises(StoreError, match="`attack_queries` 7, not 8"):
        go_on(tmp_path / "run", network, data, Settings(max_t=2, epsilon=0.5, attack_queries=8, guarantee="grid"))
    narrow = l0tre.make_domain(network.input_shape, high=2.0)
    with pytest.raises(StoreError, match="other values may change"):
        go_on(tmp_path / "run", network, data, settings, domain=narrow)
    *_, last = go_on(tmp_path / "run", network, data, settings)
    assert last.finished
