"""Pictures of saliency maps: over the image, and of several networks or neurons side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from l0tre.errors import require
from l0tre.figures.canvas import DOTS, GREY, VERMILLION
from l0tre.figures.pictures import is_picture, plane
from l0tre.files import write_whole
from l0tre.layout import channel_axis
from l0tre.maps.saliency_map import SaliencyMap

__all__ = ["Panel", "caption", "draw_maps", "sheet"]

COLOURS, SIGNED = "inferno", "RdBu_r"  # perceptually even; for signs two arms of equal weight
SHOWN = 0.999  # share of the values below which the colours end, so that a single pixel does not darken all others
SIDE = 3.1  # inches of a picture


@dataclass(frozen=True)
class Panel:
    """A map with what it is shown with.

    Attributes:
        title: Above it: the network, the class.
        image: float32 ``shape``, what it is of.
        found: The map.
        adversarial: float32 ``shape``, a changed image to show above the map, and its caption; ``None`` for none.
    """

    title: str
    image: Tensor
    found: SaliencyMap
    adversarial: tuple[Tensor, str] | None = None


def caption(distance: int, unit: str, label: str) -> str:
    """What stands above a changed image: how much of it is changed, and what it became."""
    return f"{distance} changed {unit if distance == 1 else unit + 's'}: {label}"


def sheet(values: Tensor) -> np.ndarray:
    """A map in an input's shape as ``[height, width]``: of each position the number that is largest in size."""
    if values.ndim == 1:
        return values[None].numpy()
    if values.ndim == 2:
        return values.numpy()
    flat = values.movedim(channel_axis(tuple(values.shape)) or 0, 0)
    return flat.gather(0, flat.abs().argmax(0, keepdim=True))[0].numpy()


def draw_maps(
    path: Path, panels: Sequence[Panel], *, signed: bool = False, low: float = 0.0, high: float = 1.0
) -> Path:
    """Draw maps beside each other: the image, the map over it, and the map by itself.

    Args:
        path: The ``.png`` file.
        panels: One for each network or neuron; maps with the same unit share one scale.
        signed: Whether rises are shown, too.
        low: The smallest value of an image.
        high: The largest one.

    Returns:
        The file.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure_class = require("matplotlib.figure", "figures").Figure
    pictured = is_picture(panels[0].found.shape)
    rows = 3 if pictured else 1
    if len(panels) == 1 and pictured:
        rows, columns = 1, 3
    else:
        columns = len(panels)
    size = (SIDE * columns + 0.9, (SIDE + 0.35) * rows + 0.4)
    figure = figure_class(figsize=size, dpi=DOTS, layout="constrained")
    axes = np.array(figure.subplots(rows, columns, squeeze=False))
    grid = axes.T if len(panels) == 1 and pictured else axes
    sheets = [sheet(panel.found.attribution(signed=signed)) for panel in panels]
    limits = _limits(panels, sheets)
    drawn: Any = None
    for column, (panel, values, top) in enumerate(zip(panels, sheets, limits, strict=True)):
        places = list(grid[:, column])
        title = f"{panel.title}\n{panel.found.observed.replace(' (', chr(10) + '(')}"  # what is in brackets below
        if pictured:
            _picture(places.pop(0), panel, low, high, title)
            _overlay(places.pop(0), panel, values, top, signed, low, high)
        drawn = _map(places.pop(0), values, top, signed, "" if pictured else title)
    shared = len(set(limits)) == 1
    for number, axis in enumerate(grid[-1]):
        if shared and number < len(panels) - 1:
            continue
        what = _what(panels[number].found, signed)
        image = axis.images[0] if axis.images else drawn
        bar = figure.colorbar(
            image, ax=list(grid[-1]) if shared else axis, shrink=0.85, extend="both" if signed else "max",
            location="right" if shared else "bottom",
        )  # fmt: skip
        bar.set_label(f"{what}\n({panels[number].found.unit})", fontsize=9)
    for axis in axes.flat:
        axis.set_axis_off()
    notes = [note for note in (_note(panel.found) for panel in panels) if note]
    if notes:
        figure.supxlabel("; ".join(dict.fromkeys(notes)), fontsize=8, color=GREY)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, lambda target: figure.savefig(target, format="png"))


def _limits(panels: Sequence[Panel], sheets: Sequence[np.ndarray]) -> list[float]:
    """Where the colours end: at the same value for maps of one unit, unless they differ by orders of magnitude."""
    tops = [float(np.quantile(np.abs(values), SHOWN)) or float(np.abs(values).max()) or 1.0 for values in sheets]
    same = len({panel.found.unit for panel in panels}) == 1 and max(tops) <= 10 * min(tops)
    return [max(tops)] * len(tops) if same else tops


def _what(found: SaliencyMap, signed: bool) -> str:
    """What the colours say."""
    number = "score" if found.unit == "units of the score" else "neuron"
    if signed:
        return f"one {found.group} lowers (red), raises (blue) the {number}"
    return f"how far one {found.group} can lower the {number}"


def _note(found: SaliencyMap) -> str:
    if found.complete:
        return ""
    return f"{found.share:.1%} of the {found.group}s measured, the others predicted"


def _rgb(image: Tensor, low: float, high: float) -> np.ndarray:
    pixels = ((plane(image.cpu().float()) - low) / (high - low)).clamp(0, 1).numpy()
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _picture(axis: Any, panel: Panel, low: float, high: float, title: str) -> None:
    image, words = panel.adversarial or (panel.image, "")
    axis.imshow(_rgb(image, low, high), interpolation="nearest")
    axis.set_title(f"{title}\n{words}" if words else title, fontsize=9)
    if panel.adversarial is not None:
        moved = (plane(image.cpu()) != plane(panel.image.cpu())).any(2).nonzero()
        axis.scatter(moved[:, 1], moved[:, 0], s=60, facecolors="none", edgecolors=VERMILLION, linewidths=1.0)


def _overlay(axis: Any, panel: Panel, values: np.ndarray, top: float, signed: bool, low: float, high: float) -> None:
    grey = _rgb(panel.image, low, high).mean(2)
    axis.imshow(0.25 + 0.6 * grey, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    opaque = np.clip(np.abs(values) / top, 0, 1) ** 0.7
    axis.imshow(values, alpha=0.9 * opaque, interpolation="nearest", **_scale(top, signed))
    axis.set_title("over the image", fontsize=9)


def _map(axis: Any, values: np.ndarray, top: float, signed: bool, title: str) -> Any:
    height, width = values.shape
    tall = height == 1 and width > 1  # a vector: as a ribbon
    shown = np.repeat(values, max(1, math.ceil(width / 8)), axis=0) if tall else values
    axis.set_title(title or "by itself", fontsize=9)
    return axis.imshow(shown, interpolation="nearest", **_scale(top, signed))


def _scale(top: float, signed: bool) -> dict[str, Any]:
    return {"cmap": SIGNED if signed else COLOURS, "vmin": -top if signed else 0.0, "vmax": top}
