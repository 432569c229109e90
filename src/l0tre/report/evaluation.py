"""The page of an evaluation: what was found, what it means, what it rests on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import fmean, median
from typing import Any

import torch

from l0tre.domain import Domain
from l0tre.evaluation.accuracy import counts
from l0tre.evaluation.changes import place_of
from l0tre.evaluation.results import ImageBounds, Snapshot
from l0tre.figures.pictures import is_picture, plane
from l0tre.names import Names, names_of
from l0tre.report import blocks
from l0tre.report.asked import all_settings, asked
from l0tre.report.blocks import Block, Document, Head
from l0tre.report.charts import over_time, radii, shares, sorted_bounds, times
from l0tre.report.inputs import Details, Pictures, gallery_of
from l0tre.report.words import answer, counted, guarantees, is_sample, on_grid, progress, remarks
from l0tre.store import Inputs

__all__ = ["PageSource", "evaluation_page"]

COLUMNS = blocks.columns(
    ("picture", "", "picture"),
    ("index", "image", "image"),
    ("label", "label", "class"),
    ("lower", "lower", "number"),
    ("upper", "upper", "upper"),
    ("state", "state", "state"),
    ("witness.label", "becomes", "class"),
    ("guarantee", "guarantee", "text"),
    ("seconds", "seconds", "seconds"),
    ("queries", "queries", "number"),
)
CHECKED = blocks.columns(("checked", "checked again", "yes"))
LOWER: tuple[Head, ...] = (("lower, mean", "mean"), ("lower, least", "number"))
UPPER: tuple[Head, ...] = (("upper, mean", "mean"), ("upper, least", "number"))
MOST_FEATURES = 30  # columns listed by how often they change


@dataclass(frozen=True)
class PageSource:
    """What a page of an evaluation is made from.

    Attributes:
        snapshot: The bounds.
        inputs: What they are about; ``None`` if only the bounds are known.
        levels: The bounds at the end of each level; empty if they are not known.
        details: What is known of each image besides.
    """

    snapshot: Snapshot
    inputs: Inputs | None = None
    levels: Sequence[Snapshot] = ()
    details: Details = field(default_factory=Details)


def evaluation_page(run: PageSource, *, pictures: Pictures = "inside") -> Document:
    """The page of an evaluation.

    Args:
        run: What it is about.
        pictures: Whether the file holds pictures of its inputs, a server has them, or there are none.

    Returns:
        The page; nothing is computed anew.
    """
    snapshot, inputs = run.snapshot, run.inputs
    config = snapshot.config
    network = PurePath(str(config.get("model", {}).get("name", "network"))).name
    data = PurePath(str(config.get("data", {}).get("name", "inputs"))).name
    title = f"{network} on {data}: how many {snapshot.unit}s must change?"
    found: list[Block] = [
        blocks.answer(answer(snapshot), [progress(snapshot), *remarks(snapshot)]),
        blocks.tiles(_tiles(snapshot)),
    ]
    domain = None if inputs is None else inputs.domain
    found.append(blocks.paragraphs("guarantee", "What is guaranteed", _guaranteed(snapshot, domain), half=True))
    found.append(asked(snapshot, domain))
    found += [over_time(snapshot), sorted_bounds(snapshot, run.levels), shares(snapshot)]
    if not is_sample(snapshot):
        found.append(radii(snapshot))
    found += _tables(snapshot, run.levels)
    found += [*_pairs(snapshot), *_changes(snapshot, domain)]
    columns = [column for column in COLUMNS if column[0] != "lower" or not is_sample(snapshot)]
    columns = [*columns, *(CHECKED if any(image.checked for image in snapshot.images) else [])]
    shown, gallery = gallery_of(snapshot, inputs, run.details, columns, pictures=pictures)
    found.append(shown)
    found += _left_out(snapshot)
    found.append(all_settings(snapshot))
    return Document(title, tuple(found), gallery, snapshot.state)


def _tiles(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    images, total = snapshot.images, len(snapshot.images)
    known = [image.upper for image in images if image.witness is not None]
    sampled, with_one = is_sample(snapshot), counted(len(known), snapshot.noun)
    lower = "claimed by no proof" if sampled else f"median {median(i.lower for i in images):g}"
    rows = [
        ("lower bound, mean", "none" if sampled else f"{snapshot.lower:.3f}", lower),
        (
            "upper bound, mean",
            f"{fmean(known):,.3f}" if known else "none",
            f"median {median(known):,g}" + ("" if len(known) == total else f", of {with_one} with a witness")
            if known
            else "no witness",
        ),
    ]
    if len(known) < total:
        rows.append(
            (
                f"upper bound, all {snapshot.noun}s",
                f"{snapshot.upper:,.3f}",
                f"median {median(i.upper for i in images):,g}; one without a witness counts {images[0].groups + 1:,}",
            )
        )
    grid = on_grid(snapshot)
    smaller = "no smaller adversarial input is on the grid" if grid else "no smaller adversarial input exists"
    met = (
        f"{snapshot.converged / total:.1%} of the {snapshot.noun}s: {smaller}"
        if snapshot.converged
        else f"of no {snapshot.noun} yet"
    )
    rows.append(
        (
            f"known exactly{', on the grid' if grid else ''}",
            f"{snapshot.converged} of {total}",
            met,
        )
    )
    if not sampled:
        interval = f"{snapshot.estimate:,.3f} ± {snapshot.uncertainty:,.3f}"
        rows.append(("estimate", interval, "centre and half width of the interval"))
    correct, every, labelled = counts(snapshot)
    accuracy = f"{correct} of {every}" if labelled else "not known"
    rows.append(("decided correctly", accuracy, f"{len(snapshot.excluded)} left out of all means"))
    return rows


def _guaranteed(snapshot: Snapshot, domain: Domain | None) -> list[tuple[str, str]]:
    kinds = [(f"{kind} ({counted(count, snapshot.noun)})", text) for kind, count, text in guarantees(snapshot, domain)]
    unit = snapshot.unit
    values = " to grid values" if on_grid(snapshot) else ""
    least = f"no change of L {unit}s{values} alters the decision, one of L + 1 does."
    return [
        *kinds,
        (
            "upper bound U",
            f"Changing U {unit}s alters the decision: the changed input is stored and was run through the network's "
            "own source on the CPU. It needs no other guarantee.",
        ),
        ("exact", f"U = 1: one {unit} suffices." if is_sample(snapshot) else f"U = L + 1: {least}"),
    ]


def _tables(snapshot: Snapshot, levels: Sequence[Snapshot]) -> list[Block]:
    found = [_classes(snapshot, names_of(snapshot.config)[0])]
    heads, rows = times(levels)
    if rows:
        what = "random" if is_sample(snapshot) else "all"
        note = f"A level t tries {what} sets of t {snapshot.unit}s. Work between levels counts for the later one."
        found.append(blocks.table("times", "Time for each t", heads, rows, note=note))
    return found


def _pairs(snapshot: Snapshot) -> list[Block]:
    """What decisions become under the changes that were found."""
    pairs = Counter((image.label, image.witness.label) for image in snapshot.images if image.witness is not None)
    if not pairs:
        return []
    names, _ = names_of(snapshot.config)
    labels = [names.label(number) for number in range(max(max(pair) for pair in pairs) + 1)]
    note = "Rows: the label, which is the decision for the original. Columns: the decision for the changed input."
    hint = f"A click lists the {snapshot.noun}s."
    return [blocks.matrix("becomes", "What decisions become", labels, pairs, note=note, hint=hint)]


def _classes(snapshot: Snapshot, names: Names) -> Block:
    rows = []
    drawn = is_sample(snapshot)  # no lower bounds
    wrong = Counter(image.label for image in snapshot.excluded)
    by_class: dict[int, list[ImageBounds]] = {label: [] for label in sorted(wrong)}
    for image in snapshot.images:
        by_class.setdefault(image.label, []).append(image)
    for label, images in sorted(by_class.items()):
        rows.append([names.label(label), *_summary(images, drawn), wrong[label]])
    heads: list[Head] = [
        ("class", "text"),
        (f"{snapshot.noun}s", "number"),
        *([] if drawn else LOWER),
        *UPPER,
        ("exact", "share"),
        ("left out", "number"),
    ]
    total = ["all", *_summary(snapshot.images, drawn), len(snapshot.excluded)]
    note = f"Upper bounds are of {snapshot.noun}s with a witness."
    return blocks.table("classes", "Classes", heads, rows, total=total, note=note)


def _summary(images: Sequence[ImageBounds], drawn: bool) -> list[Any]:
    if not images:
        return [0, *([] if drawn else [None, None]), None, None, None]
    known = [image.upper for image in images if image.witness is not None]
    lower = [image.lower for image in images]
    return [
        len(images),
        *([] if drawn else [round(fmean(lower), 4), min(lower)]),
        round(fmean(known), 4) if known else None,
        min(known) if known else None,
        round(sum(image.converged for image in images) / len(images), 4),
    ]


def _changes(snapshot: Snapshot, domain: Domain | None) -> list[Block]:
    """Where witnesses change inputs: a picture, or the columns that change most often."""
    found = [image.witness.positions for image in snapshot.images if image.witness is not None]
    if domain is None or not found:
        return []
    size = int(torch.tensor(domain.shape).prod())
    if is_picture(domain.shape):
        touched = torch.zeros(plane(torch.zeros(domain.shape)).shape[:2], dtype=torch.int64)
        for positions in found:
            one = torch.zeros(size, dtype=torch.bool)
            one[positions] = True
            touched += plane(one.reshape(domain.shape)).any(2)
        note = f"For each pixel the number of {snapshot.noun}s, of {len(found):,} with a witness, in which it changes."
        return [blocks.heat("where", "Where changes fall", touched.tolist(), note=note, unit=f"{snapshot.noun}s")]
    names, _ = names_of(snapshot.config)
    frequent = Counter(position for positions in found for position in positions.tolist()).most_common(MOST_FEATURES)
    rows = [[place_of(position, domain.shape, names), count, count / len(found)] for position, count in frequent]
    heads: list[Head] = [("column", "text"), (f"{snapshot.noun}s", "number"), ("share", "share")]
    note = f"Of {len(found):,} {snapshot.noun}s with a witness."
    return [blocks.table("where", "What changes", heads, rows, note=note)]


def _left_out(snapshot: Snapshot) -> list[Block]:
    if not snapshot.excluded:
        return []
    names, inputs = names_of(snapshot.config)
    rows = [
        [one.index, *([inputs.get(one.index, "")] if inputs else []), names.label(one.label), one.reason_in(names)]
        for one in snapshot.excluded
    ]
    heads: list[Head] = [(snapshot.noun, "index"), ("label", "text"), ("why", "text")]
    if inputs:
        heads.insert(1, ("name", "text"))
    note = "Their decision is wrong, or tied, as they are: they have no radius."
    return [blocks.table("excluded", "Left out", heads, rows, note=note)]
