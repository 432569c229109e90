"""Sensitivities from windows (crop) and sums (add) instead of whole forward passes; the same numbers."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.exhaustive.crop import base_values, carry, finish, paste
from l0tre.exhaustive.effects import (
    Locality,
    Singles,
    interactions,
    meet,
    phases,
    seed,
    single_changes,
    single_sites,
    stages,
)
from l0tre.exhaustive.scan import Chunk, Level, checked, reduce_points, scan_sets
from l0tre.exhaustive.sets import unrank
from l0tre.memory import Batcher

__all__ = ["prepare", "supports"]

# The sums are in another order than in a whole forward pass. A margin within this share of the largest score of zero
# is decided by whole forward passes.
DOUBT = 2.0**-13
MOST_GROUPS = 4096  # of the table of interacting pairs at t = 3
WORK_BYTES = {"cpu": 2**26, "cuda": 2**32}  # of one batch: more is no faster

Scan = Callable[[int, int], Chunk]


def supports(locality: Locality, t: int) -> bool:
    """Whether level ``t`` can be done this way."""
    if t == 1:
        return True
    return locality.plan.head != "map" and (t == 2 or (t == 3 and locality.domain.groups <= MOST_GROUPS))


@torch.inference_mode()
def prepare(locality: Locality, batcher: Batcher, level: Level, images: Tensor, labels: Tensor, budget: int) -> Scan:
    """Compute what all sets share, for some images.

    Args:
        locality: Network and groups.
        batcher: For the sets in doubt.
        level: The search space; see :func:`supports`.
        images: float32 ``[images, values]``, flattened.
        labels: int64 ``[images]``.
        budget: Bytes that batches may take.

    Returns:
        A function from a range of sets to their chunk, as ``scan`` gives it.
    """
    work = min(budget, WORK_BYTES["cuda" if images.device.type == "cuda" else "cpu"])
    plan = locality.plan
    base = base_values(plan, images.reshape(-1, *plan.graph.input_shape))
    if plan.head == "map":
        whole = Singles(images, base, base.head, {})
        return lambda start, stop: _settle(
            _scan_maps(locality, whole, labels, start, stop, work), batcher, level, images, labels
        )
    tables = [_tables(locality, level.t, images[i : i + 1], work) for i in range(len(images))] if level.t > 1 else []
    singles = single_changes(locality, images, base, (), work) if level.t == 1 else None

    def scan(start: int, stop: int) -> Chunk:
        if singles is not None:
            chunk = _scan_singles(locality, singles, labels, start, stop, work)
        else:
            sets = torch.arange(start, stop)
            parts = [_scan_sets(table, level, labels[i : i + 1], sets, work) for i, table in enumerate(tables)]
            chunk = _stack(parts)
        return _settle(chunk, batcher, level, images, labels)

    return scan


def _settle(doubtful: "_Doubtful", batcher: Batcher, level: Level, images: Tensor, labels: Tensor) -> Chunk:
    """Decide what is too close to call by whole forward passes."""
    chunk = checked(doubtful.chunk, level)
    band = DOUBT * doubtful.scale
    safe = chunk.margin > band
    close = ~safe & (chunk.margin >= -band)
    if not bool(close.any()):
        return replace(chunk, safe=safe)
    fields = {name: getattr(chunk, name).clone() for name in ("score", "score_point", "margin", "margin_point")}
    for row in close.any(1).nonzero()[:, 0].tolist():
        column = close[row].nonzero()[:, 0]
        exact = scan_sets(batcher, level, images[row : row + 1], labels[row : row + 1], chunk.sets[column])
        for name, values in fields.items():
            values[row, column] = getattr(exact, name)[0]
        safe[row, column] = exact.safe[0]
    return replace(chunk, safe=safe, **fields)


@dataclass(frozen=True)
class _Doubtful:
    """A chunk and the largest score behind each of its numbers, both ``[images, sets]``."""

    chunk: Chunk
    scale: Tensor


def _reduce(scores: Tensor, labels: Tensor, shape: tuple[int, int, int]) -> _Doubtful:
    chunk = reduce_points(scores, labels, shape)
    return _Doubtful(chunk, scores.abs().amax(1).reshape(shape).amax(2))


def _join(parts: list[_Doubtful], sets: Tensor, order: Tensor | None = None) -> _Doubtful:
    """Chunks of different sets side by side, optionally put in order."""

    def cat(values: list[Tensor]) -> Tensor:
        joined = torch.cat(values, 1)
        return joined if order is None else joined[:, order]

    names = ("score", "score_point", "margin", "margin_point", "safe")
    fields = [cat([getattr(part.chunk, name) for part in parts]) for name in names]
    return _Doubtful(Chunk(sets, *fields), cat([part.scale for part in parts]))


def _stack(parts: list[_Doubtful]) -> _Doubtful:
    """Chunks of the same sets for different images, one above the other."""
    names = ("score", "score_point", "margin", "margin_point", "safe")
    fields = [torch.cat([getattr(part.chunk, name) for part in parts]) for name in names]
    return _Doubtful(Chunk(parts[0].chunk.sets, *fields), torch.cat([part.scale for part in parts]))


def _scan_singles(
    locality: Locality, singles: Singles, labels: Tensor, start: int, stop: int, budget: int
) -> _Doubtful:
    images, _, points, features = singles.head.shape
    step = max(1, budget // (16 * images * points * features))
    parts = []
    for first in range(start, stop, step):
        last = min(first + step, stop)
        head = singles.base.head[:, None, None] + singles.head[:, first:last]
        scores = finish(locality.plan, head.reshape(-1, features))
        shape = (images, last - first, points)
        parts.append(_reduce(scores, labels.repeat_interleave((last - first) * points), shape))
    return _join(parts, torch.arange(start, stop, device=labels.device))


def _scan_maps(locality: Locality, whole: Singles, labels: Tensor, start: int, stop: int, budget: int) -> _Doubtful:
    """Single groups when what is behind the cut needs its whole map."""
    plan = locality.plan
    count, points = len(whole.images), locality.grid.shape[1]
    parts, visited = [], []
    tail = max(node.shape[0] if not node.shape[1:] else torch.Size(node.shape).numel() for node in plan.graph.nodes)
    for phase, groups in phases(locality):
        groups = groups[(groups >= start) & (groups < stop)]
        sites = single_sites(locality, phase, groups, plan.cut)
        step = max(1, budget // (16 * count * points * tail))
        for first in range(0, len(groups), step):
            some, part = groups[first : first + step], sites.part(first, first + step)
            change = carry(plan, whole.base, part, 0, seed(locality, whole.images, some))
            maps = paste(plan, whole.base, part, change)
            scores = finish(plan, maps.flatten(0, 2))
            parts.append(_reduce(scores, labels.repeat_interleave(len(some) * points), (count, len(some), points)))
            visited.append(some)
    order = torch.cat(visited).argsort().to(labels.device)
    return _join(parts, torch.arange(start, stop, device=labels.device), order)


@dataclass(frozen=True)
class _Tables:
    """What the sets of one image share.

    Attributes:
        locality: Network and groups.
        singles: Effects of single groups.
        pair: int64 ``[groups, groups]``: row of ``pairs`` for a pair that interacts, 0 for one that does not; empty
            at t = 2.
        pairs: ``[1 + interacting pairs, points ** 2, features]``; row 0 is zero.
    """

    locality: Locality
    singles: Singles
    pair: Tensor
    pairs: Tensor


def _tables(locality: Locality, t: int, image: Tensor, budget: int) -> _Tables:
    plan = locality.plan
    base = base_values(plan, image.reshape(-1, *plan.graph.input_shape))
    keep = tuple(
        joint
        for joint in stages(plan)[1:]
        if _stored_bytes(locality, joint) <= 4 * budget  # a large table of differences costs more than it saves
    )
    singles = single_changes(locality, image, base, keep, budget)
    pair, pairs = torch.empty(0, 0, dtype=torch.int64), torch.empty(0)
    if t == 3:
        n = locality.domain.groups
        a, b = torch.triu_indices(n, n, 1)
        near = meet(locality, a, b)
        a, b = a[near], b[near]
        pair = torch.zeros(n, n, dtype=torch.int64)
        pair[a, b] = torch.arange(1, len(a) + 1)
        found = interactions(locality, singles, torch.stack([a, b], 1), budget)
        pairs = torch.cat([torch.zeros_like(found[:1]) if len(found) else found.new_zeros(1, *found.shape[1:]), found])
        pair = pair.to(image.device)
    return _Tables(locality, singles, pair, pairs)


def _stored_bytes(locality: Locality, joint: int) -> int:
    sites = single_sites(locality, (0, 0), torch.zeros(1, dtype=torch.int64), joint)
    rows, columns = sites.spans(joint)
    channels = locality.plan.graph.nodes[joint].shape[0]
    return 4 * locality.domain.groups * locality.grid.shape[1] * channels * (rows.size + 1) * (columns.size + 1)


def _scan_sets(tables: _Tables, level: Level, label: Tensor, sets: Tensor, budget: int) -> _Doubtful:
    """Sets of two or three groups for one image."""
    locality = tables.locality
    members = unrank(sets, level.domain.groups, level.t)
    near = torch.stack(
        [meet(locality, members[:, a], members[:, b]) for a, b in itertools.combinations(range(level.t), 2)]
    )
    together, apart = near.all(0), ~near.any(0)
    last_layer = locality.plan.tail == len(locality.plan.graph.nodes)
    parts, order = [], []
    if last_layer and bool(apart.any()):
        order.append(apart.nonzero()[:, 0])
        parts.append(_separate(tables, level, label, members[apart].to(label.device)))
    summed = ~together if not last_layer else ~together & ~apart
    features = tables.singles.head.shape[-1]
    step = max(1, budget // (16 * level.points * features))
    for kind in (summed, together):
        rows = kind.nonzero()[:, 0]
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            order.append(some)
            extra = None
            if kind is together:
                extra = interactions(locality, tables.singles, members[some], budget)
            parts.append(_sum(tables, level, label, members[some].to(label.device), extra))
    place = torch.cat(order).argsort().to(label.device)
    return _join(parts, sets.to(label.device), place)


def _sum(tables: _Tables, level: Level, label: Tensor, members: Tensor, extra: Tensor | None) -> _Doubtful:
    """Sets from their singles, interacting pairs and, if given, their own interaction."""
    points, t = level.grid.shape[1], level.t
    count, features = len(members), tables.singles.head.shape[-1]
    total = tables.singles.base.head[0]
    for place in range(t):
        spread = [points if other == place else 1 for other in range(t)]
        total = total + tables.singles.head[0, members[:, place]].reshape(count, *spread, features)
    if t == 3:
        for a, b in itertools.combinations(range(t), 2):
            spread = [points if other in (a, b) else 1 for other in range(t)]
            pair = tables.pair[members[:, a], members[:, b]]
            total = total + tables.pairs[pair].reshape(count, *spread, features)
    total = total.reshape(count, level.points, features)
    total = total if extra is None else total + extra
    scores = finish(tables.locality.plan, total.reshape(-1, features))
    return _reduce(scores, label.expand(len(scores)), (1, count, level.points))


def _separate(tables: _Tables, level: Level, label: Tensor, members: Tensor) -> _Doubtful:
    """Sets without any interaction when the dense layer is the last one: every group takes its own worst value."""
    head = tables.singles.head[0]  # [groups, points, classes]
    base = tables.singles.base.head[0]
    own = label[0]
    places = level.grid.shape[1] ** torch.arange(level.t - 1, -1, -1, device=label.device)
    low, low_at = head[:, :, own].min(1)
    score = base[own] + low[members].sum(1)
    gain, gain_at = (head[:, :, own, None] - head).min(1)  # [groups, classes]
    margin = base[own] - base + gain[members].sum(1)
    margin[:, own] = float("inf")
    worst, rival = margin.min(1)
    size = base.abs().max() + head.abs().amax((1, 2))[members].sum(1)
    chunk = Chunk(
        members[:, 0],
        score[None],
        (low_at[members] * places).sum(1)[None],
        worst[None],
        (gain_at[members, rival[:, None]] * places).sum(1)[None],
        torch.zeros_like(worst, dtype=torch.bool)[None],
    )
    return _Doubtful(chunk, size[None])
