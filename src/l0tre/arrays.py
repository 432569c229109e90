"""Reading numpy's files from anywhere: sizes are checked before memory is taken, and every fault is a ``ValueError``.

``numpy.load`` believes the header of an array, and an archive what it says of its members; a hundred bytes can ask for
a terabyte, and a damaged archive can raise nearly anything.
"""

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from l0tre.limits import refuse_large

__all__ = ["Archive", "open_npz", "read_array_or_archive", "read_npy", "read_npz", "tidied"]

MAGIC = b"\x93NUMPY"
MOST_HEADER = 2**16  # bytes; numpy's own are below 200
CHUNK = 2**24
LENGTHS = {1: 2, 2: 4}  # bytes of the header's length, by version
HEADERS: dict[int, Callable[[IO[bytes]], tuple[Any, ...]]] = {
    1: np.lib.format.read_array_header_1_0,
    2: np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class Archive:
    """The arrays of an ``.npz`` file, which must stay open.

    Attributes:
        sizes: Bytes of each array with its header, by name.
        read: Gives an array by its name, or raises ``ValueError``.
    """

    sizes: dict[str, int]
    read: Callable[[str], NDArray[Any]]


@contextmanager
def tidied() -> Iterator[None]:
    """Turn whatever reading a foreign file raises into a ``ValueError`` of one line; ``OSError`` stays."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except MemoryError as error:
        raise ValueError("it needs more memory than there is") from error
    except Exception as error:  # zipfile, zlib, json, tokenize, numpy and others have no common base
        raise ValueError(" ".join(f"{type(error).__name__}: {error}".split())) from error


def read_npy(stream: IO[bytes]) -> NDArray[Any]:
    """An array from an ``.npy`` file, as ``numpy.load`` gives it without pickles.

    Raises:
        ValueError: If it is damaged, holds Python objects, or claims more than it holds or than memory is free.
    """
    with tidied():
        begin = stream.tell()
        available = stream.seek(0, io.SEEK_END) - begin
        stream.seek(begin)
        return _read(stream, available, "the array")


def read_array_or_archive(stream: IO[bytes]) -> NDArray[Any] | Archive:
    """What an ``.npy`` or ``.npz`` file holds, whatever its name.

    Raises:
        ValueError: As :func:`read_npy`.
    """
    with tidied():
        start = stream.read(len(MAGIC))
        stream.seek(0)
        return read_npy(stream) if start == MAGIC else _open(stream)


def read_npz(source: Path | IO[bytes]) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file, by their names.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: As :func:`read_npy`.
    """
    if isinstance(source, Path):
        with source.open("rb") as stream:
            return read_npz(stream)
    with tidied():
        archive = _open(source)
        refuse_large(sum(archive.sizes.values()), "the archive")
        return {name: archive.read(name) for name in archive.sizes}


def open_npz(stream: IO[bytes]) -> Archive:
    """The arrays of an ``.npz`` file, read when they are asked for.

    Raises:
        ValueError: If it is damaged.
    """
    with tidied():
        return _open(stream)


def _open(stream: IO[bytes]) -> Archive:
    archive = zipfile.ZipFile(stream)
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise ValueError("it holds two arrays of one name")

    def read(name: str) -> NDArray[Any]:
        if name not in members:
            raise ValueError(f"it has no array {name}")
        info = members[name]
        with tidied():
            if info.flag_bits & 1:
                raise ValueError(f"{name} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is compressed in a way that numpy does not use")
            with archive.open(info) as member:
                return _read(member, info.file_size, name)

    return Archive({name: info.file_size for name, info in members.items()}, read)


def _read(stream: IO[bytes], available: int, name: str) -> NDArray[Any]:
    """An array of exactly so many bytes, header included."""
    magic = stream.read(len(MAGIC) + 2)
    version = magic[-2] if len(magic) == len(MAGIC) + 2 else 0
    if not magic.startswith(MAGIC) or version not in HEADERS:
        raise ValueError(f"{name} is no array in numpy's format 1 or 2")
    length = stream.read(LENGTHS[version])
    size = int.from_bytes(length, "little")
    if size > MOST_HEADER:
        raise ValueError(f"{name} has a header of {size:,} bytes")
    shape, fortran, dtype = HEADERS[version](io.BytesIO(length + stream.read(size)))
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects (pickles), which could run code: save plain numbers")
    needed = math.prod(shape) * dtype.itemsize
    held = available - len(magic) - len(length) - size
    if min(shape, default=0) < 0 or needed != held:
        raise ValueError(f"{name} claims {needed:,} bytes of shape {shape}, the file holds {held:,}")
    refuse_large(needed, name)
    content = bytearray(needed)
    view, done = memoryview(content), 0
    while done < needed:
        part = stream.read(min(CHUNK, needed - done))
        if not part:
            raise ValueError(f"{name} is cut short")
        view[done : done + len(part)] = part
        done += len(part)
    stream.read(1)  # reaching the end of a member checks its checksum
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
