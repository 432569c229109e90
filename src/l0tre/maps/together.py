"""Pixels that lower a number most together, one after the other: a map says only what each does alone.

Neighbours often stand for each other: what the second of them does is done already. So every pixel is chosen for what
it adds to those before it, measured again for those that may still add most. What a pixel adds rarely grows, so that
most need not be looked at again; this is not proved, and the order is none that nothing could beat.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.halting import Halted
from l0tre.maps.perturber import Perturber
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.maps.work import MapState

__all__ = ["Together", "lower_together", "ranked"]

CHUNK = 32  # groups that are looked at again together
MOST = 256  # groups that are looked at again for one choice


@dataclass(frozen=True, eq=False)
class Together:
    """Groups in the order in which they were chosen.

    Attributes:
        groups: int64 ``[n]``, places of the groups.
        colours: float32 ``[n, width]``, the values that each takes.
        drops: float32 ``[n]``, how far each and all before it lower the number together.
    """

    groups: Tensor
    colours: Tensor
    drops: Tensor


def lower_together(perturber: Perturber, state: MapState, count: int) -> Together:
    """Choose groups one after the other, each for what it adds to those before it.

    Args:
        perturber: The number.
        state: What is known of the map; only groups that were measured are chosen.
        count: How many groups.

    Returns:
        As many groups as there are, and as lower the number any further; fewer if the perturber's pulse stops it.
    """
    gains = state.drop.masked_fill(~state.measured, -torch.inf)
    best = state.drop_point.clone()
    chosen, drops = list[int](), list[float]()
    image, now = perturber.image, perturber  # the image so far, and what changes of it do
    try:
        while len(chosen) < count:
            if chosen:
                now = now.around(image)
                _look_again(now, gains, best)
            group = int(gains.argmax())
            if not float(gains[group]) > 0:
                break
            chosen.append(group)
            drops.append(perturber.base - now.base + float(gains[group]))
            gains[group] = -torch.inf
            image = now.inputs(torch.tensor([group]), best[group : group + 1])[0].flatten()
    except Halted:
        pass
    finally:
        perturber.evaluations = now.evaluations
    places = torch.tensor(chosen, dtype=torch.int64)
    colours = image[perturber.domain.members[places.to(image.device)]].cpu()
    return Together(places, colours, torch.tensor(drops))


def ranked(found: SaliencyMap, chosen: Together, *, signed: bool = False) -> Tensor:
    """A map as an attribution in which the groups that were chosen come before all others, in their order.

    Args:
        found: The map.
        chosen: Their numbers are above the map's largest one, by 1 each from the last to the first.
        signed: See :meth:`SaliencyMap.attribution`.

    Returns:
        float32, in the input's shape.
    """
    attribution = found.attribution(signed=signed).flatten()
    members = found.members[chosen.groups]
    numbers = attribution.max() + torch.arange(len(members), 0, -1)
    attribution[members.flatten()] = numbers.repeat_interleave(members.shape[1])
    return attribution.reshape(found.shape)


def _look_again(now: Perturber, gains: Tensor, best: Tensor) -> None:
    """Bring what groups add up to date, those first that added most, until no other can add more than the best."""
    order = gains.argsort(descending=True, stable=True)[:MOST]
    order = order[torch.isfinite(gains[order])]
    values = now.grid.shape[1]
    most = -torch.inf
    for some in order.split(CHUNK):
        if not len(some) or most >= float(gains[some[0]]):
            return
        table = now.changes(some.repeat_interleave(values), torch.arange(values).repeat(len(some)))
        low, point = table.reshape(len(some), values).min(1)
        gains[some], best[some] = -low, point
        most = max(most, float(-low.min()))
