"""Downloading the published files of MNIST, Fashion-MNIST and CIFAR-10, checked by their published checksums."""

import hashlib
import http.client
import logging
import os
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from l0tre.errors import DataError

__all__ = ["REMOTES", "Remote", "download"]

logger = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20
_REPORT_EVERY_BYTES = 16 << 20


@dataclass(frozen=True)
class Remote:
    """A published file.

    Attributes:
        url: Where it is; the last part is its name.
        md5: Its checksum, in hexadecimal, as published.
    """

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


def _idx(base: str, prefix: str, images: str, labels: str) -> tuple[Remote, ...]:
    return (
        Remote(f"{base}{prefix}-images-idx3-ubyte.gz", images),
        Remote(f"{base}{prefix}-labels-idx1-ubyte.gz", labels),
    )


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = (Remote("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),)

# The files of each data set and split.
REMOTES: Mapping[tuple[str, str], tuple[Remote, ...]] = MappingProxyType(
    {
        ("mnist", "train"): _idx(
            _MNIST, "train", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"
        ),
        ("mnist", "test"): _idx(_MNIST, "t10k", "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        ("fashion-mnist", "train"): _idx(
            _FASHION, "train", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe"
        ),
        ("fashion-mnist", "test"): _idx(
            _FASHION, "t10k", "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"
        ),
        ("cifar10", "train"): _CIFAR,
        ("cifar10", "test"): _CIFAR,
    }
)


def _fetch(remote: Remote, folder: Path) -> None:
    """Download one file; it gets its name only once its checksum is right.

    Raises:
        OSError: If it cannot be fetched or written, or the checksum is wrong.
    """
    digest = hashlib.md5(usedforsecurity=False)
    logger.info("downloading %s", remote.url)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{remote.name}.", suffix=".part")
    path = Path(temporary)
    try:
        done = 0
        with os.fdopen(handle, "wb") as part, urllib.request.urlopen(remote.url, timeout=_TIMEOUT_S) as response:
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                part.write(chunk)
                before, done = done, done + len(chunk)
                if before // _REPORT_EVERY_BYTES != done // _REPORT_EVERY_BYTES:
                    logger.info("%s: %d MiB so far", remote.name, done >> 20)
        if digest.hexdigest() != remote.md5:
            raise OSError(
                f"{remote.url} has the checksum {digest.hexdigest()} instead of {remote.md5}, "
                "so it is incomplete or not the published file"
            )
        path.replace(folder / remote.name)
    finally:
        path.unlink(missing_ok=True)


def download(name: str, split: str, folder: Path) -> None:
    """Download what is missing of a data set.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"`` or ``"cifar10"``.
        split: ``"test"`` or ``"train"``.
        folder: Where the files go; made if need be.

    Raises:
        DataError: If that fails; the message says where to put the files instead.
    """
    remotes = REMOTES[name, split]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for remote in remotes:
            if not (folder / remote.name).exists():
                _fetch(remote, folder)
    except (OSError, http.client.HTTPException) as error:
        urls = " and ".join(remote.url for remote in remotes)
        raise DataError(
            f"{name} ({split}) is not on this machine and cannot be downloaded ({error}); fetch {urls} yourself into a "
            "folder and name that folder with `data_dir` or the environment variable L0TRE_DATA"
        ) from error
