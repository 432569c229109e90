"""A recorded set of runs, to see that a change of the code changes no figure.

``python -m benchmarks.record --out before.json`` on one commit, ``--against before.json`` on another: bounds, levels,
queries (forward passes and search nodes) and witnesses must be equal, and the seconds are compared as a ratio. Further
networks, such as public ones, with ``--model NAME=FILE,DATA,T,MEAN,STD``.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import l0tre
from l0tre.data import Dataset, select

Run = Callable[[], l0tre.Snapshot]


def main() -> None:
    """Make all runs, write or compare what they gave."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write what the runs gave")
    parser.add_argument("--against", type=Path, help="compare with what an earlier call wrote")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE,DATA,T,MEAN,STD")
    options = parser.parse_args()
    earlier = json.loads(options.against.read_text()) if options.against else {}
    found: dict[str, Any] = {}
    different = []
    for name, run in {**_runs(), **dict(_public(text) for text in options.model)}.items():
        if options.only not in name:
            continue
        began = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - began
        found[name] = {"seconds": seconds, "images": [_facts(image) for image in result.images]}
        words = f"{name:28} {seconds:7.2f} s"
        if name in earlier:
            same = found[name]["images"] == earlier[name]["images"]
            words += f"  x{seconds / earlier[name]['seconds']:.2f}  {'equal' if same else 'DIFFERENT'}"
            different += [] if same else [name]
        print(words, flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if different:
        raise SystemExit(f"different: {', '.join(different)}")


def _facts(image: l0tre.ImageBounds) -> list[Any]:
    witness = image.witness
    changed = [] if witness is None else [list(witness.groups), witness.values.tolist()]
    return [image.index, image.lower, image.upper, image.level, image.blocked, image.queries, changed]


def _runs() -> dict[str, Run]:
    digits = l0tre.load_data("mnist5k", input_shape=(1, 14, 14), resize=True)
    large = l0tre.load_data("mnist5k", input_shape=(1, 28, 28))
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))
    maps = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.LeakyReLU(0.1),
        nn.Flatten(), nn.Linear(8 * 2 * 2, 16), nn.Sigmoid(), nn.Linear(16, 4),
    )  # fmt: skip
    images = torch.rand(4, 2, 8, 8)
    rows = torch.rand(4, 36)

    def run(network: Any, data: Dataset | Tensor, **options: Any) -> Run:
        return lambda: l0tre.evaluate(network, data, device="cpu", memory_bytes=2**30, **options)

    every = slice(0, 5000, 700)
    some, whole = (select(data, indices=list(range(5000))[every]) for data in (digits, large))
    return {
        "sdnn certified t=2": run("sdnn", some, max_t=2, guarantee="certified"),
        "sdnn certified, no attack": run(
            "sdnn", select(some, limit=3), max_t=1, guarantee="certified", attack_queries=0
        ),
        "sdnn grid t=2": run("sdnn", some, max_t=2, guarantee="grid"),
        "sdnn grid t=3": run("sdnn", select(some, limit=1), max_t=3, epsilon=0.5, guarantee="grid"),
        "sdnn lipschitz t=1": run("sdnn", some, max_t=1, guarantee="lipschitz", epsilon=0.01),
        "dnn-3 certified t=1": run("dnn-3", whole, max_t=1, guarantee="certified"),
        "dnn-3 grid t=1": run("dnn-3", whole, max_t=1, guarantee="grid"),
        "dnn-0 certified t=2": run("dnn-0", select(whole, limit=1), max_t=2, guarantee="certified"),
        "dense certified t=3": run(dense, rows, max_t=3, guarantee="certified"),
        "dense grid t=2": run(dense, rows, max_t=2, guarantee="grid"),
        "maps certified t=2": run(maps, images, max_t=2, guarantee="certified"),
        "maps grid t=2": run(maps, images, max_t=2, guarantee="grid", epsilon=0.5),
        "maps by features": run(
            maps, images[:2], max_t=2, guarantee="certified", domain=l0tre.make_domain((2, 8, 8), groups="feature")
        ),
    }


def _public(text: str) -> tuple[str, Run]:
    name, _, rest = text.partition("=")
    file, source, t, *normal = rest.split(",")
    mean, std = ([float(value)] for value in normal) if normal else (None, None)
    network = l0tre.load(file, mean=mean, std=std, device="cpu")
    data = select(l0tre.load_data(source, input_shape=network.input_shape), limit=3)
    return name, lambda: l0tre.evaluate(network, data, max_t=int(t), guarantee="certified", memory_bytes=2**30)


if __name__ == "__main__":
    main()
