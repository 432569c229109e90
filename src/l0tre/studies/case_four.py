"""Case study four: seven architectures side by side, and whether the paper's observations hold for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0tre.api.compare import write_comparison
from l0tre.evaluation.standings import Comparison, Pair, compare_snapshots, what_settles
from l0tre.figures.tables import Rows, write_csv
from l0tre.studies.network_figures import bounds_of_networks, level_rows, spread_of_networks
from l0tre.studies.plans import PlannedRun
from l0tre.studies.runs import RunData, read_runs
from l0tre.studies.summary import Figure, Section, Summary, write_summary

__all__ = ["OBSERVATIONS", "Observation", "answer_observation", "plan_case_four", "summarise_case_four"]

NETWORKS = tuple(f"dnn-{number}" for number in range(1, 8))
MAX_T, IMAGES, EPSILON = 2, 1000, 0.3
PAPER_ACCURACY = dict(zip(NETWORKS, (97.75, 97.95, 98.38, 99.06, 99.16, 99.13, 99.41), strict=True))


@dataclass(frozen=True)
class Observation:
    """Something that the paper observed.

    Attributes:
        topic: What it is about.
        claim: What it says.
        pairs: The networks that it puts in an order: the more robust one, the less robust one.
    """

    topic: str
    claim: str
    pairs: tuple[tuple[str, str], ...]


OBSERVATIONS = (
    Observation(
        "depth",
        "DNN-7, the deepest, is less robust than DNN-1 to DNN-6",
        tuple((other, "dnn-7") for other in NETWORKS[:-1]),
    ),
    Observation("convolutions", "DNN-6, with one convolution more, is less robust than DNN-5", (("dnn-5", "dnn-6"),)),
    Observation(
        "batch normalisation", "DNN-3, with batch normalisation, is more robust than DNN-2", (("dnn-3", "dnn-2"),)
    ),
    Observation(
        "accuracy is no proxy",
        "DNN-1 and DNN-3 are more robust than DNN-6 and DNN-7, which are more accurate in the paper",
        tuple((better, worse) for better in ("dnn-1", "dnn-3") for worse in ("dnn-6", "dnn-7")),
    ),
)


def plan_case_four(
    networks: Sequence[str] = NETWORKS,
    kinds: Sequence[str] = ("grid",),
    *,
    images: int | None = None,
    max_t: int | None = None,
) -> tuple[PlannedRun, ...]:
    """The runs of case study four, with the paper's settings.

    Args:
        networks: What :func:`l0tre.load` takes.
        kinds: A run for each, see :data:`l0tre.studies.runs.KINDS`.
        images: Number of test images instead of the paper's.
        max_t: Largest number of pixels changed together instead of the paper's.

    Returns:
        The runs.

    Raises:
        ConfigError: If a kind is unknown.
    """
    return tuple(
        PlannedRun(network, kind, max_t or MAX_T, images or IMAGES, EPSILON) for kind in kinds for network in networks
    )


def summarise_case_four(out: str | Path) -> Summary:
    """Tables, figures and answers from the run folders of case study four, finished or not.

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
    sections: list[Section] = []
    figures: list[Figure] = []
    facts: dict[str, Any] = {"case": 4}
    for kind in dict.fromkeys(run.kind for run in runs):
        group = [run for run in runs if run.kind == kind]
        comparison = compare_snapshots({run.network: run.latest for run in group})
        tables: dict[str, Rows] = {
            "observations": [answer_observation(observation, comparison) for observation in OBSERVATIONS],
            "observation-pairs": _pair_rows(comparison),
            "networks": _network_rows(comparison, group),
            "levels": level_rows(group),
        }
        for name, rows in tables.items():
            write_csv(out / "tables" / f"{name}-{kind}.csv", rows)
        sections += [
            Section(
                f"The paper's observations ({group[0].words}; lower bounds hold for {group[0].scope})",
                tables["observations"],
            ),
            Section(f"The networks that they are about, two by two ({kind})", tables["observation-pairs"]),
            Section(f"Accuracy beside robustness ({kind})", tables["networks"]),
            Section(f"Bounds, estimates and their spread at each level ({kind})", tables["levels"], brief=False),
        ]
        facts[kind] = {**tables, "pairs": comparison.to_dict()["pairs"]}
        figures += _figures(group, comparison, out / "figures", kind)
    return write_summary(out, "Case study four: robust architectures", runs, sections, facts, figures)


def answer_observation(observation: Observation, comparison: Comparison) -> dict[str, str]:
    """Whether an observation holds for the networks at hand.

    Args:
        observation: What was observed.
        comparison: What is known.

    Returns:
        ``topic``, ``claim``, ``answer``, ``estimates`` and ``because``. The answer is ``holds`` if every order that the
        observation needs is certain, ``does not hold`` if one of them is certainly otherwise, ``open`` if neither is
        known, and ``not evaluated`` if a network is missing. ``estimates`` says what the middles of the bounds, which
        the paper compares, seem to show; that is no proof.
    """
    missing = _missing(observation, comparison)
    base = {"topic": observation.topic, "claim": observation.claim}
    if missing:
        because = f"there are no runs of {', '.join(missing)}"
        return {**base, "answer": "not evaluated", "estimates": "", "because": because}
    pairs = [comparison.pair(better, worse) for better, worse in observation.pairs]
    against = [pair for pair in pairs if pair.order in ("less", "equal")]
    undecided = [pair for pair in pairs if pair.order == "open"]
    answer, shown = ("does not hold", against) if against else ("open", undecided) if undecided else ("holds", pairs)
    estimates = {standing.network: standing.estimate for standing in comparison.standings}
    otherwise = sum(estimates[better] <= estimates[worse] for better, worse in observation.pairs)
    share = f" in {otherwise} of {len(pairs)} pairs" if len(pairs) > 1 else ""
    hint = f"against it{share}" if otherwise else "for it"
    return {**base, "answer": answer, "estimates": hint, "because": _reason(shown, comparison)}


def _missing(observation: Observation, comparison: Comparison) -> list[str]:
    known = {standing.network for standing in comparison.standings}
    return sorted({name for pair in observation.pairs for name in pair} - known)


def _reason(pairs: Sequence[Pair], comparison: Comparison) -> str:
    """What an answer rests on: the certain differences of mean safe radii, or what would settle open ones."""
    if any(pair.order == "open" for pair in pairs):
        names = {name for pair in pairs for name in (pair.first, pair.second)}
        standings = [standing for standing in comparison.standings if standing.network in names]
        return f"intervals of mean radii meet; to settle it: {what_settles(*standings)}"
    ranges = [f"{pair.first} - {pair.second}: {pair.difference[0]:.3f} to {pair.difference[1]:.3f}" for pair in pairs]
    scopes = " and ".join(dict.fromkeys(pair.scope for pair in pairs))
    return f"differences of mean radii {'; '.join(ranges)}; certain for {scopes}"


def _pair_rows(comparison: Comparison) -> Rows:
    """The networks that the observations put in an order, two by two: what is certain, estimated, and counted."""
    standings = {standing.network: standing for standing in comparison.standings}
    rows = []
    for better, worse in dict.fromkeys(pair for observation in OBSERVATIONS for pair in observation.pairs):
        if better not in standings or worse not in standings:
            continue
        pair = comparison.pair(better, worse)
        last = pair.splits[-1] if pair.splits else None
        rows.append(
            {
                "in the paper": f"{better} > {worse}",
                "mean radii": {"more": ">", "less": "<", "equal": "="}.get(pair.order, "open"),
                "difference": f"{pair.difference[0]:.3f} to {pair.difference[1]:.3f}",
                "estimates": f"{standings[better].estimate:.3f}, {standings[worse].estimate:.3f}",
                "only one is fooled": last and f"by {last.t} {standings[better].unit}s: {last.first}, {last.second}",
                "p": last and last.chance,
            }
        )
    return rows


def _network_rows(comparison: Comparison, runs: Sequence[RunData]) -> Rows:
    lower = {run.network: [image.lower for image in run.latest.images] for run in runs}
    most = max((int(run.latest.config["settings"]["max_t"]) for run in runs), default=0)

    def safe(network: str) -> dict[str, str]:
        """The share of images (correctly classified ones) for which so many pixels are shown not to do."""
        found = lower[network]
        return {
            f"safe from {t}": f"{sum(low >= t for low in found) / max(1, len(found)):.1%}" for t in range(1, most + 1)
        }

    return [
        {
            "network": standing.network,
            "paper (%)": PAPER_ACCURACY.get(standing.network),
            "here (%)": round(100 * standing.accuracy, 2),
            "mean radius from": standing.radius[0],
            "mean radius to": standing.radius[1],
            "estimate": standing.estimate,
            **safe(standing.network),
            "exact": f"{standing.exact:.1%}",
            "done": standing.finished,
        }
        for standing in comparison.standings
    ]


def _figures(runs: Sequence[RunData], comparison: Comparison, folder: Path, kind: str) -> list[Figure]:
    folder.mkdir(exist_ok=True)
    compared = write_comparison(comparison, folder, f"comparison-{kind}")
    drawn = [
        ("bounds and estimates of each network at each t", bounds_of_networks(runs, folder / f"bounds-{kind}")),
        (
            "means and standard deviations of estimates and radii",
            spread_of_networks(runs, folder / f"spread-{kind}"),
        ),
        ("accuracy beside robustness, and every two networks", compared),
    ]
    return [Figure(f"{kind}: {caption}", files) for caption, files in drawn]
