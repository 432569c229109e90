"""What a neuron sees when it is active, shown to another one of its channel: the same weights answer it alike.

A neuron of a map is computed from a window of the input. A window that activates it activates every neuron of its
channel whose own window lies inside of the input too, wherever that is.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.testgen.found import FAR, Found
from l0tre.testgen.units import Bench, Desk

__all__ = ["transfer"]

SOURCES = 64  # active neurons of a channel whose windows are shown to those that are not


@torch.inference_mode()
def transfer(desk: Desk, bench: Bench, number: int, chosen: Tensor) -> float:
    """Look for tests of the neurons of a map that have none; they may have more changed groups than are allowed.

    Args:
        desk: Has the channels done.
        bench: What they share.
        number: Of the layer, in ``Goals.targets``; nothing is done unless its neurons see windows.
        chosen: int64 ``[neurons]``, the seed that each neuron's test is made from.

    Returns:
        What it cost, in passes through the network.
    """
    target = bench.goals.targets[number]
    if target.crop is None:
        return 0.0
    distance = desk.found.distance[target.layer.place].view(target.layer.shape[0], -1)
    channels = ((distance >= FAR).any(1) & (distance < FAR).any(1)).nonzero()[:, 0].tolist()
    units = _units(desk.found, bench, number, chosen, channels)
    costs = desk.values(f"windows of {target.layer.name}", len(channels), units)
    return sum((float(cost) for cost in costs if cost is not None), 0.0)


def _units(
    found: Found, bench: Bench, number: int, chosen: Tensor, channels: Sequence[int]
) -> Callable[[int], tuple[object, ...]]:
    layer = bench.goals.targets[number].layer
    plane = layer.size // layer.shape[0]

    def make(place: int) -> tuple[object, ...]:
        first = layer.start + channels[place] * plane
        own = found.distance[first : first + plane]
        sources = own.argsort(stable=True)[: min(SOURCES, int((own < FAR).sum()))] + first
        # A neuron without a test is active for a seed; with several that need not be this one.
        shown = torch.stack(
            [
                found.inputs[test] if test >= 0 else bench.seeds[chosen[source]]
                for test, source in zip(found.test[sources].tolist(), sources, strict=True)
            ]
        )
        missed = (own >= FAR).nonzero()[:, 0] + first
        return _show, number, missed, chosen[missed], sources, shown

    return make


@torch.inference_mode()
def _show(
    bench: Bench, found: Found, number: int, missed: Tensor, seeds: Tensor, sources: Tensor, shown: Tensor
) -> float:
    """Show the windows of some neurons to others of their channel, and keep the inputs that are nearest to the seeds.

    Args:
        bench: What channels share.
        found: Receives the tests.
        number: Of the layer.
        missed: int64 ``[neurons]``.
        seeds: int64 ``[neurons]``, the seed that each one's test is made from.
        sources: int64 ``[sources]``, the neurons whose windows are shown.
        shown: float32 ``[sources, values]``, inputs that activate them.

    Returns:
        What it cost.
    """
    goals, domain, target = bench.goals, bench.domain, bench.goals.targets[number]
    crop, count, spent = target.crop, shown.shape[1], 0.0
    assert crop is not None
    free = torch.zeros(count, dtype=torch.bool, device=shown.device)
    free[domain.members.flatten()] = True
    other = crop.pixels(sources - target.layer.start)
    window = shown.gather(1, other.clamp(min=0))
    for neuron, seed in zip(missed, seeds, strict=True):
        bench.pulse()
        if int(found.distance[neuron]) < FAR:  # the test of one before
            continue
        neurons = neuron.expand(len(sources))
        original = bench.seeds[seed].expand(len(sources), -1)
        index = crop.pixels(neurons - target.layer.start)
        both = (index >= 0) & (other >= 0)  # what lies outside of the input for either of them stays as it is
        x = torch.nn.functional.pad(original, (0, 1)).scatter(1, torch.where(both, index, count), window)[:, :count]
        x = torch.where(free, torch.minimum(torch.maximum(x, domain.low), domain.high), original)
        x = admit(domain, original, x)
        sizes = (x != original)[:, domain.members].any(2).sum(1)
        order = torch.where(goals.own_excess(target, x, neurons) > 0, sizes, FAR)
        best = order.argmin()[None]
        spent += goals.share(target) * len(x)
        if int(order[best]) < FAR:
            found.take(x[best], seed[None], sizes[best], goals.hits(x[best]), neuron[None])
            spent += 1
    return spent
