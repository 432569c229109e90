"""Originals as pictures, many in one file, so that a page of ten thousand stays small."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.errors import require
from l0tre.figures.pictures import is_picture, shades
from l0tre.layout import channel_axis

__all__ = ["Sheets", "draw_sheet", "limits", "make_sheets", "plan_sheets"]

# Pixels of a sheet: browsers decode one at once, and only those that are looked at.
SHEET_PIXELS = 600_000
QUALITY = 75  # of pictures that would not fit without loss


@dataclass(frozen=True)
class Sheets:
    """Pictures in sheets.

    Attributes:
        width: Of one picture, in pixels.
        height: Of one picture.
        across: Pictures in a row of a sheet.
        sheet: Pictures in a sheet.
        cells: The cell of each input, -1 for none; ``None`` if inputs are in the order of cells.
        files: Data URIs.
        exact: Whether every shade is kept.
    """

    width: int
    height: int
    across: int
    sheet: int
    cells: tuple[int, ...] | None
    files: tuple[str, ...]
    exact: bool

    def to_dict(self) -> dict[str, object]:
        """What a page needs to find a picture."""
        cells = None if self.cells is None else list(self.cells)
        names = ("width", "height", "across", "sheet", "exact")
        return {**{name: getattr(self, name) for name in names}, "cells": cells}


def size_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a picture."""
    axis = channel_axis(shape)
    height, width = (size for dim, size in enumerate(shape) if dim != axis)
    return height, width


def limits(low: Tensor, high: Tensor) -> tuple[float, float]:
    """The values that are black and white: one scale for all positions, so that a range for each does not distort."""
    return float(low.min()), float(high.max())


def make_sheets(images: Tensor, low: float, high: float, *, first: Sequence[int] = (), room: int) -> Sheets | None:
    """Put as many pictures into sheets as there is room for.

    Args:
        images: ``[images, *shape]``.
        low: The value drawn black.
        high: The value drawn white.
        first: Rows that come first where not all fit; the others follow.
        room: Characters that the sheets may take. Pictures are kept exactly if all fit, else with loss.

    Returns:
        The sheets, ``None`` if inputs are no pictures or none fits.

    Raises:
        MissingExtraError: If Pillow is not installed.
    """
    shape = tuple(images.shape[1:])
    if not is_picture(shape) or not len(images):
        return None
    order = list(range(len(images)))
    height, width = size_of(shape)
    for exact in (True, False):
        made, count = _fill(images, order, low, high, (height, width), exact, room)
        if count == len(images):
            break
        if exact and first:
            order = [*first, *sorted(set(order) - set(first))]
    if not count:
        return None
    cells = None
    if order != sorted(order) or count < len(images):
        found = {row: cell for cell, row in enumerate(order[:count])}
        cells = tuple(found.get(row, -1) for row in range(len(images)))
    across, per_sheet = _layout(height, width)
    return Sheets(width, height, across, per_sheet, cells, tuple(made), exact)


def plan_sheets(images: Tensor) -> Sheets | None:
    """How inputs lie in sheets that are drawn when they are asked for; ``None`` if inputs are no pictures."""
    if not is_picture(tuple(images.shape[1:])):
        return None
    height, width = size_of(tuple(images.shape[1:]))
    return Sheets(width, height, *_layout(height, width), None, (), True)


def draw_sheet(images: Tensor, number: int, low: float, high: float) -> bytes:
    """One of the sheets that :func:`plan_sheets` planned, as a PNG file.

    Raises:
        IndexError: If there is no such sheet.
    """
    height, width = size_of(tuple(images.shape[1:]))
    across, per_sheet = _layout(height, width)
    part = images[number * per_sheet : (number + 1) * per_sheet]
    if number < 0 or not len(part):
        raise IndexError(number)
    return _sheet(part, low, high, (height, width), across, True)


def _layout(height: int, width: int) -> tuple[int, int]:
    """Pictures in a row of a sheet, and in a sheet."""
    across = max(1, math.isqrt(SHEET_PIXELS) // width)
    return across, across * max(1, math.isqrt(SHEET_PIXELS) // height)


def _fill(
    images: Tensor, order: Sequence[int], low: float, high: float, size: tuple[int, int], exact: bool, room: int
) -> tuple[list[str], int]:
    """Sheets while there is room: data URIs, and the number of pictures in them."""
    across, per_sheet = _layout(*size)
    made: list[str] = []
    count = 0
    while count < len(order):
        rows = order[count : count + per_sheet]
        file = _uri(_sheet(images[list(rows)], low, high, size, across, exact), exact)
        while len(file) > room and not exact and len(rows) > 1:  # the last sheet is a part of one
            rows = rows[: int(len(rows) * 0.9 * room / len(file))] if room > 0 else []
            if not rows:
                return made, count
            file = _uri(_sheet(images[list(rows)], low, high, size, across, exact), exact)
        if len(file) > room:
            return made, count
        made.append(file)
        room -= len(file)
        count += len(rows)
        if len(rows) < per_sheet:
            break
    return made, count


def _sheet(images: Tensor, low: float, high: float, size: tuple[int, int], across: int, exact: bool) -> bytes:
    """Pictures side by side, a PNG or JPEG file."""
    height, width = size
    cells = torch.stack([shades(image, low, high) for image in images])
    down, channels = math.ceil(len(cells) / across), cells.shape[3]
    across = min(across, len(cells)) if down == 1 else across
    sheet = torch.zeros(down * across, height, width, channels, dtype=torch.uint8)
    sheet[: len(cells)] = cells
    pixels = sheet.reshape(down, across, height, width, channels).permute(0, 2, 1, 3, 4)
    array = pixels.reshape(down * height, across * width, channels).numpy()
    picture = require("PIL.Image", "report").fromarray(array[:, :, 0] if channels == 1 else array)
    file = io.BytesIO()
    if exact:
        picture.save(file, "PNG")
    else:
        picture.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _uri(file: bytes, exact: bool) -> str:
    kind = "png" if exact else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file).decode('ascii')}"
