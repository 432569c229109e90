"""What spreading costs: ``python -m benchmarks.scaling overhead | workers | writer | rate | model``.

``overhead``
    Units of sleep on a made-up cluster of several machines (Ray's own, on this one), against the ideal.
``workers``
    One evaluation with 1 and 2 workers in turn, and in this process: a ratio in one run.
``writer``
    How many tasks a second the one writer takes, with workers that need no time.
``rate``
    Forward passes a second of networks of ImageNet's size, with random weights; on a GPU with ``--device cuda``.
``model``
    Seconds for whole data sets on 8, 64 and 512 GPUs, from measured seconds an image; see ``benchmarks.cost_model``.
"""

import argparse
import contextlib
import importlib
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import l0tre
from benchmarks import cost_model
from benchmarks.networks import sdnn
from l0tre.evaluation.driver import drive
from l0tre.evaluation.problem import Problem, Settings, make_problem, start
from l0tre.evaluation.tasks import Report, Task
from l0tre.scheduling.executor import Event, StopCondition
from l0tre.scheduling.ray_executor import RayExecutor
from l0tre.scheduling.session import Cluster, session
from l0tre.scheduling.spread import spread
from l0tre.store.run import Inputs, create_run

ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}


def main() -> None:
    """Measure what is asked for, print it, and write it to a file if one is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["overhead", "workers", "writer", "rate", "model"])
    parser.add_argument("--workers", type=int, default=64, help="overhead: so many")
    parser.add_argument("--machines", type=int, default=4, help="overhead: on so many made-up machines")
    parser.add_argument("--units", type=int, default=640, help="overhead: so many")
    parser.add_argument("--seconds", type=float, default=1.0, help="overhead: that a unit lasts; rate: to measure for")
    parser.add_argument("--images", type=int, default=40, help="workers, writer: so many")
    parser.add_argument("--repeats", type=int, default=3, help="workers: so often")
    parser.add_argument("--device", default="cpu", help="rate: where")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    given = parser.parse_args()
    if given.what == "overhead":
        found: Any = overhead(given.workers, given.machines, given.units, given.seconds)
    elif given.what == "workers":
        found = workers(given.images, given.repeats)
    elif given.what == "writer":
        found = writer(given.images)
    elif given.what == "rate":
        found = rate(given.device, given.seconds)
    else:
        found = cost_model.table()
        print(cost_model.as_text(found))
        found = [asdict(row) for row in found]
    if given.what != "model":
        print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


class _Sleeper:
    """Does units of sleep; it keeps when each began and ended."""

    def work(self, seconds: float) -> Iterator[tuple[float, float]]:
        began = time.time()
        time.sleep(seconds)
        yield began, time.time()


def _make_sleeper(shipped: object, device: str, over: Callable[[], bool]) -> _Sleeper:  # noqa: ARG001
    return _Sleeper()


def overhead(count: int, machines: int, units: int, seconds: float) -> dict[str, float]:
    """Units on many workers: the time that they would take without any overhead over the time that they took."""
    os.environ.update(ENVIRONMENT, RAY_AUTH_TOKEN=secrets.token_hex(32))
    importlib.import_module("ray.cloudpickle").register_pickle_by_value(sys.modules[__name__])
    cluster = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(machines):
            cluster.add_node(num_cpus=count // machines)
        where, ending = Cluster(str(cluster.address), workers=count), StopCondition(lambda: False)
        with session(where) as ray:
            executor = RayExecutor(ray, where, _make_sleeper, None, ending)
            began = time.monotonic()
            while executor.free(0.0) < executor.workers:
                executor.wait()
            ready, cpu, began = time.monotonic() - began, time.process_time(), time.monotonic()
            spans = [span for _, span in spread(executor, [seconds] * units, ending)]
            took, cpu = time.monotonic() - began, time.process_time() - cpu
            executor.close()
    finally:
        cluster.shutdown()
    ideal = -(-units // count) * seconds
    slept = statistics.fmean(end - first for first, end in spans)
    return {
        "workers": count,
        "machines": machines,
        "units": units,
        "seconds of a unit": seconds,
        "seconds of a unit as measured": round(slept, 4),
        "workers ready after": round(ready, 1),
        "ideal": ideal,
        "took": round(took, 3),
        "share of the ideal": round(ideal / took, 3),
        "driver's CPU seconds": round(cpu, 2),
    }


def workers(images: int, repeats: int) -> dict[str, Any]:
    """The same evaluation by 1 worker, by 2, and in this process, in turn."""
    network = l0tre.load(sdnn().eval(), input_shape=(1, 14, 14), device="cpu")
    x = torch.rand(images, 1, 14, 14, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"max_t": 2, "guarantee": "grid", "epsilon": 0.25, "attack_queries": 0, "seed": 1}
    took: dict[str, list[float]] = {"in process": [], "1 worker": [], "2 workers": []}
    torch.set_num_threads(1)
    with session(Cluster("local")):
        for _ in range(repeats):
            for name, seconds in took.items():
                where = None if name == "in process" else Cluster("local", workers=int(name[0]))
                began = time.monotonic()
                marks = [time.monotonic() for _ in l0tre.anytime(network, x, cluster=where, **options)]
                # Without the start of workers: from the first report to the end.
                seconds.append(time.monotonic() - (began if where is None else marks[0]))
    means = {name: round(statistics.median(seconds), 2) for name, seconds in took.items()}
    return {
        "images": images,
        "median seconds": means,
        "1 over 2 workers": round(means["1 worker"] / means["2 workers"], 2),
        "efficiency of 2 workers": round(means["1 worker"] / means["2 workers"] / 2, 2),
        "in process over 1 worker": round(means["in process"] / means["1 worker"], 2),
    }


class _Instant:
    """Workers that need no time: every task closes its level, so that driver and writer are all that is left."""

    device = "cpu"

    def __init__(self, count: int, together: int) -> None:
        self.workers = count
        self.together = together
        self.tasks: list[tuple[int, Task]] = []
        self.ended = 0

    def free(self, seconds: float) -> int:  # noqa: ARG002
        return 2 * self.workers - len(self.tasks)

    def start(self, unit: int, task: Task) -> None:
        self.tasks.append((unit, task))

    def wait(self) -> Sequence[Event]:
        now, self.tasks = self.tasks[: self.together], self.tasks[self.together :]
        self.ended += len(now)
        return [event for unit, task in now for event in (Event(unit, "report", _closed(task)), Event(unit, "done"))]

    def leave(self) -> Sequence[Event]:
        return ()

    def close(self) -> None:
        self.tasks = []


def _closed(task: Task) -> Report:
    t = task.stage.t
    bounds = tuple(replace(bounds, lower=t, level=t) for bounds in task.bounds)
    return Report(0, tuple(task.places), bounds, {}, {}, 1.0, t, 1.0)


def writer(images: int) -> list[dict[str, float]]:
    """Tasks a second that the driver hands out, merges and records in a run folder."""
    network = l0tre.load(nn.Linear(16, 3).eval(), input_shape=(16,), device="cpu")
    x = torch.rand(images, 16, generator=torch.Generator().manual_seed(0))
    found = []
    for count, together in ((64, 1), (64, 16), (512, 64)):
        settings = Settings(max_t=2, guarantee="grid", attack_queries=0, memory_bytes=2**26)
        problem = make_problem(network, x, None, settings=settings)
        executor = _Instant(count, together)
        with tempfile.TemporaryDirectory() as name:
            state = start(problem)
            inputs = Inputs(x, None, tuple(range(images)), problem.domain)
            run = create_run(Path(name) / "run", inputs, state, excluded=problem.excluded, config=problem.config)

            def make(_: Problem, __: StopCondition, ___: bool, made: _Instant = executor) -> _Instant:
                return made

            cpu, began, steps = time.process_time(), time.monotonic(), 0
            for _ in drive(problem, state, recorder=run, time_budget=20.0, make_executor=make):
                steps += 1
            took, cpu = time.monotonic() - began, time.process_time() - cpu
            run.close()
        found.append(
            {
                "images": images,
                "workers": count,
                "tasks in a transaction": together,
                "tasks": executor.ended,
                "transactions a second": round(steps / took, 1),
                "tasks a second": round(executor.ended / took, 1),
                "CPU milliseconds of a transaction": round(1000 * cpu / steps, 2),
            }
        )
    return found


def rate(device: str, seconds: float) -> dict[str, dict[str, float]]:
    """Forward passes a second, float32 without TF32, and the multiplications of one."""
    found = {}
    for name, (module, shape) in cost_model.NETWORKS.items():
        network = l0tre.load(module().eval(), input_shape=shape, device=device)
        batch = 256 if network.device.type == "cuda" else 4
        x = torch.rand(batch, *shape).to(network.device)
        for _ in range(2):
            float(network.scores(x).sum())
        began, passes = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            float(network.scores(x).sum())
            passes += batch
        found[name] = {
            "passes a second": round(passes / (time.monotonic() - began), 1),
            "multiplications": cost_model.multiplications(module(), shape),
        }
    return found


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
