"""The binary formats of MNIST (IDX) and CIFAR-10."""

import gzip
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l0tre.errors import DataError

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
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from error
    start = 4 + 4 * axes
    # Two zero bytes, the type (8: unsigned bytes), the number of axes, then the length of each axis.
    if len(content) < start or content[:4] != bytes((0, 0, 8, axes)):
        raise DataError(f"{path}: is no IDX file of bytes with {axes} axes; download it again")
    shape = struct.unpack(f">{axes}I", content[4:start])
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    expected = int(np.prod(shape, dtype=object))
    if len(values) != expected:
        raise DataError(f"{path}: holds {len(values)} bytes of data; expected {expected}, download it again")
    return values.reshape(shape)


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
                    found[name] = stream.read()
                    if len(found) == len(wanted):
                        break
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from error
    missing = [name for name in wanted.values() if name not in found]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}; download it again")
    # Members may come in any order, images must not.
    return _cifar_arrays({name: found[name] for name in wanted.values()}, path)
