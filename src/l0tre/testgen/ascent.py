"""Neurons that single changes do not lead to: all values that a neuron sees are moved to its favour at once."""

import torch
from torch import Tensor

from l0tre.admission import admit, ends
from l0tre.testgen.climb import slope_of
from l0tre.testgen.found import FAR, Found
from l0tre.testgen.units import Bench, Desk

__all__ = ["ascend"]

STARTS = 4  # the seed itself, and points drawn between the ends of the ranges
STEPS = 24
FIRST, LAST = 0.5, 0.02  # how far a step moves values, as a share of their ranges
HALF = STEPS // 2  # steps that follow the gradient through leaking ReLUs; then the neuron's own


@torch.inference_mode()
def ascend(desk: Desk, bench: Bench, number: int, chosen: Tensor) -> float:
    """Look for tests of a layer's neurons that have none; they may have more changed groups than are allowed.

    Args:
        desk: Has some neurons done at a time.
        bench: What they share.
        number: Of the layer, in ``Goals.targets``.
        chosen: int64 ``[neurons]``, the seed that each neuron's test is made from.

    Returns:
        What it cost, in passes through the network.
    """
    target = bench.goals.targets[number]
    missed = (desk.found.distance[target.layer.place] >= FAR).nonzero()[:, 0] + target.layer.start
    each = STARTS * (bench.goals.own_bytes(target) + 32 * bench.seeds.shape[1])
    parts = missed.split(max(1, bench.memory // each)) if len(missed) else ()
    costs = desk.values(
        f"ascent of {target.layer.name}", len(parts), lambda place: (_rise, number, parts[place], chosen[parts[place]])
    )
    return sum((float(cost) for cost in costs if cost is not None), 0.0)


@torch.inference_mode()
def _rise(bench: Bench, found: Found, number: int, missed: Tensor, seeds: Tensor) -> float:
    """Follow the gradients of some neurons of a layer, int64 ``[neurons]``, from a seed each; gives what it cost."""
    goals, domain, target = bench.goals, bench.domain, bench.goals.targets[number]
    free = torch.zeros(bench.seeds.shape[1], dtype=torch.bool, device=missed.device)
    free[domain.members.flatten()] = True
    neurons, number_ = missed.repeat_interleave(STARTS), seeds.repeat_interleave(STARTS)
    original = bench.seeds[number_]
    low, high = ends(domain, original)
    generator = torch.Generator().manual_seed(bench.seed + int(missed[0]))
    draw = torch.rand(original.shape, generator=generator).to(missed.device)
    draw = torch.where(free, low + draw * (high - low), original)
    first = torch.arange(len(neurons), device=missed.device) % STARTS == 0
    x = torch.where(first[:, None], original, draw)
    best, most = x, torch.full((len(neurons),), -torch.inf, device=missed.device)
    for step in range(STEPS):
        bench.pulse()
        size = FIRST * (LAST / FIRST) ** (step / (STEPS - 1))
        slope = slope_of(goals, target, x, neurons, soft=step < HALF)
        x = torch.where(free, x + size * (high - low) * slope.sign(), original)
        x = torch.minimum(torch.maximum(x, low), high)
        tried = admit(domain, original, x)
        value = goals.own_excess(target, tried, neurons)
        better = value > most
        best, most = torch.where(better[:, None], tried, best), torch.where(better, value, most)
    rows = (most > 0).nonzero()[:, 0]
    for some in rows.split(max(1, bench.memory // (3 * goals.row_bytes))) if len(rows) else ():
        sizes = (best[some] != original[some])[:, domain.members].any(2).sum(1)
        found.take(best[some], number_[some], sizes, goals.hits(best[some]), neurons[some])
    return 4 * STEPS * goals.share(target) * len(x) + len(rows)
