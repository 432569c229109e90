"""Every single group in turn, from the original and from the best inputs without two of their groups.

Nothing is left to gradients: all corners of all groups are queried, by windows where the network allows it, which cost
a small part of a forward pass. From the original this ranks groups, which are then accumulated as in the paper. From an
input without two of its changed groups, one group that changes the decision is enough to have one less.
"""

import torch
from torch import Tensor

from l0tre.attacks.corners import CornerScan, cheapest, corners_of
from l0tre.attacks.meter import Meter
from l0tre.attacks.rows import lowest
from l0tre.attacks.task import AttackTask, Worker, keep_smaller
from l0tre.exhaustive.accumulate import PREFIXES, accumulate, changed_groups, flipped, tighten
from l0tre.exhaustive.grid_scan import solutions
from l0tre.rules import Free

__all__ = ["rank"]

TURN = 150  # passes of one turn: the last look at all groups begins before they are spent


def rank(meter: Meter, task: AttackTask, generator: torch.Generator) -> Worker:
    """Try all single groups.

    Args:
        meter: Network and counters, for the images of the task. A corner that is decided from a window counts as the
            share of a forward pass that it costs.
        task: What is attacked.
        generator: For chance, on the network's device.

    Returns:
        The method; it goes on where it stopped. An image that cannot afford a look at all groups is left alone.
    """
    ranked = torch.zeros(len(task.images), dtype=torch.bool, device=task.images.device)
    tried = torch.zeros(len(task.images), dtype=torch.int64, device=task.images.device)
    known = task.sizes(task.images)

    def work(best: Tensor, limit: Tensor) -> Tensor:
        best = meter.working_copy(best)
        if not bool((meter.spent + cheapest(task, 1) <= limit).any()):
            return best
        singles = corners_of(meter, task).scan(meter, task, 1)
        cost = singles.cost(singles.level.sets)
        stop = torch.minimum(limit, meter.spent + TURN)
        while not meter.halted():
            sizes = task.sizes(best)
            tried.masked_fill_(sizes != known, 0)
            known.copy_(sizes)
            able = (sizes > task.enough) & (meter.spent + cost + 2 <= limit) & (meter.spent < stop)
            first = (able & ~ranked).nonzero()[:, 0]
            for rows in first.split(singles.most) if len(first) else ():
                ranked[rows] = True
                _accumulate(meter, task, singles, best, rows, limit)
            if not isinstance(task.domain.rules, Free):
                break
            pairs = sizes * (sizes - 1) // 2
            again = able & ranked & (sizes <= task.domain.groups) & (tried < pairs)
            again &= meter.spent + cost + sizes + 1 <= limit
            again[first] = False
            rows = again.nonzero()[:, 0]
            for some in rows.split(singles.most) if len(rows) else ():
                _exchange(meter, task, singles, best, some, tried[some], generator)
            tried[rows] += 1
            if not len(rows) and not len(first):
                break
        return best

    return work


def _accumulate(meter: Meter, task: AttackTask, singles: CornerScan, best: Tensor, rows: Tensor, limit: Tensor) -> None:
    """The paper's attack, ranked by margin and by the label's score, within the limit; in place."""
    progress = singles.rank(meter, task, rows, task.images[rows], task.domain.groups)
    for ranking in (progress.by_margin, progress.by_score):
        part = task.part(rows)
        left = (limit - meter.spent)[rows]
        found, changed, each = accumulate(
            meter.batcher, singles.level, part.images, part.specification, ranking, left, PREFIXES
        )
        meter.charge(rows, each)
        hits = found.nonzero()[:, 0]
        smaller, queries = tighten(
            meter.batcher,
            task.domain,
            part.images[hits],
            part.specification.pick(hits),
            changed[hits],
            meter.halted,
            (limit - meter.spent)[rows[hits]],
        )
        meter.charge(rows[hits], queries)
        best[rows] = keep_smaller(part, best[rows], changed.index_copy(0, hits, smaller))


def _exchange(
    meter: Meter,
    task: AttackTask,
    singles: CornerScan,
    best: Tensor,
    rows: Tensor,
    turn: Tensor,
    generator: torch.Generator,
) -> None:
    """Two groups out, any one in; in place.

    Args:
        meter: As for :func:`rank`, likewise ``task``, ``best`` and ``generator``.
        task: What is attacked.
        singles: Looks at all groups.
        best: Best inputs.
        rows: int64 ``[rows]``, images with a known input, at most as many as can be scanned together.
        turn: int64 ``[rows]``, pairs of each that were tried before.
        generator: Draws the pairs, those that seem to be missed least first.
    """
    part, inputs = task.part(rows), best[rows]
    support = changed_groups(task.domain, part.images, inputs)
    row, group = support.nonzero(as_tuple=True)

    def without(start: int, stop: int) -> Tensor:
        some = row[start:stop]
        at = task.domain.members[group[start:stop]]
        return inputs[some].scatter(1, at, part.images[some].gather(1, at))

    missed = torch.full(support.shape, float("inf"), device=inputs.device)
    scores = meter.scores(rows[row], without)
    margin = part.specification.pick(row).margins(scores)
    missed[row, group] = margin
    # A group may not be missed at all.
    useless = lowest(margin.masked_fill(~flipped(scores, part.specification.pick(row)), float("inf")), row, len(rows))
    smaller = (useless >= 0).nonzero()[:, 0]
    if len(smaller):
        at = task.domain.members[group[useless[smaller]]]
        best[rows[smaller]] = inputs[smaller].scatter(1, at, part.images[smaller].gather(1, at))
        inputs = best[rows]
    # Later pairs are drawn with more chance.
    noise = torch.rand(support.shape, generator=generator, device=inputs.device)
    spread = (missed.masked_fill(~support, 0).amax(1, keepdim=True) - missed.amin(1, keepdim=True)).clamp(min=1e-12)
    key = missed + spread * noise * (turn[:, None] / support.sum(1, keepdim=True)).clamp(max=1)
    pair = key.topk(min(2, key.shape[1]), 1, largest=False).indices
    at = task.domain.members[pair].flatten(1)
    base = inputs.scatter(1, at, part.images.gather(1, at))
    progress = singles.rank(meter, task, rows, base, 1)
    sets, points = progress.by_margin.sets, progress.by_margin.points
    groups, values = solutions(singles.level, sets, points)
    tried = base.scatter(1, task.domain.members[groups].flatten(1), values.flatten(1))
    meter.charge(rows, 1)
    scores = meter.batcher.run(len(rows), lambda a, b: tried[a:b].reshape(-1, *task.domain.shape))
    hit = flipped(scores, part.specification)
    best[rows] = torch.where(hit[:, None], keep_smaller(part, inputs, tried), inputs)
