"""Originals beside their adversarial inputs: as pictures where the shape allows it, as lists of changes otherwise."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.evaluation.changes import Change, changes
from l0tre.evaluation.results import ImageBounds, Witness
from l0tre.figures.pictures import is_picture, plane, png, shades
from l0tre.names import NO_NAMES, Names
from l0tre.store import Inputs

__all__ = ["Card", "Picture", "make_cards"]

# Bytes of PNG data in a page. A hundred pictures of 32x32 colours take half a million; a few of 224x224 take as much.
PICTURE_BYTES = 4_000_000
CHANGES = 40  # changes listed for an input that is no picture
NAMED_PIXELS = 20  # changed pixels named in an alternative text


@dataclass(frozen=True)
class Picture:
    """An original and its adversarial input as pictures.

    Attributes:
        width: Pixels in a row.
        height: Rows.
        original: PNG as a data URI, at native resolution.
        adversarial: The same for the changed input.
        pixels: Changed pixels as (row, column), counted from 0.
        named: The changed pixels in words.
    """

    width: int
    height: int
    original: str
    adversarial: str
    pixels: tuple[tuple[int, int], ...]
    named: str


@dataclass(frozen=True)
class Card:
    """An image whose decision can be changed: its bounds, and a picture or a list of changes.

    Attributes:
        bounds: The image's bounds.
        witness: The adversarial input.
        picture: For images.
        changes: The changed values for everything else, the first :data:`CHANGES` of them.
        more: Number of further changed values.
    """

    bounds: ImageBounds
    witness: Witness
    picture: Picture | None
    changes: tuple[Change, ...]
    more: int


def make_cards(images: Sequence[ImageBounds], inputs: Inputs, limit: int, names: Names = NO_NAMES) -> tuple[Card, ...]:
    """The images that are easiest to change, with their adversarial inputs.

    Args:
        images: Bounds of all images.
        inputs: The inputs of the run.
        limit: At most so many; fewer if their pictures would make the page too large.
        names: Of the inputs' values.

    Returns:
        Cards for images with a witness, by upper bound, smallest first.
    """
    places = {index: row for row, index in enumerate(inputs.indices)}
    cards: list[Card] = []
    size = 0
    for bounds in sorted(images, key=lambda image: (image.upper, image.lower, image.index)):
        if bounds.witness is None:
            continue
        if len(cards) >= limit or size > PICTURE_BYTES:
            break
        card = _card(bounds, bounds.witness, inputs.images[places[bounds.index]], inputs.domain, names)
        cards.append(card)
        if card.picture is not None:
            size += len(card.picture.original) + len(card.picture.adversarial)
    return tuple(cards)


def _card(bounds: ImageBounds, witness: Witness, original: Tensor, domain: Domain, names: Names) -> Card:
    if not is_picture(domain.shape):
        listed = tuple(changes(witness, original, names)[:CHANGES])
        return Card(bounds, witness, None, listed, len(witness.positions) - len(listed))
    # One scale for all positions: a range for each pixel would otherwise be stretched into a picture of its own.
    low, high = float(domain.low.min()), float(domain.high.max())
    pixels, changed = shades(original, low, high), shades(witness.apply(original), low, high)
    height, width = pixels.shape[:2]
    touched = torch.zeros(math.prod(domain.shape), dtype=torch.bool)
    touched[witness.positions] = True
    spots = tuple((row, column) for row, column in plane(touched.reshape(domain.shape)).any(2).nonzero().tolist())
    named = ", ".join(f"({row}, {column})" for row, column in spots[:NAMED_PIXELS])
    if len(spots) > NAMED_PIXELS:
        named += f" and {len(spots) - NAMED_PIXELS} more"
    return Card(bounds, witness, Picture(width, height, _uri(pixels), _uri(changed), spots, named), (), 0)


def _uri(pixels: Tensor) -> str:
    """uint8 ``[H, W, 1 or 3]`` as a PNG in a data URI."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode('ascii')}"
