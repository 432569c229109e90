"""The binary formats of MNIST (IDX) and CIFAR-10."""

import gzip
import math
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l0tre.errors import DataError
from l0tre.limits import refuse_large

__all__ = ["CIFAR_FOLDER", "cifar_members", "read_cifar", "read_cifar_archive", "read_idx"]

CIFAR_FOLDER = "cifar-10-batches-bin"
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + 3 * 32 * 32  # the label, then the planes of red, green and blue


def read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of bytes, plain or compressed (.gz).

    Args:
        path: The file.
        axes: How many axes the array must have: 3 for images, 1 for labels.

    Raises:
        DataError: If it is damaged or something else.
    """
    start = 4 + 4 * axes
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            head = stream.read(start)
            # Two zero bytes, the type (8: unsigned bytes), the number of axes, then the length of each axis.
            if len(head) < start or head[:4] != bytes((0, 0, 8, axes)):
                raise ValueError(f"it is no IDX file of bytes with {axes} axes")
            shape = struct.unpack(f">{axes}I", head[4:])
            expected = math.prod(shape)
            refuse_large(expected, "the array that it claims to be")
            content = stream.read(expected + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from error
    if len(content) != expected:
        held = f"{len(content)}" if len(content) < expected else "more"
        raise DataError(f"{path}: holds {held} bytes of data; expected {expected}, download it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def cifar_members(split: str) -> list[str]:
    """The names of the files of CIFAR-10's binary version that hold a split."""
    return ["test_batch.bin"] if split == "test" else [f"data_batch_{batch}.bin" for batch in range(1, 6)]


def _cifar_arrays(parts: dict[str, bytes], source: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    for name, content in parts.items():
        if not content or len(content) % _CIFAR_RECORD:
            raise DataError(
                f"{source}: {name} holds {len(content)} bytes, no multiple of {_CIFAR_RECORD}; download it again"
            )
    records = np.frombuffer(b"".join(parts.values()), dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise DataError(f"{source}: holds the label {labels.max()}, so it is not CIFAR-10; download it again")
    return records[:, 1:].reshape(-1, *_CIFAR_SHAPE), labels


def read_cifar(folder: Path, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read a split of CIFAR-10's binary version from its unpacked files.

    Returns:
        Images [N, 3, 32, 32] and labels [N], both uint8.

    Raises:
        DataError: If a file cannot be read or is damaged.
    """
    try:
        parts = {name: (folder / name).read_bytes() for name in cifar_members(split)}
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error})") from error
    return _cifar_arrays(parts, folder)


def read_cifar_archive(path: Path, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The same from the archive as published; nothing is unpacked to disk.

    Raises:
        DataError: If the archive is damaged or lacks a file.
    """
    wanted = {f"{CIFAR_FOLDER}/{name}": name for name in cifar_members(split)}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = wanted.get(member.name)
                stream = archive.extractfile(member) if name is not None and member.isreg() else None
                if name is not None and stream is not None:
                    refuse_large(member.size, name)
                    found[name] = stream.read()
                    if len(found) == len(wanted):
                        break
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from error
    missing = [name for name in wanted.values() if name not in found]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}; download it again")
    # Members may come in any order, images must not.
    return _cifar_arrays({name: found[name] for name in wanted.values()}, path)
