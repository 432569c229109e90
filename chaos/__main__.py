"""Accidents to run folders until the time is over, ``python -m chaos --seconds 600``; one again by its seed."""

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from chaos.cases import CASES, make_subject, run_case
from chaos.cluster import machines, make_cluster_subject, run_cluster_case


def main() -> int:
    """Run cases and print what is wrong with them; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="start no further case after this time")
    parser.add_argument("--seed", type=int, help="of the first case; the next ones count up from it")
    parser.add_argument("--cases", type=int, help="this many cases, whatever time they take")
    parser.add_argument("--only", choices=[*CASES, "cluster"], help="only this kind of accident")
    parser.add_argument("--cluster", type=int, default=0, help="then this many cases on a cluster of Ray")
    given = parser.parse_args()
    torch.set_num_threads(1)  # children are forked
    seed = secrets.randbelow(10**9) if given.seed is None else given.seed
    on_cluster = given.cluster
    if given.only == "cluster":
        on_cluster, given.cases = on_cluster or given.cases or 1, 0
    counts: Counter[str] = Counter()
    began, broken = time.monotonic(), 0

    def tell(kind: str, wrong: list[str]) -> None:
        nonlocal broken, seed
        for line in wrong:
            again = f"python -m chaos --seed {seed} --cases 1 --only {kind}"
            print(f"BROKEN {kind} seed {seed}: {line} [{again}]", flush=True)
        broken += bool(wrong)
        counts[kind] += 1
        seed += 1

    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        if given.cases != 0:
            subject = make_subject(folder)
        while counts.total() < given.cases if given.cases is not None else time.monotonic() - began < given.seconds:
            kind = given.only or list(CASES)[seed % len(CASES)]
            tell(kind, run_case(kind, seed, subject, folder))
        if on_cluster:
            (folder / "cluster").mkdir()
            subject = make_cluster_subject(folder / "cluster")
            with machines() as there:
                for _ in range(on_cluster):
                    tell("cluster", run_cluster_case(there, seed, subject, folder / "cluster"))
    done = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"chaos: {broken} of {counts.total()} cases broken in {time.monotonic() - began:.0f} s ({done})")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
