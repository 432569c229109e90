"""What the figures mean, in sentences that claim no more than the bounds do."""

from collections import Counter
from collections.abc import Sequence

import torch

from l0tre.domain import Domain
from l0tre.evaluation.accuracy import counts, doubt
from l0tre.evaluation.results import Guarantee, Snapshot
from l0tre.evaluation.scope import EXACT_STEPS, scope
from l0tre.grid import axis_points
from l0tre.rules import Rules

__all__ = ["answer", "counted", "guarantees", "is_sample", "on_grid", "progress", "remarks"]

LISTED_VALUES = 11  # grid values named one by one


def counted(number: int, unit: str) -> str:
    """A number with its unit: ``1 pixel``, ``2 pixels``."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def is_sample(snapshot: Snapshot) -> bool:
    """Whether nothing but random samples was tried: no lower bound is claimed for any image."""
    return all(image.guarantee == "sampled" for image in snapshot.images)


def on_grid(snapshot: Snapshot) -> bool:
    """Whether some lower bound says nothing about values between grid points, and so does what is called exact."""
    return any(image.guarantee == "grid" and image.lower > 0 for image in snapshot.images)


def answer(snapshot: Snapshot) -> str:
    """The result in one sentence, with the bounds that tables and files have: L withstood, U sufficient.

    Images without a witness have no known upper bound; they are kept out of what is said about it.

    Args:
        snapshot: The run.

    Returns:
        The answer, in groups.
    """
    images, unit = snapshot.images, snapshot.unit
    total = len(images)
    known = [image.upper for image in images if image.witness is not None]
    over = "" if total == 1 else f" over {total:,} {snapshot.noun}s"
    if is_sample(snapshot):
        if not known:
            return "Random samples found no change that alters a decision, and claim nothing about other changes."
        if len(known) == 1:
            whose = "" if total == 1 else f" of 1 of {total:,} {snapshot.noun}s, the only one with a known change"
            verb = "suffices" if known[0] == 1 else "suffice"
            found = f"{counted(known[0], unit)} {verb} to alter the decision (shown by a stored input){whose}"
        else:
            which = (
                over
                if len(known) == total
                else f" over the {len(known):,} of {total:,} {snapshot.noun}s with a known change"
            )
            found = f"On average {_mean(known)} {unit}s suffice to alter the decision (shown by stored inputs){which}"
        return f"{found}; random samples claim no lower bound."
    if not known and all(image.converged for image in images):
        whose = "" if total == 1 else f" of any of {total:,} {snapshot.noun}s"
        return f"No change of any number of {unit}s alters the decision{whose} ({_scope(snapshot)})."
    lower = _mean([image.lower for image in images])
    any_of = f"any {counted(images[0].lower, unit)}" if total == 1 else f"on average any {lower} {unit}s"
    least = f"{any_of} may change without altering the decision ({_scope(snapshot)})"
    least = f"{least[0].upper()}{least[1:]}"
    if not any(image.lower for image in images):
        least = f"No change of even one {unit} is proved to keep the decision"
    if not known:
        return f"{least}{over}; no input with another decision is known, so there is no upper bound."
    upper = f"{_mean(known)} well-chosen ones suffice to alter it (shown by stored inputs)"
    if len(known) == 1:
        ones = "one suffices" if known[0] == 1 else "ones suffice"
        upper = f"{known[0]:,} well-chosen {ones} to alter it (shown by a stored input)"
    if len(known) < total:
        return f"{least}{over}, while {upper} where such a change is known, for {len(known):,} of them."
    grid = " on the grid" if on_grid(snapshot) else ""
    exact = f", exact{grid} for every {snapshot.noun}" if snapshot.converged == total and total > 1 else ""
    exact = f", which is exact{grid}" if snapshot.converged == total == 1 else exact
    return f"{least}, while {upper}: [{lower}, {_mean(known)}]{over}{exact}."


def _mean(values: Sequence[int]) -> str:
    mean = sum(values) / len(values)
    return str(values[0]) if len(values) == 1 else f"{mean:.3f}"


def _scope(snapshot: Snapshot) -> str:
    scopes = {scope(image.guarantee, _arithmetic(snapshot)) for image in snapshot.images}
    if scopes == {"grid values"}:
        return "proved for changes to grid values"
    return f"proved for {scopes.pop()}" if len(scopes) == 1 else "in the sense of the guarantees below"


def _arithmetic(snapshot: Snapshot) -> str:
    return str(snapshot.config.get("guarantee", {}).get("arithmetic", "real arithmetic"))


def guarantees(snapshot: Snapshot, domain: Domain | None) -> list[tuple[str, int, str]]:
    """What the lower bounds hold for.

    Args:
        snapshot: The run.
        domain: Its groups and ranges; ``None`` if they are not known.

    Returns:
        For each kind of guarantee in the run: its name, the number of images with it, and what it means.
    """
    found = Counter(image.guarantee for image in snapshot.images)
    arithmetic = _arithmetic(snapshot)
    how = "by trying" if arithmetic == EXACT_STEPS else "by linear relaxation and branch and bound"
    meaning: dict[Guarantee, str] = {
        "certified": f"The lower bound L is proved for {scope('certified', arithmetic)}, {how}: no change of at most L "
        f"{snapshot.unit}s alters the decision. The proof holds for {arithmetic}.",
        "grid": _grid(snapshot, domain) if found["grid"] else "",
        "lipschitz": "The lower bound holds for all real values of the domain, by the grid and a Lipschitz constant of "
        "the network.",
        "sampled": "No lower bound is claimed: random samples prove nothing.",
    }
    return [(kind, found[kind], text) for kind, text in meaning.items() if found[kind]]


def _grid(snapshot: Snapshot, domain: Domain | None) -> str:
    settings, unit = snapshot.config["settings"], snapshot.unit
    epsilon, kind, points = settings["epsilon"], settings["grid"], settings.get("points", 0)
    axis = None if domain is None else _common_axis(domain, epsilon, kind, points)
    if settings["colours"] == "corners":
        ends = "" if axis is None else f" ({axis[0]:g} or {axis[-1]:g})"
        grid = f"only the smallest or the largest value of its range{ends}"
    elif points:
        of = f"{points} values" if axis is None else _values(axis)
        grid = f"{of} from the smallest to the largest value of its range, evenly spaced"
    elif kind == "paper":
        spacing = "not ε" if axis is None else f"{axis[1] - axis[0]:.4g}, not ε"
        grid = (
            f"{_values(axis)} of the published code's grid, linspace(low, high, floor(1/ε)) with ε = {epsilon:g}, "
            f"whose spacing is {spacing}"
        )
    else:
        grid = f"{_values(axis)} from the smallest to the largest value of its range, at most ε = {epsilon:g} apart"
    width = 1 if domain is None else int(domain.sizes.max())
    if domain is not None and isinstance(domain.rules, Rules):
        if len(domain.rules.listed):
            grid += f"; a {unit} with listed values (words, categories, one-hot columns) takes each of them"
        if domain.rules.whole.any():
            grid += "; whole numbers are rounded"
    if width > 1:
        grid += f"; a {unit} of {width} values takes all combinations"
    return (
        f"The lower bound L holds for a grid: no change of at most L {unit}s to grid values changes the decision. "
        f"A changed value takes {grid}. Nothing is claimed for values between grid points."
    )


def _common_axis(domain: Domain, epsilon: float, kind: str, points: int) -> list[float] | None:
    """The grid on one value, if all values that may change have the same range."""
    members = domain.members.flatten()
    ends = torch.stack([domain.low[members], domain.high[members]], 1).unique(dim=0)
    if len(ends) > 1:
        return None
    low, high = ends[0].tolist()
    return axis_points(low, high, epsilon, "paper" if kind == "paper" else "uniform", points).tolist()


def _values(axis: list[float] | None) -> str:
    if axis is None:
        return "the values"
    if len(axis) > LISTED_VALUES:
        return f"{len(axis):,} values ({axis[0]:g}, {axis[1]:g}, ..., {axis[-1]:g})"
    return f"the values {', '.join(f'{value:g}' for value in axis)}"


def progress(snapshot: Snapshot) -> str:
    """How far the search is, with its cost."""
    largest = snapshot.config.get("settings", {}).get("max_t", snapshot.t)
    cost = f"{snapshot.seconds:,.1f} s of work, {snapshot.queries:,} queries of the network"
    if is_sample(snapshot):
        sets = f"Random sets of {counted(largest, snapshot.unit)} were tried"
        return f"{sets}{'' if snapshot.finished else ' so far'}: {cost}."
    if snapshot.finished:
        return f"The search is complete up to {counted(largest, snapshot.unit)} changed together: {cost}."
    return (
        f"The search has come to level t = {snapshot.t} of {largest} ({cost}). The bounds hold; going on improves them."
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
            f"{counted(snapshot.without_witness, snapshot.noun)} without a witness: each counts as {groups + 1:,} "
            f"(all {groups:,} {unit}s and one more) in the mean upper bound and in the estimate."
        )
    if checked := sum(image.checked for image in snapshot.images):
        found.append(
            f"{checked:,} of {counted(len(snapshot.images), snapshot.noun)} checked: their lower bounds were proved "
            "again from certificates and their witnesses replayed, by other code (l0tre check)."
        )
    coarse = sum(image.blocked > 0 and image.guarantee == "lipschitz" for image in snapshot.images)
    if coarse:
        found.append(
            f"{counted(coarse, snapshot.noun)} for which the grid is too coarse: between its points the Lipschitz "
            "bound allows a margin below zero. A smaller epsilon may prove more."
        )
    ties = sum(image.blocked > 0 for image in snapshot.images) - coarse
    if ties:
        found.append(
            f"{counted(ties, snapshot.noun)} met a tie between two classes (or a difference too small to trust in "
            "float32). A tie does not count as safe, so the lower bound stays below that level."
        )
    return found
