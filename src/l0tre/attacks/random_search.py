"""Random search without gradients (as Sparse-RS does for a fixed size), at sizes that fall with every success."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.admission import allowed_vectors, ends
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask
from l0tre.exhaustive.accumulate import changed_groups, flipped, tighten
from l0tre.rules import Rules

__all__ = ["search"]

PROPOSALS = 8  # inputs that are queried together for each image; the best one counts
FIRST_SHARE = 0.3  # of the changed groups are exchanged at first, fewer with every round at the same size
HALF_LIFE = 20  # rounds at one size after which the share has halved
PATIENCE = 60  # rounds at one size without success after which a larger one is tried
STEP = 8  # a success at size k makes the search go on at k - max(1, k // STEP)
TIGHTEN = 64  # restoring groups one by one is left out above this size
ARRAYS = 6  # arrays of an input's size that a round holds for each proposal


@dataclass
class _Walk:
    """Where the search stands, one row for each image.

    Attributes:
        owner: int64 ``[rows]``, the image of the meter.
        x: float32 ``[rows, values]``, the input at hand.
        margin: float32 ``[rows]``, its margin; infinite before it is known.
        rounds: int64 ``[rows]``, rounds at this size.
    """

    owner: Tensor
    x: Tensor
    margin: Tensor
    rounds: Tensor


def search(meter: Meter, task: AttackTask, best: Tensor, limit: Tensor, generator: torch.Generator) -> Tensor:
    """Exchange random changed groups for random others, keep what lowers the margin.

    Args:
        meter: Network and counters, for the images of the task.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        limit: int64 ``[images]``, passes of the meter that are not exceeded.
        generator: For chance, on the network's device.

    Returns:
        float32 ``[images, values]``, inputs that are no larger.
    """
    best = meter.working_copy(best)
    block = max(1, meter.memory // (4 * ARRAYS * PROPOSALS * task.images.shape[1]))
    todo = ((task.sizes(best) > task.enough) & (meter.spent < limit)).nonzero()[:, 0]
    for rows in todo.split(block):
        _start(meter, task, best, rows, limit, generator)
        _improve(meter, task, best, rows, limit, generator)
    return best


def _start(
    meter: Meter, task: AttackTask, best: Tensor, rows: Tensor, limit: Tensor, generator: torch.Generator
) -> None:
    """Where nothing is known: random orders of the groups, until a prefix of one changes the decision."""
    groups = task.domain.groups
    lengths = sorted({min(2**power, groups) for power in range(groups.bit_length() + 1)})
    each = torch.tensor(lengths, device=best.device)
    while not meter.halted():
        owner = rows[(task.part(rows).sizes(best[rows]) > groups) & (meter.spent + len(lengths) <= limit)[rows]]
        if not len(owner):
            return
        rank = torch.rand(len(owner), groups, generator=generator, device=best.device).argsort(1).argsort(1)
        corners = _corners(task, owner, generator)
        images = task.images[owner]

        def make(start: int, stop: int, images: Tensor = images, rank: Tensor = rank, to: Tensor = corners) -> Tensor:
            row = torch.arange(start, stop, device=images.device)
            place = row // len(lengths)
            return _put(task, images[place], rank[place] < each[row % len(lengths), None], to[place])

        scores = meter.scores(owner.repeat_interleave(len(lengths)), make)
        hit = flipped(scores, task.specification.pick(owner).repeat(len(lengths))).reshape(len(owner), -1)
        found, first = hit.any(1), hit.int().argmax(1)
        which = (rank < each[first][:, None]) & found[:, None]
        best[owner] = _put(task, task.images[owner], which, corners)


def _improve(
    meter: Meter, task: AttackTask, best: Tensor, rows: Tensor, limit: Tensor, generator: torch.Generator
) -> None:
    """Search at smaller and smaller sizes, in place."""
    sizes = task.sizes(best)
    rows = rows[(sizes[rows] <= task.domain.groups) & (sizes > task.enough)[rows]]
    fewer = _fewer(task, best, rows, (sizes[rows] // STEP).clamp(min=1), generator)
    walk = _Walk(rows, fewer, torch.full((len(rows),), float("inf"), device=best.device), torch.zeros_like(rows))
    while not meter.halted():
        open_ = (meter.spent + PROPOSALS <= limit)[walk.owner] & (sizes > task.enough)[walk.owner]
        walk = _Walk(walk.owner[open_], walk.x[open_], walk.margin[open_], walk.rounds[open_])
        if not len(walk.owner):
            return
        proposals, margin, hit = _round(meter, task, walk, generator)
        better = hit | (margin <= walk.margin)  # what counts as a hit depends on the size of the scores too
        walk.x = torch.where(better[:, None], proposals, walk.x)
        walk.margin = torch.where(better, margin, walk.margin)
        walk.rounds += 1
        _succeed(meter, task, best, sizes, walk, hit, limit, generator)
        _give_up(task, best, sizes, walk, generator)


def _round(meter: Meter, task: AttackTask, walk: _Walk, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The best proposal of each row, its margin, and whether it changes the decision."""
    owner = walk.owner.repeat_interleave(PROPOSALS)
    support = changed_groups(task.domain, task.images[owner], walk.x.repeat_interleave(PROPOSALS, 0))
    size = support.sum(1)
    share = FIRST_SHARE * 0.5 ** (walk.rounds / HALF_LIFE)
    count = (share.repeat_interleave(PROPOSALS) * size).long().clamp(min=1)
    count = torch.minimum(count, torch.minimum(size, task.domain.groups - size).clamp(min=1))
    key = torch.rand(support.shape, generator=generator, device=support.device)
    out = key.masked_fill(~support, float("inf")).argsort(1).argsort(1) < count[:, None]
    in_ = key.masked_fill(support, float("inf")).argsort(1).argsort(1) < count[:, None]
    out, in_ = out & support, in_ & ~support
    corners = _corners(task, owner, generator)

    def make(start: int, stop: int) -> Tensor:
        some = slice(start, stop)
        x = walk.x[torch.arange(start, stop, device=support.device) // PROPOSALS]
        return _put(task, _put(task, x, out[some], task.images[owner[some]]), in_[some], corners[some])

    scores = meter.scores(owner, make)
    margin, place = task.specification.pick(owner).margins(scores).reshape(-1, PROPOSALS).min(1)
    row = torch.arange(len(walk.owner), device=place.device) * PROPOSALS + place
    chosen = _put(task, _put(task, walk.x, out[row], task.images[walk.owner]), in_[row], corners[row])
    return chosen, margin, flipped(scores[row], task.specification.pick(walk.owner))


def _succeed(
    meter: Meter,
    task: AttackTask,
    best: Tensor,
    sizes: Tensor,
    walk: _Walk,
    hit: Tensor,
    limit: Tensor,
    generator: torch.Generator,
) -> None:
    """Keep adversarial inputs, restore superfluous groups, and go on with fewer."""
    rows = hit.nonzero()[:, 0]
    if not len(rows):
        return
    owner = walk.owner[rows]
    best[owner] = walk.x[rows]
    small = owner[task.part(owner).sizes(best[owner]) <= TIGHTEN]
    tight, queries = tighten(
        meter.batcher,
        task.domain,
        task.images[small],
        task.specification.pick(small),
        best[small],
        meter.halted,
        (limit - meter.spent)[small],
    )
    meter.charge(small, queries)
    best[small] = tight
    sizes[owner] = task.part(owner).sizes(best[owner])
    _begin_at(task, best, walk, rows, (sizes[owner] // STEP).clamp(min=1), generator)


def _give_up(task: AttackTask, best: Tensor, sizes: Tensor, walk: _Walk, generator: torch.Generator) -> None:
    """After long without success begin anew, nearer to the size that is known to do."""
    rows = (walk.rounds >= PATIENCE).nonzero()[:, 0]
    if len(rows):
        owner = walk.owner[rows]
        now = changed_groups(task.domain, task.images[owner], walk.x[rows]).sum(1)
        _begin_at(task, best, walk, rows, ((sizes[owner] - now) // 2).clamp(min=1), generator)


def _begin_at(
    task: AttackTask, best: Tensor, walk: _Walk, rows: Tensor, fewer: Tensor, generator: torch.Generator
) -> None:
    walk.x[rows] = _fewer(task, best, walk.owner[rows], fewer, generator)
    walk.margin[rows] = float("inf")
    walk.rounds[rows] = 0


def _fewer(task: AttackTask, best: Tensor, owner: Tensor, count: Tensor, generator: torch.Generator) -> Tensor:
    """The best inputs of some images with ``count`` random changed groups put back."""
    support = changed_groups(task.domain, task.images[owner], best[owner])
    key = torch.rand(support.shape, generator=generator, device=support.device)
    back = key.masked_fill(~support, float("inf")).argsort(1).argsort(1) < count[:, None]
    return _put(task, best[owner], back & support, task.images[owner])


def _corners(task: AttackTask, owner: Tensor, generator: torch.Generator) -> Tensor:
    """Random ends of the ranges, ``[rows, values]``; where all values of a group stay as they are, the other ends."""
    domain = task.domain
    high = torch.rand(len(owner), task.images.shape[1], generator=generator, device=task.images.device) < 0.5
    lowest, highest = ends(domain, task.images[owner])
    corner = torch.where(high, highest, lowest)
    same = ~changed_groups(domain, task.images[owner], corner)
    other = torch.where(high, lowest, highest)
    corner = _put(task, corner, same, other)
    if not isinstance(domain.rules, Rules) or not len(domain.rules.listed):
        return corner
    # A random allowed vector for groups with a list, another than the original one if there is one.
    listed, originals = domain.rules.listed, task.images[owner]
    members, vectors = domain.members[listed], domain.rules.vectors[listed]
    differs = (vectors != originals[:, members][:, :, None]).any(3)
    key = torch.rand(differs.shape, generator=generator, device=corner.device)
    key = key.masked_fill(~(allowed_vectors(domain, domain.rules, originals) & differs), -1.0)
    best, place = key.max(2)
    chosen = vectors[torch.arange(len(listed), device=corner.device), place]
    chosen = torch.where((best >= 0)[:, :, None], chosen, originals[:, members])
    return corner.scatter(1, members.flatten().expand(len(corner), -1), chosen.flatten(1))


def _put(task: AttackTask, x: Tensor, groups: Tensor, values: Tensor) -> Tensor:
    """``x`` with the groups marked in ``groups`` (bool ``[rows, groups]``) set to ``values``."""
    return torch.where(task.values_of(groups), values, x)
