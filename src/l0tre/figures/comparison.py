"""The picture of a comparison: accuracy and robustness of several networks."""

from pathlib import Path
from typing import Any

from l0tre.figures.canvas import BLUE, GREY, LIGHT, VERMILLION, save
from l0tre.figures.tables import Rows

__all__ = ["accuracy_and_robustness"]


def accuracy_and_robustness(rows: Rows, path: Path) -> tuple[Path, ...]:
    """Accuracy of each network beside what is known of its mean safe radius.

    Args:
        rows: With ``network``, ``accuracy`` (a share), ``radius_low``, ``radius_high`` (mean lower bound, mean upper
            bound less one), ``groups`` (number in an image) and ``unit``.
        path: Where to write, without a suffix.

    Returns:
        The files written.
    """

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
        places = list(range(len(rows)))
        accuracies = [100 * row["accuracy"] for row in rows]
        left.plot(accuracies, places, "o", color=GREY)
        for place, accuracy in zip(places, accuracies, strict=True):
            left.annotate(f"{accuracy:.1f}", (accuracy, place), (0, 6), textcoords="offset points", ha="center")
        same = len({row["groups"] for row in rows}) == 1
        sizes = ["" if same else f"\n({row['groups']:,} {row['unit']}s)" for row in rows]
        left.set_yticks(places, [f"{row['network']}{size}" for row, size in zip(rows, sizes, strict=True)])
        left.set_ylim(len(rows) - 0.5, -0.6)
        worst = min(accuracies)
        room = max(0.5, 0.2 * (100 - worst))
        left.set_xlim(worst - room, 100 + room)
        left.set_xticks([tick for tick in left.get_xticks() if worst - room <= tick <= 100])
        left.set_xlabel("accuracy on the images (%)")
        lows, highs = [row["radius_low"] for row in rows], [row["radius_high"] for row in rows]
        right.hlines(places, lows, highs, color=BLUE, linewidth=7, alpha=0.6)
        right.plot(lows, places, "|", color=BLUE, markersize=15, markeredgewidth=2, label="mean lower bound")
        right.plot(
            highs, places, "|", color=VERMILLION, markersize=15, markeredgewidth=2, label="mean upper bound less 1"
        )
        for place, low, high in zip(places, lows, highs, strict=True):
            text = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
            right.annotate(text, ((low + high) / 2, place), (0, 11), textcoords="offset points", ha="center")
        top = max(*highs, 0.1)
        right.set_xlim(-0.12 * top, 1.12 * top)
        right.set_xticks([tick for tick in right.get_xticks() if 0 <= tick <= 1.12 * top])
        right.set_xlabel(f"mean safe radius ({rows[0]['unit']}s)")
        right.legend(frameon=False, fontsize=9, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        for axes in (left, right):
            axes.grid(axis="x", color=LIGHT)
            axes.set_axisbelow(True)

    return save(path, rows, draw, (9.0, 1.6 + 0.55 * len(rows)))
