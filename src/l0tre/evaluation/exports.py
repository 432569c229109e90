"""A result for other programs: JSON, CSV, npz, a table of pandas, HTML."""

import csv
import html
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from l0tre.errors import ConfigError, DataError, require
from l0tre.evaluation.results import ImageBounds, Snapshot
from l0tre.files import write_whole
from l0tre.names import Names, names_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["export_writes", "save", "to_dataframe", "to_html"]

COLUMNS = ("index", "label", "lower", "upper", "converged", "guarantee", "seconds", "queries", "level", "state")
NAMED_COLUMNS = ("name", "class", "becomes_class")
ROWS = 25  # images in the table of a notebook


def export_writes(
    folder: Path, snapshot: Snapshot, images: Tensor, indices: tuple[int, ...]
) -> dict[Path, Callable[[Path], None]]:
    """What writes ``result.json``, ``bounds.csv`` and ``witnesses.npz``.

    Args:
        folder: Where to.
        snapshot: The bounds.
        images: The original inputs, ``[images, *shape]``.
        indices: Their positions in the user's data.

    Returns:
        For each file a function that writes it to a path, see ``l0tre.files.write_all_whole``.
    """
    return {
        folder / "result.json": lambda path: _write_json(path, snapshot),
        folder / "bounds.csv": lambda path: _write_csv(path, snapshot),
        folder / "witnesses.npz": lambda path: _write_npz(path, snapshot, images, indices),
    }


def save(
    snapshot: Snapshot, path: str | Path, images: np.ndarray | Tensor | None, indices: Sequence[int] | None
) -> tuple[Path, ...]:
    """See :meth:`Snapshot.save`."""
    target = Path(path)
    kind = target.suffix.lower()
    known = (".json", ".csv", ".npz")
    if target.is_dir() or not kind:
        names = ["result.json", "bounds.csv", *(["witnesses.npz"] if images is not None else [])]
        target.mkdir(parents=True, exist_ok=True)
        return tuple(file for name in names for file in save(snapshot, target / name, images, indices))
    if kind not in known:
        raise ConfigError(f"{target} cannot be written: give a folder, or a file that ends with {', '.join(known)}")
    if kind == ".json":
        return (write_whole(target, lambda file: _write_json(file, snapshot)),)
    if kind == ".csv":
        return (write_whole(target, lambda file: _write_csv(file, snapshot)),)
    originals, places = _originals(snapshot, images, indices)
    return (write_whole(target, lambda file: _write_npz(file, snapshot, originals, places)),)


def to_dataframe(snapshot: Snapshot) -> "pd.DataFrame":
    """See :meth:`Snapshot.to_dataframe`."""
    pandas = require("pandas", "tables")
    names, inputs = names_of(snapshot.config)
    rows = [_row(image, names, inputs) for image in snapshot.images]
    return pandas.DataFrame(rows).astype({"becomes": "Int64"}).set_index("index")  # whole numbers beside gaps


def to_html(snapshot: Snapshot) -> str:
    """The bounds as a small table for notebooks."""
    names = (snapshot.noun, "label", "lower", "upper", "guarantee", "converged", "becomes")
    shown = snapshot.images[:ROWS]
    known, inputs = names_of(snapshot.config)
    body = "".join(
        _line(
            "td",
            inputs.get(image.index, image.index),
            known.label(image.label),
            image.lower,
            image.upper if image.witness is not None else f"{image.upper} (no witness)",
            image.guarantee,
            "yes" if image.converged else "no",
            "" if image.witness is None else known.label(image.witness.label),
        )
        for image in shown
    )
    rest = len(snapshot.images) - len(shown)
    more = f"<p>... and {rest} more</p>" if rest else ""
    return f"<p>{html.escape(repr(snapshot))}</p><table>{_line('th', *names)}{body}</table>{more}"


def _line(kind: str, *cells: object) -> str:
    return f"<tr>{''.join(f'<{kind}>{html.escape(str(cell))}</{kind}>' for cell in cells)}</tr>"


def _row(image: ImageBounds, names: Names, inputs: Mapping[int, str]) -> dict[str, Any]:
    """An image as a row: its entry in the JSON, of the witness only its decision, and names where there are any."""
    entry = image.to_dict()
    witness = entry.pop("witness")
    named = {"name": inputs[image.index]} if image.index in inputs else {}
    if names.classes:
        named["class"] = names.label(image.label)
        named["becomes_class"] = "" if witness is None else names.label(witness["label"])
    return {**entry, "becomes": None if witness is None else witness["label"], **named}


def _originals(
    snapshot: Snapshot, images: np.ndarray | Tensor | None, indices: Sequence[int] | None
) -> tuple[Tensor, tuple[int, ...]]:
    """The originals of the witnesses as float32, and their positions in the user's data."""
    if images is None:
        raise ConfigError("adversarial inputs cannot be written without the originals: give the inputs as evaluated")
    originals = images.detach().cpu() if isinstance(images, Tensor) else torch.from_numpy(np.asarray(images))
    places = tuple(range(len(originals)) if indices is None else indices)
    if not originals.is_floating_point():
        raise DataError(f"inputs are of type {originals.dtype}: give them as evaluated, floats in the domain")
    if len(places) != len(originals):
        raise DataError(f"there are {len(originals)} inputs and {len(places)} indices: give one for each")
    for image in snapshot.images:
        if image.index not in places:
            raise DataError(
                f"{snapshot.noun} {image.index} is not among the {len(originals)} given: give all evaluated ones"
            )
        size = int(image.witness.positions.max()) if image.witness is not None else 0
        if size >= originals[0].numel():
            raise DataError(f"inputs of shape {tuple(originals.shape[1:])} are not those of this result")
    return originals.to(torch.float32), places


def _write_json(path: Path, snapshot: Snapshot) -> None:
    path.write_text(json.dumps(snapshot.to_dict(), indent=1) + "\n", encoding="utf-8")


def _write_csv(path: Path, snapshot: Snapshot) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        names, inputs = names_of(snapshot.config)
        # Columns of names come last, and only if there are any, so that files without them stay as they were.
        rows = [_row(image, names, inputs) for image in snapshot.images]
        extra = [name for name in NAMED_COLUMNS if any(name in row for row in rows)]
        writer = csv.DictWriter(file, [*COLUMNS, *extra], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "state": snapshot.state} for row in rows)


def _write_npz(path: Path, snapshot: Snapshot, images: Tensor, indices: tuple[int, ...]) -> None:
    place = {index: row for row, index in enumerate(indices)}
    shown = [image for image in snapshot.images if image.witness is not None]
    originals = images[[place[image.index] for image in shown]]
    changed = [
        image.witness.apply(original)
        for image, original in zip(shown, originals, strict=True)
        if image.witness is not None
    ]
    with path.open("wb") as file:  # a file object: savez appends .npz to bare names
        np.savez_compressed(
            file,
            index=np.array([image.index for image in shown], np.int64),
            label=np.array([image.label for image in shown], np.int64),
            adversarial_label=np.array([image.witness.label for image in shown if image.witness], np.int64),
            distance=np.array([image.upper for image in shown], np.int64),
            original=originals.numpy(),
            adversarial=torch.stack(changed).numpy() if changed else originals.numpy(),
            state=np.array(snapshot.state),
        )
