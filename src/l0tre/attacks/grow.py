"""Groups one after the other, each the best of several that the gradient where one stands promises most of.

Slower than linear models where these hold, but where a network bends much from one group to the next, what a gradient
promises of many groups at once is worth little, and what a forward pass says of one more is all there is.
"""

import torch
from torch import Tensor

from l0tre.attacks.first_order import first_order_gains
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask
from l0tre.exhaustive.accumulate import changed_groups, flipped

__all__ = ["grow"]

CANDIDATES = 8  # groups that are queried in a step
STEPS = 12
HASTE = 4  # so many steps add one group each, the next ones two, and so on
REACH = 30  # groups: where progress so far says that it takes more, it is given up
TRIED = 2  # steps before this is asked


def grow(meter: Meter, task: AttackTask, best: Tensor, rows: Tensor, limit: Tensor) -> None:
    """Add groups to the originals until there is another decision, fewer than the best known input changes; in place.

    Args:
        meter: Network and counters, for the images of the task; the network needs gradients.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        rows: int64, the images to work on.
        limit: int64 ``[images]``, passes of the meter that are not exceeded.
    """
    x, start = task.images[rows], torch.zeros(len(rows), device=best.device)
    most = min(CANDIDATES, task.domain.groups)
    for step in range(STEPS):
        size = changed_groups(task.domain, task.images[rows], x).sum(1)
        able = (size + 1 < task.sizes(best)[rows]) & meter.affords(rows, limit, 2 + most)
        rows, x, start = rows[able], x[able], start[able]
        if not len(rows) or meter.halted():
            return
        claims, originals = task.specification.pick(rows), task.images[rows]

        def lead(scores: Tensor, some: slice, rows: Tensor = rows) -> Tensor:
            return task.specification.pick(rows[some]).margins(scores)

        scores, slope = meter.gradients(rows, x, lead)
        done = flipped(scores, claims) & (x != originals).any(1)
        best[rows[done]] = x[done]
        margin = claims.margins(scores)
        start = start if step else margin
        vain = size[able] * start > REACH * (start - margin) if step >= TRIED else torch.zeros_like(done)
        gain, corner = first_order_gains(task, originals, x, slope)
        gain = gain.masked_fill(changed_groups(task.domain, originals, x), float("inf"))
        group, corner = gain.topk(most, 1, largest=False).indices, task.snap(corner)

        def moved(row: Tensor, group: Tensor, x: Tensor = x, corner: Tensor = corner) -> Tensor:
            place = task.domain.members[group].flatten(1)
            return x[row].scatter(1, place, corner[row].gather(1, place))

        rest = (~done & ~vain).nonzero()[:, 0]
        if not len(rest):
            return
        owner, single = rest.repeat_interleave(most), group[rest].reshape(-1, 1)

        def make(start: int, stop: int, owner: Tensor = owner, single: Tensor = single) -> Tensor:
            return moved(owner[start:stop], single[start:stop])

        scores = meter.scores(rows[owner], make)
        order = claims.pick(owner).margins(scores).reshape(-1, most).argsort(1)
        hit = flipped(scores, claims.pick(owner)).reshape(-1, most).gather(1, order[:, :1])[:, 0]
        # The best one counts if it is enough; else, later on, the next best ones come with it.
        alone = moved(rest, group[rest].gather(1, order[:, :1]))
        best[rows[rest[hit]]] = alone[hit]
        rest = rest[~hit]
        together = group[rest].gather(1, order[~hit][:, : 1 + step // HASTE])
        rows, x, start = rows[rest], moved(rest, together), start[rest]
