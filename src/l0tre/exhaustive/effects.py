"""Effects of one pixel, and what is left over when several are changed together.

With ``D(T)`` the difference that changing the set ``T`` makes behind the cut, ``D(T)`` is the sum of the interactions
``I(T')`` over all subsets ``T'`` of ``T`` (inclusion and exclusion). ``I(T')`` is not zero only where the windows of
all of ``T'`` meet, and a set whose windows have no common position has none. So a few stored tables give every set.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.exhaustive.crop import Base, Sites, apply_head, carry, shifted
from l0tre.exhaustive.local import POINTWISE, LocalPlan, Span, overlap, spans, stage_spans

__all__ = [
    "Locality",
    "Singles",
    "interactions",
    "make_locality",
    "meet",
    "phases",
    "seed",
    "single_changes",
    "single_sites",
    "stages",
]


@dataclass(frozen=True)
class Locality:
    """Where the groups are and what they reach.

    Attributes:
        plan: The local part of the network.
        domain: The groups.
        grid: float32 ``[groups, points, width]``.
        places: int64 ``[groups, 2]`` on the CPU: row and column of each group's pixel.
        windows: int64 ``[groups, 4]`` on the CPU: first and last row, first and last column that it reaches at the
            cut, clipped to the map.
    """

    plan: LocalPlan
    domain: Domain
    grid: Tensor
    places: Tensor
    windows: Tensor


@dataclass(frozen=True)
class Singles:
    """Effects of single groups for some images.

    Attributes:
        images: float32 ``[images, values]``, the originals.
        base: Their activations.
        head: Difference behind the cut, ``[images, groups, points, features]``.
        stored: For some joints the difference there, by phase: groups of the phase (int64, CPU) and
            ``[images, groups of the phase, points, C, rows, columns]``.
    """

    images: Tensor
    base: Base
    head: Tensor
    stored: dict[int, dict[tuple[int, int], tuple[Tensor, Tensor]]]


def make_locality(plan: LocalPlan, domain: Domain, grid: Tensor) -> Locality | str:
    """Locate the groups on the input map.

    Returns:
        The locality, or the reason why groups cannot be located: one of them lies on several pixels.
    """
    height, width = plan.graph.input_shape[1:]
    pixel = domain.members.cpu() % (height * width)
    if bool((pixel != pixel[:, :1]).any()):
        return f"a {domain.unit} has values at several positions"
    places = torch.stack([pixel[:, 0] // width, pixel[:, 0] % width], 1)
    windows = []
    for axis in (0, 1):
        extent = plan.graph.nodes[plan.cut].shape[1 + axis]
        size = plan.graph.input_shape[1 + axis]
        reached = [spans(plan.graph, plan.cut, Span(i, i), axis)[-1] for i in range(size)]
        table = torch.tensor([[max(span.first, 0), min(span.last, extent - 1)] for span in reached])
        windows.append(table[places[:, axis]])
    return Locality(plan, domain, grid, places, torch.cat(windows, 1))


def meet(locality: Locality, a: Tensor, b: Tensor) -> Tensor:
    """Whether the windows of groups ``a`` and ``b`` (int64, CPU) share a position at the cut."""
    one, two = locality.windows[a], locality.windows[b]
    rows = torch.maximum(one[..., 0], two[..., 0]) <= torch.minimum(one[..., 1], two[..., 1])
    columns = torch.maximum(one[..., 2], two[..., 2]) <= torch.minimum(one[..., 3], two[..., 3])
    return rows & columns


def phases(locality: Locality) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Groups by their phase of the stride."""
    stride = locality.plan.stride
    phase = locality.places % stride
    for row, column in itertools.product(range(stride), repeat=2):
        groups = ((phase[:, 0] == row) & (phase[:, 1] == column)).nonzero()[:, 0]
        if len(groups):
            yield (row, column), groups


def seed(locality: Locality, images: Tensor, groups: Tensor) -> Tensor:
    """The change of single groups at the input, ``[images, groups, points, C, 1, 1]``."""
    groups = groups.to(images.device)
    members = locality.domain.members[groups]
    channels, height, width = locality.plan.graph.input_shape
    difference = locality.grid[groups][None] - images[:, members][:, :, None]
    change = torch.zeros(*difference.shape[:3], channels, device=images.device)
    channel = (members // (height * width))[None, :, None].expand_as(difference)
    return change.scatter_(3, channel, difference)[..., None, None]


def _home(locality: Locality, phase: tuple[int, int], upto: int) -> tuple[list[Span], list[Span]]:
    """Windows of a single pixel at the phase's home, for every node up to one."""
    graph = locality.plan.graph
    rows, columns = (spans(graph, upto, Span(phase[axis], phase[axis]), axis) for axis in (0, 1))
    return rows, columns


def single_sites(locality: Locality, phase: tuple[int, int], groups: Tensor, upto: int) -> Sites:
    """Where groups of one phase are, and their windows at every node up to one."""
    rows, columns = _home(locality, phase, upto)
    steps = (locality.places[groups] // locality.plan.stride).T
    return Sites(steps, dict(enumerate(rows)), dict(enumerate(columns)))


@torch.inference_mode()
def single_changes(locality: Locality, images: Tensor, base: Base, keep: tuple[int, ...], budget: int) -> Singles:
    """The effect of every group and grid point on its own.

    Args:
        locality: Network and groups.
        images: float32 ``[images, values]``.
        base: Their activations.
        keep: Joints whose differences are stored as well.
        budget: Bytes that one batch may take.

    Returns:
        The effects; ``head`` is empty for a plan whose head needs the whole map.
    """
    plan = locality.plan
    points = locality.grid.shape[1]
    features = base.head.shape[-1] if plan.head != "map" else 0
    head = torch.zeros(len(images), locality.domain.groups, points, features, device=images.device)
    stored: dict[int, dict[tuple[int, int], tuple[Tensor, Tensor]]] = {joint: {} for joint in keep}
    for phase, groups in phases(locality):
        sites = single_sites(locality, phase, groups, plan.cut)
        if features and all(span.size for span in sites.spans(plan.cut)):
            for first, last in _batches(plan, sites, len(images) * points, 0, budget):
                part = groups[first:last]
                change = carry(plan, base, sites.part(first, last), 0, seed(locality, images, part))
                head[:, part.to(head.device)] = apply_head(plan, sites.part(first, last), change)
        for joint in keep:
            sites = single_sites(locality, phase, groups, joint)
            change = carry(plan, base, sites, 0, seed(locality, images, groups), upto=joint)
            stored[joint][phase] = (groups, change)
    return Singles(images, base, head, stored)


def _batches(plan: LocalPlan, sites: Sites, variants: int, start: int, budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of places whose windows fit the budget together."""
    largest = max(
        plan.graph.nodes[place].shape[0] * sites.rows[place].size * sites.columns[place].size
        for place in range(start, plan.cut + 1)
        if place in sites.rows
    )
    head = plan.graph.nodes[plan.tail - 1]
    cut = plan.graph.nodes[plan.cut].shape[0] * sites.rows[plan.cut].size * sites.columns[plan.cut].size
    matrix = cut * head.shape[-1] if plan.head == "linear" else 0
    step = max(1, budget // (4 * (4 * variants * largest + 2 * matrix)))
    for first in range(0, len(sites), step):
        yield first, min(first + step, len(sites))


def stages(plan: LocalPlan) -> tuple[int, ...]:
    """Joints worth storing: outputs of linear operations that feed another kind of operation, the input first."""
    chosen = [0]
    for joint in plan.joints[1:]:
        node, behind = plan.graph.nodes[joint], joint + 1
        if joint < plan.cut and node.op in ("conv", "scale", "add", "sub", "concat"):
            reader = plan.graph.nodes[behind]
            if reader.op in POINTWISE or reader.op == "max_pool":
                chosen.append(joint)
    return tuple(chosen)


def _stage(locality: Locality, rows: list[int], columns: list[int], stored: dict[int, object]) -> int:
    """The latest stored joint before which the windows of the pixels never meet at an operation that is not linear."""
    plan = locality.plan
    best = 0
    for joint in sorted(stored):
        apart = True
        for place in range(1, joint + 1):
            op = plan.graph.nodes[place].op
            if op not in POINTWISE and op != "max_pool":
                continue
            for a, b in itertools.combinations(range(len(rows)), 2):
                across = (
                    overlap(
                        spans(plan.graph, place, Span(line[a], line[a]), axis)[-1],
                        spans(plan.graph, place, Span(line[b], line[b]), axis)[-1],
                    )
                    for axis, line in enumerate((rows, columns))
                )
                apart &= not all(span.size for span in across)
        if apart:
            best = joint
    return best


@torch.inference_mode()
def interactions(locality: Locality, singles: Singles, sets: Tensor, budget: int) -> Tensor:
    """The interaction of every set, all of whose windows meet, for a single image.

    Args:
        locality: Network and groups.
        singles: Effects of single groups for one image.
        sets: int64 ``[sets, t]`` on the CPU, groups whose windows meet pairwise.
        budget: Bytes that one batch may take.

    Returns:
        ``[sets, points ** t, features]``; the first group's points vary slowest.
    """
    plan = locality.plan
    count, t = sets.shape
    points = locality.grid.shape[1]
    result = torch.zeros(count, points**t, singles.head.shape[-1], device=singles.head.device)
    if count == 0:
        return result
    places = locality.places[sets]  # [sets, t, 2]
    anchor = places.amin(1)
    offsets = (places - anchor[:, None]).reshape(count, 2 * t)
    patterns, which = torch.cat([anchor % plan.stride, offsets], 1).unique(dim=0, return_inverse=True)
    order = which.argsort(stable=True)
    bounds = torch.bincount(which, minlength=len(patterns)).cumsum(0).tolist()
    for pattern, first, last in zip(patterns.tolist(), [0, *bounds[:-1]], bounds, strict=True):
        chosen = order[first:last]
        rows = [pattern[0] + row for row in pattern[2::2]]
        columns = [pattern[1] + column for column in pattern[3::2]]
        steps = (anchor[chosen] // plan.stride).T
        for some, values in _pattern(locality, singles, sets[chosen], rows, columns, steps, budget):
            result[chosen[some].to(result.device)] = values
    return result


def _pattern(
    locality: Locality,
    singles: Singles,
    sets: Tensor,
    rows: list[int],
    columns: list[int],
    steps: Tensor,
    budget: int,
) -> Iterator[tuple[slice, Tensor]]:
    """Interactions of sets that are copies of one pattern: ranges of sets with ``[sets, points ** t, features]``."""
    plan, t, points = locality.plan, sets.shape[1], locality.grid.shape[1]
    target = []
    for axis, line in enumerate((rows, columns)):
        common = spans(plan.graph, plan.cut, Span(line[0], line[0]), axis)[-1]
        for pixel in line[1:]:
            common = overlap(common, spans(plan.graph, plan.cut, Span(pixel, pixel), axis)[-1])
        target.append(common)
    start = _stage(locality, rows, columns, {0: None, **singles.stored})
    whole = _subset_sites(locality, tuple(range(t)), rows, columns, start, (target[0], target[1]), steps)
    for first, last in _batches(plan, whole, points**t, start, budget):
        total: Tensor | None = None
        for size in range(1, t + 1):
            for subset in itertools.combinations(range(t), size):
                sites = _subset_sites(
                    locality, subset, rows, columns, start, (target[0], target[1]), steps[:, first:last]
                )
                change = _subset_change(locality, singles, sets[first:last], subset, rows, columns, start, sites)
                part = carry(plan, singles.base, sites, start, change)
                shape = [points if member in subset else 1 for member in range(t)]
                part = part.reshape(part.shape[1], *shape, *part.shape[3:])
                sign = -1.0 if (t - size) % 2 else 1.0
                total = sign * part if total is None else total + sign * part
        if total is None:
            raise AssertionError("a set has at least one group")
        change = total.reshape(1, total.shape[0], points**t, *total.shape[1 + t :])
        yield slice(first, last), apply_head(plan, whole.part(first, last), change)[0]


def _union(locality: Locality, line: list[int], subset: tuple[int, ...], joint: int, axis: int) -> Span:
    found = [spans(locality.plan.graph, joint, Span(line[m], line[m]), axis)[-1] for m in subset]
    return Span(min(span.first for span in found), max(span.last for span in found))


def _subset_sites(
    locality: Locality,
    subset: tuple[int, ...],
    rows: list[int],
    columns: list[int],
    start: int,
    target: tuple[Span, Span],
    steps: Tensor,
) -> Sites:
    windows = [
        stage_spans(locality.plan, start, _union(locality, line, subset, start, axis), target[axis], axis)
        for axis, line in enumerate((rows, columns))
    ]
    return Sites(steps, windows[0], windows[1])


def _subset_change(
    locality: Locality,
    singles: Singles,
    sets: Tensor,
    subset: tuple[int, ...],
    rows: list[int],
    columns: list[int],
    start: int,
    sites: Sites,
) -> Tensor:
    """The change of some members together at the starting joint: the sum of their own, each in its place."""
    points = locality.grid.shape[1]
    stride = locality.plan.stride
    total: Tensor | None = None
    for order, member in enumerate(subset):
        groups = sets[:, member]
        if start == 0:
            own = seed(locality, singles.images, groups)
        else:
            phase = (rows[member] % stride, columns[member] % stride)
            known, values = singles.stored[start][phase]
            own = values[:, torch.searchsorted(known, groups.contiguous()).to(values.device)]
        spread = [points if place == order else 1 for place in range(len(subset))]
        own = own.reshape(own.shape[0], own.shape[1], *spread, *own.shape[3:])
        now = tuple(
            spans(locality.plan.graph, start, Span(line[member], line[member]), axis)[-1]
            for axis, line in enumerate((rows, columns))
        )
        placed = shifted(own, (now[0], now[1]), sites.spans(start))
        total = placed if total is None else total + placed
    if total is None:
        raise AssertionError("a subset has at least one member")
    variants = math.prod(total.shape[2 : 2 + len(subset)])
    return total.reshape(total.shape[0], total.shape[1], variants, *total.shape[2 + len(subset) :])
