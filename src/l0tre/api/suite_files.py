"""Folders of generated suites: tests, pictures, tables and curves; and the state to go on from."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.arrays import read_npz
from l0tre.coverage.ranges import Ranges
from l0tre.data.load import SUITE
from l0tre.domain import Domain
from l0tre.errors import ConfigError, MissingExtraError, StoreError
from l0tre.figures.pictures import is_picture, png, shades
from l0tre.figures.suite import adversarial_curve, coverage_curve
from l0tre.figures.tables import write_csv, write_json
from l0tre.files import write_whole
from l0tre.testgen.found import Found
from l0tre.testgen.generate import SuiteState
from l0tre.testgen.suite import Suite

__all__ = [
    "SEEDS",
    "TESTS",
    "check_folder",
    "digest",
    "load_state",
    "read_ranges",
    "read_tests",
    "save_state",
    "write_suite",
]

TESTS, SEEDS, STATE, RANGES = SUITE, "seeds.npz", "state.npz", "ranges.npz"
TENSORS = ("lower", "dead", "random")
NUMBERS = ("queries", "random_queries", "seconds")


def digest(facts: Mapping[str, Any], domain: Domain, *arrays: Tensor) -> str:
    """What tells one generation from another: settings, what may change, and arrays; in hexadecimal digits."""
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for array in (*arrays, domain.members, domain.low, domain.high):
        found.update(array.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def check_folder(folder: Path) -> None:
    """Make a folder, and refuse what cannot be one, before any work.

    Raises:
        ConfigError: If it is a file, or cannot be made, or holds other things than a suite.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"`out` {folder} is a file: give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in (STATE, TESTS)):
        raise ConfigError(f"`out` {folder} holds other files: give a new folder, or one of an earlier suite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"`out` {folder} cannot be made ({error.strerror})") from error


def save_state(folder: Path, state: SuiteState, key: str) -> None:
    """Keep what is known, to go on from."""
    found = state.found
    found.prune()
    inputs = torch.stack(found.inputs).cpu() if found.inputs else torch.zeros(0, 0)
    arrays = {
        "key": np.array(key),
        "distance": found.distance.cpu().numpy(),
        "test": found.test.cpu().numpy(),
        "inputs": inputs.numpy(),
        "seeds": np.array(found.seeds, dtype=np.int64),
        "distances": np.array(found.distances, dtype=np.int64),
        "aims": np.array(found.aims, dtype=np.int64),
        "done": np.array(json.dumps(state.done)),
        "notes": np.array(json.dumps(state.notes)),
        **{name: getattr(state, name).cpu().numpy() for name in TENSORS},
        **{name: np.array(getattr(state, name)) for name in NUMBERS},
    }
    write_whole(folder / STATE, lambda path: _savez(path, arrays))


def load_state(folder: Path, key: str, device: torch.device) -> SuiteState | None:
    """What is known from an earlier call; none where there was none.

    Raises:
        StoreError: If it is damaged, or was for another network, other seeds or settings.
    """
    path = folder / STATE
    if not path.exists():
        return None
    try:
        held = read_npz(path)
        if str(held["key"]) != key:
            raise StoreError(
                f"{folder} holds a suite of another network, other seeds or settings: give the same ones, or another "
                "`out`"
            )
        tensors = {name: torch.from_numpy(held[name]).to(device) for name in ("distance", "test", "inputs", *TENSORS)}
        found = Found(
            tensors["distance"],
            tensors["test"],
            list(tensors["inputs"]),
            held["seeds"].tolist(),
            held["distances"].tolist(),
            held["aims"].tolist(),
        )
        return SuiteState(
            found,
            tensors["lower"],
            tensors["dead"],
            tensors["random"],
            float(held["queries"]),
            int(held["random_queries"]),
            float(held["seconds"]),
            json.loads(str(held["done"])),
            json.loads(str(held["notes"])),
        )
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} cannot be read ({error}): remove it to begin anew") from error


def write_suite(folder: Path, suite: Suite, domain: Domain, ranges: Ranges | None = None) -> tuple[Path, ...]:
    """Write a suite's tests, tables, curves, and pictures of the minimal subset.

    Args:
        folder: Exists.
        suite: What to write.
        domain: Its range gives the pictures' black and white.
        ranges: Of the neurons, for measuring the suite later.

    Returns:
        The files; not the single pictures.
    """
    arrays = {
        "images": suite.images.numpy(),
        "labels": suite.decisions.numpy(),
        "seeds": suite.origins.numpy(),
        "l0": suite.sizes.numpy(),
        "minimal": np.array(suite.minimal, dtype=np.int64),
        "distance": suite.distance.numpy().astype(np.int32),
        "lower": suite.lower.numpy().astype(np.int32),
        "dead": suite.dead.numpy(),
    }
    seeds = {
        "images": suite.seeds.images.numpy(),
        "labels": suite.seeds.decisions.numpy(),
        "indices": np.array(suite.seeds.indices),
    }
    written = [
        write_whole(folder / SEEDS, lambda path: _savez(path, seeds, np.savez_compressed)),
        write_whole(folder / TESTS, lambda path: _savez(path, arrays, np.savez_compressed)),
        write_csv(folder / "manifest.csv", suite.manifest()),
        write_csv(folder / "layers.csv", suite.by_layer()),
        write_json(folder / "suite.json", suite.to_json()),
        *coverage_curve(suite.curve(), suite.unit, folder / "coverage"),
        *adversarial_curve(suite.curve(), suite.unit, folder / "adversarial"),
    ]
    if ranges is not None:
        held = {
            "low": ranges.low.cpu().numpy(),
            "high": ranges.high.cpu().numpy(),
            "inputs": np.array(ranges.inputs),
            "source": np.array(ranges.source),
        }
        written.append(write_whole(folder / RANGES, lambda path: _savez(path, held)))
    if is_picture(tuple(suite.images.shape[1:])):
        _write_pictures(folder / "pictures", suite, domain)
    return tuple(written)


def _write_pictures(folder: Path, suite: Suite, domain: Domain) -> None:
    """The minimal subset as PNG files, named after seeds, distances and labels."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("test*.png"):
        old.unlink()
    low, high = float(domain.low.min()), float(domain.high.max())
    adversarial = suite.adversarial.tolist()
    for test in suite.minimal:
        seed = suite.seeds.indices[int(suite.origins[test])]
        label = f"{int(suite.decisions[test])}{'-adversarial' if adversarial[test] else ''}"
        name = f"test{test}_seed{seed}_l0-{int(suite.sizes[test])}_label{label}.png"
        try:
            content = png(shades(suite.images[test], low, high))
        except MissingExtraError:  # without pillow the arrays must do
            return
        (folder / name).write_bytes(content)


def read_tests(folder: Path) -> tuple[Tensor, Tensor]:
    """The tests and the seeds of a suite folder, float32 ``[inputs, *shape]`` each.

    Raises:
        StoreError: If it holds no suite, or a damaged one.
    """
    tests, seeds = (_read_images(folder / name) for name in (TESTS, SEEDS))
    if tests.shape[1:] != seeds.shape[1:]:
        raise StoreError(
            f"{folder} holds tests of shape {tuple(tests.shape[1:])} and seeds of shape {tuple(seeds.shape[1:])}: "
            "its files are of two suites"
        )
    return tests, seeds


def _read_images(path: Path) -> Tensor:
    if not path.is_file():
        raise StoreError(f"{path.parent} holds no suite ({path.name} is missing): give a folder of l0tre testgen")
    try:
        return torch.from_numpy(read_npz(path)["images"])
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def read_ranges(folder: Path) -> Ranges | None:
    """The ranges of neurons that a suite folder holds, if it does."""
    path = folder / RANGES
    if not path.is_file():
        return None
    try:
        held = read_npz(path)
        low, high = (torch.from_numpy(held[name]) for name in ("low", "high"))
        return Ranges(low, high, int(held["inputs"]), str(held["source"]))
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _savez(path: Path, arrays: Mapping[str, np.ndarray], save: Any = np.savez) -> None:
    with path.open("wb") as file:  # numpy would add a suffix to a name
        save(file, **arrays)
