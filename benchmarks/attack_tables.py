"""Tables, CSV files and curves of what ``benchmarks/attacks.py`` left in a folder."""

import csv
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from l0tre.adapters.compare_attacks import OWN

__all__ = ["show", "write"]

OVER = 1.05  # an attack that took more than this share of a budget is not compared at it


@dataclass(frozen=True)
class Cell:
    """One attack on one network with one budget.

    Attributes:
        network: Its name.
        attack: Its name.
        budget: Passes that it was given for each image.
        distance: float ``[images]``; infinite where nothing was found.
        images: Their numbers.
        passes: That it took for each image, on average.
        seconds: Of the CPU for each image, whatever else the machine did meanwhile; on a GPU of the clock.
    """

    network: str
    attack: str
    budget: int
    distance: np.ndarray
    images: tuple[int, ...]
    passes: float
    seconds: float

    @property
    def found(self) -> float:
        """Share of images."""
        return float(np.isfinite(self.distance).mean())

    @property
    def mean(self) -> float:
        """Over the images that it found."""
        some = self.distance[np.isfinite(self.distance)]
        return float(some.mean()) if len(some) else math.nan

    @property
    def fair(self) -> bool:
        """Whether it kept to the budget."""
        return self.passes <= OVER * self.budget


def _read(folder: Path) -> dict[str, dict[tuple[str, int], Cell]]:
    """Cells by network, then by attack and budget; those of attacks that failed are left out."""
    cells: dict[str, dict[tuple[str, int], Cell]] = {}
    for file in sorted(folder.glob("*/*.json")):
        part: dict[str, Any] = json.loads(file.read_text())
        attack, _, budget = file.stem.rpartition("-")
        distance = np.array(part["distance"], dtype=float)
        distance[distance <= 0] = np.inf
        count = max(1, len(distance))
        if part["error"]:
            continue
        cells.setdefault(file.parent.name, {})[attack, int(budget)] = Cell(
            file.parent.name,
            attack,
            int(budget),
            distance,
            tuple(part["images"]),
            (part["forwards"] + part["backwards"]) / count,
            part["cpu_seconds" if part["device"] == "cpu" else "seconds"] / count,
        )
    return cells


def show(folder: Path) -> None:
    """Print tables of everything in a folder, in Markdown."""
    for network, cells in _read(folder).items():
        budgets = sorted({budget for _, budget in cells})
        names = sorted({attack for attack, _ in cells}, key=lambda name: (name != OWN, name))
        counts = [max(len(cell.images) for cell in cells.values() if cell.budget == budget) for budget in budgets]
        print(f"\n### {network}; images: {', '.join(f'{c} ({b:,})' for b, c in zip(budgets, counts, strict=True))}\n")
        print("| attack | " + " | ".join(f"{b:,}" for b in budgets) + " | area | ours at most as many | s/image |")
        print("|---" * (len(budgets) + 4) + "|")
        for name in names:
            line = [cells.get((name, budget)) for budget in budgets]
            points = [(math.log(cell.budget), cell.mean) for cell in line if cell is not None]
            shares = [_share(cells.get((OWN, cell.budget)), cell) for cell in line if cell is not None]
            print(
                f"| {name} | {' | '.join(map(_shown, line))} | {_area(points)} | "
                f"{' '.join(shares) if name != OWN else ''} | "
                f"{' '.join(f'{cell.seconds:.3f}' for cell in line if cell is not None)} |"
            )
        print(f"| *ours less the best* | {' | '.join(_lead(cells, budget) for budget in budgets)} | | | |")


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    found = "" if cell.found == 1 else f" ({cell.found:.0%} found)"
    return f"{cell.mean:.2f}{found}" + ("" if cell.fair else f" ({cell.passes:,.0f} passes)")


def _share(own: Cell | None, peer: Cell) -> str:
    """Images on which ours changes at most as many."""
    if own is None or own.images != peer.images:
        return "-"
    return f"{float((own.distance <= peer.distance).mean()):.0%}"


def _lead(cells: dict[tuple[str, int], Cell], budget: int) -> str:
    """How far our mean is from the best peer's that kept to the budget, and found as many."""
    own = cells.get((OWN, budget))
    if own is None:
        return "-"
    peers = [
        cell.mean
        for (name, passes), cell in cells.items()
        if name != OWN and passes == budget and cell.fair and cell.found >= own.found and cell.images == own.images
    ]
    return f"{own.mean / min(peers) - 1:+.1%}" if peers else "-"


def _area(points: list[tuple[float, float]]) -> str:
    """Mean height of a curve over the logarithm of the budget."""
    if len(points) < 2:
        return "-"
    sums = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    return f"{sums / (points[-1][0] - points[0][0]):.2f}"


def write(folder: Path, out: Path) -> None:
    """Write ``curves.csv`` (a line for each cell), ``images.csv`` (for each image) and ``curves.png``."""
    cells = _read(folder)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "curves.csv").open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["network", "budget", "attack", "images", "found", "mean", "median", "passes", "seconds"])
        for network in cells.values():
            for cell in sorted(network.values(), key=lambda cell: (cell.budget, cell.attack)):
                some = cell.distance[np.isfinite(cell.distance)]
                median = float(np.median(some)) if len(some) else math.nan
                figures = [f"{cell.mean:.3f}", f"{median:g}", f"{cell.passes:.0f}", f"{cell.seconds:.4f}"]
                lines.writerow(
                    [cell.network, cell.budget, cell.attack, len(cell.images), f"{cell.found:.3f}", *figures]
                )
    with (out / "images.csv").open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["network", "budget", "attack", "distances of the images in order, -: none found"])
        for network in cells.values():
            for cell in sorted(network.values(), key=lambda cell: (cell.budget, cell.attack)):
                shown = " ".join(f"{d:.0f}" if np.isfinite(d) else "-" for d in cell.distance)
                lines.writerow([cell.network, cell.budget, cell.attack, shown])
    _draw(cells, out / "curves.png")


def _comparable(network: dict[tuple[str, int], Cell]) -> dict[tuple[str, int], Cell]:
    """What can stand in one picture: attacks that kept to their budget and found all of the largest set of images."""
    images = max((cell.images for cell in network.values()), key=len)
    return {key: cell for key, cell in network.items() if cell.fair and cell.found == 1 and cell.images == images}


def _draw(cells: dict[str, dict[tuple[str, int], Cell]], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    # A curve is about the same images at all its budgets, and all of them were found.
    cells = {name: _comparable(network) for name, network in cells.items()}
    cells = {name: network for name, network in cells.items() if len({budget for _, budget in network}) > 1}
    wide = max(1, min(3, len(cells)))
    high = max(1, -(-len(cells) // wide))
    figure, axes = plt.subplots(high, wide, figsize=(4.2 * wide, 3.1 * high), squeeze=False)
    names = sorted({attack for network in cells.values() for attack, _ in network}, key=lambda n: (n != OWN, n))
    colours = {name: "black" if name == OWN else f"C{place}" for place, name in enumerate(names)}
    for axis, (title, network) in zip(axes.flat, cells.items(), strict=False):
        for name in names:
            line = sorted((c for c in network.values() if c.attack == name), key=lambda cell: cell.budget)
            points = [(cell.budget, cell.mean) for cell in line]
            if points:
                axis.plot(*zip(*points, strict=True), "o-", color=colours[name], label=name, ms=3, lw=1.2)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("passes for each image", fontsize=8)
        axis.set_ylabel("mean L0", fontsize=8)
        budgets = sorted({budget for _, budget in network})
        axis.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
        axis.xaxis.set_minor_formatter("")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(which="both", labelsize=7)
    for axis in list(axes.flat)[len(cells) :]:
        axis.set_visible(False)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=min(8, len(handles)), fontsize=8)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(file, dpi=110)
    plt.close(figure)
