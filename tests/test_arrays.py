"""numpy's files from anywhere: what numpy writes comes back, everything else is a ValueError before memory is taken."""

import io
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from l0tre.arrays import open_npz, read_array_or_archive, read_npy, read_npz
from l0tre.limits import free_host_bytes, refuse_large

ARRAYS: list[Any] = [
    np.arange(12).reshape(3, 4),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.float32(3.5),
    np.zeros((0, 5)),
    np.array("pixel"),
    np.array([True, False]),
    np.arange(5, dtype=">i4"),
]


def npy(array: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def headed(shape: str, kind: str = "<f8", content: bytes = b"", version: int = 1) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + content


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_what_numpy_writes_comes_back(array: Any) -> None:
    found = read_npy(io.BytesIO(npy(array)))
    assert found.dtype == array.dtype
    assert found.shape == np.shape(array)
    assert np.array_equal(found, array)
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, a=array, b=ARRAYS[0])
        assert np.array_equal(read_npz(stream)["a"], array)
        assert set(open_npz(stream).sizes) == {"a", "b"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        headed("(1000000000000000,)"),
        headed("(1000000000000000,)", content=bytes(80)),
        headed("(2, 3)", content=bytes(40)),
        headed("(-1, 3)", content=bytes(40)),
        headed("(2,)", content=bytes(17)),
        headed("(2,)", kind="O", content=bytes(16)),
        headed("(2,)", kind="?!", content=bytes(16)),
        headed("2", content=bytes(16)),
        headed("__import__('os').getcwd()"),
        headed("(" * 5000),
        headed("(2,)", content=bytes(16), version=3),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100),
        npy(np.array([{}]), allow_pickle=True),
    ],
)
def test_hostile_arrays_are_value_errors(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        read_npy(io.BytesIO(content))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        read_npz(stream)


def test_an_archive_that_unpacks_to_more_than_there_is(tmp_path: Path) -> None:
    """Its directory says so, before anything is unpacked."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", headed("(1000000000000000,)"))
    content = bytearray(stream.getvalue())
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", 2**32 - 2)
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ValueError, match="claims"):
        read_npz(tmp_path / "x.npz")


def test_damaged_archives_are_value_errors() -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.random.default_rng(0).random(50), y=np.arange(9))
    whole, chance, refused = stream.getvalue(), random.Random(0), 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            found = read_array_or_archive(io.BytesIO(bytes(content)))
            assert not isinstance(found, np.ndarray)
            for name in found.sizes:
                found.read(name)
        except ValueError as error:
            refused += "\n" not in str(error)
    assert refused > 200  # some bytes are read by nobody


def test_encrypted_and_oddly_packed_members_are_refused() -> None:
    for kind, flag, words in ((zipfile.ZIP_LZMA, 0, "way that numpy"), (zipfile.ZIP_STORED, 1, "encrypted")):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", kind) as archive:
            archive.writestr("x.npy", npy(np.arange(3)))
        content = bytearray(stream.getvalue())
        content[content.rindex(b"PK\x01\x02") + 8] |= flag
        with pytest.raises(ValueError, match=words):
            read_npz(io.BytesIO(bytes(content)))


def test_what_is_larger_than_half_of_the_free_memory_is_refused() -> None:
    refuse_large(2**20, "a little")
    with pytest.raises(ValueError, match="too much takes"):
        refuse_large(free_host_bytes(), "too much")
