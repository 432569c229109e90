"""Every target of proofs of deep networks, image by image, with one command that can be stopped and gone on with.

``python -m benchmarks.targets prepare`` gathers networks and images in one file (it reads ONNX files and trains two
small networks). ``run`` needs nothing but torch and numpy: it decides image after image, adds a line for each to a
file, leaves out those that are there already, and ends before ``--seconds`` are over. ``--against TREE`` decides each
image with another source tree too, in turn, in a process of its own. ``show`` prints what was measured beside the
targets.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.target_networks import MADE, ZOO, build, gather

ROOT = Path(__file__).parent.parent
Row = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """One target.

    Attributes:
        network: Its name.
        radius: Pixels that may change.
        images: How many of the first correctly classified ones.
        limit: Seconds an image.
        target: What is aimed at on one H200.
        cpu: Likewise on two CPU cores, if anything.
    """

    network: str
    radius: int
    images: int
    limit: float
    target: str
    cpu: str = ""

    @property
    def name(self) -> str:
        """How it is chosen on the command line."""
        return f"{self.network} t={self.radius}"


WORKS = (
    *(
        Work(name, 1, 100, 30.0, "all decided, 0.2 s or less an image", "10 s an image")
        for name in ("mnist-attack", "l0tre-mnist-attack", "mnist-attack-l2", "mnist-attack-trades")
    ),
    *(
        Work(name, 2, 20, 120.0, "all decided, 20 s mean")
        for name in ("mnist-attack", "l0tre-mnist-attack", "mnist-attack-l2", "mnist-attack-trades")
    ),
    Work("cifar10-attack", 1, 100, 30.0, "90 % decided"),
    Work("cifar10-resnet20", 1, 10, 60.0, "an honest figure"),
    Work("mnist-convbig", 2, 10, 60.0, "all decided, 3 s mean"),
    Work("mnist-convbig", 3, 10, 60.0, "5 of 10 decided"),
    Work("convsmall-pgd", 3, 10, 60.0, "", "1 s mean"),
    Work("convsmall-pgd", 5, 10, 60.0, "0.5 s mean"),
    Work("convsmall-pgd", 6, 10, 120.0, "4 s mean"),
    Work("convsmall-pgd", 7, 10, 300.0, "7 of 10 decided"),
    Work("convsmall-plain", 3, 10, 120.0, "", "20 s mean, no image above 60 s"),
    Work("convsmall-plain", 5, 10, 30.0, "10 of 10 decided"),
    Work("convmed-plain", 3, 10, 120.0, "", "20 s mean, no image above 60 s"),
    Work("6x200-pgd", 4, 10, 300.0, "decided"),
    Work("cifar-convsmall-pgd", 3, 10, 300.0, "8 of 10 decided"),
)


def main() -> None:
    """Prepare, run, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("prepare", help="gather networks and images in one file")
    step.add_argument("--models", type=Path, required=True, help="folder with the public ONNX files")
    step.add_argument("--data-dir", type=Path, required=True, help="folder with mnist.npz and cifar10_test.npz")
    step.add_argument("--only", nargs="*", help="networks, default all")
    step = steps.add_parser("run", help="decide images that are not decided yet")
    step.add_argument("--out", type=Path, default=Path("targets.jsonl"))
    step.add_argument("--only", default="", help="targets whose name begins so, such as 'mnist-attack t=1'")
    step.add_argument("--images", type=int, default=10**9, help="at most so many of each target")
    step.add_argument("--seconds", type=float, default=540.0, help="begin no image that could end later")
    step.add_argument("--limit", type=float, help="seconds an image, if not the target's: for a busy machine")
    step.add_argument("--device", default="auto")
    step.add_argument("--against", type=Path, help="another source tree, a folder with src/l0tre")
    step = steps.add_parser("show", help="print what was measured beside the targets")
    step.add_argument("--out", type=Path, default=Path("targets.jsonl"))
    step = steps.add_parser("worker")
    step.add_argument("--device", default="auto")
    for step in steps.choices.values():
        step.add_argument("--networks", type=Path, default=Path("local/targets.npz"), help="what prepare writes")
    options = parser.parse_args()
    if options.step == "prepare":
        options.networks.parent.mkdir(parents=True, exist_ok=True)
        gather(options.networks, options.models, options.data_dir, options.only or list(MADE) + list(ZOO))
    elif options.step == "run":
        _run(options)
    elif options.step == "show":
        _show(_read(options.out))
    else:
        _work(options.networks, options.device)


def _run(options: argparse.Namespace) -> None:
    began, done = time.monotonic(), {(row["work"], row["image"]) for row in _read(options.out)}
    trees = {"ours": ROOT} | ({"against": options.against.resolve()} if options.against else {})
    workers = {way: _start(tree, options.networks.resolve(), options.device) for way, tree in trees.items()}
    try:
        for work in WORKS:
            if not work.name.startswith(options.only):
                continue
            limit = options.limit or work.limit
            for number in range(min(work.images, options.images)):
                if (work.name, number) in done:
                    continue
                if time.monotonic() - began + len(workers) * (limit + 5) > options.seconds:
                    print("out of time: call again to go on")
                    return
                row: Row = {"work": work.name, "image": number, "limit": limit}
                for way, worker in workers.items():
                    row[way] = _ask(worker, {"network": work.network, "radius": work.radius, "image": number} | row)
                if row["ours"] is None:  # there are no more images
                    break
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    finally:
        for worker in workers.values():
            worker.kill()
    _show([row for row in _read(options.out) if row["work"].startswith(options.only)])


def _start(tree: Path, networks: Path, device: str) -> "subprocess.Popen[str]":
    """A process that decides images with a source tree, once it has proved something small to warm up."""
    command = [sys.executable, "-m", "benchmarks.targets", "worker", "--networks", str(networks), "--device", device]
    paths = os.pathsep.join((str(tree / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _ask(worker: "subprocess.Popen[str]", task: Row) -> Any:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(task) + "\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit(f"the process for {task['work']} ended: {worker.wait()}")
    return json.loads(answer)


def _work(path: Path, device: str) -> None:
    """Decide what comes in, one task a line."""
    import l0tre

    known: dict[str, tuple[l0tre.Network, Tensor, Tensor]] = {}
    with np.load(path) as stored:
        arrays = dict(stored)
    for line in sys.stdin:
        task = json.loads(line)
        if task["network"] not in known:
            known[task["network"]] = _loaded(arrays, task["network"], device)
            network, images, labels = known[task["network"]]
            l0tre.verify(
                network, images[0], int(labels[0]), radius=1, guarantee="certified", time_budget=3.0
            )  # warm up
        network, images, labels = known[task["network"]]
        if task["image"] >= len(images):
            print("null", flush=True)
            continue
        began, busy = time.perf_counter(), time.process_time()
        verdict = l0tre.verify(
            network,
            images[task["image"]],
            int(labels[task["image"]]),
            radius=task["radius"],
            guarantee="certified",
            time_budget=task["limit"],
        )
        found = {
            "answer": verdict.answer,
            "seconds": round(time.perf_counter() - began, 3),
            "cpu": round(time.process_time() - busy, 3),
            "nodes": verdict.queries,
            "share": verdict.share,
            "lower": verdict.lower,
        }
        if torch.cuda.is_available():
            found["gpu_GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        print(json.dumps(found), flush=True)


def _loaded(arrays: Mapping[str, np.ndarray], name: str, device: str) -> tuple[Any, Tensor, Tensor]:
    """A network, and the images that it classifies correctly."""
    import l0tre

    if f"{name}/images" not in arrays:
        raise SystemExit(f"{name} is not among the networks that were prepared")
    images = torch.from_numpy(arrays[f"{name}/images"]).float() / 255
    labels = torch.from_numpy(arrays[f"{name}/labels"]).long()
    module = build(name, [torch.from_numpy(part) for part in _weights(arrays, name)])
    return l0tre.load(module, input_shape=tuple(images.shape[1:]), device=device), images, labels


def _weights(arrays: Mapping[str, np.ndarray], name: str) -> Iterator[np.ndarray]:
    number = 0
    while f"{name}/{number}" in arrays:
        yield arrays[f"{name}/{number}"]
        number += 1


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _show(rows: list[Row]) -> None:
    for work in WORKS:
        own = [row for row in rows if row["work"] == work.name]
        if not own:
            continue
        ours, texts = [row["ours"] for row in own], []
        for way in ("ours", "against"):
            found = [row[way] for row in own if way in row]
            if found:
                seconds, cpu = ([one[key] for one in found] for key in ("seconds", "cpu"))
                decided = sum(one["answer"] != "unknown" for one in found)
                texts.append(
                    f"{way}: {decided} of {len(found)} decided, {np.mean(seconds):.2f} s (CPU {np.mean(cpu):.2f} s) "
                    f"an image, slowest {max(seconds):.2f} s"
                )
        both = [(row["ours"]["seconds"], row["against"]["seconds"]) for row in own if "against" in row]
        if both:
            texts.append(f"against / ours {sum(b for _, b in both) / sum(a for a, _ in both):.2f}")
        nodes = np.mean([one["nodes"] for one in ours])
        aims = f"target {work.target or '-'}" + (f"; 2 cores {work.cpu}" if work.cpu else "")
        print(f"{work.name}: {'; '.join(texts)}; {nodes:,.0f} nodes an image; {aims}")


if __name__ == "__main__":
    main()
