"""Saliency maps of large networks: what an exact one costs, what a coarse one costs, and how much of it is right.

It needs torch and NumPy only. Networks of torchvision have random weights here (batch normalisation is set from the
images, so that scores neither vanish nor explode); ``lite0`` has real ones (``benchmarks/lite0.py``). Maps are kept
beside the file of results, with every group so far: the command goes on there when it is given again. An exact map of
224 x 224 pixels has 401,408 evaluations.

Example: python -m benchmarks.maps resnet50 vgg16 efficientnet_b0 lite0 --data photos.npz --device cuda --out maps.json
"""

import argparse
import importlib
import json
import math
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import l0tre
from benchmarks.lite0 import Lite0
from l0tre.api.drawings import Drawing, begin_map
from l0tre.data import load_data, select
from l0tre.model.confirm import check_points
from l0tre.model.network import Network

STRONGEST = 100
SAVE_SECONDS = 30.0  # between two writings of a map
WARM = 5.0  # seconds of a map that is thrown away: kernels are chosen when they are needed first


@dataclass(frozen=True)
class Named:
    """A network, what it is called, and where its weights are from."""

    name: str
    network: Network
    weights: str


def load_network(name: str, images: Tensor, device: str) -> Named:
    """A network of torchvision with random weights, ``lite0``, or whatever ``l0tre.load`` takes."""
    shape = tuple(images.shape[1:])
    if name == "lite0":
        return Named(name, l0tre.load(Lite0(shape[1]), input_shape=shape, device=device), "trained")
    if "." in name:
        return Named(Path(name.partition(":")[0]).stem, l0tre.load(name, input_shape=shape, device=device), "its own")
    torch.manual_seed(0)
    module: nn.Module = importlib.import_module("torchvision.models").get_model(name, weights=None)
    settle(module, images)
    return Named(name, l0tre.load(module, input_shape=shape, device=device), "random")


def settle(module: nn.Module, images: Tensor) -> None:
    """Set the statistics of batch normalisation, as training would; the module is in eval mode then.

    From the points, too, on which a network is compared with its source: what no photograph has would explode.
    """
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None  # a plain average
    module.train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    shape = tuple(images.shape[1:])
    with torch.no_grad():
        module(torch.cat([images, check_points(torch.zeros(shape), torch.ones(shape))]))
    module.eval()


def photographs(data: Path | None, side: int, count: int) -> Tensor:
    """Images ``[n, 3, side, side]``: of a file, or smooth random ones."""
    if data is not None:
        return select(load_data(str(data), input_shape=(3, side, side), resize=True), limit=count).images
    generator = torch.Generator().manual_seed(0)
    rough = torch.rand(count, 3, 9, 9, generator=generator)
    return nn.functional.interpolate(rough, size=(side, side), mode="bicubic").clamp(0, 1)


def draw(drawing: Drawing, file: Path, coarse: bool, end: float) -> Iterator[str]:
    """Draw a map until it is done or the time is over; lines that tell how far it is."""
    told = time.monotonic()
    budget = end - told
    if bool(drawing.state.measured.all()) or (coarse and drawing.state.found and drawing.state.audit is not None):
        return
    for step in drawing.steps(coarse=coarse, time_budget=None if math.isinf(budget) else max(0.0, budget)):
        if time.monotonic() - told > SAVE_SECONDS:
            told = time.monotonic()
            drawing.write(file)
            yield f"{step.stage}, {step.done:,} of {step.total:,}"
    drawing.write(file)


def begin(named: Named, image: Tensor, file: Path) -> Drawing:
    """A map, gone on with where there is one."""
    return begin_map(named.network, image, resume=file if file.exists() else None)


def facts(drawing: Drawing) -> dict[str, Any]:
    """What a map cost."""
    state = drawing.state
    return {
        "seconds": round(state.seconds, 2),
        "evaluations": state.evaluations,
        "in half precision": state.ranked,
        "measured": round(float(state.measured.float().mean()), 4),
    }


def compare(exact: Drawing, coarse: Drawing) -> dict[str, Any]:
    """How many of the strongest groups a coarse map names, and how far its drops are off."""
    true, found = exact.now(), coarse.now()
    best = true.strongest(STRONGEST)
    named = set(best.tolist()) & set(found.strongest(STRONGEST).tolist())
    same = found.measured
    return {
        "strongest found": len(named),
        "of": len(best),
        "median error of predictions": float((found.drop - true.drop)[~same].abs().median()) if not same.all() else 0.0,
        "largest drop": float(true.drop.max()),
        "drop of the last of the strongest": float(true.drop[best[-1]]),
        "largest difference where both measured": float((found.drop - true.drop)[same].abs().max()),
    }


def memory(device: torch.device) -> int:
    """The most bytes that were taken: of the GPU, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure the networks named, one line of JSON for each image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+", metavar="NAME|FILE")
    parser.add_argument("--data", type=Path, help="images; else smooth random ones")
    parser.add_argument("--index", type=int, action="append", help="which image, from 0; can be given several times")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--coarse-only", action="store_true", help="no exact maps, and nothing to compare with")
    parser.add_argument("--time-budget", type=float, default=math.inf, help="seconds, of all")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    end = time.monotonic() + options.time_budget
    rows: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    indices = options.index or [0]
    images = photographs(options.data, options.side, max(8, 1 + max(indices)))
    for name in options.networks:
        named, warm = load_network(name, images[:8], options.device), False
        device = named.network.device
        for index in indices:
            key = f"{named.name}, {options.side}, image {index}"
            if time.monotonic() > end or rows.get(key, {}).get("done"):
                continue
            if device.type == "cuda" and not warm:
                for _ in begin_map(named.network, images[-1]).steps(coarse=False, time_budget=WARM):
                    pass
                warm = True
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            folder = options.out.with_suffix("")
            row: dict[str, Any] = {
                "weights": named.weights,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
                "threads": torch.get_num_threads(),
            }
            maps = {}
            for kind in ("coarse",) if options.coarse_only else ("coarse", "exact"):
                file = folder / f"{named.name}-{options.side}-{index}-{kind}.npz"
                maps[kind], work = begin(named, images[index], file), time.process_time()
                for line in draw(maps[kind], file, kind == "coarse", end):
                    print(f"{key}, {kind}: {line}", flush=True)
                row[kind] = {
                    **facts(maps[kind]),
                    "processor seconds of this call": round(time.process_time() - work, 1),
                }
            row["bytes"] = memory(device)
            whole = "exact" in maps and bool(maps["exact"].state.measured.all())
            row["done"] = maps["coarse"].state.found and (options.coarse_only or whole)
            if whole and maps["coarse"].state.found:
                row |= compare(maps["exact"], maps["coarse"])
            rows[key] = row
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
            print(key, json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
