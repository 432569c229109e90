"""Figures of one run: how its bounds converge, what they cost, and the adversarial images behind them.

Every function writes ``PATH.csv``, the data of the figure, and ``PATH.png`` if matplotlib is installed.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from l0tre.evaluation.results import Snapshot
from l0tre.figures.canvas import BLUE, GREY, LIGHT, VERMILLION, bounds_axis, save
from l0tre.figures.tables import Rows
from l0tre.studies.runs import RunData

__all__ = ["global_bounds", "one_image", "seconds_per_level", "seconds_rows", "sorted_images"]


def one_image(run: RunData, path: Path, index: int | None = None) -> tuple[Path, ...]:
    """Lower bound, upper bound and estimate of one image over ``t``.

    Args:
        run: The run.
        path: Where to write, without a suffix.
        index: Position of the image in the data; default the one with the largest upper bound at ``t = 1`` that a
            witness shows.

    Returns:
        The files written.
    """
    first = run.levels[0]
    shown = [image for image in first.images if image.upper <= image.groups]
    chosen = max(shown or first.images, key=lambda image: image.upper) if index is None else first[index]
    over_t = [level[chosen.index] for level in run.levels]
    rows: Rows = [
        {
            "index": image.index,
            "label": image.label,
            "t": t,
            "lower": image.lower,
            "upper": image.upper,
            "estimate": image.estimate,
            "converged": image.converged,
        }
        for t, image in enumerate(over_t, start=1)
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _over_t(axes, rows, run.latest.unit)
        figure.suptitle(f"{run.network}, image {chosen.index} (label {chosen.label}), {run.words}")

    return save(path, rows, draw, (5.0, 3.6))


def global_bounds(run: RunData, path: Path) -> tuple[Path, ...]:
    """Mean lower bound, upper bound and estimate of all images, over ``t`` and over time.

    Args:
        run: The run.
        path: Where to write, without a suffix.

    Returns:
        The files written. The CSV has ``over`` = ``t`` for the ends of levels, ``seconds`` for moments of the run.
    """
    ends: Rows = [_means("t", level.t, level.seconds, level.lower, level.upper) for level in run.levels]
    moments: Rows = [_means("seconds", p.t, p.seconds, p.lower, p.upper) for p in run.latest.history]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        _over_t(left, ends, run.latest.unit, mean=True)
        _over_time(right, moments, run.latest)
        figure.suptitle(f"{run.network}, {len(run.latest.images):,} images, {run.words}")

    return save(path, [*ends, *moments], draw, (9.0, 3.8))


def seconds_per_level(run: RunData, path: Path) -> tuple[Path, ...]:
    """Box plots of the seconds that an image took at each level.

    Args:
        run: The run.
        path: Where to write, without a suffix.

    Returns:
        The files written. Images that did not reach the end of a level are not part of its box.
    """
    rows = seconds_rows(run)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        boxes = [[row["seconds"] for row in rows if row["t"] == level.t] for level in run.levels]
        counts = ["1 image" if len(box) == 1 else f"{len(box):,} images" for box in boxes]
        labels = [f"t = {level.t}\n{count}" for level, count in zip(run.levels, counts, strict=True)]
        style = {"color": BLUE}
        axes.boxplot(
            boxes,
            widths=0.5,
            boxprops=style,
            whiskerprops=style,
            capprops=style,
            medianprops={"color": VERMILLION, "linewidth": 2},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": GREY},
        )
        axes.set_xticks(range(1, len(labels) + 1), labels)
        if any(row["seconds"] > 0 for row in rows):
            axes.set_yscale("log")
        axes.grid(axis="y", color=LIGHT)
        axes.set_ylabel("seconds an image\n(a batch's time is shared)")
        axes.set_title(f"{run.network}, {run.words}, on {run.latest.config['device']}")

    return save(path, rows, draw, (4.6, 3.8))


def seconds_rows(run: RunData) -> Rows:
    """The seconds that each image took at each level that it finished: ``index``, ``t``, ``seconds``."""
    rows: list[dict[str, Any]] = []
    before: Sequence[float] = [0.0] * len(run.latest.images)
    for level in run.levels:
        rows += [
            {"index": image.index, "t": level.t, "seconds": image.seconds - spent}
            for image, spent in zip(level.images, before, strict=True)
            if image.level == level.t
        ]
        before = [image.seconds for image in level.images]
    return rows


def sorted_images(run: RunData, path: Path) -> tuple[Path, ...]:
    """Bounds of every image at the end of each level, in the order of the upper bounds at ``t = 1``.

    Images with equal bounds at ``t = 1`` are in the order of those at the next level, and so on.

    Args:
        run: The run.
        path: Where to write, without a suffix.

    Returns:
        The files written. All images left of the dashed line have converged.
    """

    def bounds(place: int) -> list[int]:
        return [bound for level in run.levels for bound in (level.images[place].upper, level.images[place].lower)]

    order = sorted(range(len(run.latest.images)), key=bounds)
    rows: list[dict[str, Any]] = []
    for level in run.levels:
        for rank, place in enumerate(order, start=1):
            image = level.images[place]
            rows.append(
                {
                    "t": level.t,
                    "rank": rank,
                    "index": image.index,
                    "lower": image.lower,
                    "upper": image.upper,
                    "estimate": image.estimate,
                    "converged": image.converged,
                }
            )

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(run.levels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, level in zip(panels, run.levels, strict=True):
            part = [row for row in rows if row["t"] == level.t]
            _ranked(axes, part)
            share = sum(row["converged"] for row in part) / len(part)
            state = "" if level.finished else " (at work)"
            axes.set_title(f"t = {level.t}{state}: {share:.1%} converged", loc="left", fontsize=10)
            axes.set_ylabel(f"{run.latest.unit}s")
        panels[-1].set_xlabel("images, by their upper bound at t = 1")
        lines, names = panels[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(f"{run.network}, {len(order):,} images, {run.words}")

    return save(path, rows, draw, (8.0, 1.3 + 2.0 * len(run.levels)))


def _means(over: str, t: int, seconds: float, lower: float, upper: float) -> dict[str, Any]:
    estimate = (lower + upper) / 2
    return {"over": over, "t": t, "seconds": seconds, "lower": lower, "upper": upper, "estimate": estimate}


def _over_t(axes: Any, rows: Rows, unit: str, *, mean: bool = False) -> None:
    levels, lower, upper, estimate = ([row[key] for row in rows] for key in ("t", "lower", "upper", "estimate"))
    axes.fill_between(levels, lower, upper, color=BLUE, alpha=0.12, linewidth=0)
    axes.plot(levels, upper, color=VERMILLION, marker="v", label="upper bound")
    axes.plot(levels, estimate, color=GREY, marker="o", linestyle="--", label="estimate")
    axes.plot(levels, lower, color=BLUE, marker="^", label="lower bound")
    for level, low, high in zip(levels, lower, upper, strict=True):
        for value, colour, shift in ((high, VERMILLION, 7), (low, BLUE, -14)):
            text = f"{value:.2f}" if mean else f"{value}"
            axes.annotate(
                text, (level, value), (0, shift), textcoords="offset points", ha="center", color=colour, fontsize=8
            )
    axes.set_xticks(levels)
    axes.set_xlabel(f"t ({unit}s changed together)")
    axes.set_ylabel(f"mean bounds ({unit}s)" if mean else f"bounds ({unit}s)")
    axes.margins(x=0.15, y=0.18)
    axes.grid(color=LIGHT)
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _over_time(axes: Any, moments: Rows, latest: Snapshot) -> None:
    seconds = [row["seconds"] for row in moments] + [latest.seconds]
    for key, colour in (("upper", VERMILLION), ("lower", BLUE)):
        values = [row[key] for row in moments]
        axes.step(seconds, values + values[-1:], where="post", color=colour, label=f"{key} bound")
    if moments and latest.seconds > 100 * max(moments[0]["seconds"], 1e-3):
        axes.set_xscale("log")
    bounds_axis(axes, max((row["upper"] for row in moments), default=1.0))
    for before, after in itertools.pairwise(moments):
        if after["t"] > before["t"]:
            axes.axvline(after["seconds"], color=GREY, linewidth=0.8, linestyle=":")
            axes.text(after["seconds"], 0.98, f" t = {after['t']}", transform=axes.get_xaxis_transform(), va="top")
    axes.set_xlabel("seconds of work")
    axes.set_ylabel(f"mean bounds ({latest.unit}s)")
    axes.grid(color=LIGHT)


def _ranked(axes: Any, rows: Rows) -> None:
    ranks = [row["rank"] for row in rows]
    lower, upper, estimate = ([row[key] for row in rows] for key in ("lower", "upper", "estimate"))
    axes.fill_between(ranks, lower, upper, step="mid", color=BLUE, alpha=0.12, linewidth=0)
    axes.step(ranks, upper, where="mid", color=VERMILLION, linewidth=1.2, label="upper bound")
    axes.step(ranks, estimate, where="mid", color=GREY, linewidth=0.8, linestyle="--", label="estimate")
    axes.step(ranks, lower, where="mid", color=BLUE, linewidth=1.2, label="lower bound")
    still = next((row["rank"] for row in rows if not row["converged"]), len(rows) + 1)
    axes.axvline(still - 0.5, color="black", linewidth=1.0, linestyle="--", label="left of it all have converged")
    bounds_axis(axes, max(upper))
    axes.set_xlim(0.5, len(rows) + 0.5)
    axes.grid(color=LIGHT)
