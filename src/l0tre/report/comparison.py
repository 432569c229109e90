"""Pages of several networks or runs side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from l0tre.evaluation.results import ImageBounds, Snapshot
from l0tre.evaluation.standings import Comparison, compare_snapshots
from l0tre.report import blocks
from l0tre.report.blocks import Block, Document, Gallery, Head, Series
from l0tre.report.charts import LINEAR_TOP
from l0tre.report.inputs import make_gallery, plain_number
from l0tre.report.pictures import limits
from l0tre.report.words import is_sample
from l0tre.store import Inputs

__all__ = ["comparison_page", "runs_page", "shared_inputs"]

MOST_POINTS = 2_000


def runs_page(runs: Mapping[str, Snapshot], inputs: Inputs | None = None) -> Document:
    """Any runs side by side; which of them is more robust is said where they are about the same images.

    Args:
        runs: Bounds by name of the run.
        inputs: What all of them are about, from :func:`shared_inputs`; without them there are no pictures.
    """
    same = len(runs) > 1 and len({_indices(snapshot) for snapshot in runs.values()}) == 1
    networks = {snapshot.config.get("model", {}).get("fingerprint", name) for name, snapshot in runs.items()}
    if same and len(networks) > 1:
        return comparison_page(compare_snapshots(runs), runs, inputs)
    text = "These runs are about different inputs: their means cannot be compared, only read side by side."
    if same:
        text = "These runs are about one network and the same inputs: they differ in how its bounds were found."
    found = [blocks.answer(text if len(runs) > 1 else "Choose two or more runs."), _figures(runs), *_curves(runs)]
    return Document(f"{len(runs)} runs", tuple(found))


def _indices(snapshot: Snapshot) -> frozenset[int]:
    return frozenset([image.index for image in snapshot.images] + [image.index for image in snapshot.excluded])


def shared_inputs(every: Sequence[Inputs | None]) -> Inputs | None:
    """The inputs of several runs, if all have the same ones in the same size, else ``None``."""
    first = every[0] if every else None
    if first is None:
        return None
    for other in every[1:]:
        if other is None or other.indices != first.indices or other.images.shape != first.images.shape:
            return None
        if not torch.equal(other.images, first.images):
            return None
    return first


def comparison_page(comparison: Comparison, runs: Mapping[str, Snapshot], inputs: Inputs | None = None) -> Document:
    """Networks on the same images: which is more robust, and what is known of each.

    Args:
        comparison: What ``compare_snapshots`` found.
        runs: The bounds of each network.
        inputs: What all of them are about, from :func:`shared_inputs`; without them there are no pictures.
    """
    heads: list[Head] = [
        ("networks", "text"),
        ("inputs", "number"),
        ("difference of mean radii, from", "mean"),
        ("to", "mean"),
        ("verdict", "text"),
        ("holds for", "text"),
    ]
    words = {"more": "{0} is more robust", "less": "{1} is more robust", "equal": "equally robust", "open": "open"}
    rows = [
        [
            f"{pair.first} less {pair.second}",
            pair.common,
            pair.difference[0],
            pair.difference[1],
            words[pair.order].format(pair.first, pair.second) + (f": {pair.settle}" if pair.settle else ""),
            pair.scope,
        ]
        for pair in comparison.pairs
    ]
    certain = [
        words[pair.order].format(pair.first, pair.second) + (" on the grid" if pair.scope == "the grid" else "")
        for pair in comparison.pairs
        if pair.order != "open"
    ]
    best = "; ".join(dict.fromkeys(certain)) or "The bounds do not tell yet which network is more robust"
    units = {standing.unit for standing in comparison.standings}
    splits = [
        split.words(pair.first, pair.second, next(iter(units), "pixel"))
        for pair in comparison.pairs
        for split in pair.splits
    ]
    notes = ["About these inputs alone, by mean safe radii on those that both networks classify correctly."]
    found: list[Block] = [blocks.answer(f"{best}.", notes), _standings(comparison)]
    found.append(_radii(comparison))
    if rows:
        found.append(blocks.table("pairs", "Every two networks", heads, rows))
    if runs:
        found += [*_curves(runs), _figures(runs)]
    if splits:
        found.append(blocks.paragraphs("splits", "Whose decisions change", [("", text) for text in splits]))
    shown, gallery = _images(runs, inputs)
    names = [standing.network for standing in comparison.standings]
    title = " and ".join(names) if len(names) < 4 else f"{len(names)} networks"
    return Document(title, (*found, *shown), gallery)


def _images(runs: Mapping[str, Snapshot], inputs: Inputs | None) -> tuple[list[Block], Gallery | None]:
    """The images that any of the networks decides correctly, with the bounds of each, and each one's changed input."""
    bounds: dict[int, dict[int, ImageBounds]] = {}
    for number, run in enumerate(runs.values()):
        for image in run.images:
            bounds.setdefault(image.index, {})[number] = image
    if not bounds:
        return [], None
    names = list(runs)
    rows = [_row(index, found, names) for index, found in sorted(bounds.items())]
    originals = None
    if inputs is not None:
        places = {index: row for row, index in enumerate(inputs.indices)}
        originals = inputs.images[[places[index] for index in sorted(bounds)]]
    extras = [
        {} if originals is None else {"witnesses": _witnesses(found, names, originals[row])}
        for row, (_, found) in enumerate(sorted(bounds.items()))
    ]
    heads = [("picture", "", "picture"), ("index", "image", "image"), ("label", "label", "class")]
    for number, name in enumerate(names):
        heads += [(f"lower.{number}", f"{name}: lower", "number"), (f"upper.{number}", "upper", "number")]
    config = next(iter(runs.values())).config.get("names", {})
    shown, gallery = make_gallery(
        {"images": rows, "networks": names, "config": {"names": config}},
        extras,
        blocks.columns(*heads, ("best", "most robust, by the bounds", "text")),
        originals=originals,
        domain=None if inputs is None else limits(inputs.domain.low, inputs.domain.high),
        unit=next(iter(runs.values())).unit,
        names=config,
        file="comparison",
    )
    return [shown], gallery


def _witnesses(found: Mapping[int, ImageBounds], names: Sequence[str], original: Tensor) -> list[dict[str, Any]]:
    """The changed input of each network that one is known for."""
    return [
        {
            "by": names[number],
            "label": image.witness.label,
            "positions": image.witness.positions.tolist(),
            "values": [plain_number(value) for value in image.witness.values.tolist()],
            "before": [plain_number(value) for value in original.flatten()[image.witness.positions].tolist()],
        }
        for number, image in sorted(found.items())
        if image.witness is not None
    ]


def _row(index: int, found: Mapping[int, ImageBounds], names: Sequence[str]) -> dict[str, Any]:
    """An image with its bounds in each network; empty where a network decides it wrongly."""
    lower = [found[n].lower if n in found and found[n].guarantee != "sampled" else None for n in range(len(names))]
    known = [n in found and found[n].witness is not None for n in range(len(names))]
    upper = [found[n].upper if known[n] else None for n in range(len(names))]
    best = [
        f"{names[n]} (on the grid)" if found[n].guarantee == "grid" else names[n]
        for n, least in enumerate(lower)
        # Its safe radius is at least its lower bound, that of another less than its upper one.
        if least is not None and all(other == n or (known[other] and least >= found[other].upper) for other in found)
    ]
    certain = best[0] if best and len(found) > 1 else ""
    label = next(iter(found.values())).label
    return {"index": index, "label": label, "lower": lower, "upper": upper, "best": certain, "witness": None}


def _standings(comparison: Comparison) -> Block:
    """What is known of each network: a mean safe radius between two figures."""
    heads: list[Head] = [
        ("network", "text"),
        ("inputs", "number"),
        ("accuracy", "share"),
        ("safe radius, mean, from", "mean"),
        ("to", "mean"),
        ("exact", "share"),
        ("guarantee", "text"),
        ("t", "number"),
    ]
    rows = [
        [
            one.network,
            one.images,
            one.accuracy,
            *(round(end, 4) for end in one.radius),
            one.exact,
            one.guarantee,
            one.max_t,
        ]
        for one in comparison.standings
    ]
    return blocks.table(
        "standings", "Networks", heads, rows, note="Safe radii of the inputs that each classifies correctly."
    )


def _radii(comparison: Comparison) -> Block:
    """The two figures between which each network's mean safe radius lies."""
    standings = comparison.standings
    places = list(range(1, len(standings) + 1))
    ends = [Series("at least", "lower", [one.radius[0] for one in standings], "points")]
    ends.append(Series("at most", "upper", [one.radius[1] for one in standings], "points"))
    return blocks.chart(
        "radius",
        "Mean safe radius",
        [("", places, ends)],
        x="network",
        places=[one.network for one in standings],
        y=f"{standings[0].unit}s (mean)" if standings else "",
        summary="; ".join(f"{one.network}: {one.radius[0]:.3f} to {one.radius[1]:.3f}" for one in standings) + ".",
    )


def _figures(runs: Mapping[str, Snapshot]) -> Block:
    heads: list[Head] = [
        ("run", "text"),
        ("model", "text"),
        ("data", "text"),
        ("guarantee", "text"),
        ("inputs", "number"),
        ("left out", "number"),
        ("lower, mean", "mean"),
        ("upper, mean", "mean"),
        ("without witness", "number"),
        ("exact", "share"),
        ("seconds", "seconds"),
    ]
    rows = []
    for name, run in runs.items():
        kinds = ", ".join(sorted({image.guarantee for image in run.images}))
        known = [image.upper for image in run.images if image.witness is not None]
        rows.append(
            [
                name,
                str(run.config.get("model", {}).get("name", "")),
                str(run.config.get("data", {}).get("name", "")),
                kinds,
                len(run.images),
                len(run.excluded),
                None if is_sample(run) else round(run.lower, 4),
                round(sum(known) / len(known), 4) if known else None,
                run.without_witness,
                run.converged / len(run.images),
                run.seconds,
            ]
        )
    return blocks.table("figures", "Figures", heads, rows, note="Upper bounds are of inputs with a witness.")


def _curves(runs: Mapping[str, Snapshot]) -> list[Block]:
    """Shares of images proved and not known to change, and mean lower bounds over time, a line for each run."""
    most = max((i.upper for run in runs.values() for i in run.images if i.witness is not None), default=1)
    lows = max((i.lower for run in runs.values() for i in run.images), default=0)
    places = sorted({*range(min(max(most, lows) + 2, MOST_POINTS)), most, most + 1})

    def lines(kind: str) -> list[Series]:
        found = []
        for number, (name, run) in enumerate(runs.items()):
            total = len(run.images)
            if kind == "proved":
                values = [sum(i.lower >= place for i in run.images) / total for place in places]
            else:
                values = [sum(i.witness is None or i.upper > place for i in run.images) / total for place in places]
            found.append(Series(name, str(number), values))
        return found

    unit = next((run.unit for run in runs.values()), "pixel")
    ends = {run.seconds for run in runs.values() if run.history}
    times = sorted({point.seconds for run in runs.values() for point in run.history} - ends)
    times = sorted([*times[:: max(1, len(times) // MOST_POINTS)], *ends])
    over_time = [
        (kind, times, [Series(name, str(n), _at(run, times, kind)) for n, (name, run) in enumerate(runs.items())])
        for kind in ("lower", "upper")
    ]
    return [
        blocks.chart(
            "shares",
            f"Share of inputs against {unit}s that change",
            [("proved to keep the decision", places, lines("proved")), ("not known to change", places, lines("kept"))],
            x=f"{unit}s that change",
            y="inputs",
            share=True,
            log_x=most > LINEAR_TOP,
            summary=f"For each run the share of inputs proved against so many changed {unit}s.",
        ),
        *(
            [
                blocks.chart(
                    "time",
                    "Mean bounds over time",
                    [(f"mean {kind} bound", x, series) for kind, x, series in over_time],
                    x="seconds of work",
                    y=f"{unit}s (mean)",
                    summary="Mean bounds of each run over its seconds of work.",
                )
            ]
            if times
            else []
        ),
    ]


def _at(run: Snapshot, times: list[float], kind: str) -> list[float | None]:
    """A mean bound of a run at each moment; ``None`` before its first and after its last one."""
    found: list[float | None] = []
    place, value = 0, None
    for moment in times:
        while place < len(run.history) and run.history[place].seconds <= moment:
            value = getattr(run.history[place], kind)
            place += 1
        found.append(value if moment <= run.seconds else None)
    return found
