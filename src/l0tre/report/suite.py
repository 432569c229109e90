"""The page of a generated suite: what its tests cover, what cannot be covered, every test beside its seed."""

from collections import Counter
from typing import Any

import torch

from l0tre.names import NO_NAMES, Names
from l0tre.report import blocks
from l0tre.report.blocks import Block, Document, Head, Series
from l0tre.report.inputs import make_gallery, plain_number, witness_entry
from l0tre.testgen.suite import Suite

__all__ = ["suite_page"]

COLUMNS = blocks.columns(
    ("picture", "", "picture"),
    ("index", "test", "image"),
    ("seed", "seed", "number"),
    ("label", "seed's label", "class"),
    ("distance", "changed", "number"),
    ("witness.label", "becomes", "class"),
    ("layer", "layer", "text"),
    ("neuron", "made for neuron", "text"),
    ("gain", "neurons gained", "number"),
    ("minimal", "in the minimal suite", "text"),
)
COUNTS = ("by seeds", "by tests", "dead", "out of reach", "open")


def suite_page(suite: Suite, *, names: Names = NO_NAMES, low: float = 0.0, high: float = 1.0) -> Document:
    """The page of a suite.

    Args:
        suite: What was generated.
        names: Of classes, inputs and columns.
        low: The value drawn black.
        high: The value drawn white.
    """
    counts, unit = suite.counts(), suite.unit
    total, seeds = suite.neurons, len(suite.seeds.indices)
    text = (
        f"{len(suite):,} tests and {seeds:,} seed{'' if seeds == 1 else 's'} cover {suite.coverage:.2%} of "
        f"{total:,} neurons with at most {suite.max_l0:,} changed {unit}s."
    )
    proved = counts["dead"] + counts["out of reach"]
    state = "Everything asked for was done." if suite.complete else "It was stopped before the end."
    found: list[Block] = [
        blocks.answer(text, [f"What covers a neuron: {suite.criterion}.", state, *suite.notes]),
        blocks.tiles(
            [
                ("covered", f"{suite.coverage:.2%}", f"seeds alone {suite.within(0):.2%}"),
                ("tests", f"{len(suite):,}", f"{len(suite.minimal):,} suffice for the same coverage"),
                ("adversarial", str(int(suite.adversarial.sum())), "decided otherwise than their seed"),
                ("proved unreachable", f"{proved:,}", f"{counts['dead']:,} by any input, {counts['open']:,} open"),
                ("cost", f"{suite.seconds:,.1f} s", f"{suite.queries:,} queries"),
            ]
        ),
    ]
    rows = suite.curve()
    places = [row["l0"] for row in rows]
    lines = [
        Series("suite", "lower", [row["coverage"] for row in rows]),
        Series("proved limit", "open", [row["at_most"] for row in rows]),
    ]
    if all(row["random"] is not None for row in rows):
        lines.append(Series("random changes", "4", [row["random"] for row in rows]))
    found.append(
        blocks.chart(
            "coverage",
            "Coverage against distance",
            [("", places, lines)],
            x=f"{unit}s changed, at most",
            y="neurons",
            share=True,
            summary=f"Share of neurons covered by tests with at most so many changed {unit}s.",
        )
    )
    sizes = Counter(suite.sizes.tolist())
    wrong = Counter(suite.sizes[suite.adversarial].tolist())
    if sizes:
        found.append(
            blocks.chart(
                "sizes",
                "Tests by distance",
                [
                    (
                        "",
                        sorted(sizes),
                        [
                            Series("tests", "open", [sizes[size] for size in sorted(sizes)], "bars"),
                            Series("adversarial", "upper", [wrong[size] for size in sorted(sizes)], "bars"),
                        ],
                    )
                ],
                x=f"{unit}s changed",
                y="tests",
                stacked=True,
                summary="Number of tests by distance, and how many of them are adversarial.",
            )
        )
    heads: list[Head] = [("layer", "text"), ("neurons", "number"), ("coverage", "share")]
    heads += [(name, "number") for name in COUNTS]
    named = ("layer", "neurons", "coverage", *COUNTS)
    layers = [[row[name] for name in named] for row in suite.by_layer()]
    note = (
        f"Dead: no input activates it, proved. Out of reach: none within one changed {unit} of a seed or more, proved."
    )
    found.append(blocks.table("layers", "Layers", heads, layers[:-1], total=layers[-1], note=note))
    if not len(suite):
        return Document(f"Tests for {suite.network}", tuple(found))
    block, gallery = make_gallery(
        {**suite.to_json(), "images": _tests(suite), "config": {"names": _classes(names)}},
        _extras(suite),
        COLUMNS,
        originals=suite.seeds.images[suite.origins],
        domain=(low, high),
        unit=unit,
        names=_classes(names),
        title="Tests",
        file="tests",
    )
    return Document(f"Tests for {suite.network}", (*found, block), gallery)


def _classes(names: Names) -> dict[str, Any]:
    """Names without those of inputs: rows are tests here."""
    return {key: value for key, value in names.to_config([]).items() if key != "inputs"}


def _tests(suite: Suite) -> list[dict[str, Any]]:
    rows = []
    for row, facts in enumerate(suite.manifest()):
        seed = suite.seeds.images[suite.origins[row]]
        rows.append(
            {
                "index": facts["test"],
                "seed": facts["seed"],
                "label": facts["seed_label"],
                "distance": facts["l0"],
                "layer": facts["layer"],
                "neuron": facts["neuron"],
                "gain": facts["gain"],
                "minimal": "yes" if facts["minimal"] else "",
                "witness": witness_entry(seed, suite.images[row], facts["label"]),
            }
        )
    return rows


def _extras(suite: Suite) -> list[dict[str, Any]]:
    """For each test the values of its seed where it differs."""
    found = []
    for row, origin in enumerate(suite.origins.tolist()):
        seed, test = suite.seeds.images[origin].flatten(), suite.images[row].flatten()
        found.append({"before": [plain_number(value) for value in seed[seed != test].to(torch.float32).tolist()]})
    return found
