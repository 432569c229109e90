"""The most sensitive sets seen so far, in bounded memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.exhaustive.grid_scan import Chunk

__all__ = ["Ranking", "empty_ranking", "update"]


@dataclass(frozen=True)
class Ranking:
    """The ``kept`` sets with the smallest values for each image, ascending; tensors ``[images, kept]``.

    Attributes:
        values: Score or margin; infinite where nothing is stored yet.
        sets: Number of the set; -1 where nothing is stored yet.
        points: The grid point that attains the value.
    """

    values: Tensor
    sets: Tensor
    points: Tensor


def empty_ranking(images: int, kept: int, device: torch.device) -> Ranking:
    """A ranking without entries."""
    nothing = torch.full((images, kept), -1, dtype=torch.int64, device=device)
    return Ranking(torch.full((images, kept), float("inf"), device=device), nothing, nothing.clone())


def update(ranking: Ranking, chunk: Chunk, by: str) -> Ranking:
    """Take a chunk's sets into account.

    The sort is stable and chunks come in the order of their sets, so equal values are ranked by number of the set:
    the result does not depend on how the search was cut into chunks.

    Args:
        ranking: The ranking of all earlier sets.
        chunk: The next sets.
        by: ``score`` (the paper's confidence drop) or ``margin``.

    Returns:
        The ranking of both.
    """
    values, points = (chunk.score, chunk.score_point) if by == "score" else (chunk.margin, chunk.margin_point)
    sets = chunk.sets.expand_as(values)
    kept = ranking.values.shape[1]
    merged, order = torch.cat([ranking.values, values], 1).sort(dim=1, stable=True)
    order = order[:, :kept]
    return Ranking(
        merged[:, :kept],
        torch.cat([ranking.sets, sets], 1).gather(1, order),
        torch.cat([ranking.points, points], 1).gather(1, order),
    )
