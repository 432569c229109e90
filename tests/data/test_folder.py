import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from l0tre.data import load_data
from l0tre.data.folder import read_folder
from l0tre.errors import DataError

GREY = np.random.RandomState(0).randint(0, 256, (4, 6, 5), dtype=np.uint8)
COLOUR = np.random.RandomState(1).randint(0, 256, (4, 6, 5, 3), dtype=np.uint8)


def write(path: Path, image: npt.NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def expected(images: npt.NDArray[Any]) -> torch.Tensor:
    """uint8 [N, H, W] or [N, H, W, C] as the data set should hold them."""
    values = torch.from_numpy(images.astype(np.float32) / np.float32(255))
    return values[:, None] if images.ndim == 3 else values.permute(0, 3, 1, 2)


def labels_of(folder: Path, **options: Any) -> list[int] | None:
    labels = load_data(folder, **options).labels
    return None if labels is None else labels.tolist()


@pytest.mark.parametrize("images", [GREY, COLOUR])
def test_files_are_sorted_by_name_and_have_no_labels(tmp_path: Path, images: npt.NDArray[Any]) -> None:
    for name, image in [("c.png", images[2]), ("a.PNG", images[0]), ("d.bmp", images[3]), ("b.png", images[1])]:
        write(tmp_path / name, image)
    write(tmp_path / ".hidden.png", images[0])
    (tmp_path / "notes.txt").write_text("not an image", encoding="utf-8")
    data = load_data(tmp_path)
    assert torch.equal(data.images, expected(images))
    assert data.labels is None


def test_channels_follow_the_network(tmp_path: Path) -> None:
    write(tmp_path / "grey" / "a.png", GREY[0])
    write(tmp_path / "colour" / "a.png", COLOUR[0])
    as_colour = load_data(tmp_path / "grey", input_shape=(3, 6, 5)).images
    assert torch.equal(as_colour, expected(GREY[:1]).expand(1, 3, 6, 5))
    for shape in ((1, 6, 5), (6, 5), (6, 5, 1)):
        assert load_data(tmp_path / "colour", input_shape=shape).images.shape == (1, *shape)
    assert torch.equal(
        load_data(tmp_path / "colour", input_shape=(6, 5, 3)).images, expected(COLOUR[:1]).permute(0, 2, 3, 1)
    )
    assert torch.equal(load_data(tmp_path / "colour", input_shape=(90,)).images, expected(COLOUR[:1]).flatten(1))
    assert load_data(tmp_path / "colour", input_shape=(4, 6, 5)).images[0, 3].eq(1).all()


def test_a_mix_of_grey_and_colour_becomes_colour(tmp_path: Path) -> None:
    write(tmp_path / "a.png", GREY[0])
    write(tmp_path / "b.png", COLOUR[0])
    images = load_data(tmp_path).images
    assert torch.equal(images[0], expected(GREY[:1])[0].expand(3, 6, 5))
    assert torch.equal(images[1], expected(COLOUR[:1])[0])


def test_scale(tmp_path: Path) -> None:
    write(tmp_path / "a.png", GREY[0])
    assert torch.equal(load_data(tmp_path, scale=1).images[0, 0], torch.from_numpy(GREY[0].astype(np.float32)))


@pytest.mark.parametrize("header", ["", "file,label\n"])
def test_labels_from_a_table(tmp_path: Path, header: str) -> None:
    for name, image in zip("abc", GREY, strict=False):
        write(tmp_path / f"{name}.png", image)
    (tmp_path / "labels.csv").write_text(header + "c.png,2\na.png, 0\nb.png,7\n", encoding="utf-8")
    assert labels_of(tmp_path) == [0, 7, 2]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a.png,1\n", "has no label for b.png"),
        ("a.png,1\nb.png,2\nc.png,3\n", "line 3 names c.png, which is no image"),
        ("a.png,1\nb.png,2\na.png,3\n", "line 3 names a.png for the second time"),
        ("file,label\na.png,1\nb.png,x\n", "line 3 holds 'b.png,x'"),
        ("a.png,-1\nb.png,0\n", "line 1 holds 'a.png,-1'"),
        ("a.png,1.5\nb.png,0\n", "line 1 holds 'a.png,1.5'"),
        ("a.png,1,2\n", "line 1 holds"),
    ],
)
def test_bad_tables(tmp_path: Path, table: str, message: str) -> None:
    write(tmp_path / "a.png", GREY[0])
    write(tmp_path / "b.png", GREY[1])
    (tmp_path / "labels.csv").write_text(table, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_data(tmp_path)


@pytest.mark.parametrize(
    ("names", "labels"),
    [(("3", "07", "11"), [7, 11, 3]), (("cat", "dog", "ant"), [0, 1, 2]), (("1", "b", "c"), [0, 1, 2])],
)
def test_labels_from_sub_folders(tmp_path: Path, names: tuple[str, ...], labels: list[int]) -> None:
    for name in names:
        write(tmp_path / name / "a.png", GREY[0])
    assert labels_of(tmp_path) == labels


def test_an_empty_class_keeps_its_place(tmp_path: Path) -> None:
    for name in ("ant", "cat"):
        write(tmp_path / name / "a.png", GREY[0])
    write(tmp_path / "cat" / "b.png", GREY[1])
    (tmp_path / "bee").mkdir()
    (tmp_path / ".cache").mkdir()
    assert labels_of(tmp_path) == [0, 2, 2]


def test_a_table_for_sub_folders(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "a.png", GREY[0])
    write(tmp_path / "dog" / "a.png", GREY[1])
    (tmp_path / "labels.csv").write_text("dog/a.png,5\ncat/a.png,9\n", encoding="utf-8")
    assert labels_of(tmp_path) == [9, 5]


def test_images_and_sub_folders_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.png", GREY[0])
    write(tmp_path / "1" / "a.png", GREY[0])
    with pytest.raises(DataError, match="both directly and in sub-folders"):
        load_data(tmp_path)


def test_sizes_must_agree_unless_resized(tmp_path: Path) -> None:
    write(tmp_path / "a.png", np.kron(GREY[0], np.ones((2, 2), np.uint8)))
    write(tmp_path / "b.png", GREY[1])
    with pytest.raises(DataError, match=r"a.png 10x12, b.png 5x6\); expected one size$"):
        load_data(tmp_path)
    with pytest.raises(DataError, match="`resize=True`"):
        load_data(tmp_path, input_shape=(1, 6, 5))
    data = load_data(tmp_path, input_shape=(1, 6, 5), resize=True)
    torch.testing.assert_close(data.images, expected(GREY[:2]))
    torch.testing.assert_close(
        load_data(tmp_path, input_shape=(6, 5, 1), resize=True, scale=51).images[..., 0], expected(GREY[:2])[:, 0] * 5
    )


def test_same_sizes_are_resized_too(tmp_path: Path) -> None:
    write(tmp_path / "a.png", np.kron(COLOUR[0], np.ones((2, 2, 1), np.uint8)))
    data = load_data(tmp_path, input_shape=(3, 6, 5), resize=True)
    torch.testing.assert_close(data.images, expected(COLOUR[:1]))


def test_no_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no images"):
        load_data(tmp_path)


def test_damaged_and_deep_images(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "a.png", np.full((4, 4), 40000, np.uint16))
    with pytest.raises(DataError, match="more than 8 bits"):
        load_data(tmp_path / "deep")
    write(tmp_path / "cut" / "a.png", np.random.RandomState(0).randint(0, 256, (64, 64), dtype=np.uint8))
    path = tmp_path / "cut" / "a.png"
    for content in (path.read_bytes()[:1000], b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.png: cannot be read as an image"):
            load_data(tmp_path / "cut")


def test_only_readers_of_pictures_are_asked(tmp_path: Path) -> None:
    """Pillow goes by the content: PostScript would be handed to another program."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\nshowpage\n")
    with pytest.raises(DataError, match=r"a\.png: cannot be read as an image"):
        read_folder(tmp_path, (1, 4, 4), False)


def test_a_picture_that_claims_many_pixels(tmp_path: Path) -> None:
    """66 bytes; unpacked it would be ten gigabytes."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png"):
        read_folder(tmp_path, (1, 4, 4), False)
    Image.fromarray(np.zeros((8200, 8200), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="8200 x 8200 pixels"):
        read_folder(tmp_path, (1, 4, 4), False)
