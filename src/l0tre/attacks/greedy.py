"""Every single group, every pair, at the ends of their ranges; then the paper's accumulation and tightening."""

from torch import Tensor

from l0tre.attacks.corners import cheapest, corners_of
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask, keep_smaller
from l0tre.exhaustive.accumulate import PREFIXES, accumulate, longest, tighten
from l0tre.exhaustive.grid_scan import Level
from l0tre.exhaustive.progress import GridProgress
from l0tre.exhaustive.ranking import Ranking

__all__ = ["LEVELS", "exact", "greedy"]

LEVELS = (1, 2)  # groups of a set: nothing of these sizes is missed at the ends of ranges


def greedy(meter: Meter, task: AttackTask, best: Tensor, limit: Tensor) -> Tensor:
    """The paper's attack: rank single groups (then pairs) by what they do, accumulate them, restore superfluous ones.

    Ranks by the label's score, as the paper does, and by the margin.

    Args:
        meter: Network and counters, for the images of the task.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        limit: int64 ``[images]``, forward and backward passes of the meter that are not exceeded. A level that needs
            more is left out. A grid point that is decided from a window counts as the share of a forward pass that
            it costs.

    Returns:
        float32 ``[images, values]``, inputs that are no larger.
    """
    return _levels(meter, task, best, limit, accumulating=True)


def exact(meter: Meter, task: AttackTask, best: Tensor, limit: Tensor) -> Tensor:
    """Only single groups and pairs themselves: nothing that small is missed, at the ends of their ranges.

    Singles are tried where two changed groups are the best known (or nothing is), pairs where three are.

    Args:
        meter: As for :func:`greedy`, likewise ``task`` and ``best``.
        task: What is attacked.
        best: Adversarial inputs so far.
        limit: As for :func:`greedy`; a level that needs more is left out.

    Returns:
        float32 ``[images, values]``, inputs that are no larger.
    """
    return _levels(meter, task, best, limit, accumulating=False)


def _levels(meter: Meter, task: AttackTask, best: Tensor, limit: Tensor, *, accumulating: bool) -> Tensor:
    best = meter.working_copy(best)
    sizes = task.sizes(best)
    few = sizes <= max(LEVELS) + 1
    if not bool(((sizes > task.enough) & (few | (sizes > task.domain.groups) | accumulating)).any()):
        return best
    for t in LEVELS:
        if t > task.domain.groups or not bool((meter.spent + cheapest(task, t) <= limit).any()):
            break
        sets = corners_of(meter, task).scan(meter, task, t)
        level, cost = sets.level, sets.cost(sets.level.sets) + 2  # the best of each ranking is seen again
        sizes = task.sizes(best)
        affordable = meter.spent + cost <= limit
        useful = (sizes > t) if accumulating else (sizes == t + 1) | (sizes > task.domain.groups)
        rows = ((sizes > task.enough) & useful & affordable).nonzero()[:, 0]
        if not len(rows) or meter.halted():
            continue
        for block in rows.split(sets.most):
            partial = sets.rank(meter, task, block, task.images[block], task.domain.groups)
            best[block] = _gather(meter, task.part(block), best[block], block, level, partial, limit, accumulating)
    return best


def _gather(
    meter: Meter,
    task: AttackTask,
    best: Tensor,
    owner: Tensor,
    level: Level,
    partial: GridProgress,
    limit: Tensor,
    accumulating: bool,
) -> Tensor:
    """What the ranked sets give: the first one alone, or as many as it takes."""
    for ranking in (partial.by_margin, partial.by_score):
        first = ranking
        if not accumulating:
            first = Ranking(ranking.values[:, :1], ranking.sets[:, :1], ranking.points[:, :1])
        left = (limit - meter.spent)[owner]
        width = min(PREFIXES, longest(first))
        found, changed, each = accumulate(meter.batcher, level, task.images, task.specification, first, left, width)
        meter.charge(owner, each)
        hits = found.nonzero()[:, 0]
        if accumulating:
            smaller, queries = tighten(
                meter.batcher,
                task.domain,
                task.images[hits],
                task.specification.pick(hits),
                changed[hits],
                meter.halted,
                (limit - meter.spent)[owner[hits]],
            )
            meter.charge(owner[hits], queries)
            changed = changed.index_copy(0, hits, smaller)
        best = keep_smaller(task, best, changed)
    return best
