"""Effects of one pixel, and what is left over when several are changed together.

With ``D(T)`` the difference that changing the set ``T`` makes behind the cut, ``D(T)`` is the sum of the interactions
``I(T')`` over all subsets ``T'`` of ``T`` (inclusion and exclusion). ``I(T')`` is not zero only where the windows of
all of ``T'`` meet, and a set whose windows have no common position has none. So a few tables give every set.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.exhaustive.crop import Base, Box, Sites, apply_head, carry, shifted
from l0tre.exhaustive.local import POINTWISE, LocalPlan, Span, overlap, spans, stage_spans

__all__ = [
    "Locality",
    "Pattern",
    "Singles",
    "interactions",
    "make_locality",
    "make_patterns",
    "meet",
    "phases",
    "seed",
    "single_changes",
    "single_sites",
    "table_bytes",
]

Pixel = tuple[int, int]


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
        stages: Joints at which the changes of single groups are kept, to start sets from: outputs of linear operations
            that feed another kind of operation, and the cut.
    """

    plan: LocalPlan
    domain: Domain
    grid: Tensor
    places: Tensor
    windows: Tensor
    stages: tuple[int, ...]

    def box(self, pixel: Pixel, node: int) -> Box:
        """What a pixel reaches at a node, not clipped."""
        rows, columns = (spans(self.plan.graph, node, Span(pixel[a], pixel[a]), a)[-1] for a in (0, 1))
        return rows, columns


@dataclass(frozen=True)
class Singles:
    """Effects of single groups for some images.

    Attributes:
        images: float32 ``[images, values]``, the originals.
        base: Their activations.
        head: Difference behind the cut, ``[images, groups, points, features]``.
        stored: For every stage the difference there, by phase: groups of the phase (int64, ascending) and
            ``[images, groups of the phase, points, C, rows, columns]``; empty when only ``head`` was asked for.
    """

    images: Tensor
    base: Base
    head: Tensor
    stored: dict[int, dict[Pixel, tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Pattern:
    """Sets that are copies of one arrangement of pixels, and how to compute their interaction.

    Attributes:
        rows: int64 ``[sets]``: which rows of the table of sets they are.
        groups: int64 ``[sets, t]``.
        pixels: The arrangement at its home.
        start: The stage at which the groups' changes still add up.
        sites: Windows from ``start`` on, for each subset of at least two of the groups; the cut's is where all meet.
    """

    rows: Tensor
    groups: Tensor
    pixels: tuple[Pixel, ...]
    start: int
    sites: dict[tuple[int, ...], Sites]


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
    kinds = POINTWISE | {"max_pool"}
    inner = [
        joint
        for joint in plan.joints
        if 0 < joint < plan.cut and plan.graph.nodes[joint].op not in kinds and plan.graph.nodes[joint + 1].op in kinds
    ]
    return Locality(plan, domain, grid, places, torch.cat(windows, 1), (*inner, plan.cut))


def meet(locality: Locality, a: Tensor, b: Tensor) -> Tensor:
    """Whether the windows of groups ``a`` and ``b`` (int64, CPU) share a position at the cut."""
    one, two = locality.windows[a], locality.windows[b]
    rows = torch.maximum(one[..., 0], two[..., 0]) <= torch.minimum(one[..., 1], two[..., 1])
    columns = torch.maximum(one[..., 2], two[..., 2]) <= torch.minimum(one[..., 3], two[..., 3])
    return rows & columns


def phases(locality: Locality) -> Iterator[tuple[Pixel, Tensor]]:
    """Groups (int64, CPU, ascending) by their phase of the stride."""
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


def single_sites(locality: Locality, phase: Pixel, groups: Tensor, upto: int) -> Sites:
    """Where groups of one phase are, and their windows at every node up to one."""
    graph = locality.plan.graph
    rows, columns = (spans(graph, upto, Span(phase[axis], phase[axis]), axis) for axis in (0, 1))
    steps = (locality.places[groups] // locality.plan.stride).T
    return Sites(steps, dict(enumerate(rows)), dict(enumerate(columns)))


@torch.inference_mode()
def single_changes(locality: Locality, images: Tensor, base: Base, *, keep: bool, budget: int) -> Singles:
    """The effect of every group and grid point on its own.

    Args:
        locality: Network and groups; the plan's head is not ``map``.
        images: float32 ``[images, values]``.
        base: Their activations.
        keep: Whether the differences at the stages are stored as well.
        budget: Bytes that one batch may take.

    Returns:
        The effects.
    """
    plan = locality.plan
    points = locality.grid.shape[1]
    head = torch.zeros(len(images), locality.domain.groups, points, base.head.shape[-1], device=images.device)
    stored: dict[int, dict[Pixel, tuple[Tensor, Tensor]]] = {stage: {} for stage in locality.stages if keep}
    for phase, groups in phases(locality):
        sites = single_sites(locality, phase, groups, plan.cut)
        if not all(span.size for span in sites.box(plan.cut)):
            continue  # no stride of the network sees this pixel
        for first, last in _batches(plan, sites, len(images) * points, 0, budget):
            some, here = groups[first:last], sites.part(first, last)
            change = carry(plan, base, here, 0, seed(locality, images, some))
            head[:, some.to(head.device)] = apply_head(plan, here, change)
        for stage in stored:
            change = carry(plan, base, sites, 0, seed(locality, images, groups), upto=stage)
            stored[stage][phase] = (groups.to(images.device), change)
    return Singles(images, base, head, stored)


def table_bytes(locality: Locality, t: int) -> int:
    """Memory of the tables for one image at level ``t``, in bytes."""
    graph, groups, points = locality.plan.graph, locality.domain.groups, locality.grid.shape[1]
    features = graph.nodes[locality.plan.tail - 1].shape[-1]
    total = groups * points * features
    if t > 1:
        for stage in locality.stages:
            rows, columns = locality.box((graph.input_shape[1] // 2, graph.input_shape[2] // 2), stage)
            total += groups * points * graph.nodes[stage].shape[0] * (rows.size + 1) * (columns.size + 1)
    if t > 2:
        reach = [int((locality.windows[:, 2 * a + 1] - locality.windows[:, 2 * a]).max()) + 1 for a in (0, 1)]
        near = (2 * reach[0] * locality.plan.stride + 1) * (2 * reach[1] * locality.plan.stride + 1) // 2
        total += groups * min(near, groups) * points**2 * features
    return 4 * total


def _batches(plan: LocalPlan, sites: Sites, variants: int, start: int, budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of places whose windows fit the budget together."""

    def volume(place: int) -> int:
        return plan.graph.nodes[place].shape[0] * sites.rows[place].size * sites.columns[place].size

    largest = max(volume(place) for place in sites.rows if place >= start)
    matrix = volume(plan.cut) * plan.graph.nodes[plan.tail - 1].shape[-1] if plan.head == "linear" else 0
    step = max(1, budget // (4 * (4 * variants * largest + 2 * matrix)))
    for first in range(0, len(sites), step):
        yield first, min(first + step, len(sites))


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
    count, t = sets.shape
    if count == 0:
        return []
    variants = images * locality.grid.shape[1] ** t
    places = locality.places[sets]  # [sets, t, 2]
    anchor = places.amin(1)
    offsets = (places - anchor[:, None]).reshape(count, 2 * t)
    keys, which = torch.cat([anchor % plan.stride, offsets], 1).unique(dim=0, return_inverse=True)
    order = which.argsort(stable=True)
    ends = torch.bincount(which, minlength=len(keys)).cumsum(0).tolist()
    device = locality.grid.device
    patterns = []
    for key, first, last in zip(keys.tolist(), [0, *ends[:-1]], ends, strict=True):
        pixels = tuple((key[0] + row, key[1] + column) for row, column in zip(key[2::2], key[3::2], strict=True))
        start = _stage(locality, pixels)
        target = _common([locality.box(pixel, plan.cut) for pixel in pixels])
        chosen = order[first:last]
        steps = (anchor[chosen] // plan.stride).T
        whole = _subset_sites(locality, pixels, start, target, steps)
        for low, high in _batches(plan, whole, variants, start, budget):
            sites = {
                subset: _subset_sites(locality, tuple(pixels[m] for m in subset), start, target, steps[:, low:high])
                for size in range(2, t + 1)
                for subset in itertools.combinations(range(t), size)
            }
            rows = chosen[low:high]
            patterns.append(Pattern(rows.to(device), sets[rows].to(device), pixels, start, sites))
    return patterns


def _common(boxes: list[Box]) -> Box:
    rows, columns = boxes[0]
    for more_rows, more_columns in boxes[1:]:
        rows, columns = overlap(rows, more_rows), overlap(columns, more_columns)
    return rows, columns


def _stage(locality: Locality, pixels: tuple[Pixel, ...]) -> int:
    """The latest stage before which the windows of the pixels never meet at an operation that is not linear."""
    plan = locality.plan
    best = 0
    for stage in locality.stages[:-1]:
        for place in range(1, stage + 1):
            op = plan.graph.nodes[place].op
            if op in POINTWISE or op == "max_pool":
                boxes = [locality.box(pixel, place) for pixel in pixels]
                pairs = (_common(list(pair)) for pair in itertools.combinations(boxes, 2))
                if any(rows.size and columns.size for rows, columns in pairs):
                    return best
        best = stage
    return best


def _subset_sites(locality: Locality, pixels: tuple[Pixel, ...], start: int, target: Box, steps: Tensor) -> Sites:
    boxes = [locality.box(pixel, start) for pixel in pixels]
    windows = []
    for axis in (0, 1):
        union = Span(min(box[axis].first for box in boxes), max(box[axis].last for box in boxes))
        windows.append(stage_spans(locality.plan, start, union, target[axis], axis))
    return Sites(steps, windows[0], windows[1])


@torch.inference_mode()
def interactions(locality: Locality, singles: Singles, pattern: Pattern) -> Tensor:
    """The interaction of every set of a pattern.

    Args:
        locality: Network and groups.
        singles: Effects of single groups, with their stages.
        pattern: The sets.

    Returns:
        ``[images, sets, points ** t, features]``; the first group's points vary slowest.
    """
    plan, points = locality.plan, locality.grid.shape[1]
    t = len(pattern.pixels)
    everyone = tuple(range(t))
    target = pattern.sites[everyone].box(plan.cut)
    total: Tensor | None = None
    for size in range(t, 0, -1):
        for subset in itertools.combinations(everyone, size):
            if size == 1:
                part = _own_change(locality, singles, pattern, subset[0], plan.cut, target)
            else:
                sites = pattern.sites[subset]
                joint = pattern.start
                parts = [_own_change(locality, singles, pattern, m, joint, sites.box(joint)) for m in subset]
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


def _own_change(locality: Locality, singles: Singles, pattern: Pattern, member: int, joint: int, box: Box) -> Tensor:
    """The change of one member of each set alone at a joint, in a box: ``[images, sets, points, C, rows, columns]``."""
    groups, pixel = pattern.groups[:, member], pattern.pixels[member]
    if joint == 0 and locality.plan.cut > 0:
        own = seed(locality, singles.images, groups)
    else:
        stride = locality.plan.stride
        known, values = singles.stored[joint][pixel[0] % stride, pixel[1] % stride]
        own = values[:, torch.searchsorted(known, groups.contiguous())]
    return shifted(own, locality.box(pixel, joint), box)


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
