"""Fewer tests with the same coverage, and what each test adds."""

from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.testgen.found import FAR, Found
from l0tre.testgen.goals import Goals

__all__ = ["distances_by", "gains", "minimal", "needed_tests"]

PASSES = 4


@torch.inference_mode()
def needed_tests(
    goals: Goals, found: Found, open_: Tensor, memory: int, pulse: Callable[[], None] = lambda: None
) -> tuple[Tensor, Tensor]:
    """The tests that together keep every neuron's distance, and what they activate, confirmed in float64.

    Args:
        goals: The neurons.
        found: The tests.
        open_: bool ``[neurons]``, those that no seed activates.
        memory: Bytes that a batch may take.
        pulse: Felt before every batch; may raise ``Halted``.

    Returns:
        int64 ``[tests]``, the tests by distance, then by what they activate; bool ``[tests, open neurons]``.
    """
    used = found.test[found.test >= 0].unique()
    numbers = open_.nonzero()[:, 0]
    hits = torch.zeros(len(used), len(numbers), dtype=torch.bool, device=goals.device)
    size = max(1, memory // (6 * goals.row_bytes))
    for first in range(0, len(used), size):
        pulse()
        x = torch.stack([found.inputs[test] for test in used[first : first + size].tolist()])
        hits[first : first + size] = goals.confirmed(x)[:, numbers]
    distances = torch.tensor([found.distances[test] for test in used.tolist()], device=goals.device)
    counts = hits.sum(1)
    order = (distances * (len(numbers) + 1) - counts).argsort(stable=True)
    covered = torch.zeros(len(numbers), dtype=torch.bool, device=goals.device)
    kept: list[int] = []
    for level in distances.unique().tolist():
        rows = order[distances[order] == level]
        kept.extend(_cover(hits, rows, covered))
        covered |= hits[rows].any(0)
    place = torch.tensor(kept, dtype=torch.int64, device=goals.device)
    return used[place], hits[place]


def _cover(hits: Tensor, rows: Tensor, covered: Tensor) -> list[int]:
    """Rows that cover what all of them do and ``covered`` does not; those that others make superfluous are left out."""
    missing = hits[rows][:, ~covered]
    if not bool(missing.any()):
        return []
    chosen = missing.sum(1).argsort(descending=True, stable=True)
    for _ in range(PASSES):  # forwards and backwards: a row stays if it is the first that activates some neuron
        first = missing[chosen].to(torch.uint8).argmax(0)[missing.any(0)]
        chosen = chosen[first.unique()].flip(0)
    times = missing[chosen].sum(0)
    needed = (missing[chosen] & (times == 1)).any(1)
    kept = chosen[needed].tolist()
    for row in chosen[~needed].tolist():
        if bool((times[missing[row]] > 1).all()):
            times -= missing[row].long()
        else:
            kept.append(row)
    return [int(row) for row in rows[sorted(kept)]]


def minimal(hits: Tensor) -> list[int]:
    """Few tests that activate what all of them do, whatever their distances; rows of bool ``[tests, neurons]``."""
    nothing = torch.zeros(hits.shape[1], dtype=torch.bool, device=hits.device)
    return _cover(hits, torch.arange(len(hits), device=hits.device), nothing)


def gains(hits: Tensor) -> Tensor:
    """How many neurons each test adds to those before it, int64 ``[tests]``."""
    count = len(hits)
    if not count:
        return torch.zeros(0, dtype=torch.int64, device=hits.device)
    first = hits.to(torch.uint8).argmax(0)  # the first of those that do
    return torch.bincount(first[hits.any(0)], minlength=count)


def distances_by(hits: Tensor, distances: Tensor, neurons: int, open_: Tensor) -> tuple[Tensor, Tensor]:
    """Each neuron's distance and nearest test from what the tests activate.

    Args:
        hits: bool ``[tests, open neurons]``.
        distances: int64 ``[tests]``, ascending.
        neurons: Number of all neurons.
        open_: bool ``[neurons]``, those that no seed activates.

    Returns:
        int64 ``[neurons]``: 0 for what a seed activates, ``FAR`` for what no test does; and the test, -1 for none.
    """
    device, count = hits.device, len(hits)
    distance = torch.where(open_, FAR, 0)
    test = torch.full((neurons,), -1, dtype=torch.int64, device=device)
    if count:
        first, there = hits.to(torch.uint8).argmax(0), hits.any(0)  # the first of those that do
        numbers = open_.nonzero()[:, 0][there]
        test[numbers] = first[there]
        distance[numbers] = distances[first[there]]
    return distance, test
