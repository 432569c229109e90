"""What chance achieves: random pixels of the seeds at random values, with the same number of queries."""

from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.testgen.found import FAR
from l0tre.testgen.goals import Goals

__all__ = ["random_distances"]


@torch.inference_mode()
def random_distances(
    goals: Goals,
    domain: Domain,
    seeds: Tensor,
    start: Tensor,
    queries: int,
    most: int,
    generator: torch.Generator,
    memory: int,
    pulse: Callable[[], None] = lambda: None,
) -> Tensor:
    """The distance at which random changes activate each neuron.

    Sizes are drawn so that each power of two gets as many inputs; values are those at the ends of the ranges, which
    move neurons most.

    Args:
        goals: The neurons.
        domain: The groups.
        seeds: float32 ``[seeds, values]``.
        start: int64 ``[neurons]``, 0 for neurons that a seed activates, else ``FAR``.
        queries: How many inputs to try.
        most: Changed groups at the most.
        generator: For chance, on the seeds' device.
        memory: Bytes that a batch may take.
        pulse: Felt before every batch; may raise ``Halted``.

    Returns:
        int64 ``[neurons]``, ``FAR`` for neurons that no input activated.
    """
    device, distance = seeds.device, start.clone()
    most = min(most, domain.groups)
    rows = max(1, memory // (3 * goals.row_bytes + 8 * domain.groups))
    for first in range(0, queries, rows):
        pulse()
        count = min(rows, queries - first)
        draw = torch.rand(count, generator=generator, device=device)
        sizes = (torch.tensor(float(most), device=device) ** draw).round().long()
        order = torch.rand(count, domain.groups, generator=generator, device=device).argsort(1)
        changed = torch.zeros_like(order, dtype=torch.bool)
        changed.scatter_(1, order, torch.arange(domain.groups, device=device) < sizes[:, None])
        number = torch.randint(len(seeds), (count,), generator=generator, device=device)
        high = torch.rand(count, seeds.shape[1], generator=generator, device=device) < 0.5
        target = torch.where(high, domain.high, domain.low)
        x = seeds[number].clone()
        row, group = changed.nonzero(as_tuple=True)
        x[row[:, None], domain.members[group]] = target[row[:, None], domain.members[group]]
        x = admit(domain, seeds[number], x)
        moved = (x != seeds[number])[:, domain.members].any(2).sum(1)
        hits = torch.where(goals.excess(x) > 0, moved[:, None], FAR)
        distance = torch.minimum(distance, hits.amin(0))
    return distance
