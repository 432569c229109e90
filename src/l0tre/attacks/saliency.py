"""Descent on a smooth stand-in for the number of changed groups (as sigma-zero does for features, here for groups)."""

import math

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.attacks.first_order import group_sums
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask, keep_smaller
from l0tre.exhaustive.accumulate import flipped, tighten

__all__ = ["descend", "saliency"]

RATE = 1.0  # first step length, in shares of a value's range; falls to a tenth along a cosine
SMOOTHING = 1e-3  # squared share of the range at which a group counts as half changed
THRESHOLD, PACE = 0.3, 0.01  # changes below the threshold are undone; it adapts by this pace
DECAY = (0.9, 0.999)  # of the running means of gradients and of their squares
ARRAYS = 10  # arrays of the images' size that a step holds
RESTORING = 0.1  # of the passes are kept for restoring groups
LARGEST = 256  # restoring groups one by one is left out for inputs with more changed groups


def saliency(meter: Meter, task: AttackTask, best: Tensor, limit: Tensor) -> Tensor:
    """Descend from the originals to inputs with another decision and few changed groups.

    Args:
        meter: Network and counters, for the images of the task; the network needs gradients.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        limit: int64 ``[images]``, forward and backward passes of the meter that are not exceeded. A step takes two; all
            images make as many steps as the one that may make fewest. A part is kept for restoring superfluous groups.

    Returns:
        float32 ``[images, values]``, inputs that are no larger.
    """
    best = meter.working_copy(best)
    every = torch.arange(len(best), device=best.device)
    descend(meter, task, best, every, limit)
    return best


def descend(meter: Meter, task: AttackTask, best: Tensor, rows: Tensor, limit: Tensor) -> None:
    """As :func:`saliency`, for some images (int64 ``rows``); improves ``best`` in place."""
    block = max(1, meter.memory // (4 * ARRAYS * task.images.shape[1]))
    left = limit - meter.spent
    todo = rows[((task.sizes(best) > task.enough) & (left >= 2))[rows]]
    if not len(todo):
        return
    steps = max(1, int((1 - RESTORING) * left[todo].min()) // 2)
    for some in todo.split(block):
        part = task.part(some)
        found = _descend(meter, part, some, steps)
        hits = (part.sizes(found) <= min(LARGEST, task.domain.groups)).nonzero()[:, 0]
        smaller, queries = tighten(
            meter.batcher,
            task.domain,
            part.images[hits],
            part.specification.pick(hits),
            found[hits],
            meter.halted,
            (limit - meter.spent)[some[hits]],
        )
        meter.charge(some[hits], queries)
        found[hits] = smaller
        best[some] = keep_smaller(part, best[some], found)


def _descend(meter: Meter, task: AttackTask, owner: Tensor, steps: int) -> Tensor:
    """The smallest adversarial input met on the way; the original where none was."""
    domain, images = task.domain, task.images
    open_ = torch.zeros(images.shape[1], dtype=torch.bool, device=images.device)
    open_[domain.members] = True
    width = torch.where(open_, domain.high - domain.low, 0)
    change = torch.zeros_like(images)
    mean, square = torch.zeros_like(images), torch.zeros_like(images)
    threshold = torch.full((len(images), 1), THRESHOLD, device=images.device)
    best = images.clone()

    def loss(scores: Tensor, rows: slice) -> Tensor:
        return task.specification.pick(rows).margins(scores).clamp(min=0)

    for step in range(steps):
        if meter.halted():
            break
        # Dividing by the width and multiplying again may lead out of the range by a rounding error.
        placed = torch.clamp(images + change * width, domain.low, domain.high)
        x = admit(domain, images, torch.where(change != 0, task.snap(placed), images))
        scores, slope = meter.gradients(owner, x, loss)
        hit = flipped(scores, task.specification)
        best = torch.where(hit[:, None], keep_smaller(task, best, x), best)
        slope = slope * width + _smooth_slope(task, change)
        slope = slope / slope.abs().amax(1, keepdim=True).clamp(min=1e-12)
        mean = DECAY[0] * mean + (1 - DECAY[0]) * slope
        square = DECAY[1] * square + (1 - DECAY[1]) * slope**2
        rate = RATE * max(0.1, (1 + math.cos(math.pi * step / steps)) / 2)
        drift = mean / (1 - DECAY[0] ** (step + 1)) / ((square / (1 - DECAY[1] ** (step + 1))).sqrt() + 1e-8)
        change = change - rate * drift
        moved = torch.clamp(images + change * width, domain.low, domain.high) - images
        change = torch.where(open_, moved / width.clamp(min=1e-12), 0)
        threshold = (threshold + torch.where(hit[:, None], PACE, -PACE) * rate).clamp(0, 1)
        large = domain.by_group(change.abs()).amax(2) >= threshold
        change = torch.where(task.values_of(large), change, 0)
    return best


def _smooth_slope(task: AttackTask, change: Tensor) -> Tensor:
    """Gradient of the mean over groups of ``n / (n + SMOOTHING)``, n the squared length of a group's change."""
    domain = task.domain
    length = group_sums(task, change**2)
    factor = 2 * SMOOTHING / (length + SMOOTHING) ** 2 / domain.groups
    return task.values_of(factor) * change
