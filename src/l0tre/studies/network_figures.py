"""Figures of several networks side by side.

Every function writes ``PATH.csv``, the data of the figure, and ``PATH.png`` if matplotlib is installed.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from l0tre.figures.canvas import BLUE, GREY, LIGHT, ORANGE, VERMILLION, save
from l0tre.figures.tables import Rows
from l0tre.studies.runs import RunData

__all__ = ["bounds_of_networks", "level_rows", "spread_of_networks"]

COLOURS = (ORANGE, BLUE, VERMILLION, GREY)  # of t = 1, 2, ...


def level_rows(runs: Sequence[RunData]) -> Rows:
    """For every run and level: global bounds, and the spread of the images' estimates and uncertainties.

    Args:
        runs: The runs, one for each network and kind.

    Returns:
        Rows with ``network``, ``kind``, ``guarantee``, ``t``, ``images``, means and standard deviations (of these
        images, not of a population), all in groups; ``complete``: whether no image is still at work in the level.
    """
    rows = []
    for run in runs:
        for level in run.levels:
            estimates = [image.estimate for image in level.images]
            radii = [image.uncertainty for image in level.images]
            rows.append(
                {
                    "network": run.network,
                    "kind": run.kind,
                    "guarantee": run.guarantee,
                    "t": level.t,
                    "images": len(level.images),
                    "lower": level.lower,
                    "upper": level.upper,
                    "estimate": fmean(estimates),
                    "estimate_sd": pstdev(estimates),
                    "uncertainty": fmean(radii),
                    "uncertainty_sd": pstdev(radii),
                    "converged": level.converged / len(level.images),
                    "complete": level.finished,
                }
            )
    return rows


def bounds_of_networks(runs: Sequence[RunData], path: Path) -> tuple[Path, ...]:
    """Global bounds and estimates of each network at the end of each level.

    Args:
        runs: One run for each network.
        path: Where to write, without a suffix.

    Returns:
        The files written.
    """
    rows = level_rows(runs)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for t, part, shift, width in _by_level(rows):
            places = [place + shift for place in range(len(part))]
            heights = [row["upper"] - row["lower"] for row in part]
            colour = COLOURS[(t - 1) % len(COLOURS)]
            lower = [row["lower"] for row in part]
            axes.bar(places, heights, width, lower, color=colour, alpha=0.55, label=f"t = {t}: lower to upper bound")
            for place, row in zip(places, part, strict=True):
                centre = row["estimate"]
                axes.plot([place - width / 2, place + width / 2], [centre, centre], color="black", linewidth=1.5)
                for value, below in ((row["lower"], True), (row["upper"], False)):
                    axes.annotate(
                        f"{value:.2f}",
                        (place, value),
                        (0, -3 if below else 3),
                        textcoords="offset points",
                        ha="center",
                        va="top" if below else "bottom",
                        fontsize=7,
                    )
        axes.plot([], [], color="black", linewidth=1.5, label="estimate")
        _name_networks(axes, rows)
        axes.set_ylabel(f"mean bounds ({runs[0].latest.unit}s)")
        axes.use_sticky_edges = False  # bars would leave no room for the numbers below them
        axes.margins(y=0.1)
        axes.autoscale_view()
        axes.legend(frameon=False, fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return save(path, rows, draw, (max(5.0, 1.3 * len(runs)), 4.2))


def spread_of_networks(runs: Sequence[RunData], path: Path) -> tuple[Path, ...]:
    """Means and standard deviations of the images' estimates and uncertainty radii, for each network and level.

    Args:
        runs: One run for each network.
        path: Where to write, without a suffix.

    Returns:
        The files written.
    """
    rows = level_rows(runs)

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        names = {"estimate": "estimate of the distance", "uncertainty": "uncertainty radius"}
        for axes, (key, title) in zip(panels, names.items(), strict=True):
            for t, part, shift, width in _by_level(rows):
                places = [place + shift for place in range(len(part))]
                axes.bar(
                    places,
                    [row[key] for row in part],
                    width,
                    color=COLOURS[(t - 1) % len(COLOURS)],
                    alpha=0.55,
                    label=f"t = {t}",
                )
                ends = [(max(row[key] - row[f"{key}_sd"], 0.0), row[key] + row[f"{key}_sd"]) for row in part]
                axes.vlines(places, [low for low, _ in ends], [high for _, high in ends], color="black", linewidth=1)
            _name_networks(axes, rows)
            axes.set_ylabel(f"{title}\n({runs[0].latest.unit}s, mean ± standard deviation)")
            axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return save(path, rows, draw, (max(8.0, 1.5 * len(runs)), 3.8))


def _by_level(rows: Rows) -> list[tuple[int, Rows, float, float]]:
    """For each level: ``t``, its rows, how far its bars stand from the network's place, and their width."""
    levels = sorted({row["t"] for row in rows})
    width = 0.8 / len(levels)
    return [
        (t, [row for row in rows if row["t"] == t], (place - (len(levels) - 1) / 2) * width, 0.9 * width)
        for place, t in enumerate(levels)
    ]


def _name_networks(axes: Any, rows: Rows) -> None:
    names = list(dict.fromkeys(row["network"] for row in rows))
    axes.set_xticks(range(len(names)), names)
    axes.grid(axis="y", color=LIGHT)
    axes.set_axisbelow(True)
