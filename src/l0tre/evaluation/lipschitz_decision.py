"""The paper's own route to all real values: the margins of a grid, less what they can lose between its points."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0tre.certify.prover import make_prover
from l0tre.certify.relax.instance import make_instance
from l0tre.certify.relax.lipschitz import axis_gaps, group_costs
from l0tre.evaluation.ledger import Ledger
from l0tre.exhaustive.grid_scan import Chunk, Level, solutions
from l0tre.exhaustive.subsets import unrank
from l0tre.model.graph import Graph, run
from l0tre.model.network import margins

__all__ = ["exact_margins", "lipschitz_decision"]


def lipschitz_decision(ledger: Ledger) -> Callable[[Level, Sequence[int], Chunk], Tensor]:
    """Which sets are safe for all real values.

    Args:
        ledger: The evaluation.

    Returns:
        A decide for ``exhaustive.route.exhaust``: a set of groups is safe if its smallest grid margin exceeds the
        groups' costs and what float32 can err in it; where that is too much, the margin is computed in float64.
    """
    problem = ledger.problem
    memory = problem.settings.memory_bytes
    prover = make_prover(problem.network, problem.domain, ledger.batcher, memory)
    gaps = axis_gaps(problem.domain, problem.grid)
    costs: dict[tuple[int, int], tuple[Tensor, float]] = {}
    each = 8 * 2 * sum(slack.numel() for slack in prover.plan.slack)  # bytes of an input's values in float64

    def decide(level: Level, block: Sequence[int], chunk: Chunk) -> Tensor:
        missing = [image for image in block if (level.t, image) not in costs]
        if missing:
            images, labels = problem.images[missing], problem.labels[missing]
            instance = make_instance(prover.plan, prover.tree, problem.domain, images, labels, level.t, memory // 4)
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
            image, label = problem.images[block[row]], problem.labels[block[row]]
            rows = max(1, memory // 4 // each)
            margin = exact_margins(prover.plan.graph, level, image, label, chunk.sets[column], rows)
            safe[row, column] = margin - lost[row, column] > costs[level.t, block[row]][1]
        return safe

    return decide


@torch.inference_mode()
def exact_margins(graph: Graph, level: Level, image: Tensor, label: Tensor, sets: Tensor, rows: int) -> Tensor:
    """The smallest margins of sets over their grid points, in float64.

    Args:
        graph: The network in float64, on the device of the image.
        level: The search space.
        image: float32 ``[values]``.
        label: int64 scalar.
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
        parts.append(margins(scores, label.expand(len(row))))
    return torch.cat(parts).view(len(sets), level.points).amin(1)
