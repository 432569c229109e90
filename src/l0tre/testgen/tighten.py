"""Tests made smaller: changed groups that a neuron can do without are restored."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.testgen.climb import slope_of
from l0tre.testgen.found import Found
from l0tre.testgen.units import Bench, Desk

__all__ = ["tighten"]

MANY = 48  # changed groups of a test beyond which many are restored at once first


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
    what, spent = f"smaller tests of {target.layer.name}", 0.0
    each = goals.own_bytes(target) + 16 * bench.seeds.shape[1]
    many = _tested(found, place, MANY)
    parts = many.split(max(1, bench.memory // (4 * each))) if len(many) else ()
    tests = [found.test[part].tolist() for part in parts]
    for value in desk.values(what, len(parts), _units(found, _restore_many, number, parts, tests)):
        spent += 0.0 if value is None else value
    neurons = _tested(found, place, 1)
    neurons = neurons[found.distance[neurons] <= max(MANY, 2 * bench.most)]  # others hardly come to count
    while len(neurons):
        longest = int(found.distance[neurons].max())
        parts = neurons.split(max(1, bench.memory // (each * longest)))
        tests = [found.test[part].tolist() for part in parts]  # as they are before the round
        again = [neurons[:0]]
        units = _units(found, _restore_one, number, parts, tests)
        for value in desk.values(what, len(parts), units):
            if value is not None:
                spent += value[0]
                again.append(value[1])
        neurons = torch.cat(again)
    return spent


def _tested(found: Found, place: slice, distance: int) -> Tensor:
    """A layer's neurons whose tests are farther than that, int64 ``[neurons]``."""
    own = (found.distance[place] > distance) & (found.test[place] >= 0)
    numbers: Tensor = own.nonzero()[:, 0] + place.start
    return numbers


def _units(
    found: Found,
    function: Callable[..., object],
    number: int,
    parts: Sequence[Tensor],
    tests: Sequence[list[int]],
) -> Callable[[int], tuple[object, ...]]:
    def make(place: int) -> tuple[object, ...]:
        own = tests[place]
        x = torch.stack([found.inputs[test] for test in own])
        seeds = torch.tensor([found.seeds[test] for test in own], device=x.device)
        return function, number, parts[place], x, seeds

    return make


@torch.inference_mode()
def _restore_many(bench: Bench, found: Found, target_number: int, neurons: Tensor, x: Tensor, number: Tensor) -> float:
    """Restore the groups that the gradient says matter least, as many at once as can be, until none of them can go.

    The half of them is tried; where a neuron cannot do without, a quarter from then on, ..., and one.

    Args:
        bench: As in :func:`_restore_one`, like what follows.
        found: Likewise.
        target_number: Likewise.
        neurons: Likewise.
        x: Likewise.
        number: Likewise.

    Returns:
        What it cost.
    """
    goals, domain, memory = bench.goals, bench.domain, bench.memory
    target, original, x = goals.targets[target_number], bench.seeds[number], x.clone()
    real = torch.arange(domain.members.shape[1], device=x.device) < domain.sizes[:, None]
    open_ = smaller = torch.arange(len(x), device=x.device)
    halvings, weight = torch.ones_like(open_), torch.zeros(len(x), domain.groups, device=x.device)
    spent = 0.0
    while len(open_):
        bench.pulse()
        if len(smaller):  # what is left has weights of its own
            slope = slope_of(goals, target, x[smaller], neurons[smaller], soft=False)
            weight[smaller] = ((slope * (x - original)[smaller])[:, domain.members] * real).sum(2)
            spent += 2 * goals.share(target) * len(smaller)
        now, own = x[open_], original[open_]
        changed = (now != own)[:, domain.members].any(2)
        share = changed.sum(1) >> halvings[open_]
        rank = weight[open_].masked_fill(~changed, torch.inf).argsort(1).argsort(1)
        gone = ((rank < share[:, None]) & changed).repeat_interleave(domain.members.shape[1], 1)
        restored = torch.zeros_like(now, dtype=torch.bool)
        restored.scatter_(1, domain.members.flatten().expand(len(now), -1), gone)
        tried = admit(domain, own, torch.where(restored, own, now))
        hit = (goals.own_excess(target, tried, neurons[open_]) > 0) & (share > 0)
        spent += goals.share(target) * len(tried)
        smaller = open_[hit]
        x[smaller] = tried[hit]
        halvings[open_[~hit]] += 1
        open_ = open_[share > 0]
    for rows in torch.arange(len(x), device=x.device).split(max(1, memory // (3 * goals.row_bytes))):
        sizes = (x[rows] != original[rows])[:, domain.members].any(2).sum(1)
        found.take(x[rows], number[rows], sizes, goals.hits(x[rows]), neurons[rows])
    return spent + len(x)


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
        found.take(smaller, number[rows], sizes, goals.hits(smaller), neurons[rows])
    return goals.share(target) * len(row) + len(hits), neurons[hits]
