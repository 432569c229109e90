"""The page of an attack: how few changes it needed, on which images, and what they are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from l0tre.attacks.attacked import Attacked
from l0tre.figures.pictures import is_picture, plane
from l0tre.names import NO_NAMES, Names
from l0tre.report import blocks
from l0tre.report.blocks import Block, Document, Gallery, Head, Series
from l0tre.report.charts import LINEAR_TOP
from l0tre.report.inputs import make_gallery, score_rows, witness_entry

__all__ = ["attack_page", "curves"]

COLUMNS = blocks.columns(
    ("picture", "", "picture"),
    ("index", "image", "image"),
    ("label", "label", "class"),
    ("distance", "changed", "number"),
    ("witness.label", "becomes", "class"),
    ("method", "method", "text"),
    ("optimal", "fewest possible", "text"),
    ("passes", "queries", "number"),
)

BECOMES = ["witness.label", "becomes", "class"]

NO_PROOF = "Nothing is proved of fewer changes, but for inputs of which the table says that no fewer are possible."


def attack_page(
    result: Attacked,
    originals: Tensor | None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    indices: Sequence[int] | None = None,
    names: Names = NO_NAMES,
    labels: Sequence[int] | None = None,
    scores: Mapping[int, tuple[Tensor, Tensor | None]] | None = None,
    model: str = "",
    data: str = "",
) -> Document:
    """The page of an attack.

    Args:
        result: What it gave.
        originals: The inputs, ``[images, *shape]``; without them there are no pictures and no changes.
        low: The value drawn black.
        high: The value drawn white.
        indices: Positions of the images in the user's data; default 0, 1, ...
        names: Of classes, inputs and columns.
        labels: Of the inputs as they are; default those that the attack left, unknown if it was targeted.
        scores: By position in the user's data, float32 ``[classes]`` before and after the changes.
        model: The network's name.
        data: The data's.
    """
    places = list(range(len(result)) if indices is None else indices)
    distances = result.distance[result.changed].tolist()
    aimed = _aimed(result)
    if labels is None and not aimed:
        labels = result.labels.tolist()
    title = f"Attack on {model or 'a network'}" + (f" with {data}" if data else "")
    replayed = f"{result.seconds:,.1f} s for all of them. Every input was replayed by the network's own source."
    notes = [replayed, NO_PROOF, *result.notes]
    found: list[Block] = [
        blocks.answer(_answer(result, distances, names), notes),
        blocks.tiles(_tiles(result, distances)),
    ]
    if distances:
        found += [curves({"share": distances}, len(result), result.unit), _histogram(distances, result.unit)]
    found += [_methods(result), *_pairs(result, labels, names), *_where(result, originals)]
    shown, gallery = _gallery(result, originals, places, names, labels, scores or {}, (low, high))
    return Document(title, (*found, shown), gallery)


def _aimed(result: Attacked) -> bool:
    """Whether the attack was to reach classes, not to leave them."""
    return bool((result.decisions == result.labels)[result.changed].any())


def _answer(result: Attacked, distances: Sequence[int], names: Names) -> str:
    total = len(result)
    if not distances:
        return f"No change that alters a decision was found for any of {total:,} inputs."
    unit = result.unit
    text = f"Changing {fmean(distances):.3f} {unit}s on average (median {median(distances):g}) alters the decision"
    if _aimed(result):
        targets = set(result.labels.tolist())
        text += f" to {names.label(targets.pop())}" if len(targets) == 1 else " to the wanted one"
    return f"{text} for {len(distances):,} of {total:,} inputs."


def _tiles(result: Attacked, distances: Sequence[int]) -> list[tuple[str, str, str]]:
    total = len(result)
    rows = [("changed", f"{len(distances)} of {total}", "with another decision")]
    if distances:
        rows.append(
            ("changes, mean", f"{fmean(distances):.3f}", f"median {median(distances):g}, least {min(distances)}")
        )
    wrong = int((result.found & (result.distance == 0)).sum())
    if wrong:
        rows.append(("as they are", str(wrong), "with the wanted decision already"))
    if optimal := int((result.optimal & result.changed).sum()):
        rows.append(("fewest possible", str(optimal), "no input with fewer changes exists"))
    passes = float((result.forwards + result.backwards).double().mean()) if total else 0.0
    return [*rows, ("queries for each", f"{passes:,.0f}", "forward and backward passes")]


def curves(found: Mapping[str, Sequence[int]], total: int, unit: str) -> Block:
    """Share of images whose decision was altered by at most so many changes, a line for each attack.

    Args:
        found: Distances of the images that each attack changed.
        total: Number of images.
        unit: What a group is called.
    """
    most = max((max(distances) for distances in found.values() if distances), default=1)
    every = sorted({0, *range(min(most, 300) + 1), *(d for distances in found.values() for d in distances), most + 1})
    lines = []
    for number, (name, distances) in enumerate(found.items()):
        counts = Counter(distances)
        sums, at = [], 0
        done = sorted(counts.items())
        reached = 0
        for place in every:
            while at < len(done) and done[at][0] <= place:
                reached += done[at][1]
                at += 1
            sums.append(reached / total)
        lines.append(Series(name, str(number) if len(found) > 1 else "upper", sums))
    return blocks.chart(
        "curves",
        "Share of inputs changed",
        [("", every, lines)],
        x=f"{unit}s that change, at most",
        y="inputs",
        share=True,
        log_x=most > LINEAR_TOP,
        summary=f"Share of {total} inputs whose decision is altered by at most so many changed {unit}s.",
    )


def _histogram(distances: Sequence[int], unit: str) -> Block:
    counts = Counter(distances)
    most = max(counts)
    places = list(range(most + 1)) if most <= LINEAR_TOP else sorted(counts)
    line = Series("inputs", "upper", [counts[place] for place in places], "bars")
    return blocks.chart(
        "distances",
        "Histogram of changes",
        [("", places, [line])],
        x=f"{unit}s changed",
        y="inputs",
        log_x=most > LINEAR_TOP,
        summary=f"Changed {unit}s of {len(distances)} inputs, from {min(counts)} to {most}.",
    )


def _methods(result: Attacked) -> Block:
    by_method: dict[str, list[int]] = {}
    for method, distance, changed in zip(
        result.methods, result.distance.tolist(), result.changed.tolist(), strict=True
    ):
        if changed:
            by_method.setdefault(method or "none", []).append(distance)
    heads: list[Head] = [("method", "text"), ("inputs", "number"), ("changes, mean", "mean")]
    rows = [[name, len(distances), fmean(distances)] for name, distances in sorted(by_method.items())]
    return blocks.table("methods", "Which method found the last change", heads, rows)


def _pairs(result: Attacked, labels: Sequence[int] | None, names: Names) -> list[Block]:
    if labels is None:
        return []
    both = zip(labels, result.decisions.tolist(), result.changed.tolist(), strict=True)
    counts = Counter((label, decision) for label, decision, done in both if done and label != decision)
    if not counts:
        return []
    words = [names.label(number) for number in range(max(max(pair) for pair in counts) + 1)]
    return [blocks.matrix("becomes", "What decisions become", words, counts, hint="A click lists the inputs.")]


def _where(result: Attacked, originals: Tensor | None) -> list[Block]:
    if originals is None or not is_picture(tuple(originals.shape[1:])) or not result.changed.any():
        return []
    touched = torch.zeros(plane(originals[0]).shape[:2], dtype=torch.int64)
    for row in result.changed.nonzero()[:, 0].tolist():
        touched += plane(originals[row] != result.adversarial[row]).any(2)
    note = f"For each pixel the number of images, of {int(result.changed.sum()):,}, in which it changes."
    return [blocks.heat("where", "Where changes fall", touched.tolist(), note=note, unit="images")]


def _gallery(
    result: Attacked,
    originals: Tensor | None,
    places: Sequence[int],
    names: Names,
    labels: Sequence[int] | None,
    scores: Mapping[int, tuple[Tensor, Tensor | None]],
    limits: tuple[float, float],
) -> tuple[Block, Gallery]:
    rows: list[dict[str, Any]] = []
    extras: list[dict[str, Any]] = []
    aimed = _aimed(result)
    heads = [column for column in COLUMNS if column[0] != "label" or labels is not None]
    if aimed:
        heads[heads.index(BECOMES) : heads.index(BECOMES)] = blocks.columns(("target", "target", "class"))
    for row, index in enumerate(places):
        changed = bool(result.changed[row])
        witness = None
        extra: dict[str, Any] = {}
        if changed and originals is not None:
            witness = witness_entry(originals[row], result.adversarial[row], int(result.decisions[row]))
            extra = {"before": originals[row].flatten()[witness["positions"]].tolist()}
        elif changed:
            witness = {"label": int(result.decisions[row])}
        rows.append(
            {
                "index": index,
                "label": None if labels is None else labels[row],
                **({"target": int(result.labels[row])} if aimed else {}),
                "distance": int(result.distance[row]) if bool(result.found[row]) else None,
                "method": result.methods[row],
                "optimal": "yes" if bool(result.optimal[row]) and changed else "",
                "passes": int(result.forwards[row] + result.backwards[row]),
                "witness": witness,
            }
        )
        if index in scores:
            extra["scores"] = score_rows(*scores[index])
        extras.append(extra)
    order = sorted(range(len(rows)), key=lambda row: (rows[row]["distance"] is None, rows[row]["distance"], row))
    stored = names.to_config(places)
    return make_gallery(
        {"images": rows, "unit": result.unit, "seconds": result.seconds, "config": {"names": stored}},
        extras,
        heads,
        originals=originals,
        domain=limits,
        first=order,
        unit=result.unit,
        names=stored,
        file="attack",
    )
