"""Local search with gradients: add groups until the decision changes, then swap two changed groups for one other.

Every image has several chains, one for each class that it is made to resemble. A chain that is smaller than the best
known adversarial input by more than one group adds the group that helps most; one that is smaller by exactly one swaps
a group; a larger one drops one. Gradients propose, forward passes decide. A group that was dropped may not come back
for some steps (tabu search), so a chain leaves the places where no single swap helps.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.admission import allowed_vectors, ends
from l0tre.attacks.chains import LEAST_CHAINS, MOST_RIVALS, Chains, begin, pick, restart, survivors
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import Task
from l0tre.exhaustive.accumulate import changed_groups, flipped, tighten
from l0tre.rules import Rules

__all__ = ["local"]

ADDITIONS, SWAPS, REVALUES = 8, 16, 2  # candidates of one step that are queried
TABU = (8, 12)  # steps for which a dropped group stays away, drawn anew each time
PATIENCE = 25  # steps without progress after which a chain begins again
SHAKE = 0.5  # largest share by which chance changes what a gradient promises
CHAIN_ARRAYS = 12  # arrays of a chain's size that a step holds


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


def local(meter: Meter, task: Task, best: Tensor, limit: Tensor, generator: torch.Generator) -> Tensor:
    """Look for smaller adversarial inputs around the best ones known, or from the originals.

    Args:
        meter: Network and counters, for the images of the task.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        limit: int64 ``[images]``, queries of the meter at which an image stops, to within one step.
        generator: For chance, on the network's device.

    Returns:
        float32 ``[images, values]``, inputs that are no larger.
    """
    best = meter.working_copy(best)
    rivals = min(MOST_RIVALS, meter.network.classes - 1) + LEAST_CHAINS
    each = 4 * CHAIN_ARRAYS * rivals * task.images.shape[1]
    block = max(1, meter.memory // each)
    for rows in torch.arange(len(best), device=best.device).split(block):
        _search(meter, task, best, rows, limit, generator)
    return best


def _search(meter: Meter, task: Task, best: Tensor, rows: Tensor, limit: Tensor, generator: torch.Generator) -> None:
    """Improve ``best`` in place, for some images."""
    sizes = task.sizes(best)
    rows = rows[((sizes > task.enough) & (meter.spent < limit))[rows]]
    if not len(rows):
        return
    chains = begin(meter, task, best, rows, int((limit - meter.spent)[rows].min()))
    since = torch.zeros_like(sizes)
    step = 0
    while not meter.halted():
        open_ = (meter.spent < limit) & (sizes > task.enough)
        chains = pick(chains, open_[chains.image] & survivors(chains, since))
        if not len(chains):
            return
        chains, found, inputs = _step(meter, task, chains, sizes[chains.image] - 1, step, generator)
        since += sizes <= task.domain.groups
        if len(found):
            smaller, queries = tighten(
                meter.batcher, task.domain, task.images[found], task.specification.pick(found), inputs, meter.halted
            )
            meter.charge(found, queries)
            best[found] = smaller
            sizes[found] = task.part(found).sizes(smaller)
            since[found] = 1
            fresh = torch.isin(chains.image, found)
            chains = replace(chains, least=chains.least.masked_fill(fresh, float("inf")))
        tired = chains.stale >= PATIENCE
        # From the original no slope leads anywhere, and beginning there again would change nothing.
        stuck = tired & (chains.x == task.images[chains.image]).all(1)
        chains = restart(pick(chains, ~stuck), tired[~stuck], task.images)
        step += 1


def _step(
    meter: Meter, task: Task, chains: Chains, aim: Tensor, step: int, generator: torch.Generator
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

    _, slope = meter.gradients(chains.image, chains.x, lead)
    gain, corner = _promises(task, chains, slope, step, generator)
    cost = _group_sums(task, slope * (task.images[chains.image] - chains.x))
    swaps = _swaps(gain, cost.masked_fill(~support, float("inf")), size, size == aim)
    moves = _join(_join(_additions(gain, support, size, aim), swaps), _drops(support & (size > aim)[:, None], size))
    scores = _query(meter, task, chains, corner, moves)
    value = lead(scores, moves.chain)
    hit = flipped(scores, specification.pick(moves.chain)) & (moves.size <= aim[moves.chain])
    worth = specification.pick(moves.chain).margins(scores).masked_fill(~hit, float("inf"))
    best = _lowest(worth, chains.image[moves.chain], len(task.images))
    found = (best >= 0).nonzero()[:, 0]
    inputs = _moved(task, chains, corner, moves, best[found])
    chosen = _lowest(value, moves.chain, len(chains))
    return _advance(task, chains, corner, moves, chosen, value, size == aim, step, generator), found, inputs


def _lead(scores: Tensor, labels: Tensor, rivals: Tensor) -> Tensor:
    return (scores.gather(1, labels[:, None]) - scores.gather(1, rivals[:, None]))[:, 0]


def _promises(
    task: Task, chains: Chains, slope: Tensor, step: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What changing each group promises to a linear model: gain ``[chains, groups]``, values ``[chains, values]``."""
    domain = task.domain
    originals = task.images[chains.image]
    low, high = ends(domain, originals)
    down, up = slope * (low - chains.x), slope * (high - chains.x)
    corner = torch.where(down < up, low, high)
    gain = _group_sums(task, torch.minimum(down, up))
    if isinstance(domain.rules, Rules) and len(domain.rules.listed):
        gain, corner = _best_listed(task, domain.rules, originals, chains.x, slope, gain, corner)
    noise = torch.rand(gain.shape, generator=generator, device=gain.device)
    gain = torch.where(chains.shaken[:, None], gain * (1 - SHAKE * noise), gain)
    return gain.masked_fill((gain >= 0) | (chains.tabu > step), float("inf")), corner


def _best_listed(
    task: Task, rules: Rules, originals: Tensor, x: Tensor, slope: Tensor, gain: Tensor, corner: Tensor
) -> tuple[Tensor, Tensor]:
    """Gains and values where groups with a list take the vector that a linear model promises most of."""
    listed = rules.listed
    members, vectors = task.domain.members[listed], rules.vectors[listed]
    real = torch.arange(members.shape[1], device=x.device) < task.domain.sizes[listed][:, None]
    moves = (vectors - x[:, members][:, :, None]) * real[:, None]
    promise = (slope[:, members][:, :, None] * moves).sum(3)
    promise = promise.masked_fill(~allowed_vectors(task.domain, rules, originals), float("inf"))
    least, place = promise.min(2)
    chosen = vectors[torch.arange(len(listed), device=x.device), place]
    corner = corner.scatter(1, members.flatten().expand(len(x), -1), chosen.flatten(1))
    return gain.index_copy(1, listed, least), corner


def _group_sums(task: Task, values: Tensor) -> Tensor:
    """Sums over the values of each group: ``[chains, groups]`` from ``[chains, values]``."""
    domain = task.domain
    own = torch.arange(domain.members.shape[1], device=values.device) < domain.sizes[:, None]
    return (values[:, domain.members] * own).sum(2)


def _drops(support: Tensor, size: Tensor) -> Moves:
    chain, group = support.nonzero(as_tuple=True)
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


def _moved(task: Task, chains: Chains, corner: Tensor, moves: Moves, rows: Tensor | slice) -> Tensor:
    """The inputs that some moves lead to, float32 ``[rows, values]``."""
    chain, out, in_ = moves.chain[rows], moves.out[rows], moves.in_[rows]
    x = chains.x[chain]
    for group, values in ((out, task.images[chains.image[chain]]), (in_, corner[chain])):
        place = task.domain.members[group.clamp(min=0)]
        x.scatter_(1, place, torch.where((group >= 0)[:, None], values.gather(1, place), x.gather(1, place)))
    return x


def _query(meter: Meter, task: Task, chains: Chains, corner: Tensor, moves: Moves) -> Tensor:
    def make(start: int, stop: int) -> Tensor:
        return _moved(task, chains, corner, moves, slice(start, stop))

    return meter.scores(chains.image[moves.chain], make)


def _lowest(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """For each owner the place of its lowest finite value, -1 for none; int64 ``[owners]``."""
    order = values.argsort(descending=True, stable=True)
    order = order[torch.isfinite(values[order])]
    place = torch.full((owners,), -1, dtype=torch.int64, device=values.device)
    # Equal places are written in an order that is not defined: give each owner its last one only.
    owned = owner[order]
    by_owner = owned.argsort(stable=True)
    owned = owned[by_owner]
    last = torch.ones_like(owned, dtype=torch.bool)
    last[:-1] = owned[:-1] != owned[1:]
    place[owned[last]] = order[by_owner[last]]
    return place


def _advance(
    task: Task,
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
