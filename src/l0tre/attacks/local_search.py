"""Local search with gradients: add groups until the decision changes, then swap two changed groups for one other.

Every image has several chains, one for each class that it is made to resemble. A chain that is smaller than the best
known adversarial input by more than one group adds the group that helps most; one that is smaller by exactly one swaps
a group; a larger one drops one. Gradients propose, forward passes decide. A group that was dropped may not come back
for some steps (tabu search), so a chain leaves the places where no single swap helps.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.attacks.chains import Chains, begin, from_best, join, pick, restart, survivors
from l0tre.attacks.first_order import first_order_gains, group_sums
from l0tre.attacks.linear import Sides, between, no_sides
from l0tre.attacks.meter import Meter
from l0tre.attacks.rows import lowest
from l0tre.attacks.task import AttackTask, Worker
from l0tre.exhaustive.accumulate import changed_groups, flipped

__all__ = ["local"]

ADDITIONS, SWAPS, REVALUES, DROPS = 4, 8, 2, 4  # candidates of one step that are queried
LEAST_STEP = 3  # passes without which a step has no candidate
TABU = (8, 12)  # steps for which a dropped group stays away, drawn anew each time
PATIENCE = 25  # steps without progress after which a chain begins again
PACE = 0.3  # weight of a new gradient between the corners in their mean
SHAKE = 0.5  # largest share by which chance changes what a gradient promises


@dataclass(frozen=True)
class Moves:
    """Changes of chains: put ``out`` back to its original values (if not -1), then ``in_`` to ``values`` (likewise).

    Attributes:
        chain: int64 ``[moves]``, the place of the chain.
        out: int64 ``[moves]``, a group, or -1.
        in_: int64 ``[moves]``, a group, or -1.
        size: int64 ``[moves]``, changed groups after the move.
    """

    chain: Tensor
    out: Tensor
    in_: Tensor
    size: Tensor


@dataclass
class _State:
    """Where the search stands between two turns.

    Attributes:
        begun: bool ``[images]``.
        since: int64 ``[images]``, steps since an image's last success; 0 before the first one.
        sizes: int64 ``[images]``, of the best inputs when the search last saw them.
        sides: From where linear models led nearest.
        chains: Of all images.
        step: Number of the next step.
    """

    begun: Tensor
    since: Tensor
    sizes: Tensor
    sides: Sides
    chains: Chains | None = None
    step: int = 0


def local(meter: Meter, task: AttackTask, generator: torch.Generator) -> Worker:
    """Look for smaller adversarial inputs around the best ones known, or from the originals.

    Args:
        meter: Network and counters, for the images of the task; the network needs gradients.
        task: What is attacked.
        generator: For chance, on the network's device.

    Returns:
        The method; it goes on where it stopped.
    """
    sizes = task.sizes(task.images)
    state = _State(torch.zeros_like(sizes, dtype=torch.bool), torch.zeros_like(sizes), sizes, no_sides(task))

    def work(best: Tensor, limit: Tensor) -> Tensor:
        best = meter.working_copy(best)
        _search(meter, task, best, limit, state, generator)
        return best

    return work


def _search(
    meter: Meter, task: AttackTask, best: Tensor, limit: Tensor, state: _State, generator: torch.Generator
) -> None:
    """Improve ``best`` in place."""
    turn = (task.sizes(best) > task.enough) & (meter.spent < limit)
    fresh = (turn & ~state.begun).nonzero()[:, 0]
    if len(fresh):
        state.begun[fresh] = True
        new = begin(meter, task, best, fresh, limit, state.sides, generator)
        state.chains = new if state.chains is None else join([state.chains, new])
    if state.chains is None:
        return
    # What other methods have found meanwhile is a place to go on from.
    better = (turn & (task.sizes(best) < state.sizes) & state.begun).nonzero()[:, 0]
    better = better[~torch.isin(better, fresh)]
    if len(better):
        state.chains = join([state.chains, from_best(meter, task, best, better, limit, state.sides)])
    resting = pick(state.chains, ~turn[state.chains.image])
    chains = pick(state.chains, turn[state.chains.image])
    try:
        while not meter.halted():
            sizes = task.sizes(best)
            state.since = torch.where(sizes < state.sizes, torch.clamp(state.since, max=1), state.since)
            state.sizes = sizes
            chains = pick(chains, survivors(chains, state.since))
            able = ((sizes > task.enough)[chains.image]) & meter.affords(chains.image, limit, LEAST_STEP)
            if not bool(able.any()):
                break
            waiting, moving = pick(chains, ~able), pick(chains, able)
            moving, found, inputs = _step(meter, task, moving, sizes[moving.image] - 1, limit, state.step, generator)
            state.since[moving.image.unique()] += (sizes <= task.domain.groups)[moving.image.unique()].long()
            if len(found):
                best[found] = inputs
                state.since[found] = 1
                better = torch.isin(moving.image, found)
                moving = replace(moving, least=moving.least.masked_fill(better, float("inf")))
            # At the original nothing is promised: no step leads anywhere.
            moving = pick(moving, (moving.stale == 0) | (moving.x != task.images[moving.image]).any(1))
            moving = restart(meter, task, best, moving, moving.stale >= PATIENCE, limit, generator)
            chains = join([waiting, moving])
            state.step += 1
    finally:
        state.chains = join([resting, chains])


def _step(
    meter: Meter, task: AttackTask, chains: Chains, aim: Tensor, limit: Tensor, step: int, generator: torch.Generator
) -> tuple[Chains, Tensor, Tensor]:
    """Move every chain to its best neighbour.

    Returns:
        The chains; the images for which an input of at most ``aim`` groups was met, and these inputs.
    """
    specification = task.specification.pick(chains.image)
    support = changed_groups(task.domain, task.images[chains.image], chains.x)
    size = support.sum(1)

    def lead(scores: Tensor, rows: slice | Tensor) -> Tensor:
        return _lead(scores, specification.labels[rows], chains.rival[rows])

    points, moved = chains.x, None
    if bool(chains.between.any()):
        points, moved = between(task, task.images[chains.image], chains.x, generator)
        points = torch.where(chains.between[:, None], points, chains.x)
    _, slope = meter.gradients(chains.image, points, lead)
    if moved is not None:
        met = task.values_of(moved) & chains.between[:, None]
        chains = replace(chains, slopes=chains.slopes + torch.where(met, PACE * (slope - chains.slopes), 0))
        slope = torch.where(chains.between[:, None], chains.slopes, slope)
    gain, corner = first_order_gains(task, task.images[chains.image], chains.x, slope)
    gain = _shaken(gain, chains, step, generator)
    cost = group_sums(task, slope * (task.images[chains.image] - chains.x)).masked_fill(~support, float("inf"))
    swaps = _swaps(gain, cost, size, size == aim)
    moves = _join(_join(_additions(gain, support, size, aim), swaps), _drops(cost, size, aim))
    afforded = meter.affords(chains.image[moves.chain], limit).nonzero()[:, 0]
    moves = Moves(moves.chain[afforded], moves.out[afforded], moves.in_[afforded], moves.size[afforded])
    scores = _query(meter, task, chains, corner, moves)
    value = lead(scores, moves.chain)
    hit = flipped(scores, specification.pick(moves.chain)) & (moves.size <= aim[moves.chain])
    worth = specification.pick(moves.chain).margins(scores).masked_fill(~hit, float("inf"))
    best = lowest(worth, chains.image[moves.chain], len(task.images))
    found = (best >= 0).nonzero()[:, 0]
    inputs = _moved(task, chains, corner, moves, best[found])
    chosen = lowest(value, moves.chain, len(chains))
    return _advance(task, chains, corner, moves, chosen, value, size == aim, step, generator), found, inputs


def _lead(scores: Tensor, labels: Tensor, rivals: Tensor) -> Tensor:
    return (scores.gather(1, labels[:, None]) - scores.gather(1, rivals[:, None]))[:, 0]


def _shaken(gain: Tensor, chains: Chains, step: int, generator: torch.Generator) -> Tensor:
    """Promises ``[chains, groups]`` that may be believed: none of tabu groups, some blurred by chance."""
    noise = torch.rand(gain.shape, generator=generator, device=gain.device)
    gain = torch.where(chains.shaken[:, None], gain * (1 - SHAKE * noise), gain)
    return gain.masked_fill((gain >= 0) | (chains.tabu > step), float("inf"))


def _drops(cost: Tensor, size: Tensor, aim: Tensor) -> Moves:
    """The changed groups of chains that are too large that seem to be missed least."""
    old = cost.masked_fill((size <= aim)[:, None], float("inf")).topk(min(DROPS, cost.shape[1]), 1, largest=False)
    chain, column = torch.isfinite(old.values).nonzero(as_tuple=True)
    group = old.indices[chain, column]
    return Moves(chain, group, torch.full_like(group, -1), size[chain] - 1)


def _additions(gain: Tensor, support: Tensor, size: Tensor, aim: Tensor) -> Moves:
    """The most promising new groups of chains that are too small."""
    outside = gain.masked_fill(support | (size >= aim)[:, None], float("inf"))
    top = outside.topk(min(ADDITIONS, gain.shape[1]), 1, largest=False)
    chain, column = torch.isfinite(top.values).nonzero(as_tuple=True)
    group = top.indices[chain, column]
    return Moves(chain, torch.full_like(group, -1), group, size[chain] + 1)


def _swaps(gain: Tensor, cost: Tensor, size: Tensor, right: Tensor) -> Moves:
    """The most promising pairs (drop one, add one), and other values of changed groups, for chains of the right size.

    Args:
        gain: ``[chains, groups]``, what a change promises.
        cost: ``[chains, groups]``, what dropping a changed group seems to cost; infinite for the others.
        size: int64 ``[chains]``, changed groups.
        right: bool ``[chains]``.

    Returns:
        The moves.
    """
    changed = torch.isfinite(cost)
    old = cost.masked_fill(~right[:, None], float("inf")).topk(min(SWAPS, cost.shape[1]), 1, largest=False)
    new = gain.masked_fill(changed, float("inf")).topk(min(SWAPS, gain.shape[1]), 1, largest=False)
    sums = (old.values[:, :, None] + new.values[:, None]).flatten(1)
    top = sums.topk(min(SWAPS, sums.shape[1]), 1, largest=False)
    chain, column = torch.isfinite(top.values).nonzero(as_tuple=True)
    both, width = top.indices[chain, column], new.values.shape[1]
    swaps = Moves(chain, old.indices[chain, both // width], new.indices[chain, both % width], size[chain])
    inside = gain.masked_fill(~(changed & right[:, None]), float("inf"))
    top = inside.topk(min(REVALUES, gain.shape[1]), 1, largest=False)
    chain, column = torch.isfinite(top.values).nonzero(as_tuple=True)
    group = top.indices[chain, column]
    return _join(swaps, Moves(chain, torch.full_like(group, -1), group, size[chain]))


def _join(a: Moves, b: Moves) -> Moves:
    names = ("chain", "out", "in_", "size")
    return Moves(*(torch.cat([getattr(a, name), getattr(b, name)]) for name in names))


def _moved(task: AttackTask, chains: Chains, corner: Tensor, moves: Moves, rows: Tensor | slice) -> Tensor:
    """The inputs that some moves lead to, float32 ``[rows, values]``."""
    chain, out, in_ = moves.chain[rows], moves.out[rows], moves.in_[rows]
    x = chains.x[chain]
    for group, values in ((out, task.images[chains.image[chain]]), (in_, corner[chain])):
        place = task.domain.members[group.clamp(min=0)]
        x.scatter_(1, place, torch.where((group >= 0)[:, None], values.gather(1, place), x.gather(1, place)))
    return x


def _query(meter: Meter, task: AttackTask, chains: Chains, corner: Tensor, moves: Moves) -> Tensor:
    def make(start: int, stop: int) -> Tensor:
        return _moved(task, chains, corner, moves, slice(start, stop))

    return meter.scores(chains.image[moves.chain], make)


def _advance(
    task: AttackTask,
    chains: Chains,
    corner: Tensor,
    moves: Moves,
    chosen: Tensor,
    value: Tensor,
    comparable: Tensor,
    step: int,
    generator: torch.Generator,
) -> Chains:
    """Make the chosen moves; chains without one stay and grow stale."""
    moving = (chosen >= 0).nonzero()[:, 0]
    rows = chosen[moving]
    x, tabu = chains.x.clone(), chains.tabu.clone()
    x[moving] = _moved(task, chains, corner, moves, rows)
    dropped = moves.out[rows] >= 0
    wait = torch.randint(*TABU, (int(dropped.sum()),), generator=generator, device=x.device, dtype=torch.int32)
    tabu[moving[dropped], moves.out[rows][dropped]] = step + wait
    now = torch.full_like(chains.least, float("inf"))
    now[moving] = value[rows]
    better = ~comparable | (now < chains.least)
    return replace(
        chains,
        x=x,
        tabu=tabu,
        least=torch.where(better, now, chains.least),
        stale=torch.where(better & torch.isfinite(now), 0, chains.stale + 1),
    )
