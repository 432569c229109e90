"""Tests made smaller: changed groups that a neuron can do without are restored."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.testgen.found import Found
from l0tre.testgen.units import Bench, Desk

__all__ = ["tighten"]


@torch.inference_mode()
def tighten(desk: Desk, bench: Bench, number: int) -> float:
    """Restore single groups of the nearest tests of a layer's neurons, as long as each still activates its neuron.

    Args:
        desk: Has the parts of a round done; its tests are made smaller, and it receives the new ones.
        bench: What they share.
        number: Of the layer, in ``Goals.targets``.

    Returns:
        What it cost, in passes through the network.
    """
    goals, found = bench.goals, desk.found
    target = goals.targets[number]
    place = target.layer.place
    neurons = ((found.distance[place] > 1) & (found.test[place] >= 0)).nonzero()[:, 0] + target.layer.start
    spent = 0.0
    each = goals.own_bytes(target) + 16 * bench.seeds.shape[1]
    while len(neurons):
        longest = int(found.distance[neurons].max())
        parts = neurons.split(max(1, bench.memory // (each * longest)))
        tests = [found.test[part].tolist() for part in parts]  # as they are before the round
        again = [neurons[:0]]
        what, units = f"smaller tests of {target.layer.name}", _units(found, number, parts, tests)
        for value in desk.values(what, len(parts), units):
            if value is not None:
                spent += value[0]
                again.append(value[1])
        neurons = torch.cat(again)
    return spent


def _units(
    found: Found, number: int, parts: Sequence[Tensor], tests: Sequence[list[int]]
) -> Callable[[int], tuple[object, ...]]:
    def make(place: int) -> tuple[object, ...]:
        own = tests[place]
        x = torch.stack([found.inputs[test] for test in own])
        seeds = torch.tensor([found.seeds[test] for test in own], device=x.device)
        return _restore_one, number, parts[place], x, seeds

    return make


@torch.inference_mode()
def _restore_one(
    bench: Bench, found: Found, target_number: int, neurons: Tensor, x: Tensor, number: Tensor
) -> tuple[float, Tensor]:
    """Try to restore every changed group of every test.

    Args:
        bench: What parts share.
        found: Receives the smaller tests.
        target_number: Of the layer.
        neurons: int64 ``[rows]``.
        x: float32 ``[rows, values]``, their tests.
        number: int64 ``[rows]``, the seeds of these.

    Returns:
        What it cost, and the neurons whose tests became smaller.
    """
    bench.pulse()
    goals, domain, memory = bench.goals, bench.domain, bench.memory
    target, original = goals.targets[target_number], bench.seeds[number]
    row, group = (x != original)[:, domain.members].any(2).nonzero(as_tuple=True)
    members = domain.members[group]
    tried = x[row].scatter(1, members, original[row].gather(1, members))
    tried = admit(domain, original[row], tried)
    value = goals.own_excess(target, tried, neurons[row])
    best = torch.full((len(x),), -torch.inf, device=x.device).scatter_reduce(0, row, value, "amax")
    first = torch.full((len(x),), len(row), device=x.device)
    chosen = torch.where(value == best[row], torch.arange(len(row), device=x.device), len(row))
    first = first.scatter_reduce(0, row, chosen, "amin")
    hits = (best > 0).nonzero()[:, 0]
    for rows in hits.split(max(1, memory // (3 * goals.row_bytes))):
        smaller = tried[first[rows]]
        sizes = (smaller != original[rows])[:, domain.members].any(2).sum(1)
        found.take(smaller, number[rows], sizes, goals.excess(smaller) > 0, neurons[rows])
    return goals.share(target) * len(row) + len(hits), neurons[hits]
