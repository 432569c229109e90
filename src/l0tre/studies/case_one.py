"""Case study one: how the bounds of sDNN and DNN-0 converge, image by image and globally."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from l0tre.evaluation.results import Snapshot
from l0tre.figures.tables import Rows, write_csv
from l0tre.studies.adversarial import adversarial_images
from l0tre.studies.figures import global_bounds, one_image, seconds_per_level, seconds_rows, sorted_images
from l0tre.studies.network_figures import level_rows
from l0tre.studies.plans import PlannedRun
from l0tre.studies.runs import KINDS, RunData, read_runs
from l0tre.studies.summary import Figure, Section, Summary, write_summary

__all__ = ["plan_case_one", "summarise_case_one"]

NETWORKS = ("sdnn", "dnn-0")
SETTINGS = {"sdnn": (3, 5300), "dnn-0": (2, 2400)}  # the paper's largest t and number of images
EPSILON = 0.25
DISTANCES = 4  # counted one by one; larger ones together

Measure = Callable[[RunData], Any]


def plan_case_one(
    networks: Sequence[str] = NETWORKS,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    images: int | None = None,
    max_t: int | None = None,
) -> tuple[PlannedRun, ...]:
    """The runs of case study one, with the paper's settings.

    Args:
        networks: What :func:`l0tre.load` takes; networks that the paper does not have get the settings of DNN-0.
        kinds: A run for each, see :data:`l0tre.studies.runs.KINDS`.
        images: Number of test images instead of the paper's.
        max_t: Largest number of pixels changed together instead of the paper's.

    Returns:
        The runs.

    Raises:
        ConfigError: If a kind is unknown.
    """
    plans = []
    for network in networks:
        t, count = SETTINGS.get(network, SETTINGS["dnn-0"])
        plans += [PlannedRun(network, kind, max_t or t, images or count, EPSILON) for kind in kinds]
    return tuple(plans)


def summarise_case_one(out: str | Path) -> Summary:
    """Tables and figures from the run folders of case study one, finished or not.

    Args:
        out: The folder that holds the run folders.

    Returns:
        What was found; it is also written to ``out``: ``summary.md``, ``summary.json``, ``tables/``, ``figures/``.

    Raises:
        StoreError: If there are no run folders, one is damaged, or two are of the same network and kind.
    """
    out = Path(out)
    runs = read_runs(out)
    (out / "tables").mkdir(exist_ok=True)
    levels = level_rows(runs)
    write_csv(out / "tables" / "levels.csv", levels)
    sections, tables = [], {}
    for network in dict.fromkeys(run.network for run in runs):
        rows = _paper_and_ours(network, [run for run in runs if run.network == network])
        write_csv(out / "tables" / f"paper-{network}.csv", rows)
        sections.append(Section(f"{network}: paper against ours", rows))
        tables[network] = rows
    sections.append(Section("Bounds at the end of each level", levels, brief=False))
    figures = [figure for run in runs for figure in _figures(run, out / "figures")]
    facts = {"case": 1, "paper": tables, "levels": levels}
    return write_summary(out, "Case study one: convergence and global robustness", runs, sections, facts, figures)


def _figures(run: RunData, folder: Path) -> list[Figure]:
    name = run.name
    drawn = [
        ("convergence for the image with the largest upper bound at t = 1", one_image(run, folder / f"{name}-image")),
        ("convergence of the global bounds, over t and over time", global_bounds(run, folder / f"{name}-global")),
        ("seconds an image at each t", seconds_per_level(run, folder / f"{name}-seconds")),
        ("bounds of every image at each t", sorted_images(run, folder / f"{name}-images")),
        ("adversarial images at t = 1 and at the end", adversarial_images(run, folder / f"{name}-adversarial")),
    ]
    return [Figure(f"{name}: {caption}", files) for caption, files in drawn]


def _interval(level: Snapshot) -> str:
    return f"{level.lower:.3f} to {level.upper:.3f}"


def _converged(run: RunData) -> str:
    return f"{run.latest.converged / len(run.latest.images):.1%} (t <= {len(run.levels)})"


def _distances(run: RunData) -> str:
    """Shares of the images whose radius is known exactly, by the least number of changed pixels."""
    images = run.latest.images
    found = Counter(min(image.upper, DISTANCES + 1) for image in images if image.converged)
    names = {distance: str(distance) for distance in range(1, DISTANCES + 1)} | {DISTANCES + 1: "more"}
    return ", ".join(f"{name}: {found[distance] / len(images):.1%}" for distance, name in names.items())


def _uppers(run: RunData) -> str:
    attack = run.latest.config["settings"].get("attack_queries", 0)
    return f"the levels, and an attack of {attack:,} queries an image" if attack else "the levels alone"


def _largest(run: RunData) -> str:
    shown = [image.upper for image in run.levels[0].images if image.upper <= image.groups]
    missing = len(run.levels[0].images) - len(shown)
    return f"{max(shown, default='-')}" + (f" ({missing:,} without a witness)" if missing else "")


def _accuracy(run: RunData) -> str:
    total = len(run.latest.images) + len(run.latest.excluded)
    return f"{len(run.latest.images) / total:.2%} of the {total:,} images"


def _seconds(t: int) -> Measure:
    def measure(run: RunData) -> str | None:
        spent = [row["seconds"] for row in seconds_rows(run) if row["t"] == t]
        return f"mean {fmean(spent):.3g}, median {median(spent):.3g}" if spent else None

    return measure


MEASURES: dict[str, Measure] = {
    "images": lambda run: len(run.latest.images) + len(run.latest.excluded),
    "accuracy": _accuracy,
    "largest upper bound at t = 1 (pixels)": _largest,
    "estimate U_c at t = 1 (pixels)": lambda run: run.levels[0].estimate,
    "estimate U_c at the end (pixels)": lambda run: run.latest.estimate,
    "bounds at t = 2 (pixels)": lambda run: _interval(run.levels[1]) if len(run.levels) > 1 else None,
    "lower bounds hold for": lambda run: run.scope,
    "upper bounds come from": _uppers,
    "mean lower bound at the end (pixels)": lambda run: run.latest.lower,
    "mean upper bound at the end (pixels)": lambda run: run.latest.upper,
    "global interval at the end (pixels)": lambda run: _interval(run.latest),
    "width of the global interval at the end (pixels)": lambda run: run.latest.upper - run.latest.lower,
    "converged images": _converged,
    "radius known exactly, by distance (pixels)": _distances,
    "seconds an image at t = 1": _seconds(1),
    "seconds an image at t = 2": _seconds(2),
    "seconds an image, all levels": lambda run: fmean(image.seconds for image in run.latest.images),
    "longest seconds of one image": lambda run: max(image.seconds for image in run.latest.images),
    "complete": lambda run: run.latest.finished,
}
# What the paper says of any network, and of its own ones; a quantity that is in neither is left out of a table.
OF_ANY = {
    "lower bounds hold for": "the grid",
    "upper bounds come from": "the levels alone",
    "mean lower bound at the end (pixels)": "-",
    "mean upper bound at the end (pixels)": "-",
    "global interval at the end (pixels)": "-",
    "width of the global interval at the end (pixels)": "-",
    "converged images": "-",
    "radius known exactly, by distance (pixels)": "-",
    "seconds an image, all levels": "-",
    "longest seconds of one image": "-",
    "complete": "-",
}
OF_NETWORKS = {
    "sdnn": {
        "images": "5,300",
        "accuracy": "98.73% of the test set",
        "largest upper bound at t = 1 (pixels)": "27",
        "estimate U_c at t = 1 (pixels)": "1.97",
        "estimate U_c at the end (pixels)": "2.1",
        "converged images": "98% (t <= 3)",
        "seconds an image at t = 1": "below 0.1",
    },
    "dnn-0": {
        "images": "2,400",
        "accuracy": "99.16% of the test set",
        "bounds at t = 2 (pixels)": "2 to 12.8",
        "global interval at the end (pixels)": "2 to 12.8",
        "width of the global interval at the end (pixels)": "10.8",
        "seconds an image at t = 2": "about 130",
    },
}


def _paper_and_ours(network: str, runs: Sequence[RunData]) -> Rows:
    said = OF_ANY | OF_NETWORKS.get(network, {})
    return [
        {"quantity": name, "the paper says": said[name], **{run.kind: measure(run) for run in runs}}
        for name, measure in MEASURES.items()
        if name in said
    ]
