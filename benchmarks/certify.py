"""Certified proofs: seconds (clock and CPU) and nodes an image, ``python -m benchmarks.certify sdnn mnist5k``.

With ``--against`` every image is proved a second time, for the ratio of both in one run: ``plain`` without charging
gaps to pixels, ``cells`` without clusters of pixels, ``heritage`` without handing ranges of neurons on to the parts of
a node, ``sizes`` without the sizes of interactions of near pixels.
"""

import argparse
import time
from contextlib import nullcontext
from unittest.mock import patch

import torch

import l0tre
from l0tre.certify.boxes.overlapping_pairs import overlapping_pairs
from l0tre.data import Dataset, select

# What to put in place of a function to do without an idea.
WITHOUT = {
    "plain": ("l0tre.certify.relax.bounds.chargeable_pixels", lambda *_: 0),
    "cells": ("l0tre.certify.prover.Prover.can_use_boxes", lambda *_: False),
    "heritage": ("l0tre.certify.relax.plan._handed", lambda *_: {}),
    "sizes": ("l0tre.certify.boxes.first_pass.overlapping_pairs", lambda *given: overlapping_pairs(*given[:4])),
}


def main() -> None:
    """Verify the first correctly classified images and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--radius", type=int, default=2, help="groups that may change")
    parser.add_argument("--images", type=int, default=10, help="number of correctly classified images")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds an image")
    parser.add_argument("--mean", type=float)
    parser.add_argument("--std", type=float)
    parser.add_argument("--resize", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory", default="0")
    parser.add_argument("--against", choices=sorted(WITHOUT), help="also without one of our ideas")
    options = parser.parse_args()
    mean = None if options.mean is None else [options.mean]
    std = None if options.std is None else [options.std]
    network = l0tre.load(options.model, mean=mean, std=std, device=options.device)
    data = l0tre.load_data(options.data, input_shape=network.input_shape, resize=options.resize)
    right = _right(network, data, options.images)
    ways = ("ours", options.against) if options.against else ("ours",)
    totals, busy = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    decided = dict.fromkeys(ways, 0)
    _verify(network, select(data, indices=right[:1]), 1, 5.0, int(options.memory))  # warm up
    for index in right:
        cells = [f"image {index:4}"]
        for way in ways:
            started = time.process_time()
            with patch(*WITHOUT[way]) if way in WITHOUT else nullcontext():
                verdict, seconds = _verify(
                    network, select(data, indices=[index]), options.radius, options.limit, int(options.memory)
                )
            totals[way] += seconds
            cpu = time.process_time() - started
            busy[way] += cpu
            decided[way] += verdict.answer != "unknown"
            rate = verdict.queries / seconds
            spent = f"{seconds:8.2f} s ({cpu:.2f} CPU)"
            work = f"{verdict.queries:10,} nodes and queries {rate:9,.0f}/s"
            cells.append(f"{way}: {verdict.answer:7} {spent} {work}")
        print("  ".join(cells), flush=True)
    for way in ways:
        means = f"{totals[way] / len(right):.2f} s an image, {busy[way] / len(right):.2f} s of the CPU"
        print(f"{way}: {decided[way]} of {len(right)} decided, {means}")
    if options.against:
        print(f"{options.against} / ours: {totals[options.against] / totals['ours']:.1f} times the seconds")
    if network.device.type == "cuda":
        print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


def _right(network: l0tre.Network, data: Dataset, wanted: int) -> list[int]:
    """Positions of the first images that the network classifies correctly."""
    first = select(data, limit=min(len(data.images), 20 * wanted + 100))
    scores = torch.cat([network.scores(part).cpu() for part in first.images.split(100)])
    assert first.labels is not None
    return (scores.argmax(1) == first.labels).nonzero()[:wanted, 0].tolist()


def _verify(
    network: l0tre.Network, image: Dataset, radius: int, limit: float, memory: int
) -> tuple[l0tre.Verdict, float]:
    began = time.perf_counter()
    verdict = l0tre.verify(network, image, radius=radius, time_budget=limit, memory_bytes=memory, guarantee="certified")
    return verdict, time.perf_counter() - began


if __name__ == "__main__":
    main()
