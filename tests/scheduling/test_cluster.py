"""Evaluations on workers of Ray, for real: the same results, killed workers, units that fail, sessions that end."""

import csv
import os
import random
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import ConfigError, ModelError, StoreError
from l0tre.scheduling.session import session
from l0tre.store import open_run
from l0tre.studies.case_five import MapPlan, carry_out_maps
from l0tre.tuning import Tuning
from tests.cli.running import make_files
from tests.tools import tiny_module

# One session of Ray for all of them: it takes seconds to start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

CLOCKED = ("seconds", "history", "share")  # what depends on who was when at what
TWO = l0tre.Cluster("local", workers=2)
# Tasks of single images, which last for a moment: there is something to kill.
SMALL = Tuning(record_seconds=0.0, turn_seconds=0.02, task_seconds=0.02)
OPTIONS: dict[str, Any] = {"max_t": 2, "attack_queries": 100, "memory_bytes": 2**24, "seed": 3}


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with session(TWO) as module:
        yield module


def _network() -> tuple[l0tre.Network, Tensor]:
    module, shape = tiny_module("conv1", 11)
    for parameter in module.parameters():
        parameter.data *= 0.35  # distances of two and more
    torch.manual_seed(1)
    return l0tre.load(module, input_shape=shape, device="cpu"), torch.rand(13, *shape)


def _essence(result: l0tre.Snapshot) -> list[object]:
    witnesses = [None if i.witness is None else (i.witness.groups, i.witness.values.tolist()) for i in result.images]
    return [(i.index, i.lower, i.upper, i.level, w) for i, w in zip(result.images, witnesses, strict=True)]


def _workers() -> list[int]:
    """Processes below this one that run our workers."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            names[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue

    def ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return [process for process, name in names.items() if name.startswith("ray::Worker") and ours(process)]


def _collect(steps: Iterator[l0tre.Snapshot], disturb: Any = None) -> l0tre.Snapshot:
    """The last snapshot; bounds only get better."""
    lower, upper = [0] * 99, [99] * 99
    for step, snapshot in enumerate(steps):
        for place, image in enumerate(snapshot.images):
            assert lower[place] <= image.lower < image.upper <= upper[place]
            lower[place], upper[place] = image.lower, image.upper
        if disturb is not None:
            disturb(step)
    return snapshot


@pytest.mark.parametrize("guarantee", ["certified", "grid"])
def test_results_are_those_of_one_process(guarantee: Any) -> None:
    network, images = _network()
    alone = l0tre.evaluate(network, images, guarantee=guarantee, **OPTIONS)
    together = l0tre.evaluate(network, images, guarantee=guarantee, cluster=TWO, **OPTIONS)
    assert together.finished
    assert _essence(together) == _essence(alone)
    assert [image.queries for image in together.images] == [image.queries for image in alone.images]
    ours, theirs = ({k: v for k, v in r.to_dict()["global"].items() if k not in CLOCKED} for r in (together, alone))
    assert ours == theirs


@pytest.mark.parametrize("targeted", [False, True])
def test_attacks_are_those_of_one_process(*, targeted: bool) -> None:
    module, shape = tiny_module("conv1", 4)
    torch.manual_seed(2)
    images = torch.rand(130, *shape)  # blocks of 128
    network = l0tre.load(module, input_shape=shape, device="cpu")
    labels = torch.arange(130) % network.classes if targeted else None
    options: dict[str, Any] = {"targeted": targeted, "budget": 20, "memory_bytes": 2**24, "seed": 1}
    alone = l0tre.attack_details(network, images, labels, **options)
    told = list[str]()
    spread = l0tre.attack_details(
        network, images, labels, cluster=TWO, progress=lambda stage, _, __: told.append(stage), **options
    )
    for name in ("adversarial", "found", "distance", "forwards", "backwards"):
        assert torch.equal(getattr(spread, name), getattr(alone, name)), name
    assert spread.methods == alone.methods
    assert int(alone.found.sum()) > 0
    blocks = network.classes if targeted else 2
    assert told == [f"{done} of {blocks} blocks" for done in range(1, blocks + 1)]


def test_maps_are_those_of_one_process() -> None:
    network, images = _network()
    alone = l0tre.saliency(network, images[:3], [0, 1, 0], signed=True)
    assert torch.equal(l0tre.saliency(network, images[:3], [0, 1, 0], signed=True, cluster=TWO), alone)
    assert not torch.equal(alone[0], alone[1])


def test_a_study_of_maps_is_that_of_one_process(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    plan = MapPlan([str(files.model)], str(files.data), images=2, queries=40, compared=False, device="cpu")
    alone, spread = carry_out_maps(plan, tmp_path / "alone"), carry_out_maps(plan, tmp_path / "spread", cluster=TWO)
    assert len(spread.files) == len(alone.files)
    for name in ("maps.csv", "quality.csv"):
        rows = [_without_seconds(tmp_path / where / name) for where in ("alone", "spread")]
        assert rows[0] == rows[1]


def _without_seconds(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)]


def test_maps_that_cannot_be_drawn_are_named() -> None:
    images = torch.rand(2, 4)
    images[1, 3] = 0.5
    module = _Poisoned(os.getpid(), "error")
    mask = torch.tensor([True, True, True, False])  # the mark stays
    with pytest.raises(ModelError, match=r"1 of 2 maps could not be drawn: map 2: .*no such value"):
        l0tre.saliency(module.forward, images, domain=l0tre.make_domain((4,), mask=mask), cluster=TWO)


@pytest.mark.parametrize("kills", [0, 2])
def test_suites_are_those_of_one_process(kills: int) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(100, 12), nn.ReLU(), nn.Linear(12, 3))
    for parameter in module.parameters():
        parameter.data -= 0.07
    network, seeds = l0tre.load(module, input_shape=(1, 7, 7), device="cpu"), torch.rand(5, 1, 7, 7)
    options: dict[str, Any] = {"max_l0": 5, "memory_bytes": 2**20, "seed": 2}  # steps of several blocks
    alone = l0tre.generate_tests(network, seeds, **options)
    told = list[str]()

    def progress(words: str, _: float) -> None:
        told.append(words)
        if len(told) <= kills and (workers := _workers()):
            os.kill(workers[0], signal.SIGKILL)

    spread = l0tre.generate_tests(network, seeds, cluster=TWO, progress=progress, **options)
    assert len(told) > kills
    for name in ("images", "origins", "sizes", "aims", "distance", "lower", "dead", "random"):
        assert torch.equal(getattr(spread, name), getattr(alone, name)), name
    assert (spread.queries, spread.random_queries) == (alone.queries, alone.random_queries)
    assert len(alone) > 5
    assert alone.complete
    assert spread.complete


def test_a_suite_that_is_stopped_goes_on_elsewhere(tmp_path: Path) -> None:
    network, images = _network()
    options: dict[str, Any] = {"max_l0": 4, "memory_bytes": 2**16}
    alone = l0tre.generate_tests(network, images[:3], **options)
    told = list[str]()
    stopped = l0tre.generate_tests(
        network,
        images[:3],
        out=tmp_path / "suite",
        cluster=TWO,
        progress=lambda words, _: told.append(words),
        stop=lambda: len(told) > 4,
        **options,
    )
    assert not stopped.complete
    again = l0tre.generate_tests(network, images[:3], out=tmp_path / "suite", **options)
    assert again.complete
    assert torch.equal(again.distance, alone.distance)


def test_a_run_outlives_its_workers_and_its_driver(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Three kills at random moments, a driver that ends, a resumed run: nothing is lost, nothing counts twice."""
    network, images = _network()
    alone = l0tre.evaluate(network, images, **OPTIONS)
    chance, killed = random.Random(7), list[int]()
    moments = sorted(chance.sample(range(1, 16), 3))

    def kill(step: int) -> None:
        if len(killed) < 3 and step >= moments[len(killed)] and (workers := _workers()):
            killed.append(chance.choice(workers))
            os.kill(killed[-1], signal.SIGKILL)

    steps = l0tre.anytime(network, images, out=tmp_path / "run", cluster=TWO, tuning=SMALL, **OPTIONS)
    for step, _ in enumerate(steps):
        kill(step)
        if step == 12:
            break
    steps.close()  # type: ignore[attr-defined]
    resumed = l0tre.resume_anytime(tmp_path / "run", network, cluster=TWO, tuning=SMALL)
    result = _collect(resumed, lambda step: kill(step + 13))
    assert len(killed) == 3
    assert result.finished
    assert _essence(result) == _essence(alone)
    assert _essence(l0tre.load_run(tmp_path / "run")) == _essence(alone)
    assert result.seconds == pytest.approx(sum(image.seconds for image in result.images), rel=1e-3)
    assert capfd.readouterr().out == ""  # which is for results


class _Poisoned(nn.Module):
    """Fails in every process but one for inputs with a mark: with an error, for good, or for want of memory."""

    def __init__(self, process: int, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.process = process
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.process and bool((x[:, 3] == 0.5).any()):
            if self.how == "death":
                os._exit(1)
            if self.how == "memory":
                _exhaust_memory()
            raise RuntimeError("no such value")
        scores: Tensor = self.layer(x)
        return scores


def _exhaust_memory() -> None:
    """Ask for more than the process may have."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, before[1]))
    try:
        torch.ones(2**28)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("how", "reason"), [("error", "no such value"), ("death", "its worker was lost"), ("memory", "memory")]
)
def test_an_image_that_always_fails_is_set_aside(
    how: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(3)
    images = torch.rand(4, 4)
    images[2, 3] = 0.5
    mask = torch.tensor([True, True, True, False])  # the mark stays
    domain = l0tre.make_domain((4,), mask=mask)
    module = _Poisoned(os.getpid(), how)
    options: dict[str, Any] = {"domain": domain, "guarantee": "grid", "max_t": 1, "attack_queries": 0}
    alone = l0tre.evaluate(module, images, **options)
    result = l0tre.evaluate(module, images, cluster=TWO, out=tmp_path / "run", **options)
    assert not result.finished
    assert [i.level for i in result.images] == [1, 1, 0, 1]
    assert re.search(rf"input 2 is set aside after several tries \(.*{reason}.*\)", caplog.text)
    again = l0tre.resume(tmp_path / "run", module)  # in one process it works
    assert again.finished
    assert _essence(again) == _essence(alone)


def test_whoever_cannot_record_stops(tmp_path: Path) -> None:
    network, images = _network()
    steps = l0tre.anytime(network, images, out=tmp_path / "run", cluster=TWO, tuning=SMALL, **OPTIONS)
    next(steps)
    other = open_run(tmp_path / "run")
    with pytest.raises(StoreError, match="taken over"):
        _collect(steps)
    other.close()


def test_the_time_ends_workers_too(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(400, 40), nn.ReLU(), nn.Linear(40, 10))
    torch.manual_seed(0)
    images = torch.rand(6, 1, 20, 20)
    result = l0tre.evaluate(module, images, cluster=TWO, time_budget=1.0, max_t=3, out=tmp_path / "run")
    assert not result.finished
    assert not l0tre.load_run(tmp_path / "run").finished


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    module, images = nn.Linear(4, 2), torch.rand(2, 4)
    with pytest.raises(ConfigError, match="unknown: give local, ray"):
        l0tre.evaluate(module, images, cluster="everywhere", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="room for none"):
        l0tre.evaluate(module, images, cluster=l0tre.Cluster("local", gpus=1000.0))
