"""The paper's own route to all real values: the margins of a grid, less what they can lose between its points."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.book import Book
from l0tre.certify.bound import score_limits
from l0tre.certify.lipschitz import axis_gaps, group_costs
from l0tre.certify.nodes import join, root
from l0tre.certify.prover import make_prover
from l0tre.certify.scene import make_scene
from l0tre.certify.search import batch_sizes
from l0tre.exhaustive.fast import DOUBT
from l0tre.exhaustive.scan import Chunk, Level
from l0tre.exhaustive.sets import unrank

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
    costs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def judge(level: Level, block: Sequence[int], chunk: Chunk) -> Tensor:
        missing = [image for image in block if (level.t, image) not in costs]
        if missing:
            images, labels = problem.images[missing], problem.labels[missing]
            scene = make_scene(prover.plan, prover.tree, problem.domain, images, labels, level.t, memory // 4)
            lost = group_costs(scene, level.t, gaps, memory // 2)
            roots = join([root(row, level.t, images.device) for row in range(len(missing))])
            # The grid's margins are float32, from windows or whole passes: their errors are a share of the scores.
            errors = DOUBT * score_limits(scene, roots, batch_sizes(scene, level.t, memory // 2)[1])
            costs.update(
                {(level.t, image): pair for image, pair in zip(missing, zip(lost, errors, strict=True), strict=True)}
            )
        members = unrank(chunk.sets, level.domain.groups, level.t)
        lost = torch.stack([costs[level.t, image][0] for image in block])[:, members].sum(2)
        errors = torch.stack([costs[level.t, image][1] for image in block])[:, None]
        return chunk.safe & (chunk.margin.double() - lost > errors)

    return judge
