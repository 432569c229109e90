"""Case study one: how the bounds of sDNN and DNN-0 converge, image by image and globally."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from l0tre.studies.adversarial import adversarial_images
from l0tre.studies.figures import global_bounds, one_image, seconds_per_level, seconds_rows, sorted_images
from l0tre.studies.network_figures import level_rows
from l0tre.studies.runs import Plan, RunData, read_runs
from l0tre.studies.summary import Figure, Section, Summary, write_summary
from l0tre.studies.tables import Rows, write_csv

__all__ = ["plan_case_one", "summarise_case_one"]

NETWORKS = ("sdnn", "dnn-0")
SETTINGS = {"sdnn": (3, 5300), "dnn-0": (2, 2400)}  # the paper's largest t and number of images
EPSILON = 0.25

Measure = Callable[[RunData], Any]


def plan_case_one(
    networks: Sequence[str] = NETWORKS,
    guarantees: Sequence[str] = ("grid", "certified"),
    *,
    images: int | None = None,
    max_t: int | None = None,
) -> tuple[Plan, ...]:
    """The runs of case study one, with the paper's settings.

    Args:
        networks: What :func:`l0tre.load` takes; networks that the paper does not have get the settings of DNN-0.
        guarantees: A run for each.
        images: Number of test images instead of the paper's.
        max_t: Largest number of pixels changed together instead of the paper's.

    Returns:
        The runs.
    """
    plans = []
    for network in networks:
        t, count = SETTINGS.get(network, SETTINGS["dnn-0"])
        plans += [Plan(network, kind, max_t or t, images or count, EPSILON) for kind in guarantees]
    return tuple(plans)


def summarise_case_one(out: str | Path) -> Summary:
    """Tables and figures from the run folders of case study one, finished or not.

    Args:
        out: The folder that holds the run folders.

    Returns:
        What was found; it is also written to ``out``: ``summary.md``, ``summary.json``, ``tables/``, ``figures/``.

    Raises:
        StoreError: If there are no run folders, or one is damaged.
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


def _level(run: RunData, t: int) -> Any:
    return run.levels[t - 1] if t <= len(run.levels) else None


def _estimate_at_one(run: RunData) -> float:
    return run.levels[0].estimate


def _bounds_at_two(run: RunData) -> str | None:
    level = _level(run, 2)
    return None if level is None else f"{level.lower:.3f} to {level.upper:.3f}"


def _converged(run: RunData) -> str:
    return f"{run.latest.converged / len(run.latest.images):.1%} (t <= {len(run.levels)})"


def _accuracy(run: RunData) -> str:
    total = len(run.latest.images) + len(run.latest.excluded)
    return f"{len(run.latest.images) / total:.2%} of the {total:,} images"


def _seconds(t: int) -> Measure:
    def measure(run: RunData) -> str | None:
        spent = [row["seconds"] for row in seconds_rows(run) if row["t"] == t]
        return f"mean {fmean(spent):.3g}, median {median(spent):.3g}" if spent else None

    return measure


# Quantity, what the paper says, how it is measured here.
SDNN: tuple[tuple[str, str, Measure], ...] = (
    ("images", "5,300", lambda run: len(run.latest.images) + len(run.latest.excluded)),
    ("accuracy", "98.73% of the test set", _accuracy),
    ("largest upper bound at t = 1 (pixels)", "27", lambda run: max(image.upper for image in run.levels[0].images)),
    ("estimate U_c at t = 1 (pixels)", "1.97", _estimate_at_one),
    ("estimate U_c at the end (pixels)", "2.1", lambda run: run.latest.estimate),
    ("converged images", "98% (t <= 3)", _converged),
    ("seconds an image at t = 1", "below 0.1", _seconds(1)),
)
DNN_0: tuple[tuple[str, str, Measure], ...] = (
    ("images", "2,400", lambda run: len(run.latest.images) + len(run.latest.excluded)),
    ("accuracy", "99.16% of the test set", _accuracy),
    ("bounds at t = 2 (pixels)", "2 to 12.8", _bounds_at_two),
    ("seconds an image at t = 2", "about 130", _seconds(2)),
)
# What the paper has no figures for; its lower bounds hold on the grid.
BEYOND: tuple[tuple[str, str, Measure], ...] = (
    (
        "lower bounds hold for",
        "the grid",
        lambda run: "all real values" if run.guarantee == "certified" else "the grid",
    ),
    ("mean lower bound at the end (pixels)", "-", lambda run: run.latest.lower),
    ("mean upper bound at the end (pixels)", "-", lambda run: run.latest.upper),
    ("safe radius known exactly", "-", _converged),
    ("complete", "-", lambda run: run.latest.finished),
)
PAPER = {"sdnn": SDNN, "dnn-0": DNN_0}


def _paper_and_ours(network: str, runs: Sequence[RunData]) -> Rows:
    measures = (*PAPER.get(network, ()), *BEYOND)
    return [
        {"quantity": name, "paper": said, **{run.guarantee: measure(run) for run in runs}}
        for name, said, measure in measures
    ]
