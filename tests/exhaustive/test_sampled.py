"""The real-time mode finds witnesses and claims nothing."""

import time
from pathlib import Path

import pytest
import torch

import l0tre
from l0tre.errors import ConfigError
from tests.tools import plain_network, tiny_module


def test_only_upper_bounds_come_from_a_sample(tmp_path: Path) -> None:
    module, shape = tiny_module("conv1", 3)
    images = torch.rand(5, *shape)
    network = plain_network(module, shape)
    whole = l0tre.evaluate(network, images, max_t=3)
    result = l0tre.evaluate(network, images, max_t=1, sample_ms=2000.0, out=tmp_path / "run")
    assert result.finished
    for image in result.images:
        assert image.guarantee == "sampled"
        assert image.lower == 0
        assert image.level == 1
        assert image.queries > 0
        assert image.upper >= whole[image.index].upper
        if image.witness is not None:
            changed = image.witness.apply(images[image.index])
            assert int(module(changed[None]).argmax()) == image.witness.label != image.label
    assert any(image.witness is not None for image in result.images)
    again = l0tre.resume(tmp_path / "run", network)
    assert [image.upper for image in again.images] == [image.upper for image in result.images]
    assert again.queries == result.queries


def test_the_same_seed_draws_the_same_subspaces() -> None:
    module, shape = tiny_module("dense", 8)
    images = torch.rand(4, *shape)

    def run(seed: int) -> list[tuple[int, ...]]:
        # No time at all: exactly one batch for each image, whatever the machine's speed.
        result = l0tre.evaluate(plain_network(module, shape), images, max_t=2, sample_ms=1e-9, seed=seed)
        return [(image.queries, *((image.witness.groups) if image.witness else ())) for image in result.images]

    assert run(1) == run(1)


def test_a_deadline_must_be_a_time() -> None:
    module, shape = tiny_module("dense", 8)
    for sample in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="milliseconds"):
            l0tre.evaluate(plain_network(module, shape), torch.rand(1, *shape), sample_ms=sample)


def test_a_time_too_short_for_a_single_set_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01 * len(x))
        return torch.stack([x.sum(1), 9 - x.sum(1)], 1)

    result = l0tre.evaluate(slow, torch.rand(2, 6), max_t=2, sample_ms=40.0)
    assert result.finished
    said = [text for text in caplog.messages if "too few" in text]
    assert len(said) == 1
    assert "too few for a single set of 2 features, which has 25 grid points" in said[0]
