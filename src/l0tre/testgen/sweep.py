"""One sweep of single changes tells what every group can do to every neuron; only the best of each neuron is kept."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.grid import make_grid
from l0tre.testgen.found import Found
from l0tre.testgen.units import Bench

__all__ = ["Ranked", "corner_points", "sweep"]

KEPT = 12  # groups that are ranked for each neuron
CORNERS = 64  # points of a group above which only its lowest and its highest one are tried


@dataclass(frozen=True)
class Ranked:
    """The groups that raise each neuron most when they change alone.

    Attributes:
        gain: float32 ``[neurons, kept]``, how far each raises it, descending.
        change: int32 ``[neurons, kept]``, group times points plus point.
        base: float32 ``[neurons]``, the excess at the seed.
    """

    gain: Tensor
    change: Tensor
    base: Tensor


def corner_points(domain: Domain) -> Tensor:
    """What single groups are changed to: the ends of their values' ranges, float32 ``[groups, points, width]``."""
    if 2 ** domain.members.shape[1] <= CORNERS or int(domain.sizes.max()) <= 6:
        return make_grid(domain, 1.0, colours="corners")
    return torch.stack([domain.low[domain.members], domain.high[domain.members]], 1)


@torch.inference_mode()
def sweep(bench: Bench, found: Found, number: int) -> tuple[Ranked, int]:
    """Change every single group of a seed to every point.

    Args:
        bench: Neurons, groups, points and seeds.
        found: Receives tests.
        number: Of the seed.

    Returns:
        The ranking, and the number of inputs that were tried.
    """
    goals, domain, points, seed = bench.goals, bench.domain, bench.points, bench.seeds[number]
    device, each = seed.device, points.shape[1]
    base = goals.excess(seed[None])[0]
    gain = torch.full((goals.count, KEPT), -torch.inf, device=device)
    change = torch.full((goals.count, KEPT), -1, dtype=torch.int32, device=device)
    step = max(1, bench.memory // (3 * goals.row_bytes) // each)
    number_ = torch.tensor(number, device=device)
    for start in range(0, domain.groups, step):
        bench.pulse()
        stop = min(start + step, domain.groups)
        count = stop - start
        positions = domain.members[start:stop].repeat_interleave(each, 0)
        original = seed.expand(count * each, -1)
        x = original.scatter(1, positions, points[start:stop].flatten(0, 1))
        x = admit(domain, original, x)
        excess = goals.excess(x)
        moved = (x != original).any(1)
        hits = (excess > 0) & moved[:, None]
        ones = torch.ones(len(x), dtype=torch.int64, device=device)
        found.take(x, number_.expand(len(x)), ones, hits, -ones)
        best, point = excess.masked_fill_(~moved[:, None], -torch.inf).view(count, each, -1).max(1)
        which = torch.arange(start, stop, device=device)[:, None] * each + point
        merged = torch.cat([gain, (best - base).T], 1)
        gain, order = merged.topk(KEPT, 1)
        change = torch.cat([change, which.T.to(torch.int32)], 1).gather(1, order)
    return Ranked(gain, change, base), domain.groups * each
