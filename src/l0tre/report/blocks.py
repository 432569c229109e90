"""A page as data: blocks that the components in ``assets/`` draw, and that other formats are made from.

Whatever a page shows is a list of blocks, plain JSON. A new page is a function that returns a :class:`Document`; it
needs no HTML and no script of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from l0tre.layout import noun

__all__ = [
    "Block",
    "Document",
    "Gallery",
    "Head",
    "Kind",
    "Series",
    "answer",
    "chart",
    "columns",
    "facts",
    "gallery",
    "heat",
    "matrix",
    "paragraphs",
    "table",
    "tiles",
]

Block = dict[str, Any]
Draw = Literal["step", "line", "bars", "points"]
Kind = Literal["number", "index", "mean", "text", "share", "seconds"]  # means of one column have the same decimals
Head = tuple[str, Kind]
MOST_CLASSES = 40  # of a matrix; pairs of more classes are listed
MOST_POINTS = 2000  # of a line that is long only because every step is a point


@dataclass(frozen=True)
class Gallery:
    """The inputs behind a page's table of images.

    Attributes:
        result: JSON whose ``images`` are the rows of the table; what the page offers to download.
        extras: For each row what the image's view shows besides: values before, scores, bounds over time.
        sheets: Pictures of the originals as data URIs, each of many inputs side by side.
        notes: What was left out, and why.
    """

    result: Mapping[str, Any]
    extras: Sequence[Mapping[str, Any]]
    sheets: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """One page.

    Attributes:
        title: Its name.
        blocks: What it shows, in order.
        gallery: What its table of images is about; ``None`` without one.
        state: Which state of a run it shows; empty if it is of no run.
    """

    title: str
    blocks: tuple[Block, ...]
    gallery: Gallery | None = None
    state: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: What people call it.
        role: Its colour: ``lower``, ``upper``, or the number of a network or an attack, ``0``, ``1``, ...
        values: A value for each place on the horizontal axis; ``None`` where there is none.
        draw: How.
    """

    name: str
    role: str
    values: Sequence[float | None]
    draw: Draw = "step"


def answer(text: str, notes: Sequence[str] = ()) -> Block:
    """The result in one sentence, and what must be known besides."""
    return {"type": "answer", "id": "answer", "text": text, "notes": list(notes)}


def tiles(rows: Sequence[tuple[str, str, str]]) -> Block:
    """Figures to be seen at once: name, value, what it means."""
    return {"type": "tiles", "id": "tiles", "tiles": [list(row) for row in rows]}


def paragraphs(id: str, title: str, texts: Sequence[tuple[str, str]], *, half: bool = False) -> Block:
    """Sentences, each with the word that it explains; a half one leaves room for another beside it."""
    return {"type": "paragraphs", "id": id, "title": title, "texts": [list(text) for text in texts], "half": half}


def chart(
    id: str,
    title: str,
    variants: Sequence[tuple[str, Sequence[float], Sequence[Series]]],
    *,
    x: str,
    y: str,
    note: str = "",
    hint: str = "",
    summary: str = "",
    band: bool = False,
    stacked: bool = False,
    log: bool = False,
    log_x: bool = False,
    share: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    pick: Sequence[Sequence[int]] = (),
    places: Sequence[str] = (),
) -> Block:
    """Lines over a common axis.

    Args:
        id: Of the block in its page.
        title: Above it.
        variants: One or several charts to choose from: name, places on the horizontal axis, lines.
        x: What the horizontal axis shows, with its unit.
        y: What the vertical axis shows, with its unit.
        note: A sentence below it.
        hint: What a click does, left out where nobody can click.
        summary: The chart in words, for those who cannot see it.
        band: Fill the area between the first two lines.
        stacked: The first bars are drawn over the second ones, which hold them.
        log: Nearly logarithmic vertical axis, on which 0 has a place.
        log_x: The same for the horizontal one.
        share: The vertical axis is a share from 0 to 1, shown in per cent.
        marks: Vertical guide lines: place and label.
        pick: For each variant, the image behind each place: a click opens it.
        places: Names of the places 1, 2, ... on the horizontal axis.
    """
    drawn = [
        {
            "name": name,
            "x": _short(at),
            "series": [
                {"name": one.name, "role": one.role, "draw": one.draw, "values": _short(one.values)} for one in series
            ],
        }
        for name, at, series in variants
    ]
    return {
        "type": "chart",
        "id": id,
        "title": title,
        "variants": drawn,
        "x": x,
        "y": y,
        "note": note,
        "hint": hint,
        "summary": summary,
        "band": band,
        "stacked": stacked,
        "log": log,
        "log_x": log_x,
        "share": share,
        "marks": [[place, label] for place, label in marks],
        "pick": [list(one) for one in pick],
        "places": list(places),
    }


def _short(values: Sequence[float | None]) -> list[float | None]:
    """Six digits: more cannot be seen, and take room. NaN and infinity, which JSON has not, become gaps."""
    return [
        None
        if value is None or value != value or abs(value) == float("inf")
        else value
        if isinstance(value, int)
        else float(f"{value:.6g}")
        for value in values
    ]


def table(
    id: str,
    title: str,
    heads: Sequence[Head],
    rows: Sequence[Sequence[Any]],
    *,
    note: str = "",
    total: Sequence[Any] = (),
    half: bool = False,
) -> Block:
    """Rows that can be sorted by any column; ``None`` is an empty cell, ``total`` a last row that stays last."""
    return {
        "type": "table",
        "id": id,
        "title": title,
        "heads": [list(head) for head in heads],
        "rows": [list(row) for row in rows],
        "total": list(total),
        "note": note,
        "half": half,
    }


def matrix(
    id: str,
    title: str,
    names: Sequence[str],
    counts: Mapping[tuple[int, int], int],
    *,
    note: str = "",
    hint: str = "",
) -> Block:
    """Counts of ordered pairs of classes: a coloured matrix, or a list of pairs where the classes are too many."""
    used = sorted({number for pair in counts for number in pair})
    label = [names[number] if number < len(names) else str(number) for number in range(max(used, default=-1) + 1)]
    if len(used) > MOST_CLASSES:
        pairs = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        rows = [[label[a], label[b], count] for (a, b), count in pairs]
        return table(id, title, [("label", "text"), ("becomes", "text"), ("inputs", "number")], rows, note=note)
    return {
        "type": "matrix",
        "id": id,
        "title": title,
        "labels": [label[number] for number in used],
        "numbers": used,
        "counts": [[counts.get((a, b), 0) for b in used] for a in used],
        "note": note,
        "hint": hint,
    }


def heat(id: str, title: str, values: Sequence[Sequence[float]], *, note: str = "", unit: str = "") -> Block:
    """A picture of numbers, ``[rows][columns]``, told by the pointer."""
    return {
        "type": "heat",
        "id": id,
        "title": title,
        "values": [list(row) for row in values],
        "note": note,
        "unit": unit,
    }


def facts(id: str, title: str, rows: Sequence[tuple[str, str]], *, closed: bool = True, half: bool = False) -> Block:
    """Names and values, such as a configuration; closed ones open on a click."""
    shown = [list(row) for row in rows]
    return {"type": "facts", "id": id, "title": title, "rows": shown, "closed": closed, "half": half}


def columns(*heads: tuple[str, str, str]) -> list[list[str]]:
    """Columns of a gallery: path in a row's JSON, heading, kind.

    Kinds are ``number``, ``text``, ``seconds``, ``class`` (a class, by its number), ``image`` (position and name),
    ``state`` (exact, open, ...), ``upper``, ``yes`` (or nothing), ``picture``.
    """
    return [list(head) for head in heads]


def gallery(
    title: str,
    heads: Sequence[Sequence[str]],
    *,
    shape: tuple[int, ...],
    channels: int | None,
    low: float,
    high: float,
    unit: str,
    names: Mapping[str, Any],
    picture: Mapping[str, Any] | None,
    notes: Sequence[str] = (),
    file: str = "result",
) -> Block:
    """The table of inputs with their pictures; its rows are the page's :class:`Gallery`.

    Args:
        title: Above it.
        heads: From :func:`columns`.
        shape: Of one input.
        channels: Which axis holds the channels, ``None`` for none.
        low: The value drawn black.
        high: The value drawn white.
        unit: What a group is called.
        names: ``classes``, ``features``, ``words`` and ``inputs``, as ``Names.to_config`` gives them.
        picture: Where pictures are: ``width``, ``height``, ``across`` and ``sheet`` (cells of a sheet), ``cells`` (of
            each row, -1 for none; ``None`` if row and cell are the same). ``None`` if inputs are no pictures.
        notes: What was left out.
        file: What downloads are called.
    """
    return {
        "type": "gallery",
        "id": "images",
        "title": title,
        "columns": list(heads),
        "shape": list(shape),
        "channels": channels,
        "low": low,
        "high": high,
        "unit": unit,
        "noun": noun(shape, named=bool(names.get("features"))),
        "names": dict(names),
        "picture": None if picture is None else dict(picture),
        "notes": list(notes),
        "file": file,
    }
