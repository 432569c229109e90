"""The page of attacks side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from l0tre.names import NO_NAMES, Names
from l0tre.report import blocks
from l0tre.report.attack import curves
from l0tre.report.blocks import Document, Head, Kind, Series
from l0tre.report.inputs import make_gallery, plain_number, witness_entry

__all__ = ["PeerEntry", "peers_page"]


QUERIES = (
    "A budget of {:,} queries (forward and backward passes) for each input, as close as each attack's settings come to "
    "it; the table has what they took."
)


@dataclass(frozen=True)
class PeerEntry:
    """What one attack found.

    Attributes:
        name: The attack's.
        figures: Figures of its row, by heading.
        distances: Changed groups for each image, ``None`` where nothing was found.
        adversarial: ``[images, *shape]``.
        decisions: int64 ``[images]``.
    """

    name: str
    figures: Mapping[str, Any]
    distances: Sequence[int | None]
    adversarial: Tensor
    decisions: Tensor


def peers_page(
    entries: Sequence[PeerEntry],
    originals: Tensor,
    labels: Sequence[int],
    indices: Sequence[int],
    *,
    unit: str,
    budget: int,
    model: str,
    data: str,
    by_budget: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    names: Names = NO_NAMES,
    low: float = 0.0,
    high: float = 1.0,
) -> Document:
    """Attacks side by side on the same images.

    Args:
        entries: The attacks.
        originals: ``[images, *shape]``.
        labels: Of each image.
        indices: Their positions in the user's data.
        unit: What a group is called.
        budget: Passes for each image.
        model: The network's name.
        data: The data's.
        by_budget: For each attack its mean distance at several budgets.
        names: Of classes, inputs and columns.
        low: The value drawn black.
        high: The value drawn white.
    """
    total = len(indices)
    known = {entry.name: [d for d in entry.distances if d is not None] for entry in entries}
    everywhere = [row for row in range(total) if all(entry.distances[row] is not None for entry in entries)]
    means = {
        entry.name: sum(entry.distances[row] or 0 for row in everywhere) / len(everywhere)
        for entry in entries
        if everywhere
    }
    least = min(means.values(), default=0.0)
    best = [name for name, mean in means.items() if mean == least]
    need = "need" if len(best) > 1 else "needs"
    text = (
        f"{' and '.join(best)} {need} fewest changes: {least:.3f} {unit}s on average over the {len(everywhere):,} of "
        f"{total:,} inputs that every attack changed."
        if means
        else f"No input was changed by every attack, of {total:,}."
    )
    heads: list[Head] = [("attack", "text")]
    every = entries[0].figures if entries else {}
    shown_figures = [name for name in every if any(entry.figures[name] != "" for entry in entries)]
    if entries:
        heads += [(name, _kind(name, value)) for name, value in entries[0].figures.items() if name in shown_figures]
    rows = [[entry.name, *(entry.figures[name] for name in shown_figures)] for entry in entries]
    shown = [
        blocks.answer(text, [QUERIES.format(budget), "Every input was replayed by the network's own source."]),
        blocks.table("attacks", "Attacks", heads, rows),
        curves(known, total, unit),
    ]
    if by_budget:
        places = sorted({place for points in by_budget.values() for place, _ in points})
        lines = [
            Series(name, str(number), [dict(points).get(place) for place in places], "line")
            for number, (name, points) in enumerate(by_budget.items())
        ]
        chart = blocks.chart(
            "budgets",
            "Changes against queries",
            [("", places, lines)],
            x="queries for each input",
            y=f"{unit}s changed (mean)",
            log_x=True,
            summary="Mean number of changes of each attack at several budgets.",
        )
        shown.append(chart)
    block, gallery = _gallery(entries, originals, labels, indices, unit, names, (low, high))
    return Document(f"Attacks on {model} with {data}", (*shown, block), gallery)


def _kind(name: str, value: Any) -> Kind:
    if isinstance(value, str):
        return "text"
    return "mean" if "mean" in name else "number"


def _gallery(
    entries: Sequence[PeerEntry],
    originals: Tensor,
    labels: Sequence[int],
    indices: Sequence[int],
    unit: str,
    names: Names,
    limits: tuple[float, float],
) -> tuple[blocks.Block, blocks.Gallery]:
    heads = blocks.columns(
        ("picture", "", "picture"),
        ("index", "image", "image"),
        ("label", "label", "class"),
        *((f"changed.{number}", entry.name, "number") for number, entry in enumerate(entries)),
        ("best", "fewest by", "text"),
        ("witness.label", "becomes", "class"),
    )
    rows, extras = list[dict[str, Any]](), list[dict[str, Any]]()
    for row, (index, label) in enumerate(zip(indices, labels, strict=True)):
        found = [(entry.distances[row], number) for number, entry in enumerate(entries)]
        done = [(distance, number) for distance, number in found if distance]
        witness, extra, best = None, dict[str, Any](), ""
        if done:
            entry = entries[min(done)[1]]
            best = ", ".join(entries[number].name for distance, number in done if distance == min(done)[0])
            witness = witness_entry(originals[row], entry.adversarial[row], int(entry.decisions[row]))
            extra = {"witnesses": [_witness(entries[number], originals[row], row) for _, number in done]}
        sizes = [distance for distance, _ in found]
        rows.append({"index": index, "label": label, "changed": sizes, "best": best, "witness": witness})
        extras.append(extra)
    stored = names.to_config(indices)
    result = {"images": rows, "attacks": [entry.name for entry in entries], "config": {"names": stored}}
    return make_gallery(
        result, extras, heads, originals=originals, domain=limits, unit=unit, names=stored, file="attacks"
    )


def _witness(entry: PeerEntry, original: Tensor, row: int) -> dict[str, Any]:
    """What an attack changed in one input."""
    found = witness_entry(original, entry.adversarial[row], int(entry.decisions[row]))
    before = [plain_number(value) for value in original.flatten()[found["positions"]].tolist()]
    return {"by": entry.name, **found, "before": before}
