"""Accidents to runs whose work is done by several machines: those of a cluster that is made up on this one."""

import contextlib
import importlib
import os
import random
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import l0tre
from chaos.cases import Subject, begin_subject, checked
from l0tre.store import read_snapshot
from l0tre.tuning import Tuning

__all__ = ["ACCIDENTS", "SMALL", "Machines", "machines", "make_cluster_subject", "make_network", "run_cluster_case"]

# Tasks of single images, which last for a moment: there is something to kill.
SMALL = Tuning(record_seconds=0.0, turn_seconds=0.02, task_seconds=0.02)
SHAPE = (1, 6, 6)
OPTIONS: dict[str, Any] = {"max_t": 3, "attack_queries": 100, "memory_bytes": 2**22, "seed": 3}
ACCIDENTS = ("worker", "worker", "pause", "machine", "driver")
MOST = 80  # steps within which they happen
WAIT = 180.0  # seconds without a step until a driver counts as stuck
# Of all processes of the made-up cluster: it listens on the loopback, for those who know its token.
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "OMP_NUM_THREADS": "1",
}


def make_network() -> l0tre.Network:
    """The network of all cases, the same in every process."""
    torch.manual_seed(7)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3)]
    return l0tre.load(nn.Sequential(*layers).eval(), input_shape=SHAPE, device="cpu")


def make_cluster_subject(folder: Path) -> Subject:
    """Begin a run in a folder and leave it at its first step."""
    network = make_network()
    return begin_subject(network, torch.rand(16, *SHAPE), folder, steps=1, tuning=SMALL, **OPTIONS)


class Machines:
    """A cluster of a head, where drivers are, and two machines with a worker each."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.address = str(cluster.address)
        self.nodes: list[Any] = []
        self.mend()

    def mend(self) -> None:
        """Have two machines again."""
        while len(self.nodes) < 2:
            self.nodes.append(self.cluster.add_node(num_cpus=1))

    def lose(self, chance: random.Random) -> None:
        """Kill what runs the processes of a machine; they end then. Another machine comes."""
        node = self.nodes.pop(chance.randrange(len(self.nodes)))
        os.kill(_raylet(node), signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)
        self.mend()

    def workers(self) -> list[int]:
        """Processes that do tasks."""
        return [p for node in self.nodes for p in _below(_raylet(node)) if _name(p).startswith("ray::Worker")]


@contextlib.contextmanager
def machines() -> Iterator[Machines]:
    """A cluster, which ends with the block."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT, RAY_AUTH_TOKEN=secrets.token_hex(32))
    try:
        utils = importlib.import_module("ray.cluster_utils")
        cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            yield Machines(cluster)
        finally:
            cluster.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_cluster_case(there: Machines, seed: int, subject: Subject, folder: Path) -> list[str]:
    """Go on with a copy of a run to its end on a cluster, with three accidents at random steps.

    Args:
        there: The cluster.
        seed: Decides which accidents, and at which steps.
        subject: What they happen to.
        folder: Where to work; the copy is removed afterwards.

    Returns:
        What is wrong; nothing if all is well.
    """
    run = Path(shutil.copytree(subject.folder, folder / f"cluster-{seed}"))
    try:
        before = read_snapshot(run)
        wrong = _suffer(there, run, random.Random(seed)) + checked(subject, run, before)
        end = read_snapshot(run)
        if abs(end.seconds - sum(image.seconds for image in end.images)) > 1e-3 * end.seconds:
            wrong.append("work was counted twice, or not at all")
        return wrong
    finally:
        shutil.rmtree(run, ignore_errors=True)


def _suffer(there: Machines, run: Path, chance: random.Random) -> list[str]:
    accidents = [chance.choice(ACCIDENTS) for _ in range(3)]
    moments = sorted(chance.sample(range(1, MOST), 3))
    steps, driver = 0, _Driver(run, there.address)
    try:
        while True:
            came = driver.steps()
            if came is None:
                return driver.ended()
            steps += came
            while moments and steps >= moments[0]:
                moments.pop(0)
                what = accidents.pop(0)
                if what == "driver":
                    driver.kill()
                    driver = _Driver(run, there.address if chance.random() < 0.7 else None)
                elif what == "machine":
                    there.lose(chance)
                elif workers := there.workers():
                    _strike(chance.choice(workers), what, chance)
    finally:
        driver.kill()


class _Driver:
    """A process that goes on with a run."""

    def __init__(self, run: Path, address: str | None) -> None:
        self.log = run.with_suffix(".log")
        with self.log.open("w") as log:
            words = [sys.executable, "-m", "chaos.driver", str(run), *([address] if address else [])]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)

    def steps(self) -> int | None:
        """Steps since this was asked last, after a moment; none at the end."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], WAIT)[0]:
            self.process.kill()  # it is stuck
            return None
        return len(os.read(self.process.stdout.fileno(), 2**10)) or None

    def ended(self) -> list[str]:
        """What is wrong with how it ended."""
        code = self.process.wait()
        return [] if code == 0 else [f"a driver ended with {code}: {self.log.read_text()[-2000:]}"]

    def kill(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.wait()


def _strike(worker: int, what: str, chance: random.Random) -> None:
    with contextlib.suppress(ProcessLookupError):
        if what == "worker":
            os.kill(worker, signal.SIGKILL)
            return
        os.kill(worker, signal.SIGSTOP)
        time.sleep(chance.uniform(0.0, 1.0))
        os.kill(worker, signal.SIGCONT)


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _below(process: int) -> Iterator[int]:
    """Processes that were started by one, and by these."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            yield int(child)
            yield from _below(int(child))


def _name(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    return ""
