"""The paper's real-time mode: random subspaces instead of all of them, under a deadline. It proves nothing."""

import time

import torch
from torch import Tensor

from l0tre.exhaustive.accumulate import accumulate, tighten
from l0tre.exhaustive.grid_scan import Level, scan_sets
from l0tre.exhaustive.ranking import empty_ranking, update
from l0tre.memory import Batcher

__all__ = ["sample"]

LOOKING = 0.6  # share of the time for random subspaces; the rest is for making one adversarial input smaller


@torch.inference_mode()
def sample(
    batcher: Batcher, level: Level, image: Tensor, label: Tensor, seconds: float, generator: torch.Generator
) -> tuple[Tensor | None, int]:
    """Look for an adversarial input close to one image.

    Args:
        batcher: The network and its batch size.
        level: Which subspaces to draw from.
        image: float32 ``[1, values]``.
        label: int64 ``[1]``.
        seconds: When to stop. A batch that has begun is finished; at least one is made.
        generator: Draws the subspaces.

    Returns:
        The adversarial input ``[values]``, or ``None``; and the forward passes spent.
    """
    began, device = time.monotonic(), image.device
    by_score = by_margin = empty_ranking(1, min(level.sets, level.domain.groups), device)
    width = max(1, batcher.rows // level.points)
    queries = 0

    def spent() -> float:
        return (time.monotonic() - began) / seconds if seconds > 0 else 1.0

    while True:
        # Drawing with repetition is cheap at any size; a set drawn twice is looked at once.
        sets = torch.randint(level.sets, (width,), generator=generator).unique().to(device)
        sets = sets[~torch.isin(sets, by_score.sets)]
        chunk = scan_sets(batcher, level, image, label, sets, None) if len(sets) else None
        if chunk is not None:
            by_score, by_margin = update(by_score, chunk, "score"), update(by_margin, chunk, "margin")
            queries += len(sets) * level.points
        if spent() >= LOOKING or bool(by_margin.values[0, 0] < 0) or queries >= level.sets * level.points:
            break
    for ranking in (by_margin, by_score):
        found, changed, each = accumulate(batcher, level, image, label, ranking)
        queries += each
        if bool(found[0]):
            better, more = tighten(batcher, level.domain, image, label, changed, stop=lambda: spent() >= 1)
            return better[0], queries + int(more[0])
        if spent() >= 1:
            break
    return None, queries
