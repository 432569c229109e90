"""Where groups are, what they reach, and the effect of each one on its own."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.locality.local_part import LocalPlan, Span, bends_in_place, spans
from l0tre.locality.windows import Base, Sites, apply_head, carry

__all__ = [
    "Locality",
    "PixelEffects",
    "batches",
    "make_locality",
    "meet",
    "phases",
    "seed",
    "share",
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
        reached: For the input and every later operation up to the cut, int64 ``[height, 2]`` and ``[width, 2]`` on the
            CPU: first and last position that each row and column of the image reaches there, not clipped.
    """

    plan: LocalPlan
    domain: Domain
    grid: Tensor
    places: Tensor
    windows: Tensor
    stages: tuple[int, ...]
    reached: tuple[tuple[Tensor, Tensor], ...]

    def extent(self, operation: int) -> tuple[int, int]:
        """Largest height and width of what one pixel reaches at an operation."""
        rows, columns = (int((table[:, 1] - table[:, 0]).max()) + 1 for table in self.reached[operation])
        return rows, columns

    def boxes(self, places: Tensor, operation: int) -> Tensor:
        """First and last row, first and last column that pixels ``[..., 2]`` reach at an operation, ``[..., 4]``."""
        return torch.cat([self.reached[operation][axis][places[..., axis]] for axis in (0, 1)], -1)


@dataclass(frozen=True)
class PixelEffects:
    """Effects of single groups for some images.

    Attributes:
        images: float32 ``[images, values]``, the originals.
        base: Their activations.
        head: Difference after the cut, ``[images, groups, points, features]``.
        stored: For every stage the difference there, ``[images, groups, points, C, rows, columns]``, each group's
            window in the first corner of a box that is large enough for all; empty when only ``head`` was asked for.
    """

    images: Tensor
    base: Base
    head: Tensor
    stored: dict[int, Tensor]


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
    tables = []
    for axis in (0, 1):
        lines = [spans(plan.graph, plan.cut, Span(i, i), axis) for i in range(plan.graph.input_shape[1 + axis])]
        tables.append(torch.tensor([[[span.first, span.last] for span in line] for line in lines]))
    reached = tuple((tables[0][:, operation], tables[1][:, operation]) for operation in range(plan.cut + 1))
    windows = [
        torch.stack(
            [found[:, 0].clamp(min=0), found[:, 1].clamp(max=plan.graph.operations[plan.cut].shape[1 + axis] - 1)], 1
        )
        for axis, found in enumerate(reached[plan.cut])
    ]
    clipped = torch.cat([windows[axis][places[:, axis]] for axis in (0, 1)], 1)
    inner = [
        joint
        for joint in plan.joints
        if 0 < joint < plan.cut
        and not bends_in_place(plan.graph.operations[joint])
        and bends_in_place(plan.graph.operations[joint + 1])
    ]
    return Locality(plan, domain, grid, places, clipped, (*inner, plan.cut), reached)


def meet(locality: Locality, a: Tensor, b: Tensor) -> Tensor:
    """Whether the windows of groups ``a`` and ``b`` (int64, CPU) share a position at the cut."""
    return share(locality.windows[a], locality.windows[b])


def share(one: Tensor, two: Tensor) -> Tensor:
    """Whether boxes ``[..., 4]`` have a position in common."""
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
    """Where groups of one phase are, and their windows at every operation up to one."""
    graph = locality.plan.graph
    rows, columns = (spans(graph, upto, Span(phase[axis], phase[axis]), axis) for axis in (0, 1))
    steps = (locality.places[groups] // locality.plan.stride).T
    return Sites(steps, dict(enumerate(rows)), dict(enumerate(columns)))


@torch.inference_mode()
def single_changes(locality: Locality, images: Tensor, base: Base, *, keep: bool, budget: int) -> PixelEffects:
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
    stored = {
        stage: torch.zeros(
            len(images),
            locality.domain.groups,
            points,
            plan.graph.operations[stage].shape[0],
            *locality.extent(stage),
            device=images.device,
        )
        for stage in (locality.stages if keep else ())
    }
    for phase, groups in phases(locality):
        sites = single_sites(locality, phase, groups, plan.cut)
        if not all(span.size for span in sites.box(plan.cut)):
            continue  # no stride of the network sees this pixel
        for first, last in batches(plan, sites, len(images) * points, 0, budget):
            some, here = groups[first:last], sites.part(first, last)
            change = carry(plan, base, here, 0, seed(locality, images, some))
            head[:, some.to(head.device)] = apply_head(plan, here, change)
        for stage, table in stored.items():
            change = carry(plan, base, sites, 0, seed(locality, images, groups), upto=stage)
            table[:, groups.to(images.device), ..., : change.shape[-2], : change.shape[-1]] = change
    return PixelEffects(images, base, head, stored)


def table_bytes(locality: Locality, t: int) -> int:
    """Memory of the tables for one image at level ``t``, in bytes."""
    graph, groups, points = locality.plan.graph, locality.domain.groups, locality.grid.shape[1]
    features = graph.operations[locality.plan.tail - 1].shape[-1]
    total = groups * points * features
    if t > 1:
        for stage in locality.stages:
            rows, columns = locality.extent(stage)
            total += groups * points * graph.operations[stage].shape[0] * rows * columns
    if t > 2:
        rows, columns = (size * locality.plan.stride for size in locality.extent(locality.plan.cut))
        near = (2 * rows + 1) * (2 * columns + 1) // 2
        total += groups * min(near, groups) * points**2 * features
    return 4 * total


def batches(plan: LocalPlan, sites: Sites, variants: int, start: int, budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of places whose windows fit the budget together."""

    def volume(place: int) -> int:
        return plan.graph.operations[place].shape[0] * sites.rows[place].size * sites.columns[place].size

    largest = max(volume(place) for place in sites.rows if place >= start)
    matrix = volume(plan.cut) * plan.graph.operations[plan.tail - 1].shape[-1] if plan.head == "linear" else 0
    step = max(1, budget // (4 * (4 * variants * largest + 2 * matrix)))
    for first in range(0, len(sites), step):
        yield first, min(first + step, len(sites))
