"""Mistakes planted in the prover, one after the other, on real networks: is every wrong claim refused by the checker?

For each mistake the prover is asked about images where an adversarial example is known, so a claim of safety is wrong.
A few pixels may change, those of the example among them, so that a proof takes seconds.

Example: python -m benchmarks.planted_bugs --networks sdnn,dnn-0 --data-dir DATA --out planted.json
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import l0tre
from benchmarks.certificates import inputs
from l0tre.domain import Domain, make_domain
from l0tre.model.network import Network
from tests.certify.checker.planted_bugs import BUGS, Bug, claimed

QUERIES = 200  # of the attack, for an image
SHARE = {1: 0.15, 2: 0.06}  # of all pixels that may change besides those of the example
MOST_ASKED = 12  # about one mistake
NEAR = 3  # rows or columns between two pixels that a neuron of the networks' first layers sees
HIDDEN = ("dnn-0",)  # networks with dense layers behind their windows


@dataclass(frozen=True)
class Question:
    """An image, its label, and a few pixels of which some change the decision if they change together."""

    image: Tensor
    label: int
    domain: Domain
    pixels: int
    near: bool


def questions(network: Network, limit: int, data_dir: Path | None, seed: int) -> list[Question]:
    """Images that one or two pixels fool; besides these, a few pixels drawn at random may change."""
    data = inputs(network, limit, data_dir)
    images = torch.as_tensor(data.images).float()
    labels = network.scores(images).argmax(1).cpu()
    changed = l0tre.attack(network, images, labels, budget=QUERIES)
    flips = network.scores(changed).argmax(1).cpu() != labels
    generator, found = torch.Generator().manual_seed(seed), []
    for image, other, label, flip in zip(images, changed.cpu(), labels.tolist(), flips.tolist(), strict=True):
        differs = (image != other).any(0)
        pixels = differs.nonzero()
        if not flip or not 1 <= len(pixels) <= 2:
            continue
        distance = int((pixels[0] - pixels[-1]).abs().max())
        mask = differs | (torch.rand(differs.shape, generator=generator) < SHARE[len(pixels)])
        domain = make_domain(network.input_shape, mask=mask.expand(network.input_shape))
        found.append(Question(image, label, domain, len(pixels), distance < NEAR))
    return found


def tried(bug: Bug, network: Network, asked: list[Question], most: int, seconds: float) -> dict[str, int]:
    """How many claims were made and how many were refused; it ends after some claims."""
    total = wrong = refused = 0
    for question in asked:
        if question.pixels != bug.t or (bug.near is not None and bug.near != question.near):
            continue
        claim, error = claimed(bug, network, question.image, question.label, question.domain, seconds)
        total, wrong, refused = total + 1, wrong + claim, refused + (error is not None)
        if wrong >= most or total >= MOST_ASKED:
            break
    return {"asked": total, "wrong claims": wrong, "refused": refused}


def main() -> None:
    """Try all mistakes on all networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default="sdnn,dnn-0")
    parser.add_argument("--bugs", default="", help="part of their names; all by default")
    parser.add_argument("--images", type=int, default=200, help="among which fooled ones are looked for")
    parser.add_argument("--claims", type=int, default=3, help="wrong claims of a mistake that are checked")
    parser.add_argument("--seconds", type=float, default=5.0, help="for one proof")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = []
    for name in options.networks.split(","):
        network = l0tre.load(name)
        asked = questions(network, options.images, options.data_dir, seed=0)
        for title, bug in BUGS.items():
            if options.bugs not in title or (bug.hidden and name not in HIDDEN):
                continue
            began = time.perf_counter()
            found = tried(bug, network, asked, options.claims, options.seconds)
            row = {"network": name, "mistake": title, "t": bug.t, **found}
            results.append({**row, "seconds": round(time.perf_counter() - began, 1)})
            print(json.dumps(results[-1]), flush=True)
            options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
