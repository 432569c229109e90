"""Sensitivities that were computed in another way than by whole forward passes: when to believe them.

They count where they are farther from zero than any two evaluations can be apart; what is closer is decided by whole
forward passes, and all of it where a few sets do not have the same numbers both ways.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.exhaustive.grid_scan import Chunk, Level, checked, round_off_of, scan_sets
from l0tre.memory import Batcher
from l0tre.model.network import exact_float32
from l0tre.model.rounding import Error, RoundOff
from l0tre.objective import Specification

__all__ = ["FIELDS", "Work", "settled"]

PROBES = 4  # sets in the middle and at the end (neighbours) that are looked at both ways before any is trusted

FIELDS = ("score", "score_point", "margin", "margin_point", "safe")

# From claims and a range of sets to their chunk, in which nothing is called safe yet.
Work = Callable[[Specification, int, int], Chunk]


def settled(
    batcher: Batcher,
    level: Level,
    images: Tensor,
    specification: Specification,
    make: Callable[[RoundOff], tuple[Work, Callable[[], Error]]],
    *,
    decide: bool,
) -> Callable[[int, int], Chunk]:
    """Get ready to scan a level in a way of one's own.

    Args:
        batcher: Whole forward passes.
        level: The search space.
        images: float32 ``[images, values]``.
        specification: What must hold of each image.
        make: Gets ready for the images: gives the way, and what float32 can do to any score that it has given so far.
        decide: See ``scanner.Scanner``.

    Returns:
        A function from a range of sets to their chunk, as ``scan`` gives it. It uses whole forward passes where the way
        does not give the same numbers (weights so large that sums in another order differ) or does not fit the device's
        memory.
    """
    rounding = round_off_of(batcher, level.domain, images)

    def forward(start: int, stop: int) -> Chunk:
        sets = torch.arange(start, stop, device=images.device)
        return scan_sets(batcher, level, images, specification, sets, rounding if decide else None)

    if rounding is None:
        return forward
    try:
        with exact_float32(images.device):
            work, error = make(rounding)
            if not _agrees(batcher, level, images, specification, work, error):
                return forward
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return forward

    @torch.inference_mode()
    def own_way(start: int, stop: int) -> Chunk:
        try:
            with exact_float32(images.device):
                chunk = checked(work(specification, start, stop), level)
                return _settle(batcher, level, images, specification, chunk, error(), decide=decide)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return forward(start, stop)

    return own_way


def _agrees(
    batcher: Batcher,
    level: Level,
    images: Tensor,
    specification: Specification,
    work: Work,
    error: Callable[[], Error],
) -> bool:
    """Whether a few sets of the first image have the same numbers both ways, within what is in doubt."""
    for end in (level.sets // 2, level.sets):
        sets = torch.arange(max(0, end - PROBES), end, device=images.device)
        if not len(sets):
            continue
        found = work(specification, end - len(sets), end)
        exact = scan_sets(batcher, level, images[:1], specification.pick(slice(0, 1)), sets, None)
        allowed = error().band
        margin = (found.margin[0] - exact.margin[0]).abs() <= allowed
        score = (found.score[0] - exact.score[0]).abs() <= allowed
        if not bool(margin.all() & score.all()):
            return False
    return True


def _settle(
    batcher: Batcher,
    level: Level,
    images: Tensor,
    specification: Specification,
    chunk: Chunk,
    error: Error,
    *,
    decide: bool,
) -> Chunk:
    """Decide what is too close to call by whole forward passes."""
    safe = chunk.margin > error.band
    close = ~safe & ~(chunk.margin < -error.band)
    chunk = replace(chunk, safe=safe, error=error.margin)
    for row in close.any(1).nonzero()[:, 0].tolist():
        column = close[row].nonzero()[:, 0]
        sets = chunk.sets[column]
        one = slice(row, row + 1)
        whole = error if decide else None
        exact = scan_sets(batcher, level, images[one], specification.pick(one), sets, whole)
        for name in FIELDS:
            getattr(chunk, name)[row, column] = getattr(exact, name)[0]
    return chunk
