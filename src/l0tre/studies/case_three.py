"""Case study three: tests that activate every neuron, from one seed image each, averaged over several seeds."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from l0tre.api.clusters import ClusterChoice, shared_session
from l0tre.api.load import load
from l0tre.api.testgen import generate_tests
from l0tre.data import load_data, select
from l0tre.defaults import MAX_L0
from l0tre.errors import ConfigError, StoreError
from l0tre.figures.canvas import cannot_draw
from l0tre.figures.suite import adversarial_curve, coverage_curve
from l0tre.figures.tables import Rows, markdown, write_csv, write_json, write_text
from l0tre.studies.pages import suites_page, write_page
from l0tre.studies.summary import RETRAINED, Summary

__all__ = ["NETWORKS", "SEEDS", "carry_out_case_three", "summarise_case_three"]

NETWORKS = {"mnist-attack": "mnist", "cifar10-attack": "cifar10"}  # and the data of their seeds
SEEDS = 10  # the paper averages over ten runs or more, each from one image
# Coverage in per cent: the paper's table (also of DeepConcolic and DeepXplore's best), and its figure by distance.
PAPER: Mapping[str, tuple[float, float, float]] = {
    "mnist-attack": (98.95, 97.60, 82.68),
    "cifar10-attack": (98.63, 84.98, 83.25),
}
PAPER_BY_DISTANCE: Mapping[str, Mapping[int, float]] = {
    "mnist-attack": {0: 55.5, 3: 90.2, 8: 95.4, 20: 98.2},
    "cifar10-attack": {0: 27.5, 4: 92.2, 20: 97.4},
}
SHOWN = (0, 1, 2, 3, 4, 8, 20, 100)  # distances in the table


def carry_out_case_three(
    out: Path,
    networks: Sequence[str] = tuple(NETWORKS),
    *,
    seeds: int = SEEDS,
    max_l0: int = MAX_L0,
    data_dir: Path | None = None,
    seed: int = 0,
    device: str = "auto",
    time_budget: float | None = None,
    cluster: ClusterChoice = None,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[str], Callable[[str, float], None]] = lambda _: lambda *_: None,
) -> None:
    """Generate a suite from each of some test images, or go on with those that are there.

    Args:
        out: Folder of the suites, one folder each.
        networks: Of :data:`NETWORKS`.
        seeds: Number of test images.
        max_l0: Changed pixels of a test, at the most.
        data_dir: Where the data sets are.
        seed: Of the choice of images.
        device: Where to compute.
        time_budget: Seconds for each suite; ``None`` for no limit.
        cluster: Who does the work, as for :func:`l0tre.generate_tests`.
        stop: A yes ends the work after the current step.
        watch: Gives for each suite's name what is told of its progress.

    Raises:
        L0treError: If a network is unknown, or data cannot be loaded.
    """
    unknown = [name for name in networks if name not in NETWORKS]
    if unknown:
        raise ConfigError(f"case study three has no network {unknown[0]!r}: give some of {', '.join(NETWORKS)}")
    with shared_session(cluster):
        for name in networks:
            network = load(name, device=device)
            data = load_data(NETWORKS[name], input_shape=network.input_shape, data_dir=data_dir)
            chosen = select(data, limit=seeds, shuffle=True, seed=seed)
            for place, index in enumerate(chosen.indices):
                if stop():
                    return
                folder = f"{name}-{index}"
                if _is_complete(out / folder, network.fingerprint, max_l0):
                    continue
                generate_tests(
                    network,
                    select(chosen, indices=[place]),
                    max_l0=max_l0,
                    time_budget=time_budget,
                    out=out / folder,
                    seed=seed,
                    cluster=cluster,
                    progress=watch(folder),
                    stop=stop,
                )


def _is_complete(folder: Path, fingerprint: str, max_l0: int) -> bool:
    """Whether a folder holds the whole suite of a network, whose tests need not be confirmed again."""
    path = folder / "suite.json"
    suite = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    asked = {"fingerprint": fingerprint, "max_l0": max_l0, "complete": True}
    return {key: suite.get(key) for key in asked} == asked and suite.get("coverage_of_random") is not None


def summarise_case_three(out: Path) -> Summary:
    """Tables and figures from the suites of case study three, finished or not.

    Args:
        out: The folder that holds their folders.

    Returns:
        The summary, written beside them.

    Raises:
        StoreError: If there are none.
    """
    suites = list(_suites(out))
    if not suites:
        raise StoreError(f"{out} holds no suites: give the folder of an earlier call as `out`")
    names = list(dict.fromkeys(suite["network"] for suite in suites))
    table: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    files: list[Path] = []
    curves: dict[str, Rows] = {}
    for name in names:
        own = [suite for suite in suites if suite["network"] == name]
        curves[name] = curve = mean_curve(own)
        table.append(_row(name, own, curve))
        layers += _by_layer(name, own)
        files += coverage_curve(curve, own[0]["unit"], out / f"{name}-coverage")
        files += adversarial_curve(curve, own[0]["unit"], out / f"{name}-adversarial")
    by_distance = [_distances(name, [suite for suite in suites if suite["network"] == name]) for name in names]
    singles = [_single(suite) for suite in suites]
    files.append(write_csv(out / "suites.csv", singles))
    open_ = [suite for suite in suites if not suite["complete"]]
    title = "Case study three: test generation"
    notes = [RETRAINED, *(["Not complete: the same command goes on from here."] if open_ else [])]
    files += write_page(out, lambda: suites_page(title, curves, table, layers, singles, notes))
    parts = [
        f"# {title}",
        RETRAINED,
        *(["**Not complete:** the same command goes on from here."] if open_ else []),
        f"## Coverage, means over seeds\n\n{markdown(_turned(table))}",
        f"## Coverage by distance, per cent\n\n{markdown(_turned(by_distance))}",
    ]
    brief = "\n\n".join(parts)
    text = f"{brief}\n\n## Layers, sums over seeds\n\n{markdown(layers)}\n"
    facts = {"table": table, "by_distance": by_distance, "layers": layers}
    written = (write_text(out / "summary.md", text), write_json(out / "summary.json", facts))
    return Summary(text, brief, facts, (*written, *files), cannot_draw(), not open_)


def _turned(rows: Rows) -> Rows:
    """A column for each row: networks beside each other."""
    return [{"": key, **{row["network"]: row[key] for row in rows}} for key in rows[0] if key != "network"]


def _suites(out: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(out.glob("*/suite.json")):
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise StoreError(f"{path} cannot be read: {error}") from error


def mean_curve(suites: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean of the curves of several suites, at every distance that one of them has a test at."""
    sizes = sorted({row["l0"] for suite in suites for row in suite["curve"]})
    rows = []
    for size in sizes:
        at = [_at(suite, size) for suite in suites]
        row = {"l0": size}
        for key in (
            "coverage",
            "at_most",
            "random",
            "tests",
            "adversarial",
            "share_of_adversarial",
            "adversarial_share",
        ):
            values = [one[key] for one in at]
            row[key] = None if any(value is None for value in values) else fmean(values)
        rows.append(row)
    return rows


def _at(suite: Mapping[str, Any], size: int) -> Mapping[str, Any]:
    """The last row of a suite's curve up to a distance."""
    found: Mapping[str, Any] = [row for row in suite["curve"] if row["l0"] <= size][-1]
    return found


def _row(name: str, suites: Sequence[Mapping[str, Any]], curve: Rows) -> dict[str, Any]:
    paper, concolic, explore = PAPER.get(name, (None, None, None))
    missed = sum(suite["neurons"] - suite["counts"]["by seeds"] - suite["counts"]["by tests"] for suite in suites)
    proved = sum(suite["counts"]["dead"] + suite["counts"]["out of reach"] for suite in suites)
    chance = [suite["coverage_of_random"] for suite in suites]
    return {
        "network": name,
        "neurons": suites[0]["neurons"],
        "seeds": len(suites),
        "coverage %": 100 * fmean(suite["coverage"] for suite in suites),
        "paper %": paper,
        "DeepConcolic %": concolic,
        "DeepXplore %": explore,
        "random %": None if None in chance else 100 * fmean(chance),
        "uncovered": missed / len(suites),
        "proved of these %": 100 * proved / missed if missed else None,
        "exact distances %": 100 * fmean(suite["exact_distances"] / suite["neurons"] for suite in suites),
        "tests": fmean(suite["tests"] for suite in suites),
        "minimal": fmean(suite["minimal"] for suite in suites),
        "adversarial": curve[-1]["adversarial"],
        "seconds": fmean(suite["seconds"] for suite in suites),
    }


def _distances(name: str, suites: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    paper = PAPER_BY_DISTANCE.get(name, {})
    row: dict[str, Any] = {"network": name}
    for size in SHOWN:
        row[str(size)] = 100 * fmean(_at(suite, size)["coverage"] for suite in suites)
    row["standard error at 3"] = _standard_error([100 * _at(suite, 3)["coverage"] for suite in suites])
    row["proved limit at 3"] = 100 * fmean(_limit(suite, 3) for suite in suites)
    row["paper"] = ", ".join(f"{size}: {share}" for size, share in paper.items()) or None
    return row


def _standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; nothing for a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _limit(suite: Mapping[str, Any], size: int) -> float:
    return float(_at(suite, size)["at_most"])


def _by_layer(name: str, suites: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for place, layer in enumerate(suites[0]["by_layer"]):
        own = [suite["by_layer"][place] for suite in suites]
        counts = {key: sum(row[key] for row in own) for key in layer if key not in ("layer", "neurons", "coverage")}
        rows.append({"network": name, "layer": layer["layer"], "neurons": layer["neurons"] * len(own), **counts})
    return rows


def _single(suite: Mapping[str, Any]) -> dict[str, Any]:
    kept = (
        "network",
        "neurons",
        "coverage",
        "coverage_of_random",
        "exact_distances",
        "tests",
        "minimal",
        "adversarial",
    )
    by_size = {f"coverage at {size}": _at(suite, size)["coverage"] for size in SHOWN}
    facts = {key: suite[key] for key in (*kept, "entropy", "queries", "seconds", "complete")}
    return {"seed": suite["seeds"][0], **facts, **suite["counts"], **by_size}
