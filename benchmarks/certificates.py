"""What certificates cost: proving without and with them, their sizes, checking all of a run by other code.

It needs torch and NumPy only, and MNIST as a file. ``case-1`` stands for sdnn:3:200 and dnn-0:2:200, ``case-4`` for
dnn-1 to dnn-5 at t = 2, 100 images each; those that are not trained are trained with --train (package safetensors). The
file of results is written every few images, and the command goes on there when it is given again.

Example: python -m benchmarks.certificates case-1 case-4 --data-dir DATA --train --out certificates.json
"""

import argparse
import json
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import l0tre
from l0tre import zoo
from l0tre.data import Dataset, load_data, select
from l0tre.errors import MissingExtraError, ModelError
from l0tre.model.network import Network
from l0tre.zoo.train import make
from l0tre.zoo.weights_store import find, user_folder

CASES = {
    "case-1": ("sdnn:3:200", "dnn-0:2:200"),
    "case-4": tuple(f"dnn-{number}:2:100" for number in range(1, 6)),
}
TYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}


def network_of(name: str, mean: float | None, std: float | None, *, train: bool, data_dir: Path | None) -> Network:
    """A file, or a network of the zoo, trained if need be; without the package safetensors that is read here."""
    if Path(name).is_file():
        return l0tre.load(name, mean=mean, std=std)
    try:
        return l0tre.load(name)
    except MissingExtraError:
        folder = find(name)
        if folder is None:
            raise
        return l0tre.load(read(name, folder.joinpath(f"{name}.safetensors").read_bytes()))
    except ModelError:
        if not train or find(name) is not None:
            raise
        make(name, out=user_folder(), data_dir=data_dir)
        return l0tre.load(name)


def read(name: str, content: bytes) -> torch.nn.Module:
    """A network with the weights of a safetensors file."""
    begin = 8 + int.from_bytes(content[:8], "little")
    state = {}
    for key, entry in json.loads(content[8:begin]).items():
        if key != "__metadata__":
            first, last = (begin + place for place in entry["data_offsets"])
            values = np.frombuffer(content[first:last], TYPES[entry["dtype"]]).reshape(entry["shape"])
            state[key] = torch.from_numpy(values.astype(np.int64 if entry["dtype"] == "I64" else np.float32))
    module = zoo.build(name, seed=0)
    module.load_state_dict(state)
    return module.eval()


def inputs(network: Network, limit: int, data_dir: Path | None) -> Dataset:
    """Digits in the network's size, drawn from the test images."""
    data = load_data("mnist", input_shape=network.input_shape, resize=network.input_shape[1] != 28, data_dir=data_dir)
    return select(data, limit=limit, shuffle=True, seed=0)


def prove(network: Network, data: Dataset, t: int, out: Path, *, certificates: bool, seconds: float) -> dict[str, Any]:
    """One run: what it took, and its lower bounds."""
    began, work = time.perf_counter(), time.process_time()
    result = l0tre.evaluate(
        network, data, max_t=t, attack_queries=0, out=out, certificates=certificates, time_budget=seconds
    )
    return {
        "seconds": time.perf_counter() - began,
        "processor": time.process_time() - work,
        "unfinished": 0 if result.finished else len(data.images),
        "lower": [image.lower for image in result],
    }


def measure(network: Network, data: Dataset, t: int, seconds: float) -> dict[str, Any]:
    """Prove some images without and with certificates, and check these; numbers and lists that can be joined."""
    with tempfile.TemporaryDirectory() as folder:
        plain = prove(network, data, t, Path(folder) / "plain", certificates=False, seconds=seconds)
        kept = prove(network, data, t, Path(folder) / "kept", certificates=True, seconds=seconds)
        files = sorted((Path(folder) / "kept" / "certificates").glob("*"))
        work = time.process_time()
        found = l0tre.check_run(Path(folder) / "kept", network, time_budget=4 * seconds)
        work = time.process_time() - work
        return {
            "images": len(data.images),
            "proving": {"plain": plain, "kept": kept},
            "files": [[int(file.stem.rpartition("t")[2]), file.stat().st_size] for file in files],
            "checked": [[image.index, image.lower, image.seconds] for image in found.images],
            "refused": [[image.index, image.lower, image.reason] for image in found.refused],
            "missing": len(found.missing),
            "left": found.left,
            "checking": {"seconds": found.seconds, "processor": work},
            "parts": sum(image.parts for image in found.images),
            "splits": sum(image.splits for image in found.images),
        }


def joined(first: Any, second: Any) -> Any:
    """Two results of :func:`measure` as one."""
    if isinstance(first, dict):
        return {key: joined(first[key], second[key]) for key in first}
    return first + second


def summary(sums: Mapping[str, Any]) -> dict[str, Any]:
    """What a table shows of joined results."""
    plain, kept = sums["proving"]["plain"], sums["proving"]["kept"]
    seconds = [spent for _, lower, spent in sums["checked"] if lower]
    sizes: dict[int, list[int]] = {}
    for radius, size in sums["files"]:
        sizes.setdefault(radius, []).append(size)
    return {
        "lower bounds": {radius: kept["lower"].count(radius) for radius in sorted({*kept["lower"]})},
        "lower bounds checked": len(seconds) - sums["missing"] - len(sums["refused"]),
        "same bounds without": plain["lower"] == kept["lower"],
        "writing, share of proving": round(kept["processor"] / plain["processor"] - 1, 3),
        "checking over proving": round(sums["checking"]["processor"] / plain["processor"], 2),
        "largest file": {radius: max(some) for radius, some in sizes.items()},
        "mean file": {radius: round(statistics.mean(some)) for radius, some in sizes.items()},
        "slowest check": round(max(seconds, default=0.0), 3),
    }


def main() -> None:
    """Measure the networks named, one line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="NETWORK:T:IMAGES|case-1|case-4")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of one run; checking has four times as many")
    parser.add_argument("--mean", type=float, help="of the inputs of networks that are files")
    parser.add_argument("--std", type=float, help="likewise")
    parser.add_argument("--train", action="store_true", help="train networks that are not trained")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--together", type=int, default=10, help="images of a run; results are written after each")
    parser.add_argument("--time-budget", type=float, default=math.inf, help="after which no further run is begun")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    began = time.monotonic()
    for case in [one for name in options.cases for one in CASES.get(name, (name,))]:
        name, t, limit = case.rsplit(":", 2)
        network = network_of(name, options.mean, options.std, train=options.train, data_dir=options.data_dir)
        data = inputs(network, int(limit), options.data_dir)
        row = rows.setdefault(f"{Path(name).stem}:{t}", {"sums": None})
        row["device"] = torch.cuda.get_device_name() if network.device.type == "cuda" else "cpu"
        row["threads"] = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:  # what is made when it is needed first
            warm = select(data, indices=[0])
            prove(network, warm, 1, Path(folder) / "warm", certificates=True, seconds=options.seconds)
            l0tre.check_run(Path(folder) / "warm", network)
        while (done := row["sums"]["images"] if row["sums"] else 0) < len(data.images):
            if time.monotonic() - began > options.time_budget:
                break
            some = select(data, indices=list(range(done, min(done + options.together, len(data.images)))))
            found = measure(network, some, int(t), options.seconds)
            row["sums"] = joined(row["sums"], found) if row["sums"] else found
            row["summary"] = summary(row["sums"])
            row["largest memory of the process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(case, row["sums"]["images"], json.dumps(row["summary"]), flush=True)
            options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
