"""Fewer tests with the same coverage, and what each test adds."""

from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.testgen.found import FAR, Found
from l0tre.testgen.goals import Goals
from l0tre.testgen.hits import Hits, pack

__all__ = ["distances_by", "gains", "minimal", "needed_tests"]

PASSES = 4


@torch.inference_mode()
def needed_tests(
    goals: Goals, found: Found, open_: Tensor, most: int, memory: int, pulse: Callable[[], None] = lambda: None
) -> tuple[Tensor, Hits]:
    """The tests that together keep every neuron's distance, and what they activate, confirmed in float64.

    Args:
        goals: The neurons.
        found: The tests.
        open_: bool ``[neurons]``, those that no seed activates.
        most: Changed groups of a test, at the most; farther ones are left out.
        memory: Bytes that a batch may take.
        pulse: Felt before every batch; may raise ``Halted``.

    Returns:
        int64 ``[tests]``, the tests by distance, then by what they activate; what they activate of the open neurons.
    """
    used = found.test[(found.test >= 0) & (found.distance <= most)].unique()
    numbers = open_.nonzero()[:, 0]
    parts = [pack(torch.zeros(0, len(numbers), dtype=torch.bool, device=goals.device)).bits]
    counts = [torch.zeros(0, dtype=torch.int64, device=goals.device)]
    for some in used.split(max(1, memory // (6 * goals.row_bytes))) if len(used) else ():
        pulse()
        own = goals.confirmed(torch.stack([found.inputs[test] for test in some.tolist()]))[:, numbers]
        parts.append(pack(own).bits)
        counts.append(own.sum(1))
    hits = Hits(torch.cat(parts), len(numbers))
    distances = torch.tensor([found.distances[test] for test in used.tolist()], dtype=torch.int64, device=goals.device)
    order = (distances * (len(numbers) + 1) - torch.cat(counts)).argsort(stable=True)
    covered = torch.zeros(len(numbers), dtype=torch.bool, device=goals.device)
    kept: list[int] = []
    for level in distances.unique().tolist():
        rows = order[distances[order] == level]
        kept.extend(_cover(hits, rows, covered))
        covered |= hits.any(rows)
    place = torch.tensor(kept, dtype=torch.int64, device=goals.device)
    return used[place], hits.pick(place)


def _cover(hits: Hits, rows: Tensor, covered: Tensor) -> list[int]:
    """Rows that cover what all of them do and ``covered`` does not; those that others make superfluous are left out."""
    missing = hits.any(rows) & ~covered
    if not bool(missing.any()):
        return []
    chosen = rows[hits.counts(rows, missing).argsort(descending=True, stable=True)]
    for _ in range(PASSES):  # forwards and backwards: a row stays if it is the first that activates some neuron
        chosen = chosen[hits.first(chosen)[missing].unique()].flip(0)
    times = hits.times(chosen)
    needed = hits.counts(chosen, missing & (times == 1)) > 0
    kept = chosen[needed].tolist()
    for row in chosen[~needed].tolist():
        own = hits.row(row) & missing
        if bool((times[own] > 1).all()):
            times -= own.long()
        else:
            kept.append(row)
    stay = torch.zeros(len(hits), dtype=torch.bool, device=rows.device)
    stay[kept] = True
    return [int(row) for row in rows[stay[rows]]]


def minimal(hits: Hits) -> list[int]:
    """Few tests that activate what all of them do, whatever their distances."""
    nothing = torch.zeros(hits.neurons, dtype=torch.bool, device=hits.bits.device)
    return _cover(hits, _all(hits), nothing)


def gains(hits: Hits) -> Tensor:
    """How many neurons each test adds to those before it, int64 ``[tests]``."""
    return torch.bincount(hits.first(_all(hits)), minlength=len(hits) + 1)[: len(hits)]


def distances_by(hits: Hits, distances: Tensor, neurons: int, open_: Tensor) -> tuple[Tensor, Tensor]:
    """Each neuron's distance and nearest test from what the tests activate.

    Args:
        hits: Of the open neurons.
        distances: int64 ``[tests]``, ascending.
        neurons: Number of all neurons.
        open_: bool ``[neurons]``, those that no seed activates.

    Returns:
        int64 ``[neurons]``: 0 for what a seed activates, ``FAR`` for what no test does; and the test, -1 for none.
    """
    device, count = open_.device, len(hits)
    distance = torch.where(open_, FAR, 0)
    test = torch.full((neurons,), -1, dtype=torch.int64, device=device)
    first = hits.first(_all(hits))
    there = first < count
    numbers = open_.nonzero()[:, 0][there]
    test[numbers] = first[there]
    distance[numbers] = distances[first[there]]
    return distance, test


def _all(hits: Hits) -> Tensor:
    return torch.arange(len(hits), device=hits.bits.device)
