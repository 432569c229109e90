"""Attacks side by side in the spirit of AttackBench, ``python -m benchmarks.attacks FOLDER --networks A,B``.

Networks that are plain and robust, of the zoo, public and trained here; several budgets; every attack that can be
imported. It works in parts (a network, a budget, an attack), one file each in FOLDER: a part that is there already is
not run again, so that the whole fits into several sessions, each of ``--seconds`` (a part that is begun is
finished). ``--show`` prints the tables of what is there (``benchmarks/attack_tables.py``).
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import l0tre
from benchmarks.attack_tables import show, write
from benchmarks.tuning_networks import TUNING, drawn_rows, load_tuning
from l0tre.adapters.compare_attacks import OWN, AttackResult, compare
from l0tre.adapters.peers import PEERS
from l0tre.data import Dataset, select
from l0tre.errors import MissingExtraError

BUDGETS = (200, 500, 2_000, 10_000, 50_000)
SLOW = ("cw-l0", "sparsefool", "pixle", "one-pixel", "jsma", "bb-l0")  # only if they are named
NO_KNOB = ("l0tre-paper", "cw-l0")  # they spend the same at every budget


@dataclass(frozen=True)
class Case:
    """A network and where its images come from.

    Attributes:
        model: For :func:`l0tre.load`, a file in the folder of models, or ``mlp`` for the table.
        data: For :func:`l0tre.load_data`.
        normalise: Mean and standard deviation, if the network wants them.
        unit: What all attacks are measured by, and ours keeps few.
    """

    model: str
    data: str
    normalise: tuple[float, float] | None = None
    unit: Literal["auto", "pixel", "feature"] = "auto"


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
    "cifar10-convsmall-pgd": Case("CIFAR_ConvSmallPGD.onnx", "cifar10"),
    "table-mlp": Case("mlp", "table"),
    "cifar10-attack-values": Case("cifar10-attack", "cifar10", unit="feature"),
    "cifar10-resnet20-values": Case("cifar10-resnet20", "cifar10", unit="feature"),
    # To choose constants on, for no table.
    **{name: Case(name, "tuning") for name in TUNING},
    "tune-colour-values": Case("tune-colour", "tuning", unit="feature"),
    "tune-residual-values": Case("tune-residual", "tuning", unit="feature"),
}


def table(count: int) -> tuple[nn.Module, Dataset]:
    """A network of two hidden layers for a drawn table of 40 columns in [0, 1] and five classes, and its test rows."""
    x, y = drawn_rows(40, 5, 0)
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


def load(case: Case, options: argparse.Namespace) -> tuple[l0tre.Network, Dataset]:
    """The network, and its first images."""
    images, device, folder = options.images, options.device, options.data_dir
    if case.model in TUNING:
        return load_tuning(case.model, images, folder, options.folder / "networks", device)
    if case.model == "mlp":
        module, data = table(images)
        return l0tre.load(module, input_shape=(40,), device=device), data
    model: Any = options.models / case.model if case.model.endswith(".onnx") else case.model
    mean, std = (None, None) if case.normalise is None else ([case.normalise[0]], [case.normalise[1]])
    network = l0tre.load(model, device=device, mean=mean, std=std)
    data = l0tre.load_data(case.data, input_shape=network.input_shape, data_dir=folder)
    return network, select(data, limit=images)


def run_part(case: Case, attack: str, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    """One attack on one network with one budget."""
    network, data = load(case, options)
    domain = l0tre.make_domain(network.input_shape, groups=case.unit)
    began = time.process_time()
    done = compare(
        network,
        data,
        peers=[] if attack == OWN else [attack],
        budget=budget,
        own=attack == OWN,
        seed=options.seed,
        domain=domain,
    )
    result: AttackResult = done.results[0]
    distance = result.features if done.unit == "feature" else result.pixels
    return {
        "images": list(done.indices),
        "unit": done.unit,
        "distance": distance.tolist(),
        "forwards": result.forwards,
        "backwards": result.backwards,
        "seconds": result.seconds,
        "cpu_seconds": time.process_time() - began,
        "error": result.error,
        "device": torch.cuda.get_device_name() if network.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def _same(file: Path, attack: str) -> dict[str, Any] | None:
    """The part of another budget, for an attack that has no budget."""
    others = sorted(file.parent.glob(f"{attack}-*.json")) if attack in NO_KNOB else []
    return json.loads(others[0].read_text()) if others else None


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
                part = _same(file, name) or run_part(CASES[network], name, budget, options)
                file.write_text(json.dumps(part) + "\n")
                found = [d for d in part["distance"] if d > 0]
                mean, count = sum(found) / max(1, len(found)), max(1, len(part["images"]))
                print(
                    f"{network} {budget} {name}: {mean:.2f}, {len(found)} of {count} found, "
                    f"{(part['forwards'] + part['backwards']) / count:.0f} passes and {part['seconds'] / count:.4f} s "
                    f"an image {part['error']}",
                    flush=True,
                )


def main() -> None:
    """Run, or show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    measured = [name for name in CASES if not name.startswith("tune-")]
    parser.add_argument("--networks", default=",".join(measured), help=f"of {', '.join(CASES)}")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--attacks", default="", help="default: ours and all that can be imported and are not slow")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no part after so many")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of the public networks (.onnx)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print tables")
    parser.add_argument("--write", type=Path, help="a folder for curves.csv, images.csv and curves.png")
    options = parser.parse_args()
    if options.show or options.write:
        show(options.folder)
        if options.write:
            write(options.folder, options.write)
        return
    options.networks = options.networks.split(",")
    options.budgets = [int(budget) for budget in options.budgets.split(",")]
    work(options)


if __name__ == "__main__":
    main()
