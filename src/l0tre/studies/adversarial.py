"""Adversarial images of a run: the original, what level 1 found, and one at the very edge of the safe radius."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from l0tre.data.layout import channels_height_width
from l0tre.evaluation.results import ImageBounds, Witness
from l0tre.figures.canvas import ORANGE, save
from l0tre.figures.pictures import plane
from l0tre.studies.runs import RunData

__all__ = ["adversarial_images"]

COLUMNS = 3  # triples beside one another
OUTLINED = 60  # changed pixels; with more, outlines would hide the image


def adversarial_images(run: RunData, path: Path, count: int = 9) -> tuple[Path, ...]:
    """Originals, witnesses at ``t = 1`` and witnesses at convergence, with the changed pixels outlined.

    Converged images come first, those whose upper bound fell most before the others, and each label once before any
    label comes twice.

    Args:
        run: The run; its inputs must be images.
        path: Where to write, without a suffix.
        count: At most so many images.

    Returns:
        The files written. The CSV holds the changed values: positions in the flattened input and new values.
    """
    chosen = _choose(run, count)
    rows = [
        {
            "index": last.index,
            "label": last.label,
            "moment": moment,
            "lower": bounds.lower,
            "upper": bounds.upper,
            "converged": bounds.converged,
            "becomes": bounds.witness.label,
            "positions": " ".join(map(str, bounds.witness.positions.tolist())),
            "values": " ".join(f"{value:.6g}" for value in bounds.witness.values.tolist()),
        }
        for first, last in chosen
        for moment, bounds in (("t = 1", first), ("latest", last))
        if bounds.witness is not None
    ]
    places = {index: place for place, index in enumerate(run.inputs.indices)}
    lines = -(-len(chosen) // COLUMNS)

    def draw(figure: Any) -> None:
        # A narrow empty column stands between two triples.
        grid = figure.subplots(lines, 4 * COLUMNS - 1, squeeze=False, width_ratios=([1, 1, 1, 0.3] * COLUMNS)[:-1])
        for axes in grid.flat:
            axes.axis("off")
        for number, (first, last) in enumerate(chosen):
            line, column = divmod(number, COLUMNS)
            panels = grid[line, 4 * column : 4 * column + 3]
            image = run.inputs.images[places[last.index]]
            _show(panels[0], image, None, f"label {last.label}")
            edge = "safe radius" if last.converged else "upper bound"
            for axes, bounds in ((panels[1], first), (panels[2], last)):
                if bounds.witness is not None:
                    name = "t = 1" if bounds is first else f"{edge} {last.lower if last.converged else last.upper}"
                    changes = f"{bounds.upper} {run.latest.unit}s" if bounds.upper > 1 else f"1 {run.latest.unit}"
                    _show(axes, image, bounds.witness, f"{name}\n{changes}: now {bounds.witness.label}")
        figure.suptitle(f"{run.network}, {run.words}: original, witness at t = 1, closest witness")

    return save(path, rows, draw, (11.0, 0.5 + 1.5 * lines))


def _choose(run: RunData, count: int) -> list[tuple[ImageBounds, ImageBounds]]:
    """Bounds at ``t = 1`` and the latest ones, of the images to show."""
    if channels_height_width(tuple(run.inputs.images.shape[1:])) is None:
        return []
    pairs = [
        (first, last)
        for first, last in zip(run.levels[0].images, run.latest.images, strict=True)
        if first.witness is not None and last.witness is not None
    ]
    pairs.sort(key=lambda pair: (not pair[1].converged, pair[1].upper - pair[0].upper, pair[1].index))
    seen: dict[int, int] = {}
    turns = []
    for pair in pairs:
        seen[pair[1].label] = seen.get(pair[1].label, 0) + 1
        turns.append(seen[pair[1].label])
    ranked = sorted(range(len(pairs)), key=lambda place: (not pairs[place][1].converged, turns[place], place))
    return [pairs[place] for place in ranked[:count]]


def _show(axes: Any, image: Tensor, witness: Witness | None, title: str) -> None:
    changed = image if witness is None else witness.apply(image)
    picture, before = _picture(changed), _picture(image)
    axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    rows, columns = np.nonzero((picture != before).reshape(*picture.shape[:2], -1).any(2))
    if len(rows) <= OUTLINED:
        # Squares of a marker would not scale with the pixels, so each outline is a path of four corners.
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            across = [column - 0.5, column + 0.5, column + 0.5, column - 0.5, column - 0.5]
            down = [row - 0.5, row - 0.5, row + 0.5, row + 0.5, row - 0.5]
            axes.plot(across, down, color=ORANGE, linewidth=1.1)
    axes.set_title(title, fontsize=8)


def _picture(image: Tensor) -> np.ndarray:
    """An input as ``[height, width]`` or ``[height, width, 3]``."""
    array: np.ndarray = plane(image).numpy()
    return array[:, :, :3] if array.shape[2] >= 3 else array[:, :, 0]
