"""Attacks side by side in the spirit of AttackBench, ``python -m benchmarks.attacks FOLDER --networks A,B``.

Networks that are plain and robust, of the zoo, public and trained here; several budgets; every attack that can be
imported. It works in parts (a network, a budget, an attack), one file each in FOLDER: a part that is there already is
not run again, so that the whole fits into several sessions. ``--show`` prints the tables of what is there.
"""

import argparse
import itertools
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import l0tre
from l0tre.adapters.compare_attacks import OWN, AttackResult, compare
from l0tre.adapters.peers import PEERS
from l0tre.data import Dataset, select
from l0tre.errors import MissingExtraError

BUDGETS = (200, 500, 2_000, 10_000, 50_000)
SLOW = ("cw-l0", "sparsefool", "pixle", "one-pixel", "jsma", "bb-l0")  # only if they are named


@dataclass(frozen=True)
class Case:
    """A network and where its images come from.

    Attributes:
        model: For :func:`l0tre.load`, a file below ``DATA/models``, or ``mlp`` for the table.
        data: For :func:`l0tre.load_data`.
        normalise: Mean and standard deviation, if the network wants them.
    """

    model: str
    data: str
    normalise: tuple[float, float] | None = None


MNIST = (0.1307, 0.3081)
CASES = {
    "mnist-attack": Case("mnist-attack", "mnist"),
    "mnist-attack-l2": Case("mnist-attack-l2", "mnist"),
    "mnist-attack-trades": Case("mnist-attack-trades", "mnist"),
    "mnist-convbig": Case("mnist-convbig", "mnist"),
    "convsmall-pgd": Case("MNIST_ConvSmallPGD.onnx", "mnist", MNIST),
    "6x200-pgd": Case("MNIST_6x200_PGD.onnx", "mnist", MNIST),
    "cifar10-attack": Case("cifar10-attack", "cifar10"),
    "cifar10-resnet20": Case("cifar10-resnet20", "cifar10"),
    "table-mlp": Case("mlp", "table"),
}


def table(count: int) -> tuple[nn.Module, Dataset]:
    """A network of two hidden layers for a drawn table of 40 columns in [0, 1] and five classes, and its test rows."""
    draw = np.random.default_rng(0)
    centres = draw.random((5, 4, 40))
    label, cluster = draw.integers(0, 5, 6000), draw.integers(0, 4, 6000)
    rows = np.clip(centres[label, cluster] + draw.normal(0, 0.25, (6000, 40)), 0, 1)
    x, y = torch.from_numpy(rows).float(), torch.from_numpy(label)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
        optimiser = torch.optim.Adam(module.parameters(), 3e-3)
        for _ in range(300):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[:4000]), y[:4000]).backward()
            optimiser.step()
    held = slice(4000, 4000 + count)
    return module.eval().requires_grad_(False), Dataset(x[held], y[held], tuple(range(4000, 4000 + count)), "table")


def load(case: Case, images: int, folder: Path | None, device: str) -> tuple[l0tre.Network, Dataset]:
    """The network, and its first images."""
    if case.model == "mlp":
        module, data = table(images)
        return l0tre.load(module, input_shape=(40,), device=device), data
    model: Any = folder / "models" / case.model if folder is not None and case.model.endswith(".onnx") else case.model
    mean, std = (None, None) if case.normalise is None else ([case.normalise[0]], [case.normalise[1]])
    network = l0tre.load(model, device=device, mean=mean, std=std)
    data = l0tre.load_data(case.data, input_shape=network.input_shape, data_dir=folder)
    return network, select(data, limit=images)


def run_part(case: Case, attack: str, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    """One attack on one network with one budget."""
    network, data = load(case, options.images, options.data_dir, options.device)
    done = compare(network, data, peers=[] if attack == OWN else [attack], budget=budget, own=attack == OWN)
    result: AttackResult = done.results[0]
    distance = result.features if done.unit == "feature" else result.pixels
    return {
        "images": list(done.indices),
        "distance": distance.tolist(),
        "forwards": result.forwards,
        "backwards": result.backwards,
        "seconds": result.seconds,
        "error": result.error,
        "device": torch.cuda.get_device_name() if network.device.type == "cuda" else "cpu",
    }


def importable(name: str) -> bool:
    """Whether the library of a peer is here."""
    try:
        PEERS[name].load()
    except MissingExtraError:
        return False
    return True


def work(options: argparse.Namespace) -> None:
    """Run what is missing until the time is over."""
    began = time.monotonic()
    names = options.attacks.split(",") if options.attacks else [OWN, *(n for n in PEERS if n not in SLOW)]
    names = [name for name in names if name == OWN or importable(name)]
    for budget in options.budgets:
        for network in options.networks:
            for name in names:
                file = options.folder / network / f"{name}-{budget}.json"
                if file.exists() or time.monotonic() - began > options.seconds:
                    continue
                file.parent.mkdir(parents=True, exist_ok=True)
                part = run_part(CASES[network], name, budget, options)
                file.write_text(json.dumps(part) + "\n")
                found = [d for d in part["distance"] if d > 0]
                mean = sum(found) / max(1, len(found))
                each = part["seconds"] / max(1, len(part["images"]))
                print(
                    f"{network} {budget} {name}: {mean:.2f} {len(found)} found {each:.4f} s {part['error']}", flush=True
                )


def show(folder: Path) -> None:
    """Tables of everything in a folder, in Markdown."""
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        parts = {file.stem: json.loads(file.read_text()) for file in place.glob("*.json")}
        budgets = sorted({int(stem.rpartition("-")[2]) for stem in parts})
        names = sorted({stem.rpartition("-")[0] for stem in parts}, key=lambda name: (name != OWN, name))
        print(f"\n### {place.name}, {len(next(iter(parts.values()))['images'])} images\n")
        print("| attack | " + " | ".join(f"{b:,}" for b in budgets) + " | area | ours <= | s/image |")
        print("|---" * (len(budgets) + 4) + "|")
        for name in names:
            cells, points, good, seconds = [], [], [], ""
            for budget in budgets:
                part, own = parts.get(f"{name}-{budget}"), parts.get(f"{OWN}-{budget}")
                if part is None or part["error"]:
                    cells.append("-")
                    continue
                distance = np.array(part["distance"], dtype=float)
                found = distance > 0
                mean = float(distance[found].mean()) if found.any() else math.nan
                cells.append(f"{mean:.2f}" + ("" if found.all() else f" ({found.mean():.0%})"))
                points.append((math.log(budget), mean))
                seconds = f"{part['seconds'] / len(distance):.4f}"
                if own is not None and name != OWN and own["images"] == part["images"]:
                    ours = np.array(own["distance"], dtype=float)
                    ours[ours <= 0], distance[~found] = np.inf, np.inf
                    good.append(f"{(ours <= distance).mean():.1%}")
            print(f"| {name} | " + " | ".join(cells) + f" | {area(points)} | {' '.join(good)} | {seconds} |")


def area(points: list[tuple[float, float]]) -> str:
    """Mean height of a curve over the logarithm of the budget."""
    if len(points) < 2:
        return "-"
    sums = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    return f"{sums / (points[-1][0] - points[0][0]):.2f}"


def main() -> None:
    """Run, or show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--attacks", default="", help="default: ours and all that can be imported and are not slow")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no part after so many")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    if options.show:
        show(options.folder)
        return
    options.networks = options.networks.split(",")
    options.budgets = [int(budget) for budget in options.budgets.split(",")]
    work(options)


if __name__ == "__main__":
    main()
