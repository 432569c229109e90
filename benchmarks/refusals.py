"""Proofs of many small random networks, each checked by other code: which valid ones are refused, which take long?

A line of JSON for each proof whose certificate is refused, is not written, or takes longer than a limit; a summary.

Example: python -m benchmarks.refusals random 0:300 --radii 1,2,3 --out refusals.jsonl
"""

import argparse
import json
import math
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import l0tre
from fuzz.compare import muted
from fuzz.net import Net, biased
from fuzz.sources import OPSETS, as_module, load, normalised
from fuzz.subjects import Subject as Drawn
from fuzz.subjects import make_subject
from l0tre.domain import Domain
from l0tre.model.network import Network, margins
from l0tre.tuning import Tuning
from tests.certify.random_networks import random_case

ENGINES = {
    "default": Tuning(),
    "cells": Tuning(box_sets=0),
    "boxes": Tuning(hopeless=1e9),
    "windows": Tuning(hopeless=1e9, meeting_share=1.0),
    "forms": Tuning(hopeless=1e9, meeting_share=0.0),
}
MEMORY = 2**27  # bytes


@dataclass(frozen=True)
class Subject:
    """What is proved: a network, an image, its label and what may change."""

    network: Network
    image: Tensor
    label: int
    domain: Domain
    name: str


class TooLongError(Exception):
    """A check was not over in time."""


def too_long(_number: int, _frame: FrameType | None) -> None:
    """End a check."""
    raise TooLongError


def subjects(kind: str, first: int, last: int, folder: Path) -> Iterator[Subject]:
    """The subjects of some seeds."""
    for seed in range(first, last):
        if kind == "random":
            case = random_case(seed)
            yield Subject(case.network, case.image, case.label, case.domain, f"{case.kind} {seed}")
            continue
        torch.manual_seed(seed)
        drawn = make_subject(seed, ("certified", "module"))
        net, label = settled(drawn, random.Random(seed))
        network, _ = load(net, drawn.normalisation, drawn.source, folder, OPSETS[0])
        yield Subject(muted(network, label), drawn.image, label, drawn.domain, f"{'+'.join(drawn.ideas)} {seed}")


def settled(drawn: Drawn, draw: random.Random) -> tuple[Net, int]:
    """The network with a lead at the image that is a share of what random inputs lose, and its label there."""
    domain, module = drawn.domain, as_module(drawn.net).double()
    low, high = domain.low.double(), domain.high.double()
    x = torch.cat([drawn.image.double().flatten()[None], low + torch.rand(200, len(low)).double() * (high - low)])
    with torch.inference_mode():
        scores = module(normalised(drawn.normalisation, x.reshape(-1, *domain.shape)))
    label = int(scores[0].argmax())
    gaps = margins(scores, torch.full((len(scores),), label))
    by = draw.choice([0.2, 0.4, 0.6, 0.8, 1.1, 1.4]) * float(gaps[0] - gaps.min()) + 0.01 - float(gaps[0])
    return biased(drawn.net, label, Decimal(by)), label


def tried(subject: Subject, radius: int, engine: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Prove and check; what became of it."""
    path = folder / "proof.l0cert"
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    try:
        verdict = l0tre.verify(
            subject.network,
            subject.image,
            subject.label,
            radius=radius,
            domain=subject.domain,
            certificate=path,
            time_budget=seconds,
            memory_bytes=MEMORY,
            guarantee="certified",
            tuning=ENGINES[engine],
        )
    except l0tre.L0treError as error:
        return {"outcome": "not proved", "why": str(error)}
    proving = time.perf_counter() - began
    if verdict.answer != "safe":
        return {"outcome": verdict.answer}
    made = l0tre.read_certificate(path)
    facts = {"kind": type(made).__name__, "proving": round(proving, 3), "bytes": path.stat().st_size}
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, max(30.0, 10 * proving))
    try:
        result = l0tre.check(made, subject.network, subject.image, subject.domain, memory_bytes=MEMORY)
        facts |= {"outcome": "accepted", "parts": result.nodes, "splits": result.splits}
    except TooLongError:
        facts |= {"outcome": "too long"}
    except l0tre.L0treError as error:
        facts |= {"outcome": "refused", "why": str(error)}
    except Exception as error:  # a checker that breaks is what is looked for
        facts |= {"outcome": "broken", "why": repr(error)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {**facts, "checking": round(time.perf_counter() - began, 3)}


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("random", "fuzz"))
    parser.add_argument("seeds", metavar="FIRST:LAST")
    parser.add_argument("--radii", default="1,2")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seconds", type=float, default=10.0, help="for one proof")
    parser.add_argument("--time-budget", type=float, default=math.inf, help="after which no further subject is begun")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, too_long)
    first, last = map(int, options.seeds.split(":"))
    outcomes, began = Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as name, options.out.open("a", encoding="utf-8") as out:

        def note(facts: dict[str, Any]) -> None:
            out.write(json.dumps(facts) + "\n")
            out.flush()

        for subject in subjects(options.kind, first, last, Path(name)):
            for radius in map(int, options.radii.split(",")):
                for engine in options.engines.split(","):
                    if radius > subject.domain.groups:
                        continue
                    found = tried(subject, radius, engine, Path(name), options.seconds)
                    outcomes[f"{engine} {found['outcome']}"] += 1
                    slow = found.get("checking", 0.0) > max(2.0, 10 * found.get("proving", 0.0))
                    if slow or found["outcome"] in ("refused", "broken", "too long", "not proved"):
                        note({"subject": subject.name, "radius": radius, "engine": engine, **found})
            if time.monotonic() - began > options.time_budget:
                break
        note({"last": subject.name, **dict(sorted(outcomes.items()))})


if __name__ == "__main__":
    main()
