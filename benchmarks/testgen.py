"""Case study three without the command line: ``python -m benchmarks.testgen FOLDER --data-dir DIR --device cuda``.

One suite for each of some test images, in FOLDER; what is there is gone on with, so that the whole fits into several
sessions of ``--seconds`` each. ``summary.md`` and ``summary.json`` say what came out so far, with the seconds that each
suite took.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from l0tre.studies.case_three import NETWORKS, SEEDS, carry_out_case_three, summarise_case_three


def main() -> None:
    """Generate the suites, and print their summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.testgen", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="commas between")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="test images of each network")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which this session ends")
    options = parser.parse_args()
    names = options.networks.split(",")
    end = time.monotonic() + float(options.seconds)

    def late() -> bool:
        return time.monotonic() >= end

    carry_out_case_three(
        options.folder,
        names,
        seeds=options.seeds,
        data_dir=options.data_dir,
        device=options.device,
        stop=late,
    )
    if not list(options.folder.glob("*/suite.json")):
        raise SystemExit("the session was too short for a first suite: give more --seconds")
    summary = summarise_case_three(options.folder)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    machine = f"{platform.machine()}, {device}, torch {torch.__version__}"
    (options.folder / "machine.json").write_text(json.dumps({"machine": machine}) + "\n")
    print(summary.text)
    wanted, there = options.seeds * len(names), len(list(options.folder.glob("*/suite.json")))
    complete = summary.finished and there >= wanted
    print(f"{machine}; {there} of {wanted} suites{'' if complete else '; not complete: the same command goes on'}")


if __name__ == "__main__":
    main()
