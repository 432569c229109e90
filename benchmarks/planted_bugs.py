"""Mistakes planted in the prover, one after the other, on real networks: is every wrong claim refused by the checker?

For each mistake the prover is asked about images where an adversarial example is known, so a claim of safety is wrong.
A part of the pixels may change, around the image's middle, so that a proof takes seconds.

Example: python -m benchmarks.planted_bugs --networks sdnn,dnn-1 --data-dir DATA --out planted.json
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

import l0tre
from benchmarks.certificates import inputs
from l0tre.domain import Domain, make_domain
from l0tre.model.network import Network
from tests.certify.checker.planted_bugs import BUGS, Bug, claimed


def middle(shape: tuple[int, ...], side: int) -> Domain:
    """Pixels in a square around the middle of an image may change."""
    mask = torch.zeros(shape, dtype=torch.bool)
    top, left = ((size - side) // 2 for size in shape[-2:])
    mask[..., top : top + side, left : left + side] = True
    return make_domain(shape, mask=mask)


def fooled(network: Network, limit: int, data_dir: Path | None, side: int) -> dict[int, list[tuple[Tensor, int]]]:
    """Images that one pixel of the square fools, and those that two are needed for, with their labels."""
    data, domain = inputs(network, limit, data_dir), middle(network.input_shape, side)
    result = l0tre.evaluate(network, data, domain=domain, max_t=2, guarantee="grid", attack_queries=200)
    found: dict[int, list[tuple[Tensor, int]]] = {1: [], 2: []}
    for image in result:
        if image.upper in found and image.witness is not None:
            place = data.indices.index(image.index)
            found[image.upper].append((data.images[place], int(data.labels[place])))
    return found


def tried(bug: Bug, network: Network, images: list[tuple[Tensor, int]], domain: Domain, most: int) -> dict[str, int]:
    """How many claims were made and how many were refused; it ends after some claims."""
    asked = wrong = refused = 0
    for image, label in images:
        claim, error = claimed(bug, network, image, label, domain, 20.0)
        asked, wrong, refused = asked + 1, wrong + claim, refused + (error is not None)
        if wrong >= most:
            break
    return {"asked": asked, "wrong claims": wrong, "refused": refused}


def main() -> None:
    """Try all mistakes on all networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default="sdnn,dnn-1")
    parser.add_argument("--bugs", default="", help="part of their names; all by default")
    parser.add_argument("--images", type=int, default=40, help="among which fooled ones are looked for")
    parser.add_argument("--claims", type=int, default=3, help="wrong claims of a mistake that are checked")
    parser.add_argument("--side", type=int, default=6)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = []
    for name in options.networks.split(","):
        network = l0tre.load(name)
        domain = middle(network.input_shape, options.side)
        images = fooled(network, options.images, options.data_dir, options.side)
        for title, bug in BUGS.items():
            if options.bugs not in title:
                continue
            began = time.perf_counter()
            found = tried(bug, network, images[bug.t], domain, options.claims)
            row = {"network": name, "mistake": title, "t": bug.t, **found}
            results.append({**row, "seconds": round(time.perf_counter() - began, 1)})
            print(json.dumps(results[-1]), flush=True)
            options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
