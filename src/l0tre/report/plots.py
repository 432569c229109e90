"""The charts of a page as a figure of matplotlib, for papers and notebooks."""

from typing import Any

from l0tre.errors import ConfigError, require
from l0tre.figures.canvas import BLUE, GREEN, GREY, LIGHT, ORANGE, VERMILLION
from l0tre.report.blocks import Block, Document

__all__ = ["figure_of"]

COLOURS = {"lower": BLUE, "upper": VERMILLION, "open": "#B8C0C8"}
LINES = (BLUE, VERMILLION, GREEN, ORANGE, GREY)
WIDE, HIGH = 5.2, 3.4  # inches of one chart


def figure_of(document: Document) -> Any:
    """All charts of a page in one figure, two in a row.

    Raises:
        ConfigError: If it has none.
        MissingExtraError: If matplotlib is not installed.
    """
    charts = [block for block in document.blocks if block["type"] == "chart"]
    if not charts:
        raise ConfigError("there is nothing to plot here: this result has no charts")
    down, across = -(-len(charts) // 2), min(2, len(charts))
    # Not pyplot, whose figures live in global state.
    figure = require("matplotlib.figure", "figures").Figure(figsize=(WIDE * across, HIGH * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for axes, block in zip(grid, charts, strict=False):
        _draw(axes, block)
    for axes in grid[len(charts) :]:
        axes.set_axis_off()
    return figure


def _draw(axes: Any, block: Block) -> None:
    _, places, series = block["variants"][0].values()
    for number, one in enumerate(series):
        colour = COLOURS.get(one["role"], LINES[number % len(LINES)])
        values = [float("nan") if value is None else value for value in one["values"]]
        if one["draw"] == "bars":
            axes.bar(places, values, color=colour, label=one["name"], width=0.7)
        elif one["draw"] == "step":
            marker = "o" if len(places) == 1 else ""
            axes.step(places, values, where="post", color=colour, label=one["name"], marker=marker)
        else:
            axes.plot(places, values, "o" if one["draw"] == "points" else "-", color=colour, label=one["name"])
    if block["band"] and len(series) > 1:
        low, high = ([float("nan") if v is None else v for v in one["values"]] for one in series[:2])
        axes.fill_between(places, low, high, step="post", color=LIGHT, zorder=0)
    if block["log"]:
        axes.set_yscale("symlog", linthresh=1)
    if block["log_x"]:
        axes.set_xscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set_title(block["title"], fontsize=10)
    axes.set_xlabel(block["x"])
    axes.set_ylabel(f"share of {block['y']}" if block["share"] else block["y"])
    axes.legend(frameon=False, fontsize=8)
    axes.grid(color=LIGHT)
    axes.set_axisbelow(True)
