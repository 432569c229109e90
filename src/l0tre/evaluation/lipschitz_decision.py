"""The paper's own route to all real values: the margins of a grid, less what they can lose between its points."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.certify.prover import make_prover
from l0tre.certify.relax.instance import make_instance
from l0tre.certify.relax.lipschitz import axis_gaps, group_costs
from l0tre.evaluation.problem import Problem
from l0tre.exhaustive.grid_scan import Chunk, Level, make_level, solutions
from l0tre.exhaustive.subsets import unrank
from l0tre.halting import beat
from l0tre.memory import Batcher
from l0tre.model.graph import Graph, run
from l0tre.objective import Specification

__all__ = ["exact_margins", "lipschitz_decision"]


def lipschitz_decision(problem: Problem, batcher: Batcher) -> Callable[[int, Sequence[int], Chunk], Tensor]:
    """Which sets are safe for all real values.

    Args:
        problem: What is evaluated.
        batcher: Runs the network.

    Returns:
        A decision for the grid search: a set of groups is safe if its smallest grid margin exceeds the
        groups' costs and what float32 can err in it; where that is too much, the margin is computed in float64.

    Raises:
        Halted: If the step at work should end.
    """
    memory = problem.settings.memory_bytes
    prover = make_prover(problem.network, problem.domain, batcher, memory, problem.tuning, beat)
    beat()
    gaps = axis_gaps(problem.domain, problem.grid)
    costs: dict[tuple[int, int], tuple[Tensor, float]] = {}
    each = 8 * 2 * sum(slack.numel() for slack in prover.plan.slack)  # bytes of an input's values in float64

    def decide(t: int, block: Sequence[int], chunk: Chunk) -> Tensor:
        level = make_level(problem.domain, problem.grid, t)
        missing = [image for image in block if (level.t, image) not in costs]
        if missing:
            images, claims = problem.images[missing], problem.specification.pick(missing)
            instance = make_instance(prover.plan, prover.tree, problem.domain, images, claims, level.t, memory // 4)
            lost = group_costs(instance, level.t, gaps, memory // 2)
            slack = instance.slack.amax(1).tolist()
            costs.update(
                {(level.t, image): pair for image, pair in zip(missing, zip(lost, slack, strict=True), strict=True)}
            )
        members = unrank(chunk.sets, level.domain.groups, level.t)
        lost = torch.stack([costs[level.t, image][0] for image in block])[:, members].sum(2)
        room = chunk.margin.double() - lost
        safe = chunk.safe & (room > chunk.error)
        close = chunk.safe & ~safe & ~(room < -chunk.error)  # also if the error is not known
        for row in close.any(1).nonzero()[:, 0].tolist():
            column = close[row].nonzero()[:, 0]
            image, claim = problem.images[block[row]], problem.specification.pick([block[row]])
            rows = max(1, memory // 4 // each)
            margin = exact_margins(prover.plan.graph, level, image, claim, chunk.sets[column], rows)
            safe[row, column] = margin - lost[row, column] > costs[level.t, block[row]][1]
        return safe

    return decide


@torch.inference_mode()
def exact_margins(graph: Graph, level: Level, image: Tensor, claim: Specification, sets: Tensor, rows: int) -> Tensor:
    """The smallest margins of sets over their grid points, in float64.

    Args:
        graph: The network in float64, on the device of the image.
        level: The search space.
        image: float32 ``[values]``.
        claim: What must hold of it.
        sets: int64 ``[sets]``, their numbers.
        rows: How many inputs are evaluated together.

    Returns:
        float64 ``[sets]``; NaN where a score is not a number.
    """
    count = len(sets) * level.points
    parts = []
    for first in range(0, count, rows):
        row = torch.arange(first, min(first + rows, count), device=image.device)
        groups, values = solutions(level, sets[row // level.points], row % level.points)
        positions = level.domain.members[groups].flatten(1)
        x = image.double().expand(len(row), -1).scatter(1, positions, values.flatten(1).double())
        scores = run(graph, x.view(-1, *level.domain.shape)).flatten(1)
        parts.append(claim.repeat(len(row)).margins(scores))
    return torch.cat(parts).view(len(sets), level.points).amin(1)
