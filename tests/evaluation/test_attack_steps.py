"""The attacks as a part of an evaluation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.api.evaluate import anytime
from l0tre.api.resume import resume
from l0tre.domain import make_domain
from l0tre.errors import ConfigError
from l0tre.evaluation.attack_steps import strengthen_again
from l0tre.evaluation.ledger import Ledger
from l0tre.evaluation.problem import GuaranteeWish, Settings, make_problem, start
from l0tre.store import read_snapshot
from l0tre.tuning import Tuning


def make_case() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)
    ).eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim == 1:
            parameter.mul_(0.7)  # else biases alone decide, and no change can do anything
    return module, torch.rand(12, 1, 6, 6)


@pytest.mark.parametrize("guarantee", ["certified", "grid"])
def test_an_attack_only_lowers_upper_bounds(guarantee: GuaranteeWish) -> None:
    module, images = make_case()
    options: dict[str, Any] = {"max_t": 1, "guarantee": guarantee, "epsilon": 0.5, "time_budget": 20.0}
    plain = l0tre.evaluate(module, images, None, attack_queries=0, **options)
    better = l0tre.evaluate(module, images, None, attack_queries=500, **options)
    assert [i.lower for i in better.images] == [i.lower for i in plain.images]
    assert all(a.upper <= b.upper for a, b in zip(better.images, plain.images, strict=True))
    assert better.upper < plain.upper
    assert not any(i.attacked for i in plain.images)
    for image in better.images:
        assert image.witness is not None
        changed = image.witness.apply(images[image.index])
        scores = module(changed[None])[0]
        assert int(scores.argmax()) == image.witness.label != image.label
        assert int((changed != images[image.index]).sum()) == image.upper


def test_on_a_grid_witnesses_lie_on_it() -> None:
    module, images = make_case()
    result = l0tre.evaluate(module, images, max_t=1, guarantee="grid", epsilon=0.5, attack_queries=500)
    for image in result.images:
        assert image.witness is not None
        assert set(image.witness.values.tolist()) <= {0.0, 0.5, 1.0}


@pytest.mark.slow
def test_a_run_that_is_stopped_again_and_again_attacks_each_image_once(tmp_path: Path) -> None:
    patient = Tuning(grace_seconds=1e9)  # every step is made whole, however slow the machine is: the books must agree
    module, images = make_case()
    options: dict[str, Any] = {"max_t": 1, "guarantee": "grid", "epsilon": 0.5, "attack_queries": 300}
    options["tuning"] = patient
    whole = l0tre.evaluate(module, images, **options)
    snapshots = anytime(module, images, time_budget=0, out=tmp_path / "run", **options)
    assert not list(snapshots)[-1].finished
    for _ in range(100):
        if read_snapshot(tmp_path / "run").finished:
            break
        resume(tmp_path / "run", module, time_budget=0, tuning=patient)
    stopped = read_snapshot(tmp_path / "run")
    assert stopped.finished
    assert all(image.attacked or image.converged for image in stopped.images)
    for a, b in zip(stopped.images, whole.images, strict=True):
        assert (a.lower, a.upper, a.queries) == (b.lower, b.upper, b.queries)


def test_a_negative_budget_is_refused() -> None:
    module, images = make_case()
    with pytest.raises(ConfigError, match="`attack_queries` is -1"):
        l0tre.evaluate(module, images, attack_queries=-1)


def test_a_second_attack_goes_on_from_the_witness_and_stops_above_the_lower_bound() -> None:
    module, images = make_case()
    network = l0tre.load(module, input_shape=(1, 6, 6))
    settings = Settings(max_t=1, guarantee="certified", attack_queries=400)
    problem = make_problem(
        network, images[:4], module(images[:4]).argmax(1), domain=make_domain((1, 6, 6)), settings=settings
    )
    state = start(problem)
    ledger = Ledger(problem, state, lambda: False)
    list(strengthen_again(ledger, [0, 1, 3], 60.0, 0))
    first = [bounds.upper for bounds in state.bounds]
    assert all(first[image] < 37 for image in (0, 1, 3))
    assert first[2] == 37, "an image that it was not asked to attack"
    queries = [bounds.queries for bounds in state.bounds]
    assert 0 < queries[0] <= 3 * 800
    # With the proofs at hand nothing is left to find, and nothing is spent.
    state.bounds = [replace(bounds, lower=bounds.upper - 1) for bounds in state.bounds]
    list(strengthen_again(ledger, [0, 1, 3], 60.0, 1))
    assert [bounds.queries for bounds in state.bounds] == queries
    # Without time neither.
    state.bounds = [replace(bounds, lower=0) for bounds in state.bounds]
    list(strengthen_again(ledger, [0, 1, 3], -1.0, 1))
    assert [bounds.queries for bounds in state.bounds] == queries
    assert [bounds.upper for bounds in state.bounds] == first
