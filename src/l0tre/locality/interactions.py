"""What is left over when several groups are changed together.

With ``D(T)`` the difference that changing the set ``T`` makes after the cut, ``D(T)`` is the sum of the interactions
``I(T')`` over all subsets ``T'`` of ``T`` (inclusion and exclusion). ``I(T')`` is not zero only where the windows of
all of ``T'`` meet, and a set whose windows have no common position has none. So a few tables give every set.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.locality.local_part import Span, bends_in_place, overlap, stage_spans
from l0tre.locality.pair_interactions import Alone, carry_interactions, is_chain, meeting_sites, reaches
from l0tre.locality.single_pixels import Locality, PixelEffects, batches, seed, share
from l0tre.locality.windows import Box, Sites, apply_head, carry, common_part, shifted

__all__ = ["Pattern", "interactions", "make_patterns"]


@dataclass(frozen=True)
class Pattern:
    """Sets that are copies of one arrangement of windows, and how to compute their interaction.

    Attributes:
        rows: int64 ``[sets]``: which rows of the table of sets they are.
        groups: int64 ``[sets, t]``.
        start: The stage at which the groups' changes still add up.
        first: Window of each group at that stage, at the pattern's home.
        last: Window of each group at the cut.
        sites: Windows from ``start`` on, for each subset of at least two of the groups; the cut's is where all meet. Of
            pairs, if there is one way through the network, only where the windows of both meet.
    """

    rows: Tensor
    groups: Tensor
    start: int
    first: tuple[Box, ...]
    last: tuple[Box, ...]
    sites: dict[tuple[int, ...], Sites]


def make_patterns(locality: Locality, sets: Tensor, images: int, budget: int) -> list[Pattern]:
    """Sort sets by arrangement.

    Args:
        locality: Network and groups.
        sets: int64 ``[sets, t]`` on the CPU, groups whose windows meet pairwise.
        images: How many images will be worked on together.
        budget: Bytes that one batch may take.

    Returns:
        Patterns small enough for one batch each.
    """
    plan = locality.plan
    t = sets.shape[1]
    variants = images * locality.grid.shape[1] ** t
    places = locality.places[sets]  # [sets, t, 2]
    origin = places.amin(1) // plan.stride  # home, in strides of the cut
    stage = _stages(locality, places)
    patterns: list[Pattern] = []
    for start in stage.unique().tolist():
        chosen = (stage == start).nonzero()[:, 0]
        ends = [_at_home(locality, places[chosen], origin[chosen], operation) for operation in (start, plan.cut)]
        keys, which = torch.cat(ends, 1).unique(dim=0, return_inverse=True)
        order = chosen[which.argsort(stable=True)]
        stops = torch.bincount(which, minlength=len(keys)).cumsum(0).tolist()
        for key, low, high in zip(keys.tolist(), [0, *stops[:-1]], stops, strict=True):
            boxes = [(Span(*key[i : i + 2]), Span(*key[i + 2 : i + 4])) for i in range(0, 8 * t, 4)]
            rows = order[low:high]
            patterns += _split_pattern(locality, sets, rows, origin[rows].T, start, boxes, variants, budget)
    return patterns


def _at_home(locality: Locality, places: Tensor, origin: Tensor, operation: int) -> Tensor:
    """Boxes of the pixels of sets at an operation, moved to the sets' homes, ``[sets, 4 * t]``."""
    pace = locality.plan.stride // locality.plan.strides[operation]
    shift = pace * origin[:, [0, 0, 1, 1]]
    return (locality.boxes(places, operation) - shift[:, None]).flatten(1)


def _stages(locality: Locality, places: Tensor) -> Tensor:
    """For each set the latest stage before which its windows never meet at an operation that is not linear."""
    operations = locality.plan.graph.operations
    best = torch.zeros(len(places), dtype=torch.int64)
    apart = torch.ones(len(places), dtype=torch.bool)
    done = 0
    for stage in locality.stages[:-1]:
        for place in range(done + 1, stage + 1):
            if bends_in_place(operations[place]):
                boxes = locality.boxes(places, place)
                for a, b in itertools.combinations(range(places.shape[1]), 2):
                    apart &= ~share(boxes[:, a], boxes[:, b])
        best[apart] = stage
        done = stage
    return best


def _split_pattern(
    locality: Locality,
    sets: Tensor,
    rows: Tensor,
    steps: Tensor,
    start: int,
    boxes: list[Box],
    variants: int,
    budget: int,
) -> Iterator[Pattern]:
    """One arrangement in parts that fit a batch; ``boxes`` holds the groups' windows at the start, then at the cut."""
    t, device = sets.shape[1], locality.grid.device
    first, last = tuple(boxes[:t]), tuple(boxes[t:])
    target = last[0]
    for rows_, columns in last[1:]:
        target = overlap(target[0], rows_), overlap(target[1], columns)
    chain = t == 2 and is_chain(locality.plan)
    whole = (
        meeting_sites(locality.plan, start, (first[0], first[1]), steps)
        if chain
        else _subset_sites(locality, first, start, target, steps)
    )
    for low, high in batches(locality.plan, whole, variants, start, budget):
        sites: dict[tuple[int, ...], Sites] = {tuple(range(t)): whole.part(low, high)}
        for subset in (subset for size in range(2, t) for subset in itertools.combinations(range(t), size)):
            own = tuple(first[member] for member in subset)
            sites[subset] = _subset_sites(locality, own, start, target, steps[:, low:high])
        some = rows[low:high]
        yield Pattern(some.to(device), sets[some].to(device), start, first, last, sites)


def _subset_sites(locality: Locality, boxes: tuple[Box, ...], start: int, target: Box, steps: Tensor) -> Sites:
    windows = []
    for axis in (0, 1):
        union = Span(min(box[axis].first for box in boxes), max(box[axis].last for box in boxes))
        windows.append(stage_spans(locality.plan, start, union, target[axis], axis))
    return Sites(steps, windows[0], windows[1])


@torch.inference_mode()
def interactions(locality: Locality, singles: PixelEffects, pattern: Pattern) -> Tensor:
    """The interaction of every set of a pattern.

    Args:
        locality: Network and groups.
        singles: Effects of single groups, with their stages.
        pattern: The sets.

    Returns:
        ``[images, sets, points ** t, features]``; the first group's points vary slowest.
    """
    plan, points = locality.plan, locality.grid.shape[1]
    t = len(pattern.first)
    if t == 2 and is_chain(plan):
        return _pairs(locality, singles, pattern)
    everyone = tuple(range(t))
    target = pattern.sites[everyone].box(plan.cut)
    total: Tensor | None = None
    for size in range(t, 0, -1):
        for subset in itertools.combinations(everyone, size):
            if size == 1:
                member = subset[0]
                part = _own_change(locality, singles, pattern, member, plan.cut, pattern.last[member], target)
            else:
                sites = pattern.sites[subset]
                joint = pattern.start
                box = sites.box(joint)
                parts = [_own_change(locality, singles, pattern, m, joint, pattern.first[m], box) for m in subset]
                part = carry(plan, singles.base, sites, joint, _outer_sum(parts))
            shape = [points if member in subset else 1 for member in everyone]
            part = part.reshape(*part.shape[:2], *shape, *part.shape[3:])
            if total is None:
                total = part
            else:
                total.add_(part, alpha=-1.0 if (t - size) % 2 else 1.0)
    if total is None:
        raise AssertionError("a set has at least one group")
    change = total.reshape(*total.shape[:2], points**t, *total.shape[2 + t :])
    return apply_head(plan, pattern.sites[everyone], change)


def _pairs(locality: Locality, singles: PixelEffects, pattern: Pattern) -> Tensor:
    """The interactions of pairs, if there is one way through the local part."""
    plan, sites, start = locality.plan, pattern.sites[0, 1], pattern.start
    windows = [reaches(plan, start, box) for box in pattern.first]

    def fetch(side: int, place: int, box: Box) -> Tensor:
        return _own_change(locality, singles, pattern, side, place, windows[side][place - start], box)

    alone = Alone(frozenset((start, *locality.stages[:-1])), fetch)
    rest = carry_interactions(plan, singles.base, sites, start, alone)
    if rest is None:
        images, points = singles.head.shape[0], locality.grid.shape[1]
        return singles.head.new_zeros(images, len(pattern.groups), points**2, singles.head.shape[-1])
    return apply_head(plan, sites, rest)


def _own_change(
    locality: Locality, singles: PixelEffects, pattern: Pattern, member: int, joint: int, now: Box, wanted: Box
) -> Tensor:
    """The change of one member of each set alone at a joint, in a box: ``[images, sets, points, C, rows, columns]``."""
    groups = pattern.groups[:, member]
    if joint == 0 and locality.plan.cut > 0:
        own = seed(locality, singles.images, groups)
        return shifted(own, now, wanted)
    part, common = common_part(singles.stored[joint], now, wanted)
    return shifted(part[:, groups], common, wanted)


def _outer_sum(parts: list[Tensor]) -> Tensor:
    """All sums of one variant from each part: ``[images, sets, points ** parts, ...]``."""
    count = len(parts)
    total: Tensor | None = None
    for place, part in enumerate(parts):
        spread = [part.shape[2] if other == place else 1 for other in range(count)]
        view = part.reshape(*part.shape[:2], *spread, *part.shape[3:])
        total = view if total is None else total + view
    if total is None:
        raise AssertionError("a sum has at least one part")
    return total.flatten(2, 1 + count)
