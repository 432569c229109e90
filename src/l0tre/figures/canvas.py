"""What all figures share: colours, scales, and writing a figure beside its data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from l0tre.errors import MissingExtraError, require
from l0tre.figures.tables import Rows, write_csv
from l0tre.files import write_whole

__all__ = ["BLUE", "GREEN", "GREY", "LIGHT", "ORANGE", "VERMILLION", "bounds_axis", "cannot_draw", "save"]

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
GREY, LIGHT = "#555555", "#E4E4E4"
DOTS = 150  # per inch
LINEAR_TOP = 30  # above this many groups a linear axis would hide the small bounds that matter
TICKS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000)


def cannot_draw() -> str:
    """Why no figure can be drawn; empty if they can."""
    try:
        require("matplotlib.figure", "figures")
    except MissingExtraError as error:
        return str(error)
    return ""


def save(path: Path, rows: Rows, draw: Callable[[Any], None], size: tuple[float, float]) -> tuple[Path, ...]:
    """Write the data of a figure, then the figure, if that is possible.

    Args:
        path: Where to write, without a suffix; folders are made.
        rows: The data.
        draw: Draws it into a matplotlib figure.
        size: Width and height in inches.

    Returns:
        ``PATH.csv``, and ``PATH.png`` if matplotlib is installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = write_csv(path.with_name(f"{path.name}.csv"), rows)
    if cannot_draw() or not rows:
        return (data,)
    # Not pyplot, whose figures live in global state.
    figure = require("matplotlib.figure", "figures").Figure(figsize=size, dpi=DOTS, layout="constrained")
    draw(figure)
    image = path.with_name(f"{path.name}.png")
    return data, write_whole(image, lambda target: figure.savefig(target, format="png"))


def bounds_axis(axes: Any, top: float) -> None:
    """A vertical axis for bounds: linear, or nearly logarithmic where large ones would hide the small ones."""
    if top <= LINEAR_TOP:
        axes.set_ylim(-0.03 * top, 1.08 * top)
        return
    axes.set_yscale("symlog", linthresh=2)
    ticks = [tick for tick in TICKS if tick <= 1.1 * top]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(-0.15, 1.3 * top)
