"""A process that goes on with a run on a cluster, for ``chaos.cluster``: ``python -m chaos.driver RUN [ADDRESS]``.

It prints a dot for every step.
"""

import sys
from pathlib import Path

import torch

import l0tre
from chaos.cluster import SMALL, make_network


def main() -> None:
    """Go on to the end, or until somebody kills it."""
    torch.set_num_threads(1)
    run, *address = sys.argv[1:]
    cluster = l0tre.Cluster(address[0], workers=2) if address else None
    for _ in l0tre.resume_anytime(Path(run), make_network(), cluster=cluster, tuning=SMALL):
        print(end=".", flush=True)


if __name__ == "__main__":
    main()
