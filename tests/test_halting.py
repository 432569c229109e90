"""Long work is left between two batches, and what is known then is kept."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.domain import make_domain
from l0tre.errors import ConfigError
from l0tre.exhaustive.grid_scan import make_level
from l0tre.exhaustive.grid_search import GridSearch
from l0tre.exhaustive.scanner import Engine, make_scanner
from l0tre.grid import make_grid
from l0tre.halting import Clock, Halted, beat, felt
from l0tre.memory import Batcher
from l0tre.objective import AllRivals
from l0tre.tuning import Tuning
from tests.tools import plain_network, tiny_module


class Alarm:
    """A pulse that halts at some of its calls."""

    def __init__(self, at: Callable[[int], bool]) -> None:
        self.calls, self.at = 0, at

    def __call__(self) -> None:
        self.calls += 1
        if self.at(self.calls):
            raise Halted


def test_no_batch_begins_after_a_halt() -> None:
    module, shape = tiny_module("dense", 0)
    seen: list[int] = []

    def make(start: int, stop: int) -> Tensor:
        seen.append(stop - start)
        return torch.rand(stop - start, *shape)

    batcher = Batcher(plain_network(module, shape, sample_bytes=100), 1000, pulse=Alarm(lambda call: call == 3))
    with pytest.raises(Halted):
        batcher.run(95, make)
    assert seen == [10, 10]


def test_a_step_is_left_only_when_it_should_stop_and_has_lasted() -> None:
    halted = [False]
    clock = Clock(lambda: halted[0], 100.0)
    clock.began = time.monotonic() - 200.0
    assert not clock.over()
    halted[0] = True
    assert clock.over()
    with pytest.raises(Halted):
        clock.pulse()
    clock.start()
    assert not clock.over()
    clock.began = time.monotonic() - 200.0
    clock.rest()
    assert not clock.over()


def test_a_time_limit_of_its_own_and_that_of_all() -> None:
    module, shape = tiny_module("dense", 0)
    whole = Batcher(plain_network(module, shape, sample_bytes=100), 1000)
    assert whole.within(1e9).rows == 1  # nothing was measured yet
    whole.run(20, lambda a, b: torch.rand(b - a, *shape))
    assert whole.within(1e9).rows == whole.rows
    with pytest.raises(Halted):
        whole.within(0.0).run(1, lambda a, b: torch.rand(b - a, *shape))
    whole.pulse = Alarm(lambda _: True)
    with pytest.raises(Halted):
        whole.within(1e9).run(1, lambda a, b: torch.rand(b - a, *shape))


@pytest.mark.parametrize("calls", [{1, 2}, {3, 20}, {5, 60, 90}, set(range(100, 130)), set(range(10, 200, 9))])
def test_a_grid_search_goes_on_where_it_was_halted(calls: set[int]) -> None:
    module, shape = tiny_module("dense", 5)
    network = plain_network(module, shape, sample_bytes=2**20)
    domain, images = make_domain(shape), torch.rand(3, *shape)
    level = make_level(domain, make_grid(domain, 0.5), 1)
    claims = AllRivals(network.scores(images).argmax(1))

    def search(pulse: Callable[[], None]) -> list[tuple[object, object]]:
        batcher = Batcher(network, 2**22, pulse=pulse)
        scanner, _, width = make_scanner(Engine(None, "test"), level, batcher, 2**22)
        work = GridSearch(scanner, level, batcher, images, claims, [], width=width)
        decided: dict[int, bool] = {}
        sizes: set[tuple[int, tuple[float, ...]]] = set()
        for _ in range(500):
            if not work.rows():
                break
            try:
                step = work.step()
            except Halted:
                continue
            decided.update(step.decided)
            sizes |= {(row, tuple(changed.tolist())) for row, changed in step.candidates}
        assert not work.rows()
        return [("decided", decided), ("rows", {row for row, _ in sizes})]

    assert search(Alarm(lambda call: call in calls)) == search(lambda: None)


def test_an_attack_keeps_what_it_has_when_it_is_halted() -> None:
    module, shape = tiny_module("dense", 3)
    images = torch.rand(4, *shape)
    labels = module(images).argmax(1)
    for batches in (1, 3, 10, 30):
        calls = 0

        def stop(limit: int = batches) -> bool:
            nonlocal calls
            calls += 1
            return calls > limit

        result = l0tre.attack_details(plain_network(module, shape), images, stop=stop, budget=500)
        decisions = module(result.adversarial).argmax(1)
        assert bool((decisions[result.changed] != labels[result.changed]).all())
        assert bool((result.adversarial[~result.found] == images[~result.found]).all())


def test_time_that_is_over_before_all_inputs_are_classified() -> None:
    module, shape = tiny_module("dense", 3)
    images, at_once = torch.rand(4, *shape), Tuning(grace_seconds=-1.0)
    with pytest.raises(ConfigError, match="had classified all inputs"):
        l0tre.evaluate(plain_network(module, shape), images, time_budget=0, tuning=at_once)
    with pytest.raises(KeyboardInterrupt):
        l0tre.evaluate(plain_network(module, shape), images, stop=lambda: True, tuning=at_once)


def test_a_question_without_time_for_the_network_is_unknown() -> None:
    module, shape = tiny_module("dense", 3)
    network, image, at_once = plain_network(module, shape), torch.rand(*shape), Tuning(grace_seconds=-1.0)
    late = l0tre.verify(network, image, radius=1, time_budget=0, tuning=at_once)
    assert (late.answer, late.timed_out, late.lower, late.witness) == ("unknown", True, 0, None)
    assert late.upper == math.prod(shape) + 1
    assert "the time is over before the network was confirmed" in late.reason
    stopped = l0tre.verify(network, image, radius=1, stop=lambda: True, tuning=at_once)
    assert (stopped.answer, stopped.timed_out) == ("unknown", False)


def test_sessions_that_are_halted_in_every_batch_end_with_the_same_books(tmp_path: Path) -> None:
    """A session makes its first step whole, also one inside a ranking; what was cut off counts once."""
    torch.manual_seed(5)
    module, shape = tiny_module("dense", 5)
    network, images = plain_network(module, shape, sample_bytes=2**20), torch.rand(3, *shape)
    options: dict[str, Any] = {"max_t": 1, "guarantee": "grid", "epsilon": 0.5, "attack_queries": 0}
    options["memory_bytes"] = 2**22
    whole = l0tre.evaluate(network, images, **options)
    assert max(image.upper for image in whole) > 1  # which only a ranking finds
    step = l0tre.evaluate(network, images, time_budget=0, out=tmp_path / "run", **options)
    assert not step.finished
    for _ in range(300):
        step = l0tre.resume(tmp_path / "run", network, time_budget=0, tuning=Tuning(grace_seconds=-1.0))
        if step.finished:
            break
    assert step.finished
    for cut, image in zip(step, whole, strict=True):
        assert (cut.lower, cut.upper, cut.queries) == (image.lower, image.upper, image.queries)


def test_a_pulse_is_felt_inside_and_nowhere_else() -> None:
    beat()
    outer, inner = Alarm(lambda _: False), Alarm(lambda call: call == 2)
    with felt(outer):
        beat()
        with felt(inner):
            beat()
            with pytest.raises(Halted):
                beat()
        beat()
    beat()
    assert (outer.calls, inner.calls) == (2, 2)


@pytest.mark.parametrize(("guarantee", "max_t"), [("certified", 1), ("grid", 2), ("lipschitz", 1)])
def test_what_is_cut_short_anywhere_claims_nothing(guarantee: Any, max_t: int, tmp_path: Path) -> None:
    """Operations feel the wish to stop: a session can end in whatever is made before a search, and in every step."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).eval()
    network, images = l0tre.load(module, input_shape=(1, 3, 3)), torch.rand(2, 1, 3, 3)
    tuning = Tuning(grace_seconds=-1.0)
    options: dict[str, Any] = {"max_t": max_t, "guarantee": guarantee, "attack_queries": 0, "tuning": tuning}
    whole = l0tre.evaluate(network, images, **options)
    asked, cut = [0], math.inf

    def stop() -> bool:
        asked[0] += 1
        return asked[0] > cut

    l0tre.evaluate(network, images, stop=stop, **options)
    most, ended = asked[0], 0
    for cut in range(1, most, max(1, most // 6)):
        asked[0], out = 0, tmp_path / "run" if cut > most // 2 and not ended else None
        try:
            part = l0tre.evaluate(network, images, stop=stop, out=out, **options)
        except KeyboardInterrupt:  # before anything was known
            assert cut <= most // 2
            continue
        ended += out is not None
        for known, image in zip(part, whole, strict=True):
            assert known.lower <= image.lower
            assert known.upper >= image.upper
    assert ended
    again = l0tre.resume(tmp_path / "run", network)
    assert [(image.lower, image.upper) for image in again] == [(image.lower, image.upper) for image in whole]
