"""The paper's own route to all real values: the margins of a grid, less what they can lose between its points."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.book import Book
from l0tre.certify.lipschitz import axis_gaps, group_costs
from l0tre.certify.prover import make_prover
from l0tre.certify.scene import make_scene
from l0tre.exhaustive.scan import Chunk, Level
from l0tre.exhaustive.sets import unrank
from l0tre.model.network import ROUND_OFF

__all__ = ["lipschitz_judge"]


def lipschitz_judge(book: Book) -> Callable[[Level, Sequence[int], Chunk], Tensor]:
    """Which sets are safe for all real values.

    Args:
        book: The evaluation.

    Returns:
        A judge for ``exhaustive.route.exhaust``: a set of groups is safe if its smallest grid margin exceeds the
        groups' costs and what float32 can err in it.
    """
    problem = book.problem
    memory = problem.settings.memory
    prover = make_prover(problem.network, problem.domain, book.batcher, memory)
    gaps = axis_gaps(problem.domain, problem.grid)
    # The grid's margins are float32; an error of a score is a share of the largest one, bounded here for all inputs.
    error = ROUND_OFF * float(prover.plan.scores.max())
    costs: dict[tuple[int, int], Tensor] = {}

    def judge(level: Level, block: Sequence[int], chunk: Chunk) -> Tensor:
        missing = [image for image in block if (level.t, image) not in costs]
        if missing:
            images, labels = problem.images[missing], problem.labels[missing]
            scene = make_scene(prover.plan, prover.tree, problem.domain, images, labels, level.t, memory // 4)
            for image, cost in zip(missing, group_costs(scene, level.t, gaps, memory // 2), strict=True):
                costs[level.t, image] = cost
        members = unrank(chunk.sets, level.domain.groups, level.t)
        lost = torch.stack([costs[level.t, image] for image in block])[:, members].sum(2)
        return chunk.safe & (chunk.margin.double() - lost > error)

    return judge
