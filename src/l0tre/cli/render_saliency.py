"""Saliency maps as text and for JSON."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from l0tre.cli.terminal import literal, say
from l0tre.layout import channel_axis
from l0tre.maps.observed import ObservedLayer
from l0tre.maps.pairs import Pairs
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.maps.together import Together
from l0tre.names import NO_NAMES, Names

__all__ = ["map_dict", "show_layers", "show_map"]


def _where(found: SaliencyMap, place: int, names: Names) -> str:
    """A group in words: the names of its columns, row and column of a pixel, else its number."""
    number = int(found.groups[place])
    if names.features:
        return ", ".join(dict.fromkeys(literal(names.feature(position)) for position in found.members[place].tolist()))
    if found.group != "pixel" or len(found.shape) < 2:
        return str(number)
    width = found.shape[1] if channel_axis(found.shape) == 2 else found.shape[-1]
    return f"({number // width}, {number % width})"


def _colour(found: SaliencyMap, place: int, values: Tensor, names: Names) -> str:
    """The values that a group takes, in words where they stand for some."""
    named = zip(found.members[place].tolist(), values.tolist(), strict=True)
    return ", ".join(literal(names.value(at, value)) if at in names.words else f"{value:.3g}" for at, value in named)


def map_dict(
    found: SaliencyMap, model: str, file: Path, pairs: Pairs | None, together: Together | None = None
) -> dict[str, Any]:
    """A map for JSON."""
    facts: dict[str, Any] = {
        "model": model,
        "observed": found.observed,
        "unit": found.unit,
        "value": found.base,
        "complete": found.complete,
        "measured": int(found.measured.sum()),
        "groups": len(found.drop),
        "group": found.group,
        "points": found.points,
        "audit": None if found.audit is None else asdict(found.audit),
        "evaluations": found.evaluations,
        "ranked_in_half_precision": found.ranked,
        "seconds": round(found.seconds, 3),
        "strongest": [
            {
                "group": int(found.groups[place]),
                "drop": float(found.drop[place]),
                "colour": [round(value, 6) for value in found.colours[place].tolist()],
                "measured": bool(found.measured[place]),
            }
            for place in found.strongest(20).tolist()
        ],
        "arrays": str(file),
    }
    if pairs is not None:
        facts["pairs"] = [
            {
                "groups": [int(found.groups[place]) for place in groups],
                "together": float(together),
                "interaction": float(interaction),
            }
            for groups, together, interaction in zip(
                pairs.groups.tolist(), pairs.together.tolist(), pairs.interaction.tolist(), strict=True
            )
        ]
    if together is not None:
        facts["together"] = [
            {
                "group": int(found.groups[place]),
                "colour": [round(value, 6) for value in colour.tolist()],
                "drop_so_far": float(drop),
            }
            for place, colour, drop in zip(
                together.groups.tolist(), together.colours, together.drops.tolist(), strict=True
            )
        ]
    return facts


def show_map(
    found: SaliencyMap,
    title: str,
    pairs: Pairs | None,
    chosen: Together | None,
    console: Console,
    rows: int,
    names: Names = NO_NAMES,
) -> None:
    """Print what a map says in a few lines, with the names of columns where there are any."""
    console.print(f"{literal(title)}: {literal(found.observed)}, {found.base:.4g} as it is", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for name in (found.group, "lowers it by", "at"):
        table.add_column(name, justify="right")
    for place in found.strongest(rows).tolist():
        colour = _colour(found, place, found.colours[place], names)
        guess = "" if found.measured[place] else " (predicted)"
        table.add_row(_where(found, place, names), f"{float(found.drop[place]):.4g}{guess}", colour)
    if bool(found.measured.any()):
        console.print(table)
    if pairs is not None and len(pairs.groups):
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
        for name in (f"{found.group}s", "together", "beyond the sum"):
            table.add_column(name, justify="right")
        for groups, together, more in list(zip(pairs.groups.tolist(), pairs.together, pairs.interaction, strict=True))[
            :rows
        ]:
            table.add_row(" ".join(_where(found, place, names) for place in groups), f"{together:.4g}", f"{more:+.4g}")
        console.print(table)
    if chosen is not None and len(chosen.groups):
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
        for name in (f"{found.group}s", "the last one", "at", "together they lower it by"):
            table.add_column(name, justify="right")
        for count, (place, colour, drop) in enumerate(
            zip(chosen.groups.tolist(), chosen.colours, chosen.drops.tolist(), strict=True), 1
        ):
            table.add_row(str(count), _where(found, place, names), _colour(found, place, colour, names), f"{drop:.4g}")
        console.print(table)
    measured = int(found.measured.sum())
    console.print(
        f"measured  {measured:,} of {len(found.drop):,} {found.group}s, {found.points} values each, in float32"
        + ("" if found.complete else "; the others are predicted")
    )
    if found.audit is not None:
        audit = found.audit
        console.print(
            f"check     {audit.beyond} of {audit.groups} random {found.group}s reach the weakest of the strongest that "
            f"were found (the nearest {audit.largest:.0%} of it); predictions are off by {audit.median:.3g} (median), "
            f"{audit.most:.3g} (95 %)",
            soft_wrap=True,
        )
    ranked = f", {found.ranked:,} in half precision to rank them" if found.ranked else ""
    console.print(f"time      {found.seconds:.1f} s, {found.evaluations:,} queries{ranked}")


def show_layers(found: list[ObservedLayer], name: str, console: Console, *, as_json: bool) -> None:
    """Print the layers of a network."""
    if as_json:
        say(json.dumps([asdict(layer) for layer in found], indent=1))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline", title=literal(name))
    for column in ("layer", "kind", "name", "shape"):
        table.add_column(column, justify="right" if column == "layer" else "left")
    for layer in found:
        table.add_row(str(layer.position), layer.kind, literal(layer.name), " x ".join(map(str, layer.shape)))
    console.print(table)
