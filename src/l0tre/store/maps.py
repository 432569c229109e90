"""Sensitivity maps of a run's inputs: for people, not for resuming."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from l0tre.arrays import read_npz
from l0tre.files import write_whole

__all__ = ["MAPS", "read_maps", "write_maps"]

MAPS = "maps.npz"


def write_maps(folder: Path, maps: Mapping[int, Tensor]) -> Path:
    """Write maps into a run folder.

    Args:
        folder: The run folder.
        maps: ``[rows, columns]`` for pictures, ``[values]`` otherwise, by position in the user's data.
    """

    def write(path: Path) -> None:
        with path.open("wb") as file:  # a file object: savez appends .npz to bare names
            arrays = torch.stack(list(maps.values())).to(torch.float32).numpy()
            np.savez_compressed(file, index=np.array(list(maps), np.int64), map=arrays)

    return write_whole(folder / MAPS, write)


def read_maps(folder: Path) -> dict[int, Tensor]:
    """The maps in a run folder; none where the file is missing or damaged, as nothing depends on them."""
    try:
        arrays = read_npz(folder / MAPS)
        maps = torch.from_numpy(arrays["map"])
        return dict(zip(arrays["index"].tolist(), maps, strict=True))
    except (OSError, ValueError, LookupError, TypeError):
        return {}
