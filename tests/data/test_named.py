import gzip
import hashlib
import io
import struct
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from l0tre.data import Dataset, download, load_data
from l0tre.data.binary import read_idx
from l0tre.data.download import Remote
from l0tre.errors import DataError, MissingExtraError

GREY = np.random.RandomState(0).randint(0, 256, (5, 28, 28), dtype=np.uint8)
GREY_LABELS = np.array([7, 2, 1, 0, 4], dtype=np.uint8)
COLOUR = np.random.RandomState(1).randint(0, 256, (10, 3, 32, 32), dtype=np.uint8)
COLOUR_LABELS = np.arange(10, dtype=np.uint8)[::-1].copy()
TORONTO = "cifar-10-binary.tar.gz"

PUBLISHED = download.REMOTES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own for each test, and nothing to download."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("L0TRE_DATA", raising=False)
    publish(monkeypatch, tmp_path.as_uri() + "/nowhere", {})
    return tmp_path / "cache" / "l0tre"


def publish(monkeypatch: pytest.MonkeyPatch, base: str, files: dict[str, bytes]) -> None:
    """Let the table of published files point to ``base``, with the checksums of ``files``."""
    table = {
        key: tuple(
            Remote(f"{base}/{remote.name}", hashlib.sha256(files.get(remote.name, b"")).hexdigest())
            for remote in remotes
        )
        for key, remotes in download.REMOTES.items()
    }
    monkeypatch.setattr(download, "REMOTES", table)


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_files(prefix: str = "t10k", packed: bool = True, count: int = 5) -> dict[str, bytes]:
    plain = {
        f"{prefix}-images-idx3-ubyte": idx(GREY[:count]),
        f"{prefix}-labels-idx1-ubyte": idx(GREY_LABELS[:count]),
    }
    return {f"{name}.gz": gzip.compress(content) for name, content in plain.items()} if packed else plain


def records(start: int, stop: int) -> bytes:
    return np.concatenate([COLOUR_LABELS[start:stop, None], COLOUR[start:stop].reshape(stop - start, -1)], 1).tobytes()


def cifar_files(split: str) -> dict[str, bytes]:
    if split == "test":
        return {"test_batch.bin": records(0, 10)}
    return {f"data_batch_{batch + 1}.bin": records(2 * batch, 2 * batch + 2) for batch in range(5)}


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def holds(data: Dataset, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> bool:
    """Whether a data set holds bytes [N, C, H, W], divided by 255."""
    assert data.labels is not None
    expected = torch.from_numpy(images.astype(np.float32) / np.float32(255))
    return torch.equal(data.images, expected) and data.labels.tolist() == labels.tolist()


def test_digits() -> None:
    data = load_data("digits")
    assert data.images.shape == (1797, 1, 8, 8)
    assert data.name == "digits"
    assert (float(data.images.min()), float(data.images.max())) == (0.0, 1.0)
    assert torch.equal(data.images * 16, (data.images * 16).round())
    assert data.labels is not None
    assert data.labels[:10].tolist() == list(range(10))
    assert torch.equal(load_data("digits", input_shape=(64,)).images, data.images.flatten(1))
    assert float(load_data("digits", scale=1).images.max()) == 16


@pytest.mark.slow
def test_mnist5k() -> None:
    data = load_data("mnist5k")
    assert data.images.shape == (5000, 1, 28, 28)
    assert (float(data.images.min()), float(data.images.max())) == (0.0, 1.0)
    assert data.labels is not None
    assert data.labels.bincount().tolist() == [500] * 10
    # Digits lie in the middle, the rim is empty: rows and pixels are where they should be.
    assert float(data.images[:, :, :, :2].max()) < float(data.images[:, :, :, 12:16].max())
    assert float(data.images[:, :, 0].mean()) < 0.001 < float(data.images[:, :, 14].mean())


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"l0tre\[data\]"):
        load_data("digits")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "sub"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "."),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_idx_files(tmp_path: Path, name: str, sub: str, packed: bool) -> None:
    write(tmp_path / "data" / sub, idx_files(packed=packed))
    write(tmp_path / "data" / sub, idx_files("train", packed, count=3))
    assert holds(load_data(name, data_dir=tmp_path / "data"), GREY[:, None], GREY_LABELS)
    assert holds(load_data(name, data_dir=tmp_path / "data", split="train"), GREY[:3, None], GREY_LABELS[:3])


def test_the_two_mnists_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "data", idx_files(count=5))
    write(tmp_path / "data" / "fashion-mnist", idx_files(count=2))
    assert len(load_data("fashion-mnist", data_dir=tmp_path / "data").images) == 2
    assert len(load_data("mnist", data_dir=tmp_path / "data").images) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t10k-images-idx3-ubyte": idx(GREY)[:-1]}, "holds 3919 bytes of data; expected 3920"),
        ({"t10k-images-idx3-ubyte": b""}, "is no IDX file"),
        ({"t10k-images-idx3-ubyte": idx(GREY_LABELS)}, "is no IDX file of bytes with 3 axes"),
        ({"t10k-labels-idx1-ubyte": idx(GREY_LABELS[:3])}, "3 labels for 5 inputs"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, change: dict[str, bytes], message: str) -> None:
    folder = write(tmp_path / "data", idx_files(packed=False) | change)
    with pytest.raises(DataError, match=message):
        load_data("mnist", data_dir=folder)


@pytest.mark.parametrize("content", [b"nonsense", gzip.compress(idx(GREY))[:-20]], ids=["nonsense", "cut short"])
def test_damaged_compression(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "data", idx_files() | {"t10k-images-idx3-ubyte.gz": content})
    with pytest.raises(DataError, match=r"images-idx3-ubyte.gz: cannot be read"):
        load_data("mnist", data_dir=folder)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
@pytest.mark.parametrize("file", ["{}.npz", "{}_test.npz"])
def test_npz_by_name(tmp_path: Path, name: str, file: str) -> None:
    images, labels = (COLOUR, COLOUR_LABELS) if name == "cifar10" else (GREY[:, None], GREY_LABELS)
    np.savez(tmp_path / file.format(name), test_x=np.moveaxis(images, 1, -1), test_y=labels)
    assert holds(load_data(name, data_dir=tmp_path), images, labels)


def test_classes_have_their_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10_test.npz", test_x=np.moveaxis(COLOUR[:4], 1, -1), test_y=COLOUR_LABELS[:4])
    data = load_data("cifar10", data_dir=tmp_path, input_shape=(3, 32, 32))
    assert len(data.names.classes) == 10
    assert data.names.label(6) == "frog"
    file = tmp_path / "photos.npz"
    np.savez(file, x=COLOUR[:2], y=[1, 0], classes=["cat", "great white shark"])
    named = load_data(file, input_shape=(3, 32, 32))
    assert named.labels is not None
    assert [named.names.label(int(label)) for label in named.labels] == ["great white shark", "cat"]
    np.savez(file, images=COLOUR[:2], classes=[1, 2])
    with pytest.raises(DataError, match="expected a list of names"):
        load_data(file)


def test_both_splits_of_cifar_in_one_npz(tmp_path: Path) -> None:
    channels_last = np.moveaxis(COLOUR, 1, -1)
    np.savez(
        tmp_path / "cifar10.npz",
        train_x=channels_last[:6],
        train_y=COLOUR_LABELS[:6],
        test_x=channels_last[6:],
        test_y=COLOUR_LABELS[6:],
    )
    for split, rows in (("train", slice(6)), ("test", slice(6, None))):
        data = load_data("cifar10", data_dir=tmp_path, split=split, input_shape=(3, 32, 32))
        assert holds(data, COLOUR[rows], COLOUR_LABELS[rows])


def test_an_npz_of_the_test_split_does_not_hide_other_files_of_the_train_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10_test.npz", test_x=np.moveaxis(COLOUR[:4], 1, -1), test_y=COLOUR_LABELS[:4])
    with pytest.raises(DataError, match=r"cifar10 \(train\) is not on this machine"):
        load_data("cifar10", data_dir=tmp_path, split="train")
    write(tmp_path / "cifar-10-batches-bin", cifar_files("train"))
    assert holds(load_data("cifar10", data_dir=tmp_path, split="train"), COLOUR, COLOUR_LABELS)
    assert holds(load_data("cifar10", data_dir=tmp_path), COLOUR[:4], COLOUR_LABELS[:4])


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("sub", [".", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_cifar_files(tmp_path: Path, split: str, sub: str) -> None:
    write(tmp_path / "data" / sub, cifar_files(split))
    assert holds(load_data("cifar10", data_dir=tmp_path / "data", split=split), COLOUR, COLOUR_LABELS)


@pytest.mark.parametrize("split", ["test", "train"])
def test_cifar_archive_in_any_order(tmp_path: Path, split: str) -> None:
    members = {f"cifar-10-batches-bin/{name}": content for name, content in reversed(cifar_files(split).items())}
    members = {"../escaped.bin": b"x", "cifar-10-batches-bin/readme.html": b"x"} | members
    write(tmp_path / "data", {TORONTO: archive(members)})
    assert holds(load_data("cifar10", data_dir=tmp_path / "data", split=split), COLOUR, COLOUR_LABELS)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [TORONTO, "data"]  # nothing is unpacked


def test_cifar_archives_that_cannot_be_used(tmp_path: Path) -> None:
    good = archive({"cifar-10-batches-bin/test_batch.bin": records(0, 10)})
    for content, message in [
        (archive({"other.bin": b"x"}), "lacks test_batch.bin"),
        (good[: len(good) // 2], "cannot be read|lacks"),
        (b"nonsense", "cannot be read"),
    ]:
        write(tmp_path / "data", {TORONTO: content})
        with pytest.raises(DataError, match=message):
            load_data("cifar10", data_dir=tmp_path / "data")


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"secret.bin": records(0, 10)})
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.type, member.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.bin")
        tar.addfile(member)
    write(tmp_path / "data", {TORONTO: stream.getvalue()})
    with pytest.raises(DataError, match=r"lacks test_batch\.bin"):
        load_data("cifar10", data_dir=tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds 0 bytes"),
        (records(0, 3)[:-1], "no multiple of 3073"),
        (b"\x0a" + bytes(3072), "label 10, so it is not"),
    ],
)
def test_damaged_cifar_files(tmp_path: Path, content: bytes, message: str) -> None:
    folder = write(tmp_path / "data", {"test_batch.bin": content})
    with pytest.raises(DataError, match=message):
        load_data("cifar10", data_dir=folder)


@pytest.mark.parametrize("inside", [True, False])
def test_pickled_cifar_is_refused(tmp_path: Path, inside: bool) -> None:
    folder = write(tmp_path / "data" / "cifar-10-batches-py", {"test_batch": b"pickled"})
    with pytest.raises(DataError, match=r"python version, which is pickled.*binary version"):
        load_data("cifar10", data_dir=folder if inside else folder.parent)
    write(tmp_path / "data", cifar_files("test"))
    assert holds(load_data("cifar10", data_dir=tmp_path / "data"), COLOUR, COLOUR_LABELS)


def test_order_of_the_places(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(cache / "mnist", idx_files(count=1))
    assert len(load_data("mnist").images) == 1
    monkeypatch.setenv("L0TRE_DATA", str(write(tmp_path / "variable", idx_files(count=2))))
    assert len(load_data("mnist").images) == 2
    flag = write(tmp_path / "flag", idx_files(count=3))
    assert len(load_data("mnist", data_dir=flag).images) == 3
    assert len(load_data("mnist", data_dir=write(tmp_path / "empty", {})).images) == 2
    with pytest.raises(DataError, match="`data_dir`"):
        load_data("mnist", data_dir=tmp_path / "missing")


def test_a_name_wins_over_a_folder_unless_it_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "digits", GREY)
    (tmp_path / "digits.npy").rename(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert len(load_data("digits").images) == 1797
    for source in (Path("digits"), "./digits"):
        with pytest.raises(DataError, match="cannot be read as data"):
            load_data(source)
    (tmp_path / "digits").unlink()
    assert len(load_data(Path("digits")).images) == 1797


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server on this machine: its address and the folder it serves."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    folder = write(tmp_path / "served", {})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as running:
        thread = Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", folder
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_download_over_http(name: str, server: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, folder = server
    files = idx_files()
    write(folder, files)
    publish(monkeypatch, address, files)
    assert holds(load_data(name), GREY[:, None], GREY_LABELS)
    assert {path.name for path in (cache / name).iterdir()} == set(files)
    for path in folder.iterdir():
        path.unlink()
    assert holds(load_data(name), GREY[:, None], GREY_LABELS)  # from the cache
    with pytest.raises(DataError, match="404"):
        load_data(name, split="train")


def test_download_of_cifar(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {f"cifar-10-batches-bin/{k}": v for split in ("train", "test") for k, v in cifar_files(split).items()}
    files = {TORONTO: archive(members)}
    publish(monkeypatch, write(tmp_path / "served", files).as_uri(), files)
    assert holds(load_data("cifar10"), COLOUR, COLOUR_LABELS)
    assert [path.name for path in (cache / "cifar10").iterdir()] == [TORONTO]
    assert holds(load_data("cifar10", split="train"), COLOUR, COLOUR_LABELS)


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_bad_download_leaves_nothing_and_says_what_to_do(
    damage: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = idx_files()
    served = write(tmp_path / "served", files)
    publish(monkeypatch, served.as_uri(), files)
    victim = served / "t10k-labels-idx1-ubyte.gz"
    good = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(good[:-5] if damage == "truncated" else good[:-1] + b"?")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz.*`data_dir`.*L0TRE_DATA") as caught:
        load_data("mnist")
    assert ("checksum" in str(caught.value)) == (damage != "missing")
    assert "\n" not in str(caught.value)
    assert [path.name for path in (cache / "mnist").iterdir()] == ["t10k-images-idx3-ubyte.gz"]
    # The whole file is not fetched again, only what was missing.
    victim.write_bytes(good)
    (served / "t10k-images-idx3-ubyte.gz").unlink()
    assert holds(load_data("mnist"), GREY[:, None], GREY_LABELS)


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"")
    with pytest.raises(DataError, match="`data_dir`"):
        load_data("mnist")


def test_everything_is_published_over_https() -> None:
    assert all(remote.url.startswith("https://") for remotes in PUBLISHED.values() for remote in remotes)


def test_no_redirection_leaves_https() -> None:
    handler = download._StaysSafe()
    request = urllib.request.Request("https://example.org/a")
    with pytest.raises(OSError, match="not https"):
        handler.redirect_request(request, None, 302, "Found", {}, "http://example.org/a")
    onwards = handler.redirect_request(request, None, 302, "Found", {}, "https://example.org/b")
    assert onwards.full_url == "https://example.org/b"


def test_published_files() -> None:
    """Every data set has both splits, each file one well-formed checksum."""
    for remotes in download.REMOTES.values():
        for remote in remotes:
            assert len(bytes.fromhex(remote.sha256)) == 32
    sets = ("mnist", "fashion-mnist", "cifar10")
    assert set(download.REMOTES) == {(name, split) for name in sets for split in ("test", "train")}


def test_an_idx_file_that_claims_or_unpacks_to_more_than_memory_holds(tmp_path: Path) -> None:
    claim = struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 4)
    bomb = struct.pack(">HBBIII", 0, 8, 3, 1, 28, 28) + bytes(10_000_000)
    for content, words in ((claim, "GiB"), (bomb, "more bytes of data")):
        path = tmp_path / "t10k-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=words):
            read_idx(path, 3)
