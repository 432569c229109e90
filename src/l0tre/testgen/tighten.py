"""Tests made smaller: changed groups that a neuron can do without are restored."""

from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.testgen.found import Found
from l0tre.testgen.goals import Goals, Target

__all__ = ["tighten"]


@torch.inference_mode()
def tighten(
    goals: Goals,
    target: Target,
    domain: Domain,
    seeds: Tensor,
    found: Found,
    memory: int,
    pulse: Callable[[], None] = lambda: None,
) -> float:
    """Restore single groups of the nearest tests of a layer's neurons, as long as each still activates its neuron.

    Args:
        goals: All neurons.
        target: The layer.
        domain: The groups.
        seeds: float32 ``[seeds, values]``.
        found: Its tests are made smaller; it receives the new ones.
        memory: Bytes that a batch may take.
        pulse: Felt before every batch; may raise ``Halted``.

    Returns:
        What it cost, in passes through the network.
    """
    place = target.layer.place
    neurons = ((found.distance[place] > 1) & (found.test[place] >= 0)).nonzero()[:, 0] + target.layer.start
    spent = 0.0
    each = goals.own_bytes(target) + 16 * seeds.shape[1]
    while len(neurons):
        again: list[Tensor] = []
        longest = int(found.distance[neurons].max())
        for part in neurons.split(max(1, memory // (each * longest))):
            pulse()
            spent += _restore_one(goals, target, domain, seeds, found, part, memory, again)
        neurons = torch.cat(again) if again else neurons[:0]
    return spent


def _restore_one(
    goals: Goals,
    target: Target,
    domain: Domain,
    seeds: Tensor,
    found: Found,
    neurons: Tensor,
    memory: int,
    again: list[Tensor],
) -> float:
    """Try to restore every changed group of every test; the neurons whose tests became smaller go to ``again``."""
    tests = found.test[neurons].tolist()
    x = torch.stack([found.inputs[test] for test in tests])
    number = torch.tensor([found.seeds[test] for test in tests], device=x.device)
    original = seeds[number]
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
    if len(hits):
        again.append(neurons[hits])
    return goals.share(target) * len(row) + len(hits)
