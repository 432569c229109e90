"""Fuzz until the time is over: ``python -m fuzz --seconds 600``, or one case again: ``--seed N --cases 1``."""

import argparse
import secrets
import sys
import time
import traceback
import warnings
from collections.abc import Sequence

import torch

from fuzz.ideas import IDEAS
from fuzz.run import run_case
from fuzz.subjects import GUARANTEES, SOURCES
from fuzz.tally import Tally


def main() -> int:
    """Run cases and print what is wrong with them; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="start no further case after this time")
    parser.add_argument("--seed", type=int, help="of the first case; the next ones count up from it")
    parser.add_argument("--cases", type=int, help="this many cases, whatever time they take")
    names = (*IDEAS, *SOURCES, *GUARANTEES)
    known = f"only one kind of case, several times for an idea, a source and a guarantee; of {', '.join(names)}"
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help=known)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seed = secrets.randbelow(10**9) if given.seed is None else given.seed
    tally, began, wrong = Tally(), time.monotonic(), 0
    while tally.cases < given.cases if given.cases is not None else time.monotonic() - began < given.seconds:
        wrong += _report(seed, tally, given.only)
        seed += 1
    seconds = time.monotonic() - began
    print(f"{wrong} violations in {seconds:.0f} s, {tally.cases / seconds:.2f} cases a second")
    print(*tally.lines(), sep="\n")
    return 1 if wrong else 0


def _report(seed: int, tally: Tally, only: Sequence[str]) -> int:
    """Run one case and print a line for it, another one if anything is wrong; gives the number of wrong cases."""
    again = " ".join([f"python -m fuzz --seed {seed} --cases 1", *(f"--only {name}" for name in only)])
    try:
        result = run_case(seed, tally, only=only)
    except Exception as error:  # a crash is no proof, but should be seen
        traceback.print_exc()
        print(f"CRASH seed {seed}: {type(error).__name__}: {error} [{again}]", flush=True)
        return 1
    subject = result.subject
    print(
        f"seed {seed}: {subject.guarantee}, {subject.source}, {' '.join(subject.ideas)}: {result.outcome}", flush=True
    )
    if not result.complaints:
        return 0
    noticed = ", ".join(complaint.check for complaint in result.complaints)
    print(f"VIOLATION seed {seed}: {result.complaints[0].text}; noticed by: {noticed} [{again}]", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
