"""The page of saliency maps: how far each group alone can move a number of a network."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from l0tre.figures.pictures import is_picture, plane
from l0tre.layout import channel_axis
from l0tre.maps.pairs import Pairs
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.maps.together import Together
from l0tre.names import NO_NAMES, Names
from l0tre.report import blocks
from l0tre.report.blocks import Block, Document, Head
from l0tre.report.inputs import make_gallery, plain_number
from l0tre.report.words import counted

__all__ = ["map_picture", "saliency_page"]

LISTED = 50  # strongest groups in a table
COLUMNS = blocks.columns(
    ("picture", "", "picture"),
    ("index", "image", "image"),
    ("observed", "number", "text"),
    ("base", "as it is", "number"),
    ("largest", "largest drop", "number"),
    ("measured", "measured", "text"),
)


def saliency_page(
    maps: Sequence[SaliencyMap],
    images: Sequence[Tensor],
    *,
    titles: Sequence[str],
    indices: Sequence[int],
    names: Names = NO_NAMES,
    low: float = 0.0,
    high: float = 1.0,
    pairs: Sequence[Pairs | None] = (),
    together: Sequence[Together | None] = (),
) -> Document:
    """The page of saliency maps.

    Args:
        maps: At least one.
        images: The input of each, ``shape``.
        titles: What each is about.
        indices: Positions of the inputs in the user's data.
        names: Of inputs and columns.
        low: The value drawn black.
        high: The value drawn white.
        pairs: Of each map the pairs of groups that act together; ``None`` where they were not asked for.
        together: Likewise the groups that were chosen one after the other.
    """
    one = maps[0]
    place = _place(one, int(one.strongest(1)[0]), names)
    text = (
        f"Of {counted(len(one.drop), one.group)}, {place} alone moves {_the(one)} furthest: down by "
        f"{float(one.drop.max()):.4g} {one.unit}, from {one.base:.4g}."
    )
    notes = []
    for title, found in zip(titles, maps, strict=True):
        measured = "all measured" if found.complete else f"{found.share:.1%} measured, the rest predicted"
        cost = f"{found.evaluations:,} queries in {found.seconds:,.1f} s"
        drawn = found.audit
        audit = "" if drawn is None else f"; of {drawn.groups} drawn at random, {drawn.beyond} as strong as those found"
        notes.append(f"{title}: {measured}{audit}; {cost}.")
    shown: list[Block] = [blocks.answer(text, notes)]
    for number, (title, found) in enumerate(zip(titles, maps, strict=True)):
        shown += _map_blocks(number, title, found, names)
        if number < len(pairs) and (acting := pairs[number]) is not None:
            shown.append(_pairs_block(number, title, found, acting, names))
        if number < len(together) and (chosen := together[number]) is not None:
            shown.append(_together_block(number, title, found, chosen, names))
    rows: list[dict[str, Any]] = []
    extras: list[dict[str, Any]] = []
    for found, index in zip(maps, indices, strict=True):
        largest = plain_number(float(found.drop.max()), 6)
        measured = "all" if found.complete else f"{found.share:.1%}"
        facts = {"observed": found.observed, "base": plain_number(found.base, 6), "largest": largest}
        rows.append({"index": index, "label": None, **facts, "measured": measured, "witness": None})
        extras.append({"map": [plain_number(v, 4) for row in map_picture(found) or [] for v in row]})
    same = all(image.shape == images[0].shape for image in images)
    stored = names.to_config(indices)
    block, gallery = make_gallery(
        {"images": rows, "config": {"names": stored}},
        extras,
        COLUMNS,
        originals=torch.stack([image.detach().cpu() for image in images]) if same else None,
        domain=(low, high),
        unit=one.group,
        names=stored,
        title="Maps",
        file="maps",
    )
    title = f"Saliency: {titles[0]}" if len(maps) == 1 else f"{len(maps)} saliency maps"
    return Document(title, (*shown, block), gallery)


def _map_blocks(number: int, title: str, found: SaliencyMap, names: Names) -> list[Block]:
    shown: list[Block] = []
    picture = map_picture(found)
    note = f"How far each {found.group} alone can lower {_the(found)}, over the values it can take."
    if picture is not None:
        shown.append(blocks.heat(f"map-{number}", title, picture, note=note, unit=found.unit))
    heads: list[Head] = [
        (found.group, "text"), ("drop", "mean"), ("at", "text"), ("rise", "mean"), ("measured", "text")
    ]  # fmt: skip
    rows = []
    for place in found.strongest(LISTED).tolist():
        drop, rise = plain_number(float(found.drop[place]), 6), plain_number(float(found.rise[place]), 6)
        known = bool(found.measured[place])
        at = _values(found.colours[place]) if known else ""
        rows.append([_place(found, place, names), drop, at, rise, "yes" if known else "predicted"])
    shown.append(
        blocks.table(
            f"strongest-{number}", f"{title}: the strongest {found.group}s", heads, rows, half=picture is not None
        )
    )
    return shown


def _pairs_block(number: int, title: str, found: SaliencyMap, pairs: Pairs, names: Names) -> Block:
    heads: list[Head] = [(found.group, "text"), ("and", "text"), ("together", "mean"), ("beyond the sum", "mean")]
    rows = []
    for groups, drop, more in zip(
        pairs.groups[:LISTED].tolist(), pairs.together.tolist(), pairs.interaction.tolist(), strict=False
    ):
        places = [_place(found, place, names) for place in groups]
        rows.append([*places, plain_number(drop, 6), plain_number(more, 6)])
    return blocks.table(f"pairs-{number}", f"{title}: {found.group}s that act together", heads, rows, half=True)


def _together_block(number: int, title: str, found: SaliencyMap, chosen: Together, names: Names) -> Block:
    heads: list[Head] = [
        ("number", "number"), (found.group, "text"), ("at", "text"), ("together they lower it by", "mean")
    ]  # fmt: skip
    rows = [
        [count, _place(found, place, names), _values(colour), plain_number(drop, 6)]
        for count, (place, colour, drop) in enumerate(
            zip(chosen.groups.tolist(), chosen.colours, chosen.drops.tolist(), strict=True), 1
        )
    ]
    return blocks.table(f"together-{number}", f"{title}: one after the other", heads, rows, half=True)


def _the(found: SaliencyMap) -> str:
    """What a map is about, inside a sentence."""
    return f"the {found.observed}" if found.observed.startswith("score ") else found.observed


def map_picture(found: SaliencyMap) -> list[list[float]] | None:
    """A map as rows of numbers, ``None`` if inputs are no pictures; of a pixel's channels the strongest."""
    if not is_picture(found.shape):
        return None
    return [[max(0.0, plain_number(v, 4) or 0.0) for v in row] for row in plane(found.attribution()).amax(2).tolist()]


def _values(colour: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in colour.tolist())


def _place(found: SaliencyMap, place: int, names: Names) -> str:
    """A group in words."""
    position = int(found.members[place, 0])
    if position < len(names.features):
        return names.features[position]
    if is_picture(found.shape) and found.group == "pixel":
        axis = channel_axis(found.shape)
        width = [size for dim, size in enumerate(found.shape) if dim != axis][1]
        row, column = divmod(int(found.groups[place]), width)
        return f"row {row}, column {column}"
    return f"{found.group} {int(found.groups[place])}"
