"""Files for other programs: JSON, CSV and npz."""

import csv
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from l0tre.evaluation.results import Snapshot
from l0tre.files import write_whole

__all__ = ["write_exports"]

COLUMNS = ("index", "label", "lower", "upper", "converged", "guarantee", "seconds", "queries", "level")


def write_exports(folder: Path, snapshot: Snapshot, images: Tensor, indices: tuple[int, ...]) -> tuple[Path, ...]:
    """Write ``result.json``, ``bounds.csv`` and ``witnesses.npz``.

    Args:
        folder: Where to.
        snapshot: The bounds.
        images: The original inputs, ``[images, *shape]``.
        indices: Their positions in the user's data.

    Returns:
        The files written. Each appears whole or not at all.
    """
    text = json.dumps(snapshot.to_dict(), indent=1)
    return (
        write_whole(folder / "result.json", lambda path: path.write_text(text + "\n", encoding="utf-8")),
        write_whole(folder / "bounds.csv", lambda path: _write_csv(path, snapshot)),
        write_whole(folder / "witnesses.npz", lambda path: _write_npz(path, snapshot, images, indices)),
    )


def _write_csv(path: Path, snapshot: Snapshot) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(image.to_dict() for image in snapshot.images)


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
        )
