"""The exhaustive search by whole forward passes: the baseline that later work is measured against.

For each network: forward passes per second of a bare loop over ready-made batches, queries per second of the search
(which also makes the changed inputs, reduces and ranks them), their ratio, and seconds an image for t = 1 and t = 2.
"""

import argparse
import json
import math
import platform
import resource
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import l0tre
from l0tre.loop import drive
from l0tre.memory import Batcher, default_budget
from l0tre.model.network import Network
from l0tre.problem import Settings, make_problem, start


def dnn_0() -> nn.Module:
    """The paper's 28x28 network; the speed does not depend on the weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def bare_rate(network: Network, seconds: float) -> float:
    """Forward passes per second on batches that exist already."""
    rows = Batcher(network, default_budget(network.device)).rows
    batch = torch.rand(rows, *network.input_shape, device=network.device)
    float(network.scores(batch).sum())  # warm up
    began, count, total = time.monotonic(), 0, torch.zeros((), device=network.device)
    while time.monotonic() - began < seconds:
        total += network.scores(batch).sum()
        count += rows
    float(total)  # wait for the device
    return count / (time.monotonic() - began)


def search_rate(network: Network, images: Tensor, t: int, seconds: float) -> float:
    """Queries per second of the search at level ``t``, the levels below it taken as done."""
    problem = make_problem(network, images, None, settings=Settings(max_t=t))
    state = start(problem)
    state.bounds = [replace(bounds, level=t - 1, lower=t - 1) for bounds in state.bounds]
    result = deque(drive(problem, state, time_budget=seconds), maxlen=1)[0]
    return result.queries / result.seconds


def measure(name: str, network: Network, seconds: float) -> dict[str, float | str]:
    """One row of the table."""
    torch.manual_seed(0)
    images = torch.rand(8, *network.input_shape)
    pixels = math.prod(network.input_shape[1:])
    bare = bare_rate(network, seconds)
    row: dict[str, float | str] = {"network": name, "device": str(network.device), "bare_per_s": round(bare)}
    for t in (1, 2):
        rate = search_rate(network, images, t, seconds)
        row[f"t{t}_per_s"] = round(rate)
        row[f"t{t}_ratio"] = round(rate / bare, 3)
        row[f"t{t}_s_per_image"] = round(math.comb(pixels, t) * 5**t / rate, 3)
    return row


def main() -> None:
    """Print the table and, with ``--out``, write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    networks = {
        "sDNN 14x14": l0tre.load("sdnn", device=options.device),
        "DNN-0 28x28": l0tre.load(dnn_0(), input_shape=(1, 28, 28), device=options.device),
    }
    rows = [measure(name, network, options.seconds) for name, network in networks.items()]
    header = list(rows[0])
    print("  ".join(f"{key:>16}" for key in header))
    for row in rows:
        print("  ".join(f"{row[key]!s:>16}" for key in header))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"seconds an image: every pixel set at epsilon 0.25, from the measured rate; peak {peak:.2f} GiB; {machine}")
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
