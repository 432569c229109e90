"""The states of the local search: for each image several inputs, each on its way to another class."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from l0tre.attacks.linear import STEPS, Sides, approach, from_all_sides
from l0tre.attacks.meter import Meter
from l0tre.attacks.rows import places
from l0tre.attacks.task import AttackTask
from l0tre.exhaustive.accumulate import changed_groups

__all__ = ["LEAST_CHAINS", "MOST_RIVALS", "Chains", "begin", "from_best", "join", "pick", "restart", "survivors"]

MOST_RIVALS = 9  # classes that are aimed at: those with the highest scores
RIVAL_QUERIES = 30  # what an image must be able to spend on each of them
BARRED = 0.3  # of the groups of the best input stay as they are where a chain begins again
LEAST_CHAINS = 3  # of an image with fewer rivals: the others differ by chance
# Steps since the image's last success, and how many chains go on from there: the search narrows to the nearest classes.
NARROWING = ((1, 5), (12, 3))


@dataclass(frozen=True)
class Chains:
    """One row for each chain.

    Attributes:
        image: int64 ``[chains]``, the image it belongs to.
        rival: int64 ``[chains]``, the class it makes for.
        x: float32 ``[chains, values]``, where it is.
        tabu: int32 ``[chains, groups]``, the step before which a group may not be changed again.
        least: float32 ``[chains]``, the smallest lead of the label over the rival at the size it works on.
        stale: int64 ``[chains]``, steps since ``least`` fell.
        shaken: bool ``[chains]``, whether chance has a say in its moves.
        slopes: float32 ``[chains, values]``, means of gradients between the corners.
        between: bool ``[chains]``, whether it goes by them.
    """

    image: Tensor
    rival: Tensor
    x: Tensor
    tabu: Tensor
    least: Tensor
    stale: Tensor
    shaken: Tensor
    slopes: Tensor
    between: Tensor

    def __len__(self) -> int:
        return len(self.image)


def pick(chains: Chains, rows: Tensor) -> Chains:
    """Some of the chains, by a mask or by their places."""
    return Chains(*(getattr(chains, field.name)[rows] for field in fields(Chains)))


def join(parts: Sequence[Chains]) -> Chains:
    """All chains of several sets."""
    return Chains(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Chains)))


def begin(
    meter: Meter, task: AttackTask, best: Tensor, rows: Tensor, limit: Tensor, sides: Sides, generator: torch.Generator
) -> Chains:
    """A chain towards every near class, from where linear models lead, and one from the best adversarial input.

    Args:
        meter: Counts the queries; its images are those of the task.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known. Smaller ones that are
            met on the way are written into it.
        rows: int64, the images to begin with.
        limit: int64 ``[images]``, passes of the meter that are not exceeded: with few, fewer classes are aimed at.
        sides: Of all images; filled for these.
        generator: For chance.

    Returns:
        The chains.
    """
    device = task.images.device
    rows = rows[meter.affords(rows, limit)]

    def originals(start: int, stop: int) -> Tensor:
        return task.images[rows[start:stop]]

    scores = meter.scores(rows, originals)
    specification = task.specification.pick(rows)
    most = min(MOST_RIVALS, specification.rivals(scores.shape[1]).shape[1])
    scores = specification.rival_scores(scores)
    rivals = scores.topk(most, 1).indices
    from_all_sides(meter, task, best, rows, limit, sides, generator)
    wanted = ((limit - meter.spent)[rows] // RIVAL_QUERIES).clamp(min=1)
    copies = -(-LEAST_CHAINS // most)
    used = (torch.arange(most, device=device) < wanted[:, None]).repeat(1, copies)
    shaken = (torch.arange(most * copies, device=device) >= most).expand_as(used)
    image = rows[:, None].expand_as(used)[used]
    rival, shaken = rivals.repeat(1, copies)[used], shaken[used]
    x, slopes = task.images[image], sides.slopes[image]
    straight = ~shaken & ~sides.bent[image]
    for some in ((straight & ~sides.between[image]).nonzero()[:, 0], (straight & sides.between[image]).nonzero()[:, 0]):
        x[some], slopes[some] = _led(meter, task, best, image[some], rival[some], limit, sides, generator)
    chains = _make(task, image, rival, x, shaken, sides.between[image], slopes)
    return join([chains, from_best(meter, task, best, rows, limit, sides)])


def _led(
    meter: Meter,
    task: AttackTask,
    best: Tensor,
    image: Tensor,
    rival: Tensor,
    limit: Tensor,
    sides: Sides,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Where linear models lead some chains, all between or none, and the slopes between the corners that they used."""
    if len(image) and bool(sides.between[image[0]]):
        x, slopes, _ = approach(meter, task, best, image, rival, limit, steps=STEPS, chance=generator)
        return x, slopes
    x, _, _ = approach(meter, task, best, image, rival, limit, above=sides.above[image])
    return x, sides.slopes[image]


def from_best(meter: Meter, task: AttackTask, best: Tensor, rows: Tensor, limit: Tensor, sides: Sides) -> Chains:
    """A chain from the best adversarial input of each of some images, towards what it is taken for."""
    known = rows[task.part(rows).sizes(best[rows]) <= task.domain.groups]
    known = known[meter.affords(known, limit)]

    def adversarial(start: int, stop: int) -> Tensor:
        return best[known[start:stop]]

    reached = task.specification.pick(known).rival_scores(meter.scores(known, adversarial)).argmax(1)
    plain = torch.zeros_like(known, dtype=torch.bool)
    return _make(task, known, reached, best[known], plain, sides.between[known], sides.slopes[known])


def _make(
    task: AttackTask, image: Tensor, rival: Tensor, x: Tensor, shaken: Tensor, between: Tensor, slopes: Tensor
) -> Chains:
    tabu = torch.zeros(len(image), task.domain.groups, dtype=torch.int32, device=image.device)
    least = torch.full((len(image),), float("inf"), device=image.device)
    return Chains(image, rival, x, tabu, least, torch.zeros_like(image), shaken, slopes, between)


def restart(
    meter: Meter,
    task: AttackTask,
    best: Tensor,
    chains: Chains,
    which: Tensor,
    limit: Tensor,
    generator: torch.Generator,
) -> Chains:
    """Begin some chains (a mask) again, from now on with chance: without a part of the groups that are changed now."""
    rows = which.nonzero()[:, 0]
    if not len(rows):
        return chains
    image = chains.image[rows]
    changed = changed_groups(task.domain, task.images[image], best[image])
    barred = changed & (torch.rand(changed.shape, generator=generator, device=changed.device) < BARRED)
    x, slopes = chains.x.clone(), chains.slopes.clone()
    between, rival = chains.between[rows], chains.rival[rows]
    above = torch.rand(len(rows), generator=generator, device=x.device) < 0.5
    for some in ((~between).nonzero()[:, 0], between.nonzero()[:, 0]):
        if not len(some):
            continue
        x[rows[some]], met, _ = approach(
            meter,
            task,
            best,
            image[some],
            rival[some],
            limit,
            barred=barred[some],
            above=above[some] & ~between[some],
            chance=generator if bool(between[some[0]]) else None,
        )
        if bool(between[some[0]]):
            slopes[rows[some]] = met
    return replace(
        chains,
        x=x,
        slopes=slopes,
        tabu=chains.tabu.masked_fill(which[:, None], 0),
        least=chains.least.masked_fill(which, float("inf")),
        stale=chains.stale.masked_fill(which, 0),
        shaken=chains.shaken | which,
    )


def survivors(chains: Chains, since: Tensor) -> Tensor:
    """Which chains go on: of every image those that came nearest.

    Args:
        chains: All chains.
        since: int64 ``[images]``, steps since the image's last success; 0 before the first one.

    Returns:
        bool ``[chains]``.
    """
    order = chains.least.argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = places(chains.image[order])
    most = torch.full_like(since, len(chains))
    for steps, count in NARROWING:
        most = torch.where(since >= steps, count, most)
    return rank < most[chains.image]
