"""Pages of the studies that have no runs: suites of tests, saliency maps."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from l0tre.errors import MissingExtraError
from l0tre.figures.maps import Panel
from l0tre.figures.tables import Rows
from l0tre.report.blocks import Block, Document, Head, Series, answer, chart, columns, table
from l0tre.report.inputs import make_gallery, plain_number, witness_entry
from l0tre.report.maps import map_picture
from l0tre.report.page import save_page

__all__ = ["PAGE", "maps_page", "suites_page", "write_page"]

PAGE = "report.html"
MAP_VALUES = 400_000  # of maps that a page has room for
MAP_COLUMNS = columns(
    ("picture", "", "picture"),
    ("index", "image", "image"),
    ("network", "network", "text"),
    ("observed", "number", "text"),
    ("base", "for the image", "number"),
    ("largest", "largest drop", "number"),
    ("distance", "changed", "number"),
    ("becomes", "becomes", "text"),
)


def write_page(out: Path, make: Callable[[], Document]) -> tuple[Path, ...]:
    """Write the page of a study, if the packages for pages are there.

    Args:
        out: The study's folder.
        make: Gives the page.

    Returns:
        The file; nothing if jinja2 or Pillow is not installed.
    """
    try:
        return (save_page(make(), out / PAGE),)
    except MissingExtraError:
        return ()


def suites_page(
    title: str, curves: Mapping[str, Rows], table_rows: Rows, layers: Rows, suites: Rows, notes: Sequence[str]
) -> Document:
    """The page of case study three.

    Args:
        title: Its name.
        curves: For each network coverage by distance, means over its seeds.
        table_rows: A row for each network.
        layers: A row for each layer of each network.
        suites: A row for each suite.
        notes: What must be known besides.
    """
    found = [
        f"{row['network']}: {row['coverage %']:.2f} % of {row['neurons']:,} neurons are covered, the mean over "
        f"{row['seeds']} seed{'' if row['seeds'] == 1 else 's'}."
        for row in table_rows
    ]
    variants = []
    for name, curve in curves.items():
        lines = [Series("suite", "lower", [row["coverage"] for row in curve])]
        lines.append(Series("proved limit", "open", [row["at_most"] for row in curve]))
        if all(row["random"] is not None for row in curve):
            lines.append(Series("random changes", "4", [row["random"] for row in curve]))
        variants.append((name, [row["l0"] for row in curve], lines))
    drawn = chart(
        "coverage",
        "Coverage against distance",
        variants,
        x="pixels changed, at most",
        y="neurons",
        share=True,
        summary="Share of neurons covered by tests with at most so many changed pixels, mean over seeds.",
    )
    tables = [
        rows_table("networks", "Networks, means over seeds", table_rows),
        rows_table("layers", "Layers, sums over seeds", layers),
        rows_table("suites", "Suites", suites),
    ]
    return Document(title, (answer(" ".join(found), notes), drawn, *tables))


def maps_page(
    title: str, rows: Rows, means: Rows, panels: Mapping[int, Sequence[Panel]], counts: Sequence[int], data: str
) -> Document:
    """The page of case study five.

    Args:
        title: Its name.
        rows: A row for each map.
        means: A row for each network, method and way to replace pixels.
        panels: By position of the image in the user's data its maps.
        counts: Numbers of pixels that were replaced.
        data: The data's name.
    """
    drop = fmean(row["largest drop"] for row in rows) if rows else 0.0
    text = f"{len(rows)} maps of {len(panels)} images of {data}"
    text += f": the strongest pixel alone lowers the score by {drop:.4g} on average." if rows else "."
    blocks: list[Block] = [answer(text)]
    kinds = dict.fromkeys((row["network"], row["replaced by"]) for row in means)
    variants = []
    for network, way in kinds:
        own = [row for row in means if (row["network"], row["replaced by"]) == (network, way)]
        places = [count for count in counts if f"drop at {count}" in own[0]]
        lines = [
            Series(row["method"], str(number), [row[f"drop at {count}"] for count in places], "line")
            for number, row in enumerate(own)
        ]
        variants.append((f"{network}, {way}", places, lines))
    if variants:
        blocks.append(
            chart(
                "quality",
                "How far the score falls",
                variants,
                x="pixels replaced, those that a method calls strongest first",
                y="units of the score (mean)",
                log_x=True,
                summary="Fall of the score when the strongest pixels of each method's map are replaced.",
            )
        )
    blocks += [rows_table("maps", "Maps", rows), rows_table("means", "Quality, means over all images", means)]
    shown = [(index, panel) for index, several in panels.items() for panel in several]
    if not shown or any(panel.image.shape != shown[0][1].image.shape for _, panel in shown):
        return Document(title, tuple(blocks))
    block, gallery = _gallery(shown)
    return Document(title, (*blocks, block), gallery)


def _gallery(shown: Sequence[tuple[int, Panel]]) -> tuple[Block, Any]:
    """The images with their maps and what the attack changed, as many maps as there is room for."""
    entries: list[dict[str, Any]] = []
    extras: list[dict[str, Any]] = []
    room = MAP_VALUES
    for index, panel in shown:
        found, changed = panel.found, panel.adversarial
        witness = None if changed is None else witness_entry(panel.image, changed[0], 0)
        entries.append(
            {
                "index": index,
                "label": None,
                "network": panel.title,
                "observed": found.observed,
                "base": plain_number(found.base, 6),
                "largest": plain_number(float(found.drop.max()), 6),
                "distance": None if changed is None else int(changed[1].split()[0]),
                "becomes": "" if changed is None else changed[1].partition(": ")[2],
                "witness": None if witness is None else {**witness, "label": None},
            }
        )
        extra: dict[str, Any] = {}
        if witness is not None:
            before = panel.image.flatten()[witness["positions"]]
            extra["before"] = [plain_number(value) for value in before.tolist()]
        values = [plain_number(value, 4) for line in map_picture(found) or [] for value in line]
        if values and len(values) <= room:
            room -= len(values)
            extra["map"] = values
        extras.append(extra)
    images = torch.stack([panel.image.detach().cpu() for _, panel in shown])
    low, high = min(0.0, float(images.min())), max(1.0, float(images.max()))
    return make_gallery(
        {"images": entries, "config": {"names": {}}},
        extras,
        MAP_COLUMNS,
        originals=images,
        domain=(low, high),
        unit=shown[0][1].found.group,
        names={},
        title="Images",
        file="maps",
    )


def rows_table(id: str, title: str, rows: Rows) -> Block:
    """Rows with names as a table: what any row has is a column."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    heads: list[Head] = []
    for key in keys:
        words = any(isinstance(row.get(key), str | bool) for row in rows)
        heads.append((key.replace("_", " "), "index" if key in ("image", "seed") else "text" if words else "number"))
    return table(id, title, heads, [[_cell(row.get(key)) for key in keys] for row in rows])


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain_number(value) if isinstance(value, float) else value
