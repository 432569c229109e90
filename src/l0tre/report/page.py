"""One page for a run folder: what was found, what it means, what it rests on."""

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from l0tre.errors import ConfigError, require
from l0tre.evaluation.accuracy import classified, counts
from l0tre.evaluation.results import Snapshot
from l0tre.names import names_of
from l0tre.report import chart
from l0tre.report.pictures import make_cards
from l0tre.report.words import answer, counted, guarantees, progress, remarks
from l0tre.store import Inputs, export_run, read_inputs, read_snapshot

__all__ = ["report_writes", "write_report"]

NAME = "report.html"
ROWS = 500  # images listed in the page; bounds.csv has them all


def write_report(folder: Path, *, pictures: int = 100) -> Path:
    """Write ``report.html`` into a run folder.

    Args:
        folder: The run folder; a run that is still going on is shown as last recorded.
        pictures: At most so many images are shown beside their adversarial inputs.

    Returns:
        The page: one file that needs nothing else. It appears whole or not at all.

    Raises:
        ConfigError: If ``pictures`` is negative.
        MissingExtraError: If jinja2 or Pillow is not installed.
        StoreError: If the folder is not a run, is damaged, or cannot be written.
    """
    if pictures < 0:
        raise ConfigError(f"pictures is {pictures}: give 0 or more")
    snapshot, inputs = read_snapshot(folder), read_inputs(folder)
    return export_run(folder, report_writes(folder, snapshot, inputs, pictures=pictures), snapshot)[0]


def report_writes(
    folder: Path, snapshot: Snapshot, inputs: Inputs, *, pictures: int = 100
) -> dict[Path, Callable[[Path], object]]:
    """What writes ``report.html``.

    Args:
        folder: Where to.
        snapshot: The bounds.
        inputs: What they are about.
        pictures: See :func:`write_report`.

    Returns:
        The file and a function that writes it to a path.

    Raises:
        MissingExtraError: If jinja2 or Pillow is not installed.
    """
    jinja2 = require("jinja2", "report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = files("l0tre.report").joinpath("report.html.jinja").read_text(encoding="utf-8")
    text = environment.from_string(template).render(_content(snapshot, inputs, pictures))
    return {folder / NAME: lambda path: path.write_text(text, encoding="utf-8")}


def _content(snapshot: Snapshot, inputs: Inputs, pictures: int) -> dict[str, Any]:
    """Everything that the template shows."""
    config = snapshot.config
    names, named = names_of(config)
    return {
        "network": _short(config["model"]["name"]),
        "data": _short(config.get("data", {}).get("name", "")),
        "result": snapshot,
        "answer": answer(snapshot),
        "progress": progress(snapshot),
        "remarks": remarks(snapshot),
        "guarantees": guarantees(snapshot, inputs.domain),
        "frame": chart,
        "charts": (
            (
                "Mean bounds over time",
                chart.bounds_over_time(snapshot),
                f"As long as an image has no witness, its upper bound counts as {snapshot.images[0].groups + 1:,}.",
            ),
            (
                "Images by upper bound",
                chart.sorted_images(snapshot),
                "The safe radius of each image lies between them, below the upper bound.",
            ),
        ),
        "distribution": _distribution(snapshot),
        "cards": make_cards(snapshot.images, inputs, pictures, names),
        "rows": ROWS,
        "settings": list(
            _flat(
                {
                    **{key: value for key, value in config.items() if key != "names"},
                    **({"state": snapshot.state} if snapshot.state else {}),
                }
            )
        ),
        "counted": counted,
        "name": lambda index: f"{index} {named[index]}" if index in named else str(index),
        "label": names.label,
        "names": names,
        "classified": classified(*counts(snapshot)[:2], labelled=counts(snapshot)[2]),
    }


def _short(name: str) -> str:
    """The last part of a path; the configuration shows all of it."""
    return PurePath(name).name or name


def _distribution(snapshot: Snapshot) -> list[tuple[int, int, int]]:
    """For each safe radius: images known to have it, and open images known to have at least it."""
    radii = sorted({image.lower for image in snapshot.images})
    return [
        (
            radius,
            sum(image.lower == radius and image.converged for image in snapshot.images),
            sum(image.lower == radius and not image.converged for image in snapshot.images),
        )
        for radius in radii
    ]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines of name and value."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
