"""Linear models of the network, again and again: the fewest groups that one of them says suffice are changed at once.

What DeepFool does for the L2 norm, for changed groups. Each step takes the gradient where it stands, and from it what
changing each group would give. These promises are averaged over the steps, so that groups count that help together.
The next input changes the most promising groups of the original, as many as the linear model says it takes. A few steps
come close to what descent on a smooth count of groups needs hundreds for; then they stand still.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.admission import ends
from l0tre.attacks.first_order import first_order_gains, group_sums
from l0tre.attacks.grow import grow
from l0tre.attacks.meter import Meter
from l0tre.attacks.rows import lowest
from l0tre.attacks.saliency import descend
from l0tre.attacks.task import AttackTask, keep_smaller
from l0tre.exhaustive.accumulate import changed_groups, flipped

__all__ = ["STEPS", "Sides", "approach", "between", "from_all_sides", "linear", "no_sides"]

SURPRISE = 2  # times as many groups as the first linear model promised: the network bends
SMALL = 8  # groups up to which an input that was grown is good enough
LARGE = 16  # groups beyond which an image where a network bends is left to descent
STEPS = 15  # of one approach, two passes each
PACE = 0.5  # an average over t steps gives the newest one the weight t ** -PACE
FEWER, MORE = 0.75, 1.5  # shares of its changed groups between which an input has its successor's
GROWTH = 1.3  # of the changed groups, until there is another decision
FIRST = 80  # most groups of the first input
BETWEEN = 30  # steps of the one with gradients between the corners, three passes each
MOVED = 0.2  # of the groups are moved at random where gradients are taken between the corners
SHARE, HALF = 0.5, 0.5  # from above: of all groups are changed at first, and a share that is left in each step


@dataclass(frozen=True)
class Sides:
    """From where linear models led nearest, one row for each image.

    Attributes:
        above: bool ``[images]``, from many groups.
        between: bool ``[images]``, by gradients at random points between the corners.
        slopes: float32 ``[images, values]``, the mean of these gradients.
        bent: bool ``[images]``, where linear models promise more than comes true and groups one by one led nearer.
    """

    above: Tensor
    between: Tensor
    slopes: Tensor
    bent: Tensor


def no_sides(task: AttackTask) -> Sides:
    """Nothing is known."""
    nothing = torch.zeros(len(task.images), dtype=torch.bool, device=task.images.device)
    return Sides(nothing, nothing.clone(), torch.zeros_like(task.images), nothing.clone())


def linear(meter: Meter, task: AttackTask, best: Tensor, limit: Tensor, generator: torch.Generator) -> Tensor:
    """Change the fewest groups that linear models say suffice, towards whichever class is nearest.

    Args:
        meter: Network and counters, for the images of the task; the network needs gradients.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        limit: int64 ``[images]``, passes of the meter that are not exceeded. It takes no more than it has use for.
        generator: For chance, on the network's device.

    Returns:
        float32 ``[images, values]``, inputs that are no larger.
    """
    best = meter.working_copy(best)
    rows = ((task.sizes(best) > task.enough) & (meter.spent + 2 <= limit)).nonzero()[:, 0]
    from_all_sides(meter, task, best, rows, limit, no_sides(task), generator)
    return best


def from_all_sides(
    meter: Meter, task: AttackTask, best: Tensor, rows: Tensor, limit: Tensor, sides: Sides, generator: torch.Generator
) -> None:
    """Approach the nearest class from few groups, from many, and by what is between; improves ``best`` in place.

    What led nearest is written into the ``rows`` of ``sides``.
    """
    nearest = torch.full_like(rows, -1)
    _, _, promised = approach(meter, task, best, rows, nearest, limit)
    # Where a first linear model promised much more than came true, those of many groups are not to be believed.
    bent = task.sizes(best)[rows] > SURPRISE * promised
    grown = rows[bent]
    before = task.sizes(best)[grown]
    grow(meter, task, best, grown, limit)
    sides.bent[grown] = task.sizes(best)[grown] < before
    rows = rows[~(sides.bent[rows] & (task.sizes(best)[rows] <= SMALL))]
    before = task.sizes(best)[rows]
    approach(meter, task, best, rows, torch.full_like(rows, -1), limit, above=torch.ones_like(rows, dtype=torch.bool))
    after = task.sizes(best)[rows]
    sides.above[rows] = after < before
    # Where neither leads near, many small steps may, and gradients between the corners say as little as those here.
    lost = torch.isin(rows, grown) & (after > LARGE)
    descend(meter, task, best, rows[lost], limit)
    rows, after = rows[~lost], after[~lost]
    _, slopes, _ = approach(meter, task, best, rows, torch.full_like(rows, -1), limit, steps=BETWEEN, chance=generator)
    sides.between[rows] = task.sizes(best)[rows] < after
    sides.above[rows] &= ~sides.between[rows]
    sides.slopes[rows] = slopes


def approach(
    meter: Meter,
    task: AttackTask,
    best: Tensor,
    image: Tensor,
    rival: Tensor,
    limit: Tensor,
    *,
    steps: int = STEPS,
    barred: Tensor | None = None,
    above: Tensor | None = None,
    chance: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Change the original's groups that help most towards a class, fewer than the best known input does.

    Args:
        meter: Network and counters, for the images of the task; the network needs gradients.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; smaller ones that are met are written into it.
        image: int64 ``[rows]``, the image of each row.
        rival: int64 ``[rows]``, the class that a row makes for; -1 for whichever is nearest in each step.
        limit: int64 ``[images]``, passes of the meter that are not exceeded.
        steps: At the most.
        barred: bool ``[rows, groups]``, groups to leave alone.
        above: bool ``[rows]``, which rows begin with half of all groups changed, and give up those that a linear model
            says do least there. Where training has made a network blind to small changes, gradients at the original
            say nothing about large ones; at the corners they do.
        chance: Take gradients at random points on the way to the corners, see :func:`between`; a step then has three
            passes.

    Returns:
        float32 ``[rows, values]``, the last input of each row; from below it has fewer groups than the image's best.
        The mean slopes between the corners, likewise; zero without ``chance``. And int64 ``[rows]``, how many groups
        the linear model at the original says suffice; one more than there are where it promises nothing.
    """
    originals = task.images[image]
    x = originals.clone()
    reached = torch.zeros_like(image, dtype=torch.bool)
    promising = torch.ones_like(reached)
    above = torch.zeros_like(reached) if above is None else above
    worth = torch.zeros(len(image), task.domain.groups, device=x.device)
    mean, seen = torch.zeros_like(x), torch.zeros_like(x)
    promised = torch.full_like(image, task.domain.groups + 1)
    for step in range(steps):
        sizes = task.sizes(best)
        open_ = (sizes > task.enough)[image] & promising
        open_[open_.clone()] = meter.affords(image[open_], limit, 2 if chance is None else 3)
        rows = open_.nonzero()[:, 0]
        if not len(rows) or meter.halted():
            break
        own, claims = image[rows], task.specification.pick(image[rows])
        wanted = rival[rows]

        def lead(scores: Tensor, some: slice, own: Tensor = own, wanted: Tensor = wanted) -> Tensor:
            claim = task.specification.pick(own[some])
            others = claim.rival_scores(scores)
            towards = torch.where(wanted[some] < 0, others.argmax(1), wanted[some])
            return (scores.gather(1, claim.labels[:, None]) - others.gather(1, towards[:, None]))[:, 0]

        if chance is None:
            scores, slope = meter.gradients(own, x[rows], lead)
            moving = None
        else:

            def here(start: int, stop: int, rows: Tensor = rows) -> Tensor:
                return x[rows[start:stop]]

            scores = meter.scores(own, here)
            points, moving = between(task, originals[rows], x[rows], chance)
            _, slope = meter.gradients(own, points, lead)
        hit = flipped(scores, claims)
        count = changed_groups(task.domain, originals[rows], x[rows]).sum(1)
        found = lowest(count.double().masked_fill(~hit | (count == 0), float("inf")), own, len(best))
        better = (found >= 0).nonzero()[:, 0]
        best[better] = keep_smaller(task.part(better), best[better], x[rows][found[better]])
        reached[rows] |= hit
        if moving is not None:
            values = task.values_of(moving)
            seen[rows] += values
            pace = seen[rows].clamp(min=1) ** -PACE
            mean[rows] += torch.where(values, pace * (slope - mean[rows]), 0)
            slope = mean[rows]
        gain, corner = first_order_gains(task, originals[rows], originals[rows], slope)
        moved = slope * (x[rows] - originals[rows])
        changed, down = changed_groups(task.domain, originals[rows], x[rows]), above[rows, None]
        # From above what is changed keeps its values, and counts for what it does there.
        gain = -torch.where(changed & down, group_sums(task, moved), gain).clamp(max=0)
        corner = torch.where(task.values_of(changed & down), x[rows], corner)
        if moving is None:
            promising[rows] = gain.amax(1) > 0
            worth[rows] += (step + 1) ** -PACE * (gain / gain.amax(1, keepdim=True).clamp(min=1e-12) - worth[rows])
        else:
            worth[rows] = gain
        usable = worth[rows] if barred is None else worth[rows].masked_fill(barred[rows], 0)
        # Where few groups are asked for, those that promise least need no order.
        wanted_most = max(2 * FIRST, int(MORE * int(count.max())) + 2)
        kept = usable.shape[1] if bool(above[rows].any()) else min(usable.shape[1], wanted_most)
        order = usable.topk(kept, 1).indices
        start = lead(scores, slice(None)) - moved.sum(1)
        needed = ((start[:, None] - gain.gather(1, order).cumsum(1)) >= 0).sum(1) + 1
        if not step:
            promised[rows] = needed
        needed = _step_size(needed, count, hit, reached[rows], above[rows], task.domain.groups, first=not step)
        most = torch.minimum(task.sizes(best)[own] - 1, torch.full_like(own, task.domain.groups))
        most = torch.where(
            above[rows], torch.maximum(most, torch.where(count > 0, (count * HALF).long(), needed)), most
        )
        needed = torch.minimum(needed, most).clamp(min=1)
        chosen = torch.zeros_like(usable, dtype=torch.bool)
        ranks = torch.arange(kept, device=x.device)
        chosen.scatter_(1, order, ranks < needed[:, None])
        x[rows] = torch.where(task.values_of(chosen & (usable > 0)), task.snap(corner), originals[rows])
    return x, mean, promised


def between(task: AttackTask, originals: Tensor, x: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs in which a random part of the groups is somewhere between the original and an end of its range.

    Averaged over such points, the slope of a group times the whole way is what going it does: also where training has
    made a network blind to small changes, and to a little less of large ones.

    Returns:
        float32 ``[rows, values]``, and which groups were moved, bool ``[rows, groups]``.
    """
    groups = torch.rand(len(x), task.domain.groups, generator=chance, device=x.device) < MOVED
    low, high = ends(task.domain, originals)
    draw = torch.rand(x.shape, generator=chance, device=x.device)
    up = torch.rand(x.shape, generator=chance, device=x.device) < 0.5
    up = torch.where(originals <= low, True, up & (originals < high))
    points = originals + draw * (torch.where(up, high, low) - originals)
    return torch.where(task.values_of(groups), points, x), groups


def _step_size(
    needed: Tensor, count: Tensor, hit: Tensor, reached: Tensor, above: Tensor, groups: int, *, first: bool
) -> Tensor:
    """How many groups the next inputs have, int64 ``[rows]``: what linear models say, but not too far from now.

    Args:
        needed: int64 ``[rows]``, what they say.
        count: int64 ``[rows]``, changed groups now.
        hit: bool ``[rows]``, whether these change the decision.
        reached: bool ``[rows]``, whether any did.
        above: bool ``[rows]``, which rows come from many groups.
        groups: Of the domain.
        first: Whether nothing is changed yet.
    """
    if first:
        return torch.where(above, max(1, int(SHARE * groups)), needed.clamp(max=FIRST))
    fewer = torch.where(above, HALF, FEWER)
    needed = torch.minimum(torch.maximum(needed, (count * fewer).long() - 1), (count * MORE).long() + 1)
    # A row that never led to another decision is believed less with every step.
    least = torch.where(reached, count + 1, (count * GROWTH).long() + 1)
    return torch.where(hit, torch.minimum(needed, count - 1), torch.maximum(needed, least))
