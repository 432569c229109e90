"""The states of the local search: for each image several inputs, each on its way to another class."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from l0tre.attacks.meter import Meter
from l0tre.attacks.task import Task

__all__ = ["LEAST_CHAINS", "MOST_RIVALS", "Chains", "begin", "join", "pick", "restart", "survivors"]

MOST_RIVALS = 9  # classes that are aimed at: those with the highest scores
RIVAL_QUERIES = 100  # what an image must be able to spend on each of them
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
    """

    image: Tensor
    rival: Tensor
    x: Tensor
    tabu: Tensor
    least: Tensor
    stale: Tensor
    shaken: Tensor

    def __len__(self) -> int:
        return len(self.image)


def pick(chains: Chains, rows: Tensor) -> Chains:
    """Some of the chains, by a mask or by their places."""
    return Chains(*(getattr(chains, field.name)[rows] for field in fields(Chains)))


def join(parts: Sequence[Chains]) -> Chains:
    """All chains of several sets."""
    return Chains(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Chains)))


def begin(meter: Meter, task: Task, best: Tensor, rows: Tensor, queries: int) -> Chains:
    """Chains from the original to every near class, and from the best adversarial input to what it is taken for.

    Args:
        meter: Counts the queries; its images are those of the task.
        task: What is attacked.
        best: float32 ``[images, values]``, adversarial inputs; the original where none is known.
        rows: int64, the images to begin with.
        queries: What each of them can spend: with little, fewer classes are aimed at.

    Returns:
        The chains.
    """
    device = task.images.device

    def originals(start: int, stop: int) -> Tensor:
        return task.images[rows[start:stop]]

    scores = meter.scores(rows, originals)
    specification = task.specification.pick(rows)
    most = specification.rivals(scores.shape[1]).shape[1]
    scores = specification.rival_scores(scores)
    count = min(MOST_RIVALS, most, max(2, queries // RIVAL_QUERIES))
    rivals = scores.topk(count, 1).indices
    copies = -(-LEAST_CHAINS // count)
    rivals = rivals.repeat(1, copies)
    shaken = torch.arange(rivals.shape[1], device=device) >= count
    image = rows.repeat_interleave(rivals.shape[1])
    chains = _make(task, image, rivals.flatten(), task.images[image], shaken.repeat(len(rows)))
    known = rows[task.part(rows).sizes(best[rows]) <= task.domain.groups]
    if not len(known):
        return chains

    def adversarial(start: int, stop: int) -> Tensor:
        return best[known[start:stop]]

    reached = task.specification.pick(known).rival_scores(meter.scores(known, adversarial)).argmax(1)
    return join([chains, _make(task, known, reached, best[known], torch.zeros_like(known, dtype=torch.bool))])


def _make(task: Task, image: Tensor, rival: Tensor, x: Tensor, shaken: Tensor) -> Chains:
    tabu = torch.zeros(len(image), task.domain.groups, dtype=torch.int32, device=image.device)
    least = torch.full((len(image),), float("inf"), device=image.device)
    return Chains(image, rival, x, tabu, least, torch.zeros_like(image), shaken)


def restart(chains: Chains, which: Tensor, images: Tensor) -> Chains:
    """Send some chains (a mask) back to their originals ``images[chain.image]``, from now on with chance."""
    return replace(
        chains,
        x=torch.where(which[:, None], images[chains.image], chains.x),
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
    order = order[chains.image[order].argsort(stable=True)]
    images = chains.image[order]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(images, images)
    most = torch.full_like(since, len(chains))
    for steps, count in NARROWING:
        most = torch.where(since >= steps, count, most)
    return rank < most[chains.image]
