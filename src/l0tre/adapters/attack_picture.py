"""A comparison of attacks as one picture: a row for each image, a column for each attack."""

from pathlib import Path
from typing import Any

from torch import Tensor

from l0tre.adapters.compare_attacks import AttackComparison
from l0tre.errors import DataError, require
from l0tre.figures.pictures import is_picture, plane, shades

__all__ = ["write_picture"]

ROWS = 12  # images shown
SIDE = 140  # least width of an enlarged image
GAP = 8
LINE = 14  # height of a line of text
WHITE, BLACK, GREY, RED = (255, 255, 255), (0, 0, 0), (120, 120, 120), (220, 30, 30)


def write_picture(comparison: AttackComparison, file: Path, low: float = 0.0, high: float = 1.0) -> Path:
    """Draw the originals and what each attack made of them, changed pixels framed, as a PNG.

    Args:
        comparison: What to draw, its first images.
        file: Where to.
        low: The value drawn as black.
        high: The value drawn as white.

    Returns:
        The file.

    Raises:
        DataError: If the inputs are no pictures.
        MissingExtraError: If pillow is not installed.
    """
    image, draw = require("PIL.Image", "report"), require("PIL.ImageDraw", "report")
    if not is_picture(tuple(comparison.images.shape[1:])):
        raise DataError(f"inputs of shape {tuple(comparison.images.shape[1:])} are no pictures and cannot be drawn")
    results = comparison.results
    originals = comparison.images[:ROWS]
    height, width = plane(originals[0]).shape[:2]
    scale = max(1, -(-SIDE // width))
    outside = int(scale < 4)  # a frame inside so small a pixel would cover it
    cell = (scale * width + GAP, scale * height + LINE + GAP)
    extent = (GAP + cell[0] * (1 + len(results)), GAP + LINE + cell[1] * len(originals))
    page = image.new("RGB", extent, WHITE)
    pen = draw.Draw(page)
    for column, name in enumerate(["original", *(result.name for result in results)]):
        pen.text((GAP + column * cell[0], GAP // 2), name, fill=BLACK)
    for row, original in enumerate(originals):
        top = GAP + LINE + row * cell[1]
        page.paste(_enlarged(image, original, low, high, scale), (GAP, top))
        label = int(comparison.labels[row])
        pen.text((GAP, top + scale * height), f"image {comparison.indices[row]}: class {label}", fill=BLACK)
        for column, result in enumerate(results, start=1):
            left = GAP + column * cell[0]
            changed = result.adversarial[row]
            page.paste(_enlarged(image, changed, low, high, scale), (left, top))
            for y, x in plane(changed != original).any(2).nonzero().tolist():
                corner = (left + scale * x - outside, top + scale * y - outside)
                size = scale - 1 + 2 * outside
                pen.rectangle((*corner, corner[0] + size, corner[1] + size), outline=RED)
            found = bool(result.found[row])
            words = f"L0 {int(result.pixels[row])}: class {int(result.decisions[row])}" if found else "not found"
            pen.text((left, top + scale * height), words, fill=BLACK if found else GREY)
    page.save(file, "PNG", optimize=True)
    return file


def _enlarged(image: Any, picture: Tensor, low: float, high: float, scale: int) -> Any:
    pixels = shades(picture, low, high)
    array = pixels.expand(-1, -1, 3).repeat_interleave(scale, 0).repeat_interleave(scale, 1).contiguous().numpy()
    return image.fromarray(array)
