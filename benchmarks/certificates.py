"""What certificates cost: proving without and with them, their sizes, checking all of a run by other code.

It needs torch and NumPy only, and MNIST as a file. ``case-1`` stands for sdnn:3:200 and dnn-0:2:200, ``case-4`` for
dnn-1 to dnn-5 at t = 2, 100 images each; those that are not trained are trained with --train (package safetensors). The
file of results is written after each network, and those that are in it are left out when the command is given again.

Example: python -m benchmarks.certificates case-1 case-4 --data-dir DATA --train --out certificates.json
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
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
    """One run; its seconds and bounds."""
    began, work = time.perf_counter(), time.process_time()
    result = l0tre.evaluate(
        network, data, max_t=t, attack_queries=0, out=out, certificates=certificates, time_budget=seconds
    )
    return {
        "seconds": round(time.perf_counter() - began, 3),
        "processor seconds": round(time.process_time() - work, 3),
        "finished": result.finished,
        "lower": result.lower,
        "radii": [sum(image.lower == radius for image in result) for radius in range(t + 1)],
    }


def measure(network: Network, name: str, t: int, limit: int, data_dir: Path | None, seconds: float) -> dict[str, Any]:
    """All figures of one network."""
    data = inputs(network, limit, data_dir)
    with tempfile.TemporaryDirectory() as folder:
        warm = inputs(network, 2, data_dir)
        prove(network, warm, 1, Path(folder) / "warm", certificates=True, seconds=seconds)
        plain = prove(network, data, t, Path(folder) / "plain", certificates=False, seconds=seconds)
        kept = prove(network, data, t, Path(folder) / "kept", certificates=True, seconds=seconds)
        files = sorted((Path(folder) / "kept" / "certificates").glob("*"))
        sizes = {
            radius: [f.stat().st_size for f in files if f.stem.endswith(f"t{radius}")] for radius in range(1, t + 1)
        }
        work = time.process_time()
        found = l0tre.check_run(Path(folder) / "kept", network, time_budget=4 * seconds)
        work = time.process_time() - work
    slowest = max(found.images, key=lambda image: image.seconds)
    return {
        "network": Path(name).stem if Path(name).is_file() else name,
        "t": t,
        "images": len(data.images),
        "device": torch.cuda.get_device_name() if network.device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "proving": plain,
        "proving with certificates": kept,
        "files": {radius: len(some) for radius, some in sizes.items()},
        "largest file": {radius: max(some, default=0) for radius, some in sizes.items()},
        "mean file": {radius: round(statistics.mean(some or [0])) for radius, some in sizes.items()},
        "checked": len(found.images),
        "lower bounds checked": sum(image.lower > 0 and not image.missing for image in found.images),
        "refused": [(image.index, image.lower, image.reason) for image in found.refused],
        "missing": len(found.missing),
        "left": found.left,
        "checking": round(found.seconds, 3),
        "checking, processor seconds": round(work, 3),
        "parts": sum(image.parts for image in found.images),
        "splits": sum(image.splits for image in found.images),
        "by radius": {
            radius: round(statistics.mean([i.seconds for i in found.images if i.lower == radius] or [0.0]), 3)
            for radius in range(t + 1)
        },
        "slowest": [slowest.index, slowest.lower, round(slowest.seconds, 3)],
        "largest memory of the process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
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
    options = parser.parse_args()
    results = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    known = {(row["network"], row["t"], row["images"]) for row in results}
    for case in [one for name in options.cases for one in CASES.get(name, (name,))]:
        name, t, limit = case.split(":")
        if (Path(name).stem if Path(name).is_file() else name, int(t), int(limit)) in known:
            continue
        network = network_of(name, options.mean, options.std, train=options.train, data_dir=options.data_dir)
        results.append(measure(network, name, int(t), int(limit), options.data_dir, options.seconds))
        print(json.dumps(results[-1]), flush=True)
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
