"""Reading a folder of image files."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from l0tre.data.files import Raw, rows_of_csv
from l0tre.data.layout import channels_height_width, resize_area
from l0tre.errors import DataError, require
from l0tre.names import Names

__all__ = ["PICTURES", "read_folder", "read_picture"]

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Pillow goes by the content, not by the name: of its readers only these are asked, none of which runs another program.
_FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_MOST_PIXELS = 2**26  # in a picture: a small file can claim many
_LABELS = "labels.csv"
_GREY = ("1", "L", "LA")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in PICTURES and not path.name.startswith(".") and path.is_file()
    )


def _classes(folders: list[Path]) -> dict[Path, int]:
    """The label of each sub-folder: its name if all are whole numbers, else its rank."""
    if all(path.name.isascii() and path.name.isdecimal() for path in folders):
        return {path: int(path.name) for path in folders}
    return {path: rank for rank, path in enumerate(folders)}


def _listed_labels(listing: Path, files: list[Path]) -> list[int]:
    """The labels of files from a table with a file and a label in each row."""
    found: dict[Path, int] = {}
    known = set(files)
    for position, (line, cells) in enumerate(rows_of_csv(listing)):
        name, label = (cells[0].strip(), cells[1].strip()) if len(cells) == 2 else ("", "")
        if not (label.isascii() and label.isdecimal()):
            if position == 0 and len(cells) == 2 and listing.parent / name not in known:
                continue  # a header
            raise DataError(
                f"{listing}: line {line} holds {','.join(cells)!r}; expected a file and a label of 0 or more"
            )
        path = listing.parent / name
        if path not in known:
            raise DataError(f"{listing}: line {line} names {name}, which is no image in the folder")
        if path in found:
            raise DataError(f"{listing}: line {line} names {name} for the second time; expected one label per image")
        found[path] = int(label)
    for path in files:
        if path not in found:
            raise DataError(f"{listing}: has no label for {path.relative_to(listing.parent)}; add a row for it")
    return [found[path] for path in files]


def _class_names(folder: Path, files: list[Path], labels: list[int] | None) -> tuple[str, ...]:
    """Names of sub-folders that stand for classes, if they are words."""
    parents = [path.parent for path in files]
    if labels is None or (folder / _LABELS).is_file() or folder in parents:
        return ()
    ranks = _classes(sorted({path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}))
    words = any(not path.name.isdecimal() for path in ranks)
    return tuple(path.name for path in sorted(ranks, key=lambda path: ranks[path])) if words else ()


def _files_and_labels(folder: Path) -> tuple[list[Path], list[int] | None]:
    files = _images_in(folder)
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    inside = {path: _images_in(path) for path in folders}
    nested = [image for path in folders for image in inside[path]]
    if files and nested:
        raise DataError(f"{folder}: holds images both directly and in sub-folders; use one or the other")
    if not files and not nested:
        raise DataError(
            f"{folder}: holds no images ({' '.join(PICTURES)}); to load a data set by name from it, "
            "give the name and this folder as `data_dir`"
        )
    listing = folder / _LABELS
    if listing.is_file():
        return files or nested, _listed_labels(listing, files or nested)
    if files:
        return files, None
    classes = _classes(folders)
    return nested, [classes[path.parent] for path in nested]


def _read(pillow: ModuleType, path: Path, mode: str | None) -> npt.NDArray[Any]:
    """One image as uint8 [H, W] or [H, W, C]; without a mode it stays grey or becomes RGB."""
    try:
        with pillow.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                size = f"{image.width} x {image.height}"
                raise DataError(f"{path}: has {size} pixels, at most {_MOST_PIXELS:,} are read; make it smaller")
            image.load()
            # Pillow cuts deeper pixels off at 255 instead of scaling them.
            if image.mode.startswith(("I", "F")):
                raise DataError(f"{path}: has more than 8 bits per channel; save it with 8 bits, or as .npz")
            return np.asarray(image.convert(mode or ("L" if image.mode in _GREY else "RGB")))
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise what damaged files make them: struct.error, zlib.error, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: cannot be read as an image ({reason}); replace or remove it") from error


def _channels_first(image: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    if image.ndim == 2:
        return np.repeat(image[None], channels, axis=0)
    return np.moveaxis(image, 2, 0)


def read_picture(path: Path, input_shape: tuple[int, ...] | None) -> Raw:
    """Read one picture, without a label.

    Args:
        path: The file.
        input_shape: The network's, without the batch; its channels decide between grey, RGB and RGBA.

    Returns:
        The image [1, C, H, W], in units of 0 to 255, under the file's name.

    Raises:
        DataError: If it cannot be read.
    """
    target = channels_height_width(input_shape)
    mode = None if target is None else _MODES.get(target[0])
    image = _read(require("PIL.Image", "report"), path, mode)
    channels = 1 if image.ndim == 2 else image.shape[2]
    return Raw(_channels_first(image, channels)[None], None, 255.0, Names((path.name,)))


def read_folder(folder: Path, input_shape: tuple[int, ...] | None, resize: bool) -> Raw:
    """Read all images of a folder, in the order of their names.

    Labels come from a file ``labels.csv`` (file, label) in the folder, else from sub-folders: their names if all
    are whole numbers, else their rank in the sorted names. Images directly in the folder have no labels otherwise.

    Args:
        folder: The folder.
        input_shape: The network's, without the batch; its channels decide between grey, RGB and RGBA.
        resize: Whether images may differ in size; they are then resized to the network's height and width.

    Returns:
        The images [N, C, H, W], in units of 0 to 255.

    Raises:
        DataError: If there are no images, one cannot be read, sizes differ or labels do not fit.
    """
    pillow = require("PIL.Image", "report")
    files, labels = _files_and_labels(folder)
    target = channels_height_width(input_shape)
    mode = None if target is None else _MODES.get(target[0])
    read = [_read(pillow, path, mode) for path in files]
    channels = max(1 if image.ndim == 2 else image.shape[2] for image in read)
    images = [_channels_first(image, channels) for image in read]
    odd = next((place for place, image in enumerate(images) if image.shape != images[0].shape), None)
    if odd is not None:
        if not resize or target is None:
            sizes = [f"{files[i].name} {images[i].shape[2]}x{images[i].shape[1]}" for i in (0, odd)]
            hint = "" if target is None else ", or give `resize=True`"
            raise DataError(f"{folder}: images differ in size ({', '.join(sizes)}); expected one size{hint}")
        images = [
            resize_area(torch.from_numpy(image[None].astype(np.float32)), *target[1:])[0].numpy() for image in images
        ]
    inputs = tuple(str(path.relative_to(folder)) for path in files)
    names = Names(inputs, classes=_class_names(folder, files, labels))
    return Raw(np.stack(images), None if labels is None else np.array(labels), 255.0, names)
