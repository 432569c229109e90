"""Sensitivities of whole levels, by forward passes and by windows, as a ratio inside one run.

For each workload: grid points per second by whole forward passes (measured for a few seconds, seconds an image follow
from it) and seconds an image by windows (the whole level is run, tables included).
"""

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import l0tre
from benchmarks.networks import cifar_attack, dnn_0, sdnn
from l0tre.domain import make_domain
from l0tre.exhaustive.grid_scan import Level, make_level
from l0tre.exhaustive.scanner import Engine, Scanner, choose_engine, make_scanner
from l0tre.grid import Colours, make_grid
from l0tre.memory import Batcher, default_budget
from l0tre.model.network import Network
from l0tre.objective import AllRivals


@dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    t: int
    images: int
    colours: Colours = "grid"


WORKLOADS = (
    Workload("sDNN t=1", sdnn, (1, 14, 14), 1, 100),
    Workload("sDNN t=2", sdnn, (1, 14, 14), 2, 10),
    Workload("sDNN t=3", sdnn, (1, 14, 14), 3, 1),
    Workload("DNN-0 t=1", dnn_0, (1, 28, 28), 1, 100),
    Workload("DNN-0 t=2", dnn_0, (1, 28, 28), 2, 1),
    Workload("CIFAR t=1 corners", cifar_attack, (3, 32, 32), 1, 10, "corners"),
)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(
    scanner: Scanner, most: int, width: int, level: Level, images: Tensor, labels: Tensor, limit: float
) -> tuple[float, float]:
    """Seconds spent, and share of the work done in them; stops at the limit."""
    began, done = time.monotonic(), 0
    for first in range(0, len(images), most):
        some = slice(first, first + most)
        scan = scanner.prepare(images[some], AllRivals(labels[some]))
        step = max(1, width // len(images[some]))
        for start in range(0, level.sets, step):
            stop = min(start + step, level.sets)
            chunk = scan(start, stop)
            done += len(chunk.margin) * (stop - start)
            float(chunk.margin.min())  # the loop looks at every chunk too
            if time.monotonic() - began > limit:
                return time.monotonic() - began, done / (level.sets * len(images))
    _wait(images.device)
    return time.monotonic() - began, 1.0


def measure(work: Workload, device: str, seconds: float, scale: int) -> dict[str, float | str]:
    """One row of the table."""
    network: Network = l0tre.load(work.build(), input_shape=work.shape, device=device)
    domain = make_domain(work.shape).to(network.device)
    grid = make_grid(make_domain(work.shape), 0.25, colours=work.colours).to(network.device)
    level = make_level(domain, grid, work.t)
    count = work.images * scale
    images = torch.rand(count, *work.shape, generator=torch.Generator().manual_seed(0)).to(network.device)
    labels = network.scores(images).argmax(1)
    images = images.flatten(1)
    budget = default_budget(network.device)
    batcher = Batcher(network, budget)
    naive = make_scanner(Engine(None, "measured"), level, batcher, budget)
    fast = make_scanner(choose_engine(network, domain, grid), level, batcher, budget)
    _seconds(*naive, level, images, labels, 0.0)  # warm up
    spent, share = _seconds(*naive, level, images, labels, seconds)
    points = level.sets * level.points
    naive_rate = share * count * points / spent
    _seconds(*fast, level, images[: fast[1]], labels[: fast[1]], 0.0)
    if network.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    spent, share = _seconds(*fast, level, images, labels, 60 * seconds)
    each = spent / share / count
    memory = (
        torch.cuda.max_memory_allocated() / 2**30
        if network.device.type == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    )
    return {
        "work": work.name,
        "images": count,
        "points": points,
        "forward_per_s": round(naive_rate),
        "forward_s": float(f"{points / naive_rate:.3g}"),
        "windows_s": float(f"{each:.3g}"),
        "ratio": float(f"{points / naive_rate / each:.3g}"),
        "peak_GiB": round(memory, 2),
    }


def main() -> None:
    """Print the table and, with ``--out``, write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement of forward passes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    parser.add_argument("--scale", type=int, default=1, help="times as many images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for work in WORKLOADS:
        if options.only in work.name:
            rows.append(measure(work, options.device, options.seconds, options.scale))
            if len(rows) == 1:
                print("  ".join(f"{key:>17}" for key in rows[0]))
            print("  ".join(f"{value!s:>17}" for value in rows[-1].values()), flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    machine = f"{platform.machine()}, {device}, torch {torch.__version__}"
    print(f"seconds an image, epsilon 0.25; {machine}")
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
