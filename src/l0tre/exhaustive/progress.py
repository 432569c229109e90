"""How far the search has come inside a level: all that is needed to go on after a stop."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from l0tre.exhaustive.grid_scan import Chunk
from l0tre.exhaustive.ranking import Ranking, empty_ranking, update

__all__ = ["GridProgress", "advance", "begin", "join", "split"]


@dataclass(frozen=True)
class GridProgress:
    """The state of some images inside a level.

    Attributes:
        t: The level.
        position: Number of the next set to visit; after the last one it goes on counting the steps that follow.
        safe: bool ``[images]``: every grid point so far has a positive margin.
        by_score: Most sensitive sets by the label's score (the paper's order).
        by_margin: Most sensitive sets by margin.
    """

    t: int
    position: int
    safe: torch.Tensor
    by_score: Ranking
    by_margin: Ranking


def begin(t: int, images: int, kept: int, device: torch.device) -> GridProgress:
    """The state before the first set of a level."""
    safe = torch.ones(images, dtype=torch.bool, device=device)
    return GridProgress(t, 0, safe, empty_ranking(images, kept, device), empty_ranking(images, kept, device))


def advance(partial: GridProgress, chunk: Chunk, safe: torch.Tensor | None = None) -> GridProgress:
    """The state after a chunk that starts at ``partial.position``; ``safe`` overrules the chunk's own."""
    return GridProgress(
        partial.t,
        partial.position + len(chunk.sets),
        partial.safe & (chunk.safe if safe is None else safe).all(1),
        update(partial.by_score, chunk, "score"),
        update(partial.by_margin, chunk, "margin"),
    )


def split(partial: GridProgress, rows: Sequence[int]) -> GridProgress:
    """The state of some of the images."""
    index = torch.tensor(rows, dtype=torch.int64, device=partial.safe.device)

    def pick(ranking: Ranking) -> Ranking:
        return Ranking(ranking.values[index], ranking.sets[index], ranking.points[index])

    return GridProgress(
        partial.t, partial.position, partial.safe[index], pick(partial.by_score), pick(partial.by_margin)
    )


def join(partials: Sequence[GridProgress], device: torch.device) -> GridProgress:
    """The common state of images that stand at the same position of the same level."""

    def stack(rankings: Sequence[Ranking]) -> Ranking:
        fields = ("values", "sets", "points")
        return Ranking(*(torch.cat([getattr(r, name) for r in rankings]).to(device) for name in fields))

    first = partials[0]
    return GridProgress(
        first.t,
        first.position,
        torch.cat([p.safe for p in partials]).to(device),
        stack([p.by_score for p in partials]),
        stack([p.by_margin for p in partials]),
    )
