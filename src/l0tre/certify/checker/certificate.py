"""Certificates: what a proof covers, part by part, in a file that notices every edit.

There are two kinds. A certificate of nodes splits a perfect binary tree of depth ``D`` whose ``2**D`` leaf slots hold
the groups of the domain, each group in one slot. Cells of the tree have heap numbers: the root is 1, the children of
``i`` are ``2 i`` and ``2 i + 1``, slot ``s`` is cell ``2**D + s``. A node of the proof names ``t`` cells; it stands for
every choice of as many different groups from each cell as the cell is named, each group free in its range. Where all
cells hold one group, a node may be confined to a box of values. A certificate of sets is about all sets of ``t``
groups, see ``trees``: some have a tree of halvings of their box, all others stand as a whole.

The file is a zip of ``header.json`` and little-endian ``.npy`` arrays. Its comment, the last 64 bytes of the file, is
the SHA-256 of all bytes before. That finds accidents, not forgers: what a certificate says is for the checker to find
out.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from l0tre.arrays import open_npz, tidied
from l0tre.domain import Domain
from l0tre.errors import CertificateError
from l0tre.limits import refuse_large
from l0tre.model.network import Network
from l0tre.rules import Rules

__all__ = [
    "VERSION",
    "AnyCertificate",
    "Certificate",
    "SetCertificate",
    "domain_hash",
    "image_hash",
    "make_certificate",
    "make_set_certificate",
    "read_certificate",
    "write_certificate",
]

VERSION = 2
DIGEST = 64  # bytes of a SHA-256 in hexadecimal digits
HEADER = "header.json"
MOST_HEADER = 2**20  # bytes
# Bounds lose digits in the file, downwards, so that what is stored is still a lower bound.
ARRAYS = {
    "nodes": {"order": "<i4", "cells": "<i4", "box": "<i4", "low": "<f8", "high": "<f8", "bounds": "<f4"},
    "sets": {"sets": "<i4", "depths": "|u1"},
}
TEXTS = ("fingerprint", "image_hash", "domain_hash", "arithmetic")
NUMBERS = ("version", "label", "radius")
DIMENSIONS = {"order": 1, "cells": 2, "box": 1, "low": 3, "high": 3, "bounds": 1, "sets": 1, "depths": 1}
STEPS = ("cells", "box", "sets")  # arrays whose differences are stored: small, repeated numbers
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes at any time


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a proof is about.

    Attributes:
        version: Of the format.
        fingerprint: The network's.
        image_hash: See :func:`image_hash`.
        domain_hash: See :func:`domain_hash`.
        label: The decision that was proved.
        radius: Number ``t`` of groups that may change.
        arithmetic: In which arithmetic the proof holds.
        about: Free remarks (tool, model, image, seconds), as json can hold them.
    """

    version: int
    fingerprint: str
    image_hash: str
    domain_hash: str
    label: int
    radius: int
    arithmetic: str
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SetCertificate(Subject):
    """A proof of a level set by set.

    Attributes:
        sets: int64 ``[trees]``, numbers of the sets whose boxes were halved, ascending; see ``trees``.
        depths: uint8 ``[leaves]``, how often each leaf of the trees was halved, tree by tree.
    """

    sets: NDArray[np.int64]
    depths: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Certificate(Subject):
    """A proof of a level by nodes of a tree of groups.

    Attributes:
        depth: Depth ``D`` of the tree of groups.
        order: int32 ``[2**D]``, the group (row of ``Domain.members``) in every leaf slot, -1 for none.
        cells: int32 ``[nodes, t]``, heap numbers, ascending in each node.
        box: int32 ``[nodes]``, row of ``low`` and ``high``, -1 for the whole ranges.
        low: float64 ``[boxes, t, width]``, smallest values in the units of the domain, for the cells of a node in
            their order and the columns of ``Domain.members``; 0 in unused columns.
        high: float64 ``[boxes, t, width]``, largest values.
        bounds: float64 ``[nodes]``, the prover's lower bound of the smallest margin over the node, in scores.
    """

    depth: int
    order: NDArray[np.int32]
    cells: NDArray[np.int32]
    box: NDArray[np.int32]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    bounds: NDArray[np.float64]


AnyCertificate = Certificate | SetCertificate


def image_hash(image: Tensor) -> str:
    """SHA-256, in hexadecimal digits, of the image's float32 values in little-endian order."""
    return hashlib.sha256(_bytes(image, "<f4")).hexdigest()


def domain_hash(domain: Domain) -> str:
    """SHA-256 of a domain, in hexadecimal digits.

    The bytes are, as little-endian int64: the number of dimensions, the shape, groups, width, members and sizes; then
    the ranges' lower and upper ends as little-endian float32. With rules follow the lengths of the lists (int64), their
    vectors (float32), which values are whole and which may only rise or fall (int8).
    """
    numbers = [len(domain.shape), *domain.shape, *domain.members.shape]
    digest = hashlib.sha256(np.array(numbers, "<i8").tobytes())
    for tensor, kind in ((domain.members, "<i8"), (domain.sizes, "<i8"), (domain.low, "<f4"), (domain.high, "<f4")):
        digest.update(_bytes(tensor, kind))
    if isinstance(domain.rules, Rules):
        rules = domain.rules
        for tensor, kind in (
            (rules.counts, "<i8"),
            (rules.vectors, "<f4"),
            (rules.whole, "|i1"),
            (rules.direction, "|i1"),
        ):
            digest.update(_bytes(tensor, kind))
    return digest.hexdigest()


def _bytes(tensor: Tensor, kind: str) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().astype(kind).tobytes()


def make_certificate(
    network: Network,
    image: Tensor,
    domain: Domain,
    *,
    label: int,
    order: NDArray[np.integer[Any]],
    cells: NDArray[np.integer[Any]],
    bounds: NDArray[np.floating[Any]],
    arithmetic: str,
    box: NDArray[np.integer[Any]] | None = None,
    low: NDArray[np.float64] | None = None,
    high: NDArray[np.float64] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Certificate:
    """Put a proof together; the nodes are sorted, which makes the file small.

    Args:
        network: What was proved about.
        image: float32, of the domain's shape.
        domain: What may change.
        label: The proved decision.
        order: ``[2**depth]``, group in every leaf slot, -1 for none.
        cells: ``[nodes, radius]``, ascending in each node.
        bounds: ``[nodes]``, in scores.
        arithmetic: In which arithmetic the proof holds.
        box: ``[nodes]``, row of ``low`` and ``high`` or -1; left out when no node has a box.
        low: ``[boxes, radius, width]``, with ``box``.
        high: ``[boxes, radius, width]``, with ``box``.
        about: Free remarks.

    Returns:
        The certificate. Nothing is checked here.
    """
    nodes, radius = cells.shape
    none = np.zeros((0, radius, domain.members.shape[1]))
    rows = np.full(nodes, -1, np.int32) if box is None else box.astype(np.int32)
    place = np.lexsort((rows, *cells.T[::-1]))
    rows = rows[place]
    boxed = rows >= 0
    lows, highs = (none if a is None else np.asarray(a, np.float64)[rows[boxed]] for a in (low, high))
    return Certificate(
        version=VERSION,
        fingerprint=network.fingerprint,
        image_hash=image_hash(image),
        domain_hash=domain_hash(domain),
        label=label,
        radius=radius,
        depth=len(order).bit_length() - 1,
        order=order.astype(np.int32),
        cells=cells[place].astype(np.int32),
        box=np.where(boxed, np.cumsum(boxed) - 1, -1).astype(np.int32),
        low=lows,
        high=highs,
        bounds=bounds[place].astype(np.float64),
        arithmetic=arithmetic,
        about=dict(about or {}),
    )


def make_set_certificate(
    network: Network,
    image: Tensor,
    domain: Domain,
    *,
    label: int,
    radius: int,
    sets: NDArray[np.int64],
    depths: NDArray[np.uint8],
    arithmetic: str,
    about: Mapping[str, Any] | None = None,
) -> SetCertificate:
    """Put a proof set by set together.

    Args:
        network: What was proved about.
        image: float32, of the domain's shape.
        domain: What may change.
        label: The proved decision.
        radius: Number of groups that may change.
        sets: ``[trees]``, ascending.
        depths: ``[leaves]``.
        arithmetic: In which arithmetic the proof holds.
        about: Free remarks.

    Returns:
        The certificate. Nothing is checked here.
    """
    return SetCertificate(
        version=VERSION,
        fingerprint=network.fingerprint,
        image_hash=image_hash(image),
        domain_hash=domain_hash(domain),
        label=label,
        radius=radius,
        sets=sets.astype(np.int64),
        depths=depths.astype(np.uint8),
        arithmetic=arithmetic,
        about=dict(about or {}),
    )


def write_certificate(path: str | Path, certificate: AnyCertificate) -> None:
    """Write a certificate; equal certificates give equal bytes.

    Args:
        path: The file to make or to replace.
        certificate: What to write; its bounds are rounded down to float32.

    Raises:
        CertificateError: If the file cannot be written.
    """
    kind = "nodes" if isinstance(certificate, Certificate) else "sets"
    header = {key: getattr(certificate, key) for key in (*TEXTS, *NUMBERS, "about")} | {"kind": kind}
    if isinstance(certificate, Certificate):
        header["depth"] = certificate.depth
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"0" * DIGEST
        archive.writestr(_entry(HEADER), json.dumps(header, indent=1, sort_keys=True))
        for name, form in ARRAYS[kind].items():
            array = getattr(certificate, name)
            if name == "bounds":
                array = _rounded_down(array)
            elif name in STEPS:
                array = np.diff(array, axis=0, prepend=array[:1] * 0).T
            content = io.BytesIO()
            np.save(content, np.ascontiguousarray(array).astype(form), allow_pickle=False)
            archive.writestr(_entry(f"{name}.npy"), content.getvalue())
    body = stream.getvalue()[:-DIGEST]
    try:
        Path(path).write_bytes(body + hashlib.sha256(body).hexdigest().encode())
    except OSError as error:
        raise CertificateError(f"the certificate {path} cannot be written: {error}") from error


def _entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # else it differs between operating systems
    return info


def _rounded_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinite after rounding up, finite after the step down
        near = values.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near > values, below, near).astype(np.float32)


def read_certificate(path: str | Path) -> AnyCertificate:
    """Read a certificate.

    Args:
        path: A file of :func:`write_certificate`.

    Returns:
        The certificate, as it was written. Whether it proves anything is for the checker to say.

    Raises:
        CertificateError: If the file cannot be read, was changed or cut off, or is of another format.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CertificateError(f"the certificate {path} cannot be read: {error}") from error
    body, digest = content[:-DIGEST], content[-DIGEST:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise CertificateError(f"{path} is damaged or no certificate: its digest does not fit; make or copy it again")
    try:
        header, arrays = _parts(content)
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise CertificateError(f"{path} is not a certificate of format {VERSION}: {reason}") from error
    fields: dict[str, Any] = {**{key: header[key] for key in (*TEXTS, *NUMBERS, "about")}, **arrays}
    return SetCertificate(**fields) if header["kind"] == "sets" else Certificate(**fields, depth=header["depth"])


def _parts(content: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The header and the arrays of a file; whatever it holds, what is wrong with it is a ``ValueError``."""
    with tidied(), zipfile.ZipFile(io.BytesIO(content)) as archive:
        info = archive.getinfo(HEADER)
        if info.file_size > MOST_HEADER:
            raise ValueError(f"its header takes {info.file_size:,} bytes")
        header = json.loads(archive.read(info))
    _check_header(header)
    arrays, forms = open_npz(io.BytesIO(content)), ARRAYS[header["kind"]]
    refuse_large(sum(arrays.sizes.get(name, 0) for name in forms), "its arrays")
    return header, {name: _checked(arrays.read(name), name, form) for name, form in forms.items()}


def _checked(array: NDArray[Any], name: str, form: str) -> NDArray[Any]:
    if array.dtype != np.dtype(form) or array.ndim != DIMENSIONS[name]:
        raise ValueError(f"{name} has {array.ndim} dimensions of type {array.dtype}")
    if name == "bounds":
        return array.astype(np.float64)
    if name in STEPS:
        whole = np.ascontiguousarray(np.cumsum(array.T, axis=0, dtype=np.int64))
        return whole if name == "sets" else whole.astype(np.int32)
    return array.astype(array.dtype.newbyteorder("="))


def _check_header(header: Any) -> None:
    if not isinstance(header, dict) or header.get("version") != VERSION:
        raise ValueError("its header names another version")
    if header["kind"] not in ARRAYS:
        raise ValueError("its header names another kind")
    numbers = (*NUMBERS, "depth") if header["kind"] == "nodes" else NUMBERS
    for keys, kind in ((TEXTS, str), (numbers, int), (("about",), dict)):
        for key in keys:
            if type(header[key]) is not kind:
                raise ValueError(f"{key} of its header is of type {type(header[key]).__name__}")
