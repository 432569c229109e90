"""A map as a file of arrays: the result for everybody, and what is needed to go on with it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.arrays import Archive, read_array_or_archive
from l0tre.errors import StoreError
from l0tre.files import write_whole
from l0tre.maps.saliency_map import Audit, SaliencyMap
from l0tre.maps.work import MapState

__all__ = ["read_map", "read_state", "write_map"]

FORMAT = 1
STATE = ("measured", "drop", "rise", "drop_point", "rise_point", "rate")
TABLES = ("looked", "ranking")  # of maps that are not complete
ARRAYS = ("members", "groups", "drop", "rise", "measured", "colours", "rise_colours")
FACTS = ("observed", "unit", "base", "points", "group", "evaluations", "ranked", "seconds")
ABOUT = {"pixels": "image", "grid": "grid of values"}  # what a map is of, in words
COUNTS = ("evaluations", "ranked", "seconds", "found")


def write_map(path: Path, found: SaliencyMap, state: MapState, image: Tensor, about: dict[str, Any]) -> Path:
    """Write a map.

    Args:
        path: An ``.npz`` file; it is replaced as a whole.
        found: The map.
        state: What it was made from.
        image: float32 ``shape``.
        about: What it is of, for :func:`read_state`: only what can be written as JSON.

    Returns:
        The file.
    """
    facts = {
        "format": FORMAT,
        **about,
        "observed": found.observed,
        "unit": found.unit,
        "base": found.base,
        "points": found.points,
        "group": found.group,
        "audit": None if state.audit is None else asdict(state.audit),
        **{name: getattr(state, name) for name in COUNTS},
    }
    arrays: dict[str, Any] = {
        "attribution": found.attribution().numpy(),
        "image": image.detach().cpu().numpy(),
        "groups": found.groups.numpy(),
        "members": found.members.numpy(),
        "colours": found.colours.numpy(),
        "rise_colours": found.rise_colours.numpy(),
        **{name: getattr(state, name).numpy() for name in STATE},
        "about": np.array(json.dumps(facts)),
    }
    for name in TABLES:
        if not found.complete and bool(torch.isfinite(table := getattr(state, name)).any()):
            arrays[name] = table.numpy()

    def write(target: Path) -> None:
        with target.open("wb") as file:  # numpy would add a suffix to a name
            np.savez_compressed(file, **arrays)

    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, write)


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with path.open("rb") as stream:
            archive = read_array_or_archive(stream)
            if not isinstance(archive, Archive):
                raise StoreError(f"{path} holds one array and no saliency map: give what l0tre saliency wrote")
            arrays = {name: archive.read(name) for name in archive.sizes}
        facts = json.loads(str(arrays.pop("about")))
        if facts["format"] != FORMAT:
            raise StoreError(f"{path} has the format {facts['format']}, this version reads {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read as a saliency map ({error}): give what l0tre saliency wrote"
        ) from error
    return arrays, facts


def read_map(path: Path) -> tuple[SaliencyMap, Tensor, dict[str, Any]]:
    """A map from a file, the image that it is of, and what else the file says.

    Raises:
        StoreError: If it is none.
    """
    arrays, facts = _read(path)
    try:
        tensors: dict[str, Any] = {
            name: torch.from_numpy(array) for name, array in arrays.items() if array.dtype.kind in "biuf"
        }
        audit = None if facts["audit"] is None else Audit(**facts["audit"])
        known: dict[str, Any] = {name: tensors[name] for name in ARRAYS}
        known |= {name: facts[name] for name in FACTS}
        found = SaliencyMap(shape=tuple(tensors["attribution"].shape), audit=audit, **known)
        return found, tensors["image"], facts
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path} lacks a part of a saliency map: {error}") from error


def read_state(path: Path, groups: int, points: int, about: dict[str, Any]) -> MapState:
    """What is known of a map, to go on with it.

    Args:
        path: What :func:`write_map` wrote.
        groups: How many groups the map has.
        points: How many values each of them takes.
        about: What the map must be of.

    Raises:
        StoreError: If the file is no map, or one of something else.
    """
    arrays, facts = _read(path)
    other = [ABOUT.get(name, name) for name, value in about.items() if facts.get(name) != value]
    if other:
        raise StoreError(f"{path} is a map with another {', '.join(other)}: give all as the first time, or a new file")
    try:
        known: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in STATE}
        audit = None if facts["audit"] is None else Audit(**facts["audit"])
        counts = {name: facts[name] for name in COUNTS}
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path} lacks a part of a saliency map: {error}") from error
    if any(value.shape != (groups,) for value in known.values()):
        raise StoreError(f"{path} is a map of other groups: give all as the first time, or a new file")
    for name in TABLES:
        known[name] = torch.full((groups, points), torch.nan)
        if name in arrays and arrays[name].shape == (groups, points):
            known[name] = torch.from_numpy(arrays[name])
    return MapState(**known, audit=audit, **counts)
