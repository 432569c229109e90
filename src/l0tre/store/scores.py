"""The scores of a run's inputs, before and after the changes of their witnesses: for people, not for resuming."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from l0tre.arrays import read_npz
from l0tre.evaluation.results import Snapshot

__all__ = ["SCORES", "read_scores", "score_writes"]

SCORES = "scores.npz"
BATCH = 32  # inputs asked about at once
Scores = Mapping[int, tuple[Tensor, Tensor | None]]


def score_writes(
    folder: Path, snapshot: Snapshot, originals: Mapping[int, Tensor], ask: Callable[[Tensor], Tensor]
) -> dict[Path, Callable[[Path], None]]:
    """What writes the scores of all inputs of a run, and of their changed inputs.

    Args:
        folder: The run folder.
        snapshot: Its bounds.
        originals: ``shape`` each, by position in the user's data.
        ask: From inputs ``[batch, *shape]`` to scores ``[batch, classes]``.

    Returns:
        The file, and a function that writes it to a path.
    """
    return {folder / SCORES: lambda path: _write(path, snapshot, originals, ask)}


def _write(path: Path, snapshot: Snapshot, originals: Mapping[int, Tensor], ask: Callable[[Tensor], Tensor]) -> None:
    images = [originals[image.index] for image in snapshot.images]
    witnesses = [image.witness for image in snapshot.images]
    changed = [witness.apply(image) for witness, image in zip(witnesses, images, strict=True) if witness is not None]
    before = _scores(images, ask)
    after = torch.full_like(before, float("nan"))
    if changed:
        after[[row for row, witness in enumerate(witnesses) if witness is not None]] = _scores(changed, ask)
    with path.open("wb") as file:  # a file object: savez appends .npz to bare names
        np.savez_compressed(
            file,
            index=np.array([image.index for image in snapshot.images], np.int64),
            before=before.numpy(),
            after=after.numpy(),
            distance=np.array([0 if witness is None else witness.distance for witness in witnesses], np.int64),
            margin=np.array([0.0 if witness is None else witness.margin for witness in witnesses], np.float64),
        )


def _scores(inputs: Sequence[Tensor], ask: Callable[[Tensor], Tensor]) -> Tensor:
    parts = [ask(torch.stack(list(inputs[at : at + BATCH]))).cpu() for at in range(0, len(inputs), BATCH)]
    return torch.cat(parts).to(torch.float32) if parts else torch.zeros(0, 0)


def read_scores(folder: Path, snapshot: Snapshot) -> Scores:
    """Scores before and after, by position in the user's data; of a witness found since then only those before.

    Nothing depends on them: where the file is missing or damaged, there are none.
    """
    try:
        arrays = read_npz(folder / SCORES)
        rows = {int(index): row for row, index in enumerate(arrays["index"])}
        before, after = (torch.from_numpy(arrays[name]) for name in ("before", "after"))
        known = list(zip(arrays["distance"].tolist(), arrays["margin"].tolist(), strict=True))
        found: dict[int, tuple[Tensor, Tensor | None]] = {}
        for image in snapshot.images:
            if (row := rows.get(image.index)) is None:
                continue
            witness = image.witness
            same = witness is not None and known[row] == (witness.distance, witness.margin)
            found[image.index] = (before[row], after[row] if same else None)
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found
