"""The page of compare-attacks."""

from collections.abc import Sequence
from dataclasses import asdict

from l0tre.adapters.attack_summary import make_rows
from l0tre.adapters.compare_attacks import AttackComparison
from l0tre.names import Names
from l0tre.report.blocks import Document
from l0tre.report.peers import PeerEntry, peers_page

__all__ = ["compared_page"]

SHOWN = {
    "found": "inputs changed",
    "mean_pixels": "pixels, mean (inputs that all changed)",
    "median_pixels": "pixels, median",
    "own_mean_pixels": "pixels, mean (its own inputs)",
    "mean_features": "values, mean",
    "forwards": "forwards, each",
    "backwards": "backwards, each",
    "seconds": "seconds, each",
    "error": "what went wrong",
}


def compared_page(results: Sequence[AttackComparison], names: Names, low: float, high: float) -> Document:
    """The page of attacks side by side.

    Args:
        results: Comparisons at one or several budgets; tables are about the last one.
        names: Of classes, inputs and columns.
        low: The value drawn black.
        high: The value drawn white.
    """
    last = results[-1]
    features = last.unit == "feature"
    entries = []
    for result, row in zip(last.results, make_rows(last), strict=True):
        sizes = (result.features if features else result.pixels).tolist()
        figures = asdict(row)
        entries.append(
            PeerEntry(
                result.name,
                {head: figures[key] for key, head in SHOWN.items()},
                [size if found else None for size, found in zip(sizes, result.found.tolist(), strict=True)],
                result.adversarial,
                result.decisions,
            )
        )
    by_budget: dict[str, list[tuple[int, float]]] = {}
    if len(results) > 1:
        for one in results:
            for row in make_rows(one):
                mean = row.mean_features if features else row.mean_pixels
                if mean is not None:
                    by_budget.setdefault(row.name, []).append((one.budget, mean))
    return peers_page(
        entries,
        last.images,
        last.labels.tolist(),
        last.indices,
        unit=last.unit,
        budget=last.budget,
        model=str(last.config.get("model", {}).get("name", "a network")),
        data=str(last.config.get("data", "images")),
        by_budget=by_budget,
        names=names,
        low=low,
        high=high,
    )
