"""Downloading the published files of MNIST, Fashion-MNIST and CIFAR-10 over https, checked by SHA-256."""

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
from typing import Any

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
        sha256: Its checksum, in hexadecimal.
    """

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_IMAGES, _LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
_CIFAR = (
    Remote(f"{_TORONTO}cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
)

# The files of each data set and split.
REMOTES: Mapping[tuple[str, str], tuple[Remote, ...]] = MappingProxyType(
    {
        ("mnist", "train"): (
            Remote(f"{_MNIST}train-{_IMAGES}", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            Remote(f"{_MNIST}train-{_LABELS}", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ),
        ("mnist", "test"): (
            Remote(f"{_MNIST}t10k-{_IMAGES}", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            Remote(f"{_MNIST}t10k-{_LABELS}", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        ("fashion-mnist", "train"): (
            Remote(f"{_FASHION}train-{_IMAGES}", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            Remote(f"{_FASHION}train-{_LABELS}", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ),
        ("fashion-mnist", "test"): (
            Remote(f"{_FASHION}t10k-{_IMAGES}", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            Remote(f"{_FASHION}t10k-{_LABELS}", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
        ("cifar10", "train"): _CIFAR,
        ("cifar10", "test"): _CIFAR,
    }
)


class _StaysSafe(urllib.request.HTTPRedirectHandler):
    """Follows no redirection from https to anything else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise OSError(f"{req.full_url} leads to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(remote: Remote, folder: Path) -> None:
    """Download one file; it gets its name only once its checksum is right.

    Raises:
        OSError: If it cannot be fetched or written, or the checksum is wrong.
    """
    digest = hashlib.sha256()
    logger.info("downloading %s", remote.url)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{remote.name}.", suffix=".part")
    path, opener = Path(temporary), urllib.request.build_opener(_StaysSafe)
    try:
        done = 0
        with os.fdopen(handle, "wb") as part, opener.open(remote.url, timeout=_TIMEOUT_S) as response:
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                part.write(chunk)
                before, done = done, done + len(chunk)
                if before // _REPORT_EVERY_BYTES != done // _REPORT_EVERY_BYTES:
                    logger.info("%s: %d MiB so far", remote.name, done >> 20)
        if digest.hexdigest() != remote.sha256:
            raise OSError(
                f"{remote.url} has the checksum {digest.hexdigest()} instead of {remote.sha256}, "
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
