"""The charts and maps of a page as a figure of matplotlib, for papers and notebooks."""

from typing import Any

from l0tre.errors import ConfigError, require
from l0tre.figures.canvas import BLUE, GREEN, GREY, LIGHT, ORANGE, VERMILLION
from l0tre.report.blocks import Block, Document

__all__ = ["figure_of"]

COLOURS = {"lower": BLUE, "upper": VERMILLION, "open": "#B8C0C8"}
LINES = (BLUE, VERMILLION, GREEN, ORANGE, GREY)
WIDE, HIGH = 5.2, 3.4  # inches of one chart


def figure_of(document: Document) -> Any:
    """All charts and maps of a page in one figure, two in a row.

    Raises:
        ConfigError: If it has none.
        MissingExtraError: If matplotlib is not installed.
    """
    charts = [block for block in document.blocks if block["type"] in ("chart", "heat")]
    if not charts:
        raise ConfigError("there is nothing to plot here: this result has neither charts nor maps")
    down, across = -(-len(charts) // 2), min(2, len(charts))
    # Not pyplot, whose figures live in global state.
    figure = require("matplotlib.figure", "figures").Figure(figsize=(WIDE * across, HIGH * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for axes, block in zip(grid, charts, strict=False):
        _heat(figure, axes, block) if block["type"] == "heat" else _draw(axes, block)
    for axes in grid[len(charts) :]:
        axes.set_axis_off()
    return figure


def _heat(figure: Any, axes: Any, block: Block) -> None:
    drawn = axes.imshow(block["values"], cmap="inferno", vmin=0)
    figure.colorbar(drawn, ax=axes, label=block["unit"])
    axes.set_title(block["title"], fontsize=10)


def _draw(axes: Any, block: Block) -> None:
    _, places, series = block["variants"][0].values()
    ranking = bool(block["pick"] and block["pick"][0])  # each place is one image, as wide as a step
    where: list[float] = [*(place - 0.5 for place in places), places[-1] + 0.5] if ranking else list(places)
    drawn = []
    for number, one in enumerate(series):
        colour = COLOURS.get(one["role"], LINES[number % len(LINES)])
        values = [float("nan") if value is None else value for value in one["values"]]
        if ranking:  # the step of the last image with a value has its width too
            before = [float("nan"), *values]
            values = [*(b if v != v else v for v, b in zip(values, before, strict=False)), values[-1]]
        drawn.append(values)
        if one["draw"] == "bars":
            axes.bar(places, values, color=colour, label=one["name"], width=0.7)
        elif one["draw"] == "step":
            marker = "o" if len(places) == 1 else ""
            # Where a line would hide the one below it, its dashes let it through.
            hides = number > 0 and any(a == b for a, b in zip(values, drawn[number - 1], strict=True))
            style = "--" if hides else "-"
            axes.step(where, values, style, where="post", color=colour, label=one["name"], marker=marker)
        else:
            axes.plot(places, values, "o" if one["draw"] == "points" else "-", color=colour, label=one["name"])
    if block["band"] and len(series) > 1:
        axes.fill_between(where, drawn[0], drawn[1], step="post", color=LIGHT, zorder=0)
    if block["log"]:
        axes.set_yscale("symlog", linthresh=1)
    if block["log_x"]:
        axes.set_xscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    ticker = require("matplotlib.ticker", "figures")
    if not block["log_x"] and all(place == int(place) for place in places):
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        if len(places) < 3:  # bars of one or two kinds are not as wide as the figure
            axes.set_xlim(places[0] - 1.5, places[-1] + 1.5)
    whole = all(value is None or value == int(value) for one in series for value in one["values"])
    if block["share"]:
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    elif whole and not block["log"]:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if block["places"]:
        axes.set_xticks(places, block["places"])
    axes.set_title(block["title"], fontsize=10)
    axes.set_xlabel(block["x"])
    axes.set_ylabel(f"share of {block['y']}" if block["share"] else block["y"])
    axes.legend(frameon=False, fontsize=8)
    axes.grid(color=LIGHT)
    axes.set_axisbelow(True)
