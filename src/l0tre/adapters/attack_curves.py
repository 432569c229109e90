"""Attacks at several budgets as curves: mean number of changes against passes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from l0tre.adapters.attack_summary import make_rows
from l0tre.adapters.compare_attacks import OWN, AttackComparison
from l0tre.figures.canvas import BLUE, GREEN, GREY, LIGHT, ORANGE, VERMILLION, save

__all__ = ["curve_rows", "write_curves"]

COLOURS = (VERMILLION, GREEN, ORANGE, GREY)
STYLES = ("-", "--", ":", "-.")


def curve_rows(comparisons: Sequence[AttackComparison]) -> list[dict[str, Any]]:
    """A row for each attack and budget: what it was set to and spent, and its mean over the images that it found."""
    rows = []
    for comparison in comparisons:
        for row in make_rows(comparison):
            mean = row.own_mean_features if comparison.unit == "feature" else row.own_mean_pixels
            rows.append(
                {
                    "attack": row.name,
                    "budget": comparison.budget,
                    "passes": row.forwards + row.backwards,
                    "unit": comparison.unit,
                    "mean": mean,
                    "success": row.success,
                    "seconds": row.seconds,
                    "at_least_as_good": row.at_least_as_good,
                }
            )
    return rows


def write_curves(comparisons: Sequence[AttackComparison], path: Path) -> tuple[Path, ...]:
    """Draw a curve for each attack, ours in blue.

    Args:
        comparisons: The same attacks, network and images at several budgets.
        path: Where to write, without a suffix.

    Returns:
        ``PATH.csv``, and ``PATH.png`` if matplotlib is installed.
    """
    rows = curve_rows(comparisons)
    names = list(dict.fromkeys(row["attack"] for row in rows))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for place, name in enumerate(names):
            points = [row for row in rows if row["attack"] == name and row["mean"] is not None and row["passes"] > 0]
            points.sort(key=lambda row: row["passes"])
            colour = BLUE if name == OWN else COLOURS[place % len(COLOURS)]
            style = "-" if name == OWN else STYLES[place // len(COLOURS) % len(STYLES)]
            axes.plot(
                [row["passes"] for row in points],
                [row["mean"] for row in points],
                style,
                marker="o",
                markersize=4,
                color=colour,
                linewidth=2.5 if name == OWN else 1.2,
                label=name,
            )
            for row in points:
                if row["success"] < 1:  # a mean over fewer images is no smaller distance
                    place_of = (row["passes"], row["mean"])
                    axes.annotate(f"{row['success']:.0%}", place_of, (0, 5), textcoords="offset points", fontsize=7)
        axes.set_xscale("log")
        axes.set_yscale("log")
        budgets = sorted({row["budget"] for row in rows})
        axes.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
        axes.xaxis.set_minor_formatter("")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_xlabel("queries (forward and backward passes) for each input")
        axes.set_ylabel(f"mean changed {rows[0]['unit']}s (inputs found)")
        axes.grid(color=LIGHT, which="both")
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8)

    return save(path, rows, draw, (7.0, 4.5))
