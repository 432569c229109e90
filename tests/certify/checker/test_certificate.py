"""The file of a certificate: what goes in comes out, and no byte can change unnoticed."""

import hashlib
import io
import json
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from l0tre.certify.checker.certificate import (
    Certificate,
    domain_hash,
    image_hash,
    make_certificate,
    read_certificate,
    write_certificate,
)
from l0tre.domain import make_domain
from l0tre.errors import CertificateError
from l0tre.model.network import Network

SHAPE = (1, 2, 2)
DOMAIN = make_domain(SHAPE)
IMAGE = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))


def example() -> Certificate:
    network = Network(torch.neg, torch.neg, SHAPE, 2, torch.device("cpu"), None, "n", "abc")
    return make_certificate(
        network,
        IMAGE,
        DOMAIN,
        label=1,
        order=np.array([2, 0, 3, 1]),
        cells=np.array([[6, 7], [4, 5], [4, 5], [2, 3]]),
        bounds=np.array([0.1, 1e-3, 0.7, 2.0]),
        arithmetic="real arithmetic",
        box=np.array([-1, 1, 0, -1]),
        low=np.array([[[0.0], [0.5]], [[0.0], [0.0]]]),
        high=np.array([[[1.0], [1.0]], [[1.0], [0.5]]]),
        about={"seconds": 1.5, "model": "näme"},
    )


def rewritten(content: bytes, **changes: Any) -> bytes:
    """The same file with other entries and a digest that fits."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        new.comment = b"0" * 64
        for name in old.namelist():
            change = changes.get(name.partition(".")[0], old.read(name))
            if change is not None:
                new.writestr(name, change)
    body = stream.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def test_nodes_are_sorted_and_keep_their_boxes() -> None:
    made = example()
    assert (made.radius, made.depth, made.version) == (2, 2, 2)
    assert made.cells.tolist() == [[2, 3], [4, 5], [4, 5], [6, 7]]
    assert made.bounds.tolist() == [2.0, 0.7, 1e-3, 0.1]
    assert made.box.tolist() == [-1, 0, 1, -1]
    assert made.low[:, 1, 0].tolist() == [0.5, 0.0]
    assert made.high[:, 1, 0].tolist() == [1.0, 0.5]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = example()
    write_certificate(tmp_path / "c.zip", made)
    read = read_certificate(tmp_path / "c.zip")
    for field in fields(Certificate):
        before, after = getattr(made, field.name), getattr(read, field.name)
        if field.name == "bounds":
            assert (after <= before).all()
            assert np.allclose(after, before, rtol=1e-6)
        elif isinstance(before, np.ndarray):
            assert (after.dtype, after.shape) == (before.dtype, before.shape)
            assert (after == before).all()
        else:
            assert after == before
    write_certificate(tmp_path / "again.zip", read)
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "c.zip").read_bytes()


def test_a_certificate_without_boxes(tmp_path: Path) -> None:
    plain = replace(example(), box=np.full(4, -1, np.int32), low=np.zeros((0, 2, 1)), high=np.zeros((0, 2, 1)))
    write_certificate(tmp_path / "c.zip", plain)
    read = read_certificate(tmp_path / "c.zip")
    assert isinstance(read, Certificate)
    assert read.low.shape == (0, 2, 1)


def test_extreme_bounds_are_rounded_down(tmp_path: Path) -> None:
    bounds = np.array([1e300, 1 + 2.0**-30, -(1 + 2.0**-30), 2.0**-160])
    write_certificate(tmp_path / "c.zip", replace(example(), bounds=bounds))
    made = read_certificate(tmp_path / "c.zip")
    assert isinstance(made, Certificate)
    read = made.bounds
    assert np.isfinite(read).all()
    assert (read <= bounds).all()
    assert read[1:].tolist() == [1.0, float(np.nextafter(np.float32(-1), np.float32(-2))), 0.0]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c.zip"
    write_certificate(path, example())
    content = path.read_bytes()
    for place in range(len(content)):  # a small file: all of local headers, contents, directory, comment
        for flip in (0x01, 0x20, 0x80) if place % 7 == 0 else (0x20,):
            path.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            with pytest.raises(CertificateError, match="digest"):
                read_certificate(path)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, 200, -64, -1])
def test_a_cut_file_is_noticed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "c.zip"
    write_certificate(path, example())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CertificateError, match="digest"):
        read_certificate(path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CertificateError, match="digest"):
        read_certificate(path)


def header(**changes: Any) -> str:
    made = example()
    keys = ["version", "fingerprint", "image_hash", "domain_hash", "label", "radius", "depth", "arithmetic", "about"]
    return json.dumps({key: getattr(made, key) for key in keys} | {"kind": "nodes"} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"cells": None},
        {"header": None},
        {"header": "[]"},
        {"header": "{"},
        {"header": header(version=1)},
        {"header": header(kind="both")},
        {"header": header(kind="sets")},
        {"header": header(depth=None)},
        {"header": header(label="1")},
        {"header": header(radius=True)},
        {"header": header(fingerprint=None)},
        {"order": npy(np.array([object()]))},
        {"order": npy(np.arange(4.0))},
        {"order": npy(np.zeros((), "<i4"))},
        {"low": npy(np.zeros(2, "<f8"))},
        {"bounds": b"short"},
    ],
)
def test_other_content_with_the_right_digest_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "c.zip"
    write_certificate(path, example())
    content = path.read_bytes()
    path.write_bytes(rewritten(content))
    assert read_certificate(path).label == 1
    path.write_bytes(rewritten(content, **changes))
    with pytest.raises(CertificateError, match="not a certificate of format 2"):
        read_certificate(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        read_certificate(tmp_path / "none.zip")
    with pytest.raises(CertificateError, match="cannot be written"):
        write_certificate(tmp_path / "no" / "c.zip", example())


def test_hashes_tell_images_and_domains_apart() -> None:
    assert image_hash(IMAGE) == hashlib.sha256(IMAGE.numpy().astype("<f4").tobytes()).hexdigest()
    assert image_hash(IMAGE) != image_hash(IMAGE + 1e-6)
    others = [
        make_domain((1, 4, 1)),
        make_domain(SHAPE, mask=torch.tensor([[True, True], [True, False]])),
        make_domain(SHAPE, low=-0.5),
        make_domain(SHAPE, high=2.0),
        make_domain(SHAPE, groups=torch.tensor([[0, 0], [1, 2]])),
        make_domain(SHAPE, groups=torch.tensor([[0, 1], [1, 2]])),
    ]
    hashes = {domain_hash(domain) for domain in (DOMAIN, *others)}
    assert len(hashes) == 1 + len(others)
    assert domain_hash(make_domain(SHAPE)) == domain_hash(DOMAIN)


def test_a_large_certificate_is_small_and_quick(tmp_path: Path) -> None:
    first, second = np.triu_indices(1024, 1)
    made = example()
    nodes = 200_000
    cells = np.stack([first, second], 1)[:nodes].astype(np.int32) + 1024
    large = replace(made, cells=cells, box=np.full(nodes, -1, np.int32), bounds=np.full(nodes, 0.25))
    write_certificate(tmp_path / "c.zip", large)
    read = read_certificate(tmp_path / "c.zip")
    assert isinstance(read, Certificate)
    assert (read.cells == cells).all()
    assert (tmp_path / "c.zip").stat().st_size < nodes // 10  # bytes
