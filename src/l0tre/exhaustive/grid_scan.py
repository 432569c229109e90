"""Subspace sensitivities S(T0, t): the worst score and the worst margin over every grid point of every subspace.

The tensor of the paper, ``values x points^t x images x sets``, is never held: a chunk of sets is built, queried and
reduced to one number for each image and set.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.exhaustive.subsets import count_sets, unrank
from l0tre.memory import Batcher
from l0tre.model.network import round_off
from l0tre.model.rounding import Error, Peaks, RoundOff, make_round_off
from l0tre.objective import Specification

__all__ = ["Chunk", "Level", "checked", "make_level", "reduce_points", "round_off_of", "scan", "scan_sets", "solutions"]


DOUBLE_SHARE = 8  # a row costs so many times more where its round-off is worked out, in float64


@dataclass(frozen=True)
class Level:
    """What is enumerated at one ``t``.

    Attributes:
        domain: Groups and ranges.
        grid: float32 ``[groups, points, width]``, the values each group takes.
        t: Size of a set of groups.
        sets: Number of sets, ``C(groups, t)``.
        points: Number of grid points of one set.
    """

    domain: Domain
    grid: Tensor
    t: int
    sets: int
    points: int


@dataclass(frozen=True)
class Chunk:
    """The sensitivities of some sets for some images, tensors ``[images, sets]``.

    Attributes:
        sets: int64 ``[sets]``, numbers of the sets, ascending.
        score: Smallest score of the label over the grid points of each set.
        score_point: The grid point that attains it.
        margin: Smallest margin of the label.
        margin_point: The grid point that attains it.
        safe: Whether the network's own source decides for the label at every grid point.
        error: How far any of the margins can be from that of real arithmetic, in scores; NaN if that is not known.
    """

    sets: Tensor
    score: Tensor
    score_point: Tensor
    margin: Tensor
    margin_point: Tensor
    safe: Tensor
    error: float = math.nan


def make_level(domain: Domain, grid: Tensor, t: int) -> Level:
    """The search space of level ``t``.

    Raises:
        ConfigError: If fewer than ``t`` groups may change or the space is too large to number.
    """
    return Level(domain, grid, t, count_sets(domain.groups, t), grid.shape[1] ** t)


def solutions(level: Level, sets: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's solution tensor, as positions and values instead of whole inputs.

    Args:
        level: The search space.
        sets: int64 ``[...]``, numbers of sets.
        points: int64 ``[...]``, a grid point of each.

    Returns:
        The groups of each set, int64 ``[..., t]``, and their values, float32 ``[..., t, width]``.
    """
    members = unrank(sets.reshape(-1), level.domain.groups, level.t)
    per_group = level.grid.shape[1]
    places = per_group ** torch.arange(level.t - 1, -1, -1, device=points.device)
    digits = points.reshape(-1, 1) // places % per_group
    values = level.grid[members, digits]
    return members.reshape(*sets.shape, level.t), values.reshape(*sets.shape, level.t, -1)


def round_off_of(batcher: Batcher, domain: Domain, images: Tensor) -> RoundOff | None:
    """What float32 does around some images ``[images, values]``; ``None`` for a function without a graph."""
    literal = batcher.network.literal
    if literal is None:
        return None
    return make_round_off(literal, *domain.box, domain.members, images, batcher.pulse)


@torch.inference_mode()
def scan(batcher: Batcher, level: Level, images: Tensor, specification: Specification, start: int, stop: int) -> Chunk:
    """Query every grid point of some sets for some images, each by a whole forward pass.

    Args:
        batcher: The network and its batch size.
        level: The search space, on the network's device.
        images: float32 ``[images, values]``, flattened, on the network's device.
        specification: What must hold of each image.
        start: Number of the first set.
        stop: One past the number of the last set.

    Returns:
        The reduced chunk, on the network's device.

    Raises:
        ModelError: If the network gives NaN.
    """
    sets = torch.arange(start, stop, device=images.device)
    return scan_sets(batcher, level, images, specification, sets, round_off_of(batcher, level.domain, images))


@torch.inference_mode()
def scan_sets(
    batcher: Batcher,
    level: Level,
    images: Tensor,
    specification: Specification,
    sets: Tensor,
    rounding: RoundOff | Error | None,
) -> Chunk:
    """As :func:`scan`, for any sets by their numbers (int64 ``[sets]``), with what :func:`round_off_of` gives.

    Or with what float32 can do to a score at any of their grid points, if that is known.
    """
    # All points of several sets at once, or one set in blocks of points when it alone exceeds a batch.
    block = min(level.points, max(1, batcher.most))
    best: Chunk | None = None
    for first in range(0, level.points, block):
        last = min(first + block, level.points)
        part = _scan_points(batcher, level, images, specification, sets, (first, last), rounding)
        best = part if best is None else _merge(best, part)
    if best is None:
        raise AssertionError("a set has at least one grid point")
    return checked(best, level)


def checked(chunk: Chunk, level: Level) -> Chunk:
    """The chunk, if all its numbers are numbers.

    Raises:
        ModelError: If the network gave NaN or an infinite score of the label.
    """
    if bool(torch.isfinite(chunk.score).all() & ~chunk.margin.isnan().any()):
        return chunk
    raise ModelError(
        f"the network gives NaN or infinite scores for an input with {level.t} changed {level.domain.unit}s inside the "
        "domain: check the model"
    )


def _scan_points(
    batcher: Batcher,
    level: Level,
    images: Tensor,
    specification: Specification,
    sets: Tensor,
    points: tuple[int, int],
    rounding: RoundOff | Error | None,
) -> Chunk:
    count, width, rows_each = len(images), len(sets), points[1] - points[0]
    device = images.device
    point = torch.arange(*points, device=device)
    groups, values = solutions(level, sets[:, None].expand(-1, rows_each), point.expand(width, -1))
    positions = level.domain.members[groups].reshape(width * rows_each, -1)
    values = values.reshape(width * rows_each, -1)
    per_image = width * rows_each

    def make(row: Tensor) -> Tensor:
        inner = row % per_image
        own = images[row // per_image]
        x = admit(level.domain, own, own.scatter(1, positions[inner], values[inner]))
        return x.reshape(-1, *level.domain.shape)

    peaks = Peaks()
    scores = batcher.run(count * per_image, lambda a, b: make(torch.arange(a, b, device=device)), peaks)
    specification = specification.repeat(per_image)
    # A function has no error that is known: its own scores count, but for ties.
    met = {number: float(value) for number, value in peaks.values.items()}
    error = rounding.error(met, level.t) if isinstance(rounding, RoundOff) else rounding
    safe = _decided(batcher, level.domain, scores, specification, make, error)
    reduced = reduce_points(scores, specification, (count, width, rows_each), safe)
    return replace(
        reduced,
        sets=sets,
        score_point=reduced.score_point + points[0],
        margin_point=reduced.margin_point + points[0],
        error=math.nan if error is None else error.margin,
    )


def _decided(
    batcher: Batcher,
    domain: Domain,
    scores: Tensor,
    specification: Specification,
    make: Callable[[Tensor], Tensor],
    error: Error | None,
) -> Tensor:
    """Whether the network's own source decides for the label, bool ``[rows]``.

    Beyond the band around zero any two evaluations decide alike. For closer points the band is worked out once more,
    from their own values. What is still inside is run by the source itself; margins within round-off of zero are ties,
    before and after a softmax.
    """
    margin = specification.margins(scores)
    if error is None:
        return margin > round_off(scores)
    safe = margin > error.band
    close = (~safe & ~(margin < -error.band)).nonzero()[:, 0]
    for rows in close.split(max(1, batcher.rows // DOUBLE_SHARE)) if len(close) else ():
        batcher.pulse()
        x = make(rows)
        assert batcher.network.literal is not None
        near = make_round_off(batcher.network.literal, *domain.box, None, x.flatten(1))
        band = min(error.band, near.error({}, 0).band)
        safe[rows] = margin[rows] > band
        open_ = (~(margin[rows].abs() > band)).nonzero()[:, 0]  # also if nothing is known of the errors
        if len(open_):
            own = batcher.network.source_scores(x[open_])
            decided = specification.pick(rows[open_]).to(own.device).margins(own) > round_off(own)
            safe[rows[open_]] = decided.to(safe.device)
            if batcher.network.dropped:  # a softmax makes large scores that round-off keeps apart small and far apart
                safe[rows[open_]] &= margin[rows[open_]] > round_off(scores[rows[open_]])
    return safe


def reduce_points(scores: Tensor, specification: Specification, shape: tuple[int, int, int], safe: Tensor) -> Chunk:
    """The worst score and margin of each set over its points.

    Args:
        scores: ``[images * sets * points, classes]``.
        specification: One claim for each row.
        shape: Numbers of images, sets and points.
        safe: bool, one for each row: whether the decision stays.

    Returns:
        A chunk without its sets.
    """
    # An infinite score anywhere is as unusable as NaN, and is reported as such.
    finite = torch.isfinite(scores).all(1)
    margin = specification.margins(scores).masked_fill(~finite, float("nan"))
    safe = (safe & finite).reshape(shape).all(2)
    score, score_at = scores.gather(1, specification.labels[:, None]).reshape(shape).min(2)
    margin, margin_at = margin.reshape(shape).min(2)
    return Chunk(torch.empty(0, dtype=torch.int64), score, score_at, margin, margin_at, safe)


def _merge(a: Chunk, b: Chunk) -> Chunk:
    """Two chunks of the same sets over different grid points; NaN wins, so that it is seen."""
    lower = ~(b.score >= a.score)
    closer = ~(b.margin >= a.margin)
    return Chunk(
        a.sets,
        torch.where(lower, b.score, a.score),
        torch.where(lower, b.score_point, a.score_point),
        torch.where(closer, b.margin, a.margin),
        torch.where(closer, b.margin_point, a.margin_point),
        a.safe & b.safe,
        max(a.error, b.error),
    )
