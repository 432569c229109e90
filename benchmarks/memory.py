"""Peak memory of evaluations of large inputs, against what ``--memory`` allows: ``python -m benchmarks.memory``.

Each evaluation is a process of its own, on two random images of 3 x 224 x 224. It fails above the budget and the bare
process together plus 20 %; the bare process loads the same network, and searches nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

NETWORK = """
import torch
from torch import nn


def network():
    torch.manual_seed(0)
    layers = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 14 * 14, 10)).eval()
"""
SEARCHES = {
    "grid": ("evaluate", "--guarantee", "grid", "--attack", "0"),
    "certified": ("evaluate", "--guarantee", "certified", "--attack", "0"),
    "attack": ("attack", "--budget", "300"),
    "both": ("evaluate", "--guarantee", "certified", "--attack", "100"),
}
LOAD_ONLY = """
import sys
from l0tre.api.load import load
from l0tre.cli import app, setup  # what a command imports
from l0tre.limits import peak_host_bytes
load(sys.argv[1], input_shape=(3, 224, 224), device="cpu")
print(peak_host_bytes())
"""
MARGIN = 1.2


def main() -> int:
    """Measure and print a line for each search; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--memory", type=int, default=300, help="MiB that searches may take")
    parser.add_argument("--seconds", type=float, default=30.0, help="time budget of each search")
    parser.add_argument("--only", choices=SEARCHES, action="append", help="only this search; several times for several")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_text(NETWORK)
        np.savez(folder / "images.npz", x=np.random.default_rng(0).random((2, 3, 224, 224), dtype=np.float32))
        model = f"{folder / 'net.py'}:network"
        bare = int(_output([sys.executable, "-c", LOAD_ONLY, model])) / 2**20
        most = MARGIN * (given.memory + bare)
        print(f"bare process {bare:.0f} MiB, budget {given.memory} MiB, at most {most:.0f} MiB")
        worst = 0.0
        for kind in given.only or SEARCHES:
            command, *options = SEARCHES[kind]
            words = [model, str(folder / "images.npz"), *options, "--device", "cpu", "--memory", f"{given.memory}M"]
            ends = ["--time-budget", str(given.seconds), "--json"]
            found = json.loads(_output([sys.executable, "-m", "l0tre", command, *words, *ends]))
            peak = found["memory"]["peak"] / 2**20
            worst = max(worst, peak)
            print(f"{kind}: peak {peak:.0f} MiB{'' if peak <= most else ', TOO MUCH'}", flush=True)
    return int(worst > most)


def _output(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ)).stdout


if __name__ == "__main__":
    sys.exit(main())
