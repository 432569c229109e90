"""What the figures mean, in sentences that claim no more than the bounds do."""

from collections import Counter

import torch

from l0tre.domain import Domain
from l0tre.evaluation.accuracy import counts, doubt
from l0tre.evaluation.results import Guarantee, Snapshot
from l0tre.grid import axis_points

__all__ = ["answer", "counted", "guarantees", "progress", "remarks"]

LISTED_VALUES = 11  # grid values named one by one


def counted(number: int, unit: str) -> str:
    """A number with its unit: ``1 pixel``, ``2 pixels``."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def answer(snapshot: Snapshot) -> str:
    """The result in one or two sentences.

    A safe radius of L means a distance of at least L + 1, so the mean distance is at least the mean lower bound plus
    one. Images without a witness have no known distance; they are kept out of what is said about the upper bound.

    Args:
        snapshot: The run.

    Returns:
        The answer, in groups.
    """
    total, unknown, unit = len(snapshot.images), snapshot.without_witness, snapshot.unit
    scope = _scope(snapshot)
    least = snapshot.lower + 1
    before = "before the decision can change"
    if unknown == total:
        if all(image.converged for image in snapshot.images):
            return f"No change of any number of {unit}s changes the decision of any image ({scope})."
        return (
            f"On average at least {least:.3f} {unit}s must change {before} ({scope}). "
            "No input with another decision is known for any image, so there is no upper bound."
        )
    if unknown:
        known = [image.upper for image in snapshot.images if image.witness is not None]
        return (
            f"On average at least {least:.3f} {unit}s must change {before} ({scope}). "
            f"For {len(known):,} of {total:,} images an input with another decision is known; "
            f"over these alone, it changes {sum(known) / len(known):.3f} {unit}s on average."
        )
    if snapshot.converged == total:
        exact = f"the answer is exact for every image ({scope})"
        return f"On average {snapshot.upper:.3f} {unit}s must change {before}: {exact}."
    return (
        f"On average at least {least:.3f} and at most {snapshot.upper:.3f} {unit}s must change {before}. "
        f"The first figure holds {scope}, the second is shown by stored inputs."
    )


def _scope(snapshot: Snapshot) -> str:
    kinds = {image.guarantee for image in snapshot.images}
    if kinds == {"grid"}:
        return "for changes to grid values"
    if kinds <= {"certified", "lipschitz"}:
        return "for all real values of the domain"
    return "in the sense of the guarantees below"


def guarantees(snapshot: Snapshot, domain: Domain) -> list[tuple[str, int, str]]:
    """What the lower bounds hold for.

    Args:
        snapshot: The run.
        domain: Its groups and ranges.

    Returns:
        For each kind of guarantee in the run: its name, the number of images with it, and what it means.
    """
    meaning: dict[Guarantee, str] = {
        "certified": "The lower bound is proved for all real values of the domain, by linear relaxation and branch and "
        f"bound. The proof holds for {snapshot.config.get('guarantee', {}).get('arithmetic', 'real arithmetic')}.",
        "grid": _grid(snapshot, domain),
        "lipschitz": "The lower bound holds for all real values of the domain, by the grid and a Lipschitz constant of "
        "the network.",
        "sampled": "No lower bound is claimed: random samples prove nothing.",
    }
    found = Counter(image.guarantee for image in snapshot.images)
    return [(kind, found[kind], text) for kind, text in meaning.items() if found[kind]]


def _grid(snapshot: Snapshot, domain: Domain) -> str:
    settings, unit = snapshot.config["settings"], snapshot.unit
    epsilon, kind = settings["epsilon"], settings["grid"]
    axis = _common_axis(domain, epsilon, kind)
    if settings["colours"] == "corners":
        ends = "" if axis is None else f" ({axis[0]:g} or {axis[-1]:g})"
        grid = f"only the smallest or the largest value of its range{ends}"
    elif kind == "paper":
        spacing = "not ε" if axis is None else f"{axis[1] - axis[0]:.4g}, not ε"
        grid = (
            f"{_values(axis)} of the published code's grid, linspace(low, high, floor(1/ε)) with ε = {epsilon:g}, "
            f"whose spacing is {spacing}"
        )
    else:
        grid = f"{_values(axis)} from the smallest to the largest value of its range, at most ε = {epsilon:g} apart"
    width = int(domain.sizes.max())
    if width > 1:
        grid += f"; a {unit} of {width} values takes all combinations"
    return (
        f"The lower bound L holds for a grid: no change of at most L {unit}s to grid values changes the decision. "
        f"A changed value takes {grid}. Nothing is claimed for values between grid points."
    )


def _common_axis(domain: Domain, epsilon: float, kind: str) -> list[float] | None:
    """The grid on one value, if all values that may change have the same range."""
    members = domain.members.flatten()
    ends = torch.stack([domain.low[members], domain.high[members]], 1).unique(dim=0)
    if len(ends) > 1:
        return None
    low, high = ends[0].tolist()
    return axis_points(low, high, epsilon, "paper" if kind == "paper" else "uniform").tolist()


def _values(axis: list[float] | None) -> str:
    if axis is None:
        return "the values"
    if len(axis) > LISTED_VALUES:
        return f"{len(axis):,} values ({axis[0]:g}, {axis[1]:g}, ..., {axis[-1]:g})"
    return f"the values {', '.join(f'{value:g}' for value in axis)}"


def progress(snapshot: Snapshot) -> str:
    """How far the search is, with its cost."""
    largest = snapshot.config["settings"]["max_t"]
    cost = f"{snapshot.seconds:,.1f} s of work, {snapshot.queries:,} queries of the network"
    if snapshot.finished:
        return f"The search is complete up to {counted(largest, snapshot.unit)} changed together: {cost}."
    return (
        f"The search stopped at level t = {snapshot.t} of {largest} ({cost}). The bounds hold; resuming improves them."
    )


def remarks(snapshot: Snapshot) -> list[str]:
    """What a reader of the figures must know besides: missing witnesses and ties."""
    unit, found = snapshot.unit, list[str]()
    correct, total, labelled = counts(snapshot)
    if labelled and (reason := doubt(correct, total)):
        found.append(f"{reason[0].upper()}{reason[1:].replace('`', '')}.")
    if snapshot.without_witness:
        groups = snapshot.images[0].groups
        found.append(
            f"{counted(snapshot.without_witness, 'image')} without a witness: each counts as {groups + 1:,} "
            f"(all {groups:,} {unit}s and one more) in the mean upper bound and in the estimate."
        )
    coarse = sum(image.blocked > 0 and image.guarantee == "lipschitz" for image in snapshot.images)
    if coarse:
        found.append(
            f"{counted(coarse, 'image')} for which the grid is too coarse: between its points the Lipschitz bound "
            "allows a margin below zero. A smaller epsilon may prove more."
        )
    ties = sum(image.blocked > 0 for image in snapshot.images) - coarse
    if ties:
        found.append(
            f"{counted(ties, 'image')} met a tie between two classes (or a difference too small to trust in float32). "
            "A tie does not count as safe, so the lower bound stays below that level."
        )
    return found
