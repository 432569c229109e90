"""From a seed towards a neuron, one changed group after the other: gradients propose, forward passes decide.

A beam of several inputs is carried for each neuron; all inputs of a step have the same number of changed groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from l0tre.admission import admit, ends
from l0tre.domain import Domain
from l0tre.testgen.found import Found
from l0tre.testgen.goals import Goals, Target
from l0tre.testgen.sweep import Ranked
from l0tre.testgen.units import Bench, Desk

__all__ = ["climb", "slope_of"]

BEAMS = 2  # inputs that go on for each neuron
PROPOSED = 2  # groups that each kind of gradient proposes for an input
RANKED = 2  # groups that the ranking of single changes proposes
WIDE_STEPS = 4  # changed groups up to which all beams go on; later the best alone
PATIENCE = 8  # steps without progress after which a neuron is left


@dataclass(frozen=True)
class Beams:
    """One row for each neuron that is looked for.

    Attributes:
        neurons: int64 ``[rows]``.
        seeds: int64 ``[rows]``, the seed that each starts from.
        x: float32 ``[rows, beams, values]``.
        changed: bool ``[rows, beams, groups]``.
        value: float32 ``[rows, beams]``, excess of the own neuron; minus infinity for a beam that is not there.
        mark: float64 ``[rows, beams]``, a number that two inputs share only if they are the same.
        stale: int64 ``[rows]``, steps since the best value rose.
        best: float32 ``[rows]``, the best value so far.
        order: int32 ``[rows, kept]``, single changes of the seed that raise the neuron most, see ``sweep.Ranked``.
    """

    neurons: Tensor
    seeds: Tensor
    x: Tensor
    changed: Tensor
    value: Tensor
    mark: Tensor
    stale: Tensor
    best: Tensor
    order: Tensor

    def __len__(self) -> int:
        return len(self.neurons)

    def pick(self, rows: Tensor | slice) -> "Beams":
        """Some of the rows."""
        return Beams(*(getattr(self, field.name)[rows] for field in fields(self)))


def _hashes(domain: Domain) -> Tensor:
    """Random numbers by which inputs are told apart, float64 ``[groups, 1 + width]``."""
    generator = torch.Generator().manual_seed(0)
    hashes = torch.rand(domain.groups, 1 + domain.members.shape[1], generator=generator, dtype=torch.float64)
    return hashes.to(domain.members.device)


def _marks(hashes: Tensor, groups: Tensor, values: Tensor) -> Tensor:
    own = hashes[groups]
    return own[..., 0] + (own[..., 1:] * values).sum(-1)


def _begin(bench: Bench, chosen: Tensor, ranked: Ranked, neurons: Tensor) -> Beams:
    """The best single changes of each neuron's seed."""
    domain, rows = bench.domain, len(neurons)
    each, beams = bench.points.shape[1], min(BEAMS, ranked.change.shape[1])
    change = ranked.change[neurons, :beams].long()
    gain = ranked.gain[neurons, :beams]
    there = (change >= 0) & torch.isfinite(gain)
    group, point = change.clamp(min=0) // each, change.clamp(min=0) % each
    seeds = chosen[neurons]
    original = bench.seeds[seeds][:, None].expand(-1, beams, -1)
    values = bench.points[group, point]
    x = original.scatter(2, domain.members[group], values)
    x = admit(domain, original.flatten(0, 1), x.flatten(0, 1)).view(rows, beams, -1)
    changed = torch.zeros(rows, beams, domain.groups, dtype=torch.bool, device=x.device)
    changed.scatter_(2, group[:, :, None], True)
    value = torch.where(there, ranked.base[neurons][:, None] + gain, -torch.inf)
    stale, marks = torch.zeros_like(neurons), _marks(_hashes(domain), group, values)
    return Beams(neurons, seeds, x, changed, value, marks, stale, value.amax(1), ranked.change[neurons])


def _step(bench: Bench, target: Target, beams: Beams, kept: int) -> tuple[Beams, int]:
    """Change one more group in every beam, and keep the best so many.

    Returns:
        The beams, and the forward and backward passes spent.
    """
    goals, domain, (rows, width) = bench.goals, bench.domain, beams.value.shape
    owner = beams.neurons.repeat_interleave(width)
    x, changed = beams.x.flatten(0, 1), beams.changed.flatten(0, 1)
    original = bench.seeds[beams.seeds].repeat_interleave(width, 0)
    low, high = ends(domain, original)
    proposals: list[tuple[Tensor, Tensor]] = []
    for soft in (False, True):
        slope = slope_of(goals, target, x, owner, soft=soft)
        promise, corner = _promise(domain, slope, x, low, high)
        top = promise.masked_fill_(changed, -torch.inf).topk(min(PROPOSED, domain.groups), 1).indices
        values = corner[:, None].expand(-1, top.shape[1], -1).gather(2, domain.members[top])
        proposals.append((top, values))
    proposals.append(_from_ranking(bench.points, beams.order.repeat_interleave(width, 0), changed))
    groups, values = (torch.cat(parts, 1) for parts in zip(*proposals, strict=True))
    count = groups.shape[1]
    tried = x[:, None].expand(-1, count, -1).scatter(2, domain.members[groups], values)
    tried = admit(domain, original.repeat_interleave(count, 0), tried.flatten(0, 1))
    got = goals.own_excess(target, tried, owner.repeat_interleave(count)).view(-1, count)
    got = got.masked_fill(changed.gather(1, groups), -torch.inf)
    got = got.masked_fill(~torch.isfinite(beams.value.flatten())[:, None], -torch.inf)
    marks = (beams.mark.flatten()[:, None] + _marks(_hashes(domain), groups, values)).view(rows, -1)
    got = _without_doubles(got.view(rows, -1), marks)
    best, place = got.topk(min(kept, got.shape[1]), 1)
    beam = place // count
    group = groups.view(rows, -1).gather(1, place)
    new_x = tried.view(rows, width * count, -1).gather(1, place[:, :, None].expand(-1, -1, tried.shape[1]))
    new_changed = beams.changed.gather(1, beam[:, :, None].expand(-1, -1, domain.groups)).clone()
    new_changed.scatter_(2, group[:, :, None], True)
    most = torch.maximum(best[:, 0], beams.best)
    stale = torch.where(best[:, 0] > beams.best, 0, beams.stale + 1)
    spent = rows * width * (count + 4)
    mark = marks.gather(1, place)
    return Beams(beams.neurons, beams.seeds, new_x, new_changed, best, mark, stale, most, beams.order), spent


def slope_of(goals: Goals, target: Target, x: Tensor, neurons: Tensor, *, soft: bool) -> Tensor:
    """Gradient of each row's own neuron, ``[rows, values]``."""
    with torch.inference_mode(False), torch.enable_grad():
        inputs = x.clone().requires_grad_()
        value = goals.own_excess(target, inputs, neurons.clone(), soft=soft)
        (slope,) = torch.autograd.grad(value.sum(), inputs)
    return slope


def _promise(domain: Domain, slope: Tensor, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """What the gradient promises for each group, ``[rows, groups]``, and the values it would be changed to."""
    corner = torch.where(slope > 0, high, low)
    gain = slope * (corner - x)
    real = torch.arange(domain.members.shape[1], device=x.device) < domain.sizes[:, None]
    return (gain[:, domain.members] * real).sum(2), corner


def _from_ranking(points: Tensor, order: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
    """The best single changes that are not made yet: groups ``[rows, some]`` and their values."""
    each, order = points.shape[1], order.long()
    group = order.clamp(min=0) // each
    free = ~changed.gather(1, group) & (order >= 0)
    kept = order.shape[1]
    place = torch.where(free, torch.arange(kept, device=order.device), kept).sort(1).values[:, :RANKED]
    chosen = order.gather(1, place.clamp(max=kept - 1)).clamp(min=0)
    return chosen // each, points[chosen // each, chosen % each]


def _without_doubles(values: Tensor, marks: Tensor) -> Tensor:
    """The values with minus infinity where an input is there already."""
    sorted_, order = marks.sort(dim=1, stable=True)
    same = torch.zeros_like(order, dtype=torch.bool)
    same[:, 1:] = (sorted_[:, 1:] - sorted_[:, :-1]).abs() < 1e-9
    double = torch.zeros_like(same).scatter(1, order, same)
    return values.masked_fill(double, -torch.inf)


@torch.inference_mode()
def climb(desk: Desk, bench: Bench, number: int, chosen: Tensor, ranked: Ranked) -> Iterator[float]:
    """Look for tests of a layer's neurons with 2, 3, ... changed groups; neurons that have one already are left out.

    Args:
        desk: Has the blocks of a step done.
        bench: What they share.
        number: Of the layer, in ``Goals.targets``.
        chosen: int64 ``[neurons]``, the seed that each neuron's climb starts from.
        ranked: What single changes of it do.

    Yields:
        What each step cost, in passes through the network.
    """
    goals, found = bench.goals, desk.found
    target = goals.targets[number]
    neurons = (found.distance[target.layer.place] > 1).nonzero()[:, 0] + target.layer.start
    if not len(neurons):
        return
    tried = BEAMS * (2 * PROPOSED + RANKED)
    each = tried * (goals.own_bytes(target) + 8 * (bench.seeds.shape[1] + bench.domain.groups))
    size, share, what = max(1, bench.memory // each), goals.share(target), f"climbs of {target.layer.name}"
    blocks = [_begin(bench, chosen, ranked, part) for part in neurons.split(size)]
    for t in range(2, min(bench.most, bench.domain.groups) + 1):
        spent, rest = 0.0, []
        done = [value for value in desk.values(what, len(blocks), partial(_unit, number, blocks, t)) if value]
        for beams, queries, hits in done:
            spent += share * queries + hits
            alive = (found.distance[beams.neurons] > t) & (beams.stale < PATIENCE) & torch.isfinite(beams.value[:, 0])
            rest.append(beams.pick(alive))
        yield spent
        blocks = _packed([beams for beams in rest if len(beams)], size)
        if not blocks:
            return


def _unit(number: int, blocks: list[Beams], t: int, place: int) -> tuple[object, ...]:
    return _advance, number, blocks[place], t


@torch.inference_mode()
def _advance(bench: Bench, found: Found, number: int, beams: Beams, t: int) -> tuple[Beams, int, int]:
    """One more changed group in a block: the beams, passes spent on it, and passes spent on looking at hits."""
    bench.pulse()
    target = bench.goals.targets[number]
    beams, queries = _step(bench, target, beams, BEAMS if t <= WIDE_STEPS else 1)
    return beams, queries, _keep(bench.goals, beams, found, t, bench.memory)


def _keep(goals: Goals, beams: Beams, found: Found, t: int, memory: int) -> int:
    """Look at all neurons of the inputs that activate their own one; gives how many inputs that were."""
    hits = (beams.value[:, 0] > 0).nonzero()[:, 0]
    for rows in hits.split(max(1, memory // (3 * goals.row_bytes))):
        x = beams.x[rows, 0]
        found.take(x, beams.seeds[rows], torch.full_like(rows, t), goals.hits(x), beams.neurons[rows])
    return len(hits)


def _packed(blocks: list[Beams], size: int) -> list[Beams]:
    """Small blocks together."""
    packed: list[Beams] = []
    for beams in blocks:
        if packed and len(packed[-1]) + len(beams) <= size:
            both = (packed.pop(), beams)
            beams = Beams(*(torch.cat([getattr(b, field.name) for b in both]) for field in fields(Beams)))
        packed.append(beams)
    return packed
