"""What certificates cost: proving without and with them, their sizes, checking them by other code.

Example: python -m benchmarks.certificates sdnn:3:200 dnn-0:2:20 --data-dir DATA --out certificates.json
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import l0tre
from l0tre.data import Dataset, load_data, select
from l0tre.model.network import Network


def inputs(network: Network, limit: int, data_dir: Path | None) -> Dataset:
    """Digits in the network's size, drawn from the test images."""
    data = load_data("mnist", input_shape=network.input_shape, resize=network.input_shape[1] != 28, data_dir=data_dir)
    return select(data, limit=limit, shuffle=True, seed=0)


def prove(network: Network, data: Dataset, t: int, out: Path, *, certificates: bool, seconds: float) -> dict[str, Any]:
    """One run; its seconds and bounds."""
    began = time.perf_counter()
    result = l0tre.evaluate(
        network, data, max_t=t, attack_queries=0, out=out, certificates=certificates, time_budget=seconds
    )
    return {
        "seconds": round(time.perf_counter() - began, 3),
        "finished": result.finished,
        "lower": result.lower,
        "radii": [sum(image.lower == radius for image in result) for radius in range(t + 1)],
    }


def measure(name: str, t: int, limit: int, data_dir: Path | None, seconds: float) -> dict[str, Any]:
    """All figures of one network."""
    network = l0tre.load(name)
    data = inputs(network, limit, data_dir)
    with tempfile.TemporaryDirectory() as folder:
        warm = inputs(network, 2, data_dir)
        prove(network, warm, t, Path(folder) / "warm", certificates=True, seconds=seconds)
        plain = prove(network, data, t, Path(folder) / "plain", certificates=False, seconds=seconds)
        kept = prove(network, data, t, Path(folder) / "kept", certificates=True, seconds=seconds)
        files = sorted((Path(folder) / "kept" / "certificates").glob("*"))
        sizes = [file.stat().st_size for file in files] or [0]
        found = l0tre.check_run(Path(folder) / "kept", network, time_budget=2 * seconds)
    slowest = max(found.images, key=lambda image: image.seconds)
    return {
        "network": name,
        "t": t,
        "images": len(data.images),
        "device": torch.cuda.get_device_name() if network.device.type == "cuda" else "cpu",
        "proving": plain,
        "proving with certificates": kept,
        "files": len(files),
        "largest file": max(sizes),
        "mean file": statistics.mean(sizes),
        "checked": len(found.images),
        "refused": [(image.index, image.lower, image.reason) for image in found.refused],
        "missing": len(found.missing),
        "left": found.left,
        "checking": round(found.seconds, 3),
        "parts": sum(image.parts for image in found.images),
        "splits": sum(image.splits for image in found.images),
        "by radius": {
            radius: round(statistics.mean([i.seconds for i in found.images if i.lower == radius] or [0.0]), 3)
            for radius in range(t + 1)
        },
        "slowest": [slowest.index, slowest.lower, round(slowest.seconds, 3)],
    }


def main() -> None:
    """Measure the networks named, one line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="NETWORK:T:IMAGES")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = []
    for case in options.cases:
        name, t, limit = case.split(":")
        results.append(measure(name, int(t), int(limit), options.data_dir, options.seconds))
        print(json.dumps(results[-1]), flush=True)
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
