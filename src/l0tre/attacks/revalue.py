"""Other values for groups that are changed anyway: descent inside their ranges, not only at the ends."""

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask
from l0tre.exhaustive.accumulate import changed_groups, flipped

__all__ = ["revalue", "shrink"]

STEPS = 10
ARRAYS = 8  # arrays of an input's size that a step holds
RATES = (0.5, 0.05)  # first and last step length, in shares of a value's range


def revalue(meter: Meter, task: AttackTask, owner: Tensor, inputs: Tensor, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Lower the label's margin by changing values of the changed groups only.

    Args:
        meter: Network and counters; the network needs gradients.
        task: Its images, labels and domain, one row for each input.
        owner: int64 ``[inputs]``, the image of the meter behind each input.
        inputs: float32 ``[inputs, values]``, where to begin.
        steps: Steps of descent.

    Returns:
        The inputs with the lowest margin met, float32 ``[inputs, values]``, and whether the decision there is another
        one, bool ``[inputs]``. No group changes that was not changed before.
    """
    domain, width = task.domain, task.domain.high - task.domain.low
    free = task.values_of(changed_groups(domain, task.images, inputs))
    x, best = inputs, inputs
    lowest = torch.full((len(inputs),), float("inf"), device=inputs.device)
    hit = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)

    def loss(scores: Tensor, rows: slice) -> Tensor:
        return task.specification.pick(rows).margins(scores)

    for step in range(steps):
        if meter.halted():
            break
        scores, slope = meter.gradients(owner, x, loss)
        margin = loss(scores, slice(None))
        lower = margin < lowest
        best = torch.where(lower[:, None], x, best)
        hit = torch.where(lower, flipped(scores, task.specification), hit)
        lowest = torch.where(lower, margin, lowest)
        rate = RATES[0] * (RATES[1] / RATES[0]) ** (step / max(1, steps - 1))
        slope = torch.where(free, slope * width, 0)
        slope = slope / slope.abs().amax(1, keepdim=True).clamp(min=1e-12)
        moved = torch.clamp(x - rate * slope * width, domain.low, domain.high)
        x = admit(domain, task.images, torch.where(free, task.snap(moved), task.images))
    return best, hit


def shrink(meter: Meter, task: AttackTask, best: Tensor, limit: Tensor) -> Tensor:
    """Put each changed group of the best inputs back in turn, and look for other values of the rest.

    Args:
        meter: As for :func:`revalue`, for the images of the task.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        limit: int64 ``[images]``, forward and backward passes of the meter; a round that needs more is not begun.

    Returns:
        float32 ``[images, values]``, inputs that are no larger.
    """
    best = meter.working_copy(best)
    most = max(1, meter.memory // (4 * ARRAYS * task.images.shape[1]))
    failed = torch.zeros(len(best), dtype=torch.bool, device=best.device)
    while not meter.halted():
        sizes = task.sizes(best)
        known = (sizes > task.enough) & (sizes <= task.domain.groups) & ~failed
        rows = (known & (meter.spent + 2 * STEPS * sizes <= limit)).nonzero()[:, 0]
        if not len(rows):
            break
        row, group = changed_groups(task.domain, task.images[rows], best[rows]).nonzero(as_tuple=True)
        failed[rows] = True
        for part in torch.arange(len(row), device=best.device).split(most):
            owner = rows[row[part]]
            place = task.domain.members[group[part]]
            fewer = best[owner].scatter(1, place, task.images[owner].gather(1, place))
            changed, hit = revalue(meter, task.part(owner), owner, fewer)
            # Of several hits for one image any will do, as all have one group less, but one alone must be written.
            hits = hit.nonzero()[:, 0]
            last = torch.ones_like(hits, dtype=torch.bool)
            last[:-1] = owner[hits][:-1] != owner[hits][1:]
            best[owner[hits[last]]] = changed[hits[last]]
            failed[owner[hits]] = False
    return best
