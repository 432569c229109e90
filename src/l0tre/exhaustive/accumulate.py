"""Upper bounds: accumulate the ranked perturbations until the decision changes, then restore what is not needed."""

from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.exhaustive.grid_scan import Level, solutions
from l0tre.exhaustive.ranking import Ranking
from l0tre.halting import Halted
from l0tre.memory import Batcher
from l0tre.model.network import round_off
from l0tre.objective import Specification

__all__ = ["PREFIXES", "accumulate", "changed_groups", "flipped", "longest", "prefixes", "tighten"]

PREFIXES = 32  # accumulations that are looked at together at the least: most decisions change early


@torch.inference_mode()
def accumulate(
    batcher: Batcher,
    level: Level,
    images: Tensor,
    specification: Specification,
    ranking: Ranking,
    allowance: Tensor | None = None,
    width: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The paper's N tensor: apply the first, the first two, ... ranked perturbations until the decision changes.

    Where two perturbations disagree about a group, the higher ranked one keeps it.

    Args:
        batcher: The network and its batch size.
        level: The search space of the ranking.
        images: float32 ``[images, values]``, flattened.
        specification: What must hold of each image.
        ranking: Ranked sets for each image; entries without a set are skipped.
        allowance: int64 ``[images]``, forward passes that are not exceeded.
        width: Accumulations that are looked at together; 0 for as many as fit a batch.

    Returns:
        ``found``, bool ``[images]``; ``changed``, float32 ``[images, values]``: the first accumulation with another
        decision (the original where none was found); and int64 ``[images]``, forward passes spent.
    """
    found = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    changed, queries = images.clone(), torch.zeros(len(images), dtype=torch.int64, device=images.device)
    first, most = 0, longest(ranking)
    while first < most:
        last = min(first + (width or max(PREFIXES, batcher.most // len(images))), most)
        open_ = ~found if allowance is None else ~found & (queries + last - first <= allowance)
        left = open_.nonzero()[:, 0]
        if not len(left):
            break
        part = Ranking(ranking.values[left], ranking.sets[left], ranking.points[left])
        hit, inputs = prefixes(batcher, level, images[left], specification.pick(left), part, first, last)
        found[left], changed[left] = hit, inputs
        queries[left] += last - first
        first = last
    return found, changed, queries


def longest(ranking: Ranking) -> int:
    """Most sets that are ranked for any image."""
    return int((ranking.sets >= 0).sum(1).max()) if len(ranking.sets) else 0


@torch.inference_mode()
def prefixes(
    batcher: Batcher,
    level: Level,
    images: Tensor,
    specification: Specification,
    ranking: Ranking,
    first: int,
    last: int,
) -> tuple[Tensor, Tensor]:
    """A part of :func:`accumulate`: the accumulations of ``first + 1`` to ``last`` ranked perturbations.

    Returns:
        ``found`` and ``changed``, as there.
    """
    count, length = len(images), last - first
    touched, targets = _first_touch(level, images, ranking)

    def make(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=images.device)
        image, step = row // length, first + row % length
        x = torch.where(touched[image] <= step[:, None], targets[image], images[image])
        return x.reshape(-1, *level.domain.shape)

    scores = batcher.run(count * length, make)
    hit = flipped(scores, specification.repeat(length)).reshape(count, length)
    found = hit.any(1)
    step = first + hit.int().argmax(1)  # the first True
    return found, torch.where((touched <= step[:, None]) & found[:, None], targets, images)


def _first_touch(level: Level, images: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    """For every value: the rank of the first perturbation that touches it, and the value it gives it.

    Returns:
        int64 and float32, both ``[images, values]``; the rank is past the end where nothing touches a value.
    """
    count, kept = ranking.sets.shape
    empty = ranking.sets < 0
    groups, values = solutions(level, ranking.sets.clamp(min=0), ranking.points.clamp(min=0))
    rank = torch.arange(kept, device=images.device)[None, :, None].expand(count, -1, level.t)
    rank = rank.masked_fill(empty[:, :, None], kept)
    group_rank = torch.full((count, level.domain.groups), kept, device=images.device)
    group_rank.scatter_reduce_(1, groups.reshape(count, -1), rank.reshape(count, -1), "amin")
    first = rank == group_rank.gather(1, groups.reshape(count, -1)).reshape(rank.shape)
    first &= ~empty[:, :, None]
    width = level.grid.shape[2]
    positions = level.domain.members[groups].reshape(count, -1)
    owner = first[..., None].expand(-1, -1, -1, width).reshape(count, -1)
    # Values that lose are sent to a spare column after the last one.
    spare = images.shape[1]
    positions = torch.where(owner, positions, spare)
    targets = torch.cat([images, images[:, :1]], 1).scatter(1, positions, values.reshape(count, -1))
    ranks = torch.full((count, spare + 1), kept, device=images.device)
    ranks.scatter_(1, positions, rank[..., None].expand(-1, -1, -1, width).reshape(count, -1))
    return ranks[:, :spare], admit(level.domain, images, targets[:, :spare])


@torch.inference_mode()
def tighten(
    batcher: Batcher,
    domain: Domain,
    images: Tensor,
    specification: Specification,
    changed: Tensor,
    stop: Callable[[], bool] = lambda: False,
    allowance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Restore groups to their original values while the decision stays changed, until no single one can be.

    Each round queries the restoration of every single group and keeps the one that leaves the margin lowest. Of many
    changed groups up to an eighth are restored in one round.

    Args:
        batcher: The network and its batch size.
        domain: The groups.
        images: float32 ``[images, values]``, the originals.
        specification: What must hold of each image.
        changed: float32 ``[images, values]``, inputs with another decision.
        stop: Asked before each round; ends early with what there is, as it does when the batcher's pulse halts it.
        allowance: int64 ``[images]``, forward passes that are not exceeded; a last round looks at some groups only.

    Returns:
        float32 ``[images, values]``, with fewer or as many changed groups; and int64 ``[images]``, the forward passes
        spent on each.
    """
    changed = changed.clone()
    queries = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    active = torch.arange(len(images), device=images.device)
    while len(active) and not stop():
        support = changed_groups(domain, images[active], changed[active])
        if allowance is not None:
            # What restoring many groups at once takes is kept back.
            kept = (support.sum(1) // 8).clamp(min=1).float().log2().long()
            support &= support.cumsum(1) <= ((allowance - queries)[active] - kept)[:, None]
        owner, group = support.nonzero(as_tuple=True)
        image = active[owner]
        if not len(owner):
            break

        def restore_one(first: int, last: int, image: Tensor = image, group: Tensor = group) -> Tensor:
            rows, positions = image[first:last], domain.members[group[first:last]]
            x = changed[rows].scatter_(1, positions, images[rows].gather(1, positions))
            return x.reshape(-1, *domain.shape)

        try:
            scores = batcher.run(len(image), restore_one)
        except Halted:
            break
        queries += torch.bincount(image, minlength=len(images))
        order = torch.full(support.shape, float("inf"), device=images.device)
        order[owner, group] = specification.pick(image).margins(scores) + round_off(scores)
        ranked = order.argsort(dim=1, stable=True)
        sizes = support.sum(1)
        try:
            better, spent = _restore_prefix(batcher, domain, images, specification, changed, active, ranked, sizes)
        except Halted:
            break
        queries.index_add_(0, active, spent)
        alive = order.amin(1) < 0
        changed[active] = torch.where(alive[:, None], better, changed[active])
        active = active[alive]
    return changed, queries


def _restore_prefix(
    batcher: Batcher,
    domain: Domain,
    images: Tensor,
    specification: Specification,
    changed: Tensor,
    active: Tensor,
    ranked: Tensor,
    sizes: Tensor,
) -> tuple[Tensor, Tensor]:
    """The longest restoration of the first 1, 2, 4, ... ranked groups that keeps the changed decision.

    A prefix of one was queried already and needs no second look; only images with 16 changed groups or more have
    longer ones.

    Returns:
        The restored inputs ``[active, values]`` and the forward passes spent ``[active]``.
    """
    place = torch.empty_like(ranked)
    place.scatter_(1, ranked, torch.arange(ranked.shape[1], device=ranked.device).expand_as(ranked))
    steps = [2**k for k in range(1, 32) if 2**k <= int(sizes.max()) // 8]
    length = torch.ones_like(active)
    spent = torch.zeros_like(active)
    for step in steps:
        rows = (sizes // 8 >= step).nonzero()[:, 0]

        def make(first: int, last: int, rows: Tensor = rows, step: int = step) -> Tensor:
            part = rows[first:last]
            x = _restored(domain, images[active[part]], changed[active[part]], place[part] < step)
            return x.reshape(-1, *domain.shape)

        hit = flipped(batcher.run(len(rows), make), specification.pick(active[rows]))
        length[rows[hit]] = step
        spent[rows] += 1
    return _restored(domain, images[active], changed[active], place < length[:, None]), spent


def _restored(domain: Domain, images: Tensor, changed: Tensor, which: Tensor) -> Tensor:
    """Inputs with the groups marked in ``which`` (bool ``[images, groups]``) back at their original values."""
    row, group = which.nonzero(as_tuple=True)
    back = torch.zeros(images.shape, dtype=torch.bool, device=images.device)
    back[row[:, None], domain.members[group]] = True
    return torch.where(back, images, changed)


def flipped(scores: Tensor, specification: Specification) -> Tensor:
    """Where the decision is another one by more than round-off, so that a replay elsewhere agrees."""
    return specification.margins(scores) < -round_off(scores)


def changed_groups(domain: Domain, images: Tensor, changed: Tensor) -> Tensor:
    """Which groups differ: bool ``[images, groups]`` from two tensors ``[images, values]``."""
    different = images != changed
    return different if domain.planes == 1 else domain.by_group(different).any(2)
