"""The table of inputs of a page: its rows, their pictures, and what the view of one of them shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from l0tre.evaluation.results import Snapshot, Witness
from l0tre.figures.pictures import is_picture
from l0tre.layout import channel_axis, noun
from l0tre.report import blocks
from l0tre.report.blocks import Block, Gallery
from l0tre.report.packing import packed
from l0tre.report.pictures import limits, make_sheets, plan_sheets
from l0tre.store import Inputs

__all__ = [
    "Details",
    "Pictures",
    "extra_of",
    "gallery_of",
    "make_gallery",
    "plain_number",
    "score_rows",
    "witness_entry",
]

Pictures = Literal["inside", "served", "none"]
SCORES = 5  # classes whose scores are shown
ROW_VALUES = 300_000  # values of tables up to which pages have whole rows
# Characters of a page: what is left of five million for pictures when code, rows and details are in.
PAGE = 4_900_000


@dataclass(frozen=True)
class Details:
    """What is known of the images of a run besides their bounds; every mapping is by position in the user's data.

    Attributes:
        timelines: Moments as ``(seconds, lower, upper)``.
        scores: Scores of the original and of the changed input, float32 ``[classes]`` each.
        maps: Sensitivity of each group, float32 ``[groups]``.
        certificates: What is known about a proof, by name.
    """

    timelines: Mapping[int, Sequence[tuple[float, int, int]]] = field(default_factory=dict)
    scores: Mapping[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    maps: Mapping[int, Tensor] = field(default_factory=dict)
    certificates: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


def gallery_of(
    snapshot: Snapshot,
    inputs: Inputs | None,
    details: Details,
    heads: Sequence[Sequence[str]],
    *,
    pictures: Pictures,
) -> tuple[Block, Gallery]:
    """The table of the images of an evaluation.

    Args:
        snapshot: The bounds.
        inputs: The originals; without them there are no pictures and no values before.
        details: What the view of an image shows.
        heads: Columns.
        pictures: Where the pictures are.
    """
    result = snapshot.to_dict()
    places = {} if inputs is None else {index: row for row, index in enumerate(inputs.indices)}
    originals = None if inputs is None else inputs.images[[places[image.index] for image in snapshot.images]]
    extras = [
        extra_of(image.index, image.witness, None if originals is None else originals[row], details)
        for row, image in enumerate(snapshot.images)
    ]
    if originals is not None and not is_picture(tuple(originals.shape[1:])) and originals.numel() <= ROW_VALUES:
        for extra, original in zip(extras, originals, strict=True):
            extra["row"] = [plain_number(value) for value in original.flatten().to(torch.float32).tolist()]
    order = sorted(
        range(len(snapshot.images)), key=lambda row: (snapshot.images[row].upper, snapshot.images[row].lower, row)
    )
    return make_gallery(
        result,
        extras,
        heads,
        originals=originals,
        domain=None if inputs is None else limits(inputs.domain.low, inputs.domain.high),
        first=order,
        unit=snapshot.unit,
        names=snapshot.config.get("names", {}),
        pictures=pictures,
    )


def make_gallery(
    result: Mapping[str, Any],
    extras: Sequence[Mapping[str, Any]],
    heads: Sequence[Sequence[str]],
    *,
    originals: Tensor | None,
    domain: tuple[float, float] | None,
    first: Sequence[int] = (),
    unit: str,
    names: Mapping[str, Any],
    pictures: Pictures = "inside",
    title: str = "",
    file: str = "result",
) -> tuple[Block, Gallery]:
    """A table of inputs.

    Args:
        result: JSON with the rows, ``images``.
        extras: For each row what its view shows besides, from :func:`extra_of`.
        heads: Columns, from ``blocks.columns``.
        originals: ``[rows, *shape]``; ``None`` without pictures.
        domain: The values drawn black and white.
        first: Rows whose pictures come first where not all fit.
        unit: What a group is called.
        names: ``Names.to_config``.
        pictures: Where the pictures are.
        title: Above the table; default what inputs are called.
        file: What downloads are called.
    """
    low, high = domain or (0.0, 1.0)
    shape = () if originals is None else tuple(originals.shape[1:])
    sheets, notes = None, list[str]()
    word = noun(shape, named=bool(names.get("features")))
    heads = [[path, word if kind == "image" and name == "image" else name, kind] for path, name, kind in heads]
    if originals is not None and pictures == "served":
        sheets = plan_sheets(originals)
    elif originals is not None and pictures == "inside":
        room = PAGE - room_of(result, extras)
        sheets = make_sheets(originals, low, high, first=first, room=room)
        if sheets is not None and not sheets.exact:
            notes.append("Pictures are stored with loss, so that the page stays small; changed values are exact.")
        if sheets is not None and sheets.cells is not None and -1 in sheets.cells:
            shown = sum(cell >= 0 for cell in sheets.cells)
            notes.append(
                f"Pictures of {shown:,} of {len(shown_rows(result)):,} {word}s fit into this page, those with the "
                "smallest upper bounds; l0tre serve shows all."
            )
    block = blocks.gallery(
        title or f"{word.capitalize()}s",
        heads,
        shape=shape,
        channels=channel_axis(shape),
        low=low,
        high=high,
        unit=unit,
        names=names,
        picture=None if sheets is None else sheets.to_dict(),
        notes=notes,
        file=file,
    )
    return block, Gallery(result, extras, () if sheets is None else sheets.files, tuple(notes))


def shown_rows(result: Mapping[str, Any]) -> Sequence[Any]:
    """The rows of a table."""
    rows: Sequence[Any] = result["images"]
    return rows


def room_of(result: Mapping[str, Any], extras: Sequence[Mapping[str, Any]]) -> int:
    """Characters that everything but pictures takes in a page."""
    return len(packed({"result": result, "extras": extras})) + 300_000  # blocks, code, style


def extra_of(index: int, witness: Witness | None, original: Tensor | None, details: Details) -> dict[str, Any]:
    """What the view of an image shows besides its row."""
    found: dict[str, Any] = {}
    if witness is not None and original is not None:
        before = original.flatten()[witness.positions].to(torch.float32)
        found["before"] = [plain_number(value) for value in before.tolist()]
    if index in details.timelines:
        found["timeline"] = [
            [plain_number(seconds), lower, upper] for seconds, lower, upper in details.timelines[index]
        ]
    if index in details.scores:
        found["scores"] = score_rows(*details.scores[index])
    if index in details.maps:
        found["map"] = [plain_number(value, 3) for value in details.maps[index].flatten().tolist()]
    if index in details.certificates:
        found["certificate"] = dict(details.certificates[index])
    return found


def score_rows(before: Tensor, after: Tensor | None) -> list[list[Any]]:
    """Class, score before, score after: of the classes that lead before or after, best first."""
    leading = set(before.topk(min(SCORES, len(before))).indices.tolist())
    if after is not None:
        leading |= set(after.topk(min(SCORES, len(after))).indices.tolist())
    ordered = sorted(leading, key=lambda number: -float(before[number]))
    return [
        [n, plain_number(float(before[n])), None if after is None else plain_number(float(after[n]))] for n in ordered
    ]


def plain_number(value: float, digits: int = 7) -> float | None:
    """A number in the digits that float32 has; JSON knows no NaN."""
    return float(f"{value:.{digits}g}") if abs(value) < float("inf") else None


def witness_entry(original: Tensor, changed: Tensor, label: int) -> dict[str, Any]:
    """A changed input as a row of a table has it, for results that store it whole.

    Args:
        original: Any shape.
        changed: Same shape.
        label: The decision for it.
    """
    before, after = original.flatten(), changed.flatten()
    positions = (before != after).nonzero()[:, 0]
    return {
        "positions": positions.tolist(),
        "values": [plain_number(v) for v in after[positions].tolist()],
        "label": label,
    }
