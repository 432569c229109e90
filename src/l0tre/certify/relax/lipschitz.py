"""How fast margins can change with each value, and what that takes from a margin between the points of a grid.

For a set of groups and any values of it there is a grid point within half a gap of every value. The segment between the
two stays in the set's subspace, so the margin falls by at most the sum over the values of half a gap times the largest
absolute derivative there. Kinks do no harm: the intervals hold all slopes that meet at one.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.regions.nodes import CellNodes, Nodes
from l0tre.certify.relax.bounds import batch_sizes, input_ranges
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.plan import FLOOR, UNIT, Plan, backward
from l0tre.certify.relax.supported import absolute, curve_bounds, is_nonlinear
from l0tre.domain import Domain
from l0tre.errors import ConfigError
from l0tre.model.graph import Graph, Operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Selection

__all__ = ["axis_gaps", "group_costs"]

# For the sums after the last linear operation: of rows, of halves of gaps, of the values of a group.
MARGIN = 1.0 + 1e-9


def axis_gaps(domain: Domain, grid: Tensor) -> Tensor:
    """The largest spacing of each value's grid: every value of its range has a grid point within half of it.

    Args:
        domain: Groups and ranges.
        grid: ``[groups, points, width]``, for each group the product of the grids of its values, as
            ``domain.make_grid`` gives it.

    Returns:
        float64 ``[values]`` in the domain's units, on the grid's device; 0 for values that never change. Where a grid
        leaves out an end of the range, twice the distance to the end counts.

    Raises:
        ConfigError: If the grid does not belong to the domain.
    """
    members = domain.members.to(grid.device)
    if grid.ndim != 3 or not grid.shape[1] or (grid.shape[0], grid.shape[2]) != tuple(members.shape):
        raise ConfigError(
            f"a grid of shape {tuple(grid.shape)} was given for {members.shape[0]} groups of up to {members.shape[1]} "
            "values: make it for the same domain (make_grid)"
        )
    low, high = (ends.to(grid.device).double()[members] for ends in (domain.low, domain.high))
    points = grid.sort(1).values.double()
    ends = 2 * torch.maximum(points[:, 0] - low, high - points[:, -1])
    # Repeated points have spacing 0, so they change nothing.
    inner = points.diff(dim=1).amax(1) if points.shape[1] > 1 else ends
    largest = torch.maximum(ends, inner).clamp(min=0)
    result = torch.zeros(domain.low.numel(), dtype=torch.float64, device=grid.device)
    # A group with fewer values repeats its first one, with the same grid.
    return result.index_put((members.flatten(),), largest.flatten())


@torch.no_grad()
def group_costs(instance: Instance, t: int, gaps: Tensor, budget: int) -> Tensor:
    """What values between grid points can take from a margin, for each group that changes.

    If the margin at every grid point of a set of ``t`` groups exceeds the sum of the groups' costs, it is positive for
    all real values of the set.

    Args:
        instance: Network and images, made for ``t`` groups or more that change together (``ranks``).
        t: How many groups change at the most.
        gaps: ``[values]``, see :func:`axis_gaps`.
        budget: Memory for nodes and rows, in bytes.

    Returns:
        float64 ``[images, groups]``, in the order of the domain's groups: for each value of the group a bound of the
        absolute derivative of every margin, over all inputs that differ from the image in ``t`` groups at the most,
        times half the value's gap. Rounding errors are included. Infinite or NaN, which prove nothing, for a network
        with weights that are not finite.

    Raises:
        ConfigError: If there is not one gap for each input value.
    """
    plan = instance.plan
    gaps = gaps.to(plan.device, torch.float64)
    if gaps.shape != (instance.values,):
        raise ConfigError(
            f"gaps of shape {tuple(gaps.shape)} were given for {instance.values} input values: one for each"
        )
    positive = _absolute(plan)
    filled = (instance.tree.order >= 0).nonzero()[:, 0]
    members, groups = instance.members[filled], instance.tree.order[filled]
    halves = F.pad(gaps / 2, (0, 1))[members]
    costs = instance.images.new_empty(len(instance.images), len(filled))
    images = torch.arange(len(costs), device=plan.device)
    for some in images.split(_batch(instance, budget)):
        # The root's only cell holds all groups.
        nodes = CellNodes(some, torch.ones(len(some), t, dtype=torch.int64, device=plan.device))
        slopes = F.pad(_slopes(instance, positive, nodes, batch_sizes(instance, t, budget)[1]), (0, 1))
        costs[some[:, None], groups] = (slopes[:, members] * halves).sum(2) * MARGIN
    # Not a number somewhere in the network may meet none of the derivatives.
    return costs.masked_fill_(~torch.isfinite(instance.slack).all(1, keepdim=True), math.inf)


def _batch(instance: Instance, budget: int) -> int:
    """How many nodes go backwards together."""
    plan = instance.plan
    windows = max((_window_values(operation) for operation in plan.graph.operations), default=0)
    widest = max(slack.numel() for slack in plan.slack)
    per_node = 8 * (12 * plan.neurons + instance.rows.shape[1] * 10 * (widest + windows))
    return max(1, min(8192 if plan.device.type == "cuda" else 64, budget // 2 // per_node))


def _window_values(operation: Operation) -> int:
    """How many values all windows of a selection hold; 0 for another operation."""
    kind = KINDS.get(operation.kind)
    if not isinstance(kind, Selection):
        return 0
    return math.prod(operation.shape) * math.prod(kind.place.window(operation, axis).kernel for axis in (0, 1))


def _slopes(instance: Instance, positive: Plan, nodes: Nodes, row_bytes: int) -> Tensor:
    """The largest absolute derivative of any margin by each value over each node, ``[nodes, values]``."""
    plan = instance.plan
    ranges = input_ranges(instance, nodes, row_bytes)
    end = len(plan.graph.operations) - 1
    rows = instance.rows[nodes.image]
    # Derivatives lie within a radius around a centre, ``[nodes, rows, values]``, by position.
    open_ = {end: (rows, torch.zeros_like(rows))}
    for position in range(end, 0, -1):
        if position not in open_:
            continue
        centre, radius = open_.pop(position)
        operation = plan.graph.operations[position]
        if is_nonlinear(operation):
            parts = [_through_curve(operation, centre, radius, *ranges[operation.inputs[0]])]
        else:
            # Covers the rounding of this operation and of the sums and products since the last one.
            radius = radius + UNIT * _terms(operation) * (centre.abs() + radius) + FLOOR
            parts = list(zip(backward(plan, position, centre), backward(positive, position, radius), strict=True))
        for source, (middle, around) in zip(operation.inputs, parts, strict=True):
            before = open_.get(source)
            open_[source] = (middle, around) if before is None else (before[0] + middle, before[1] + around)
    if 0 not in open_:  # the margins do not depend on the input
        return rows.new_zeros(len(nodes), instance.values)
    centre, radius = open_[0]
    return (centre.abs() + radius).amax(1)


def _absolute(plan: Plan) -> Plan:
    """The same network with the absolute values of its weights, to carry radii."""
    operations = tuple(absolute(operation) for operation in plan.graph.operations)
    return replace(plan, graph=Graph(operations), matrices={})


def _terms(operation: Operation) -> int:
    """How many products one input of a linear operation sums up backwards, at the most, and some."""
    weight = operation.tensors.get("weight")
    return 8 + (math.prod(operation.shape) if weight is None else weight.numel() // max(1, weight.shape[1]))


def _through_curve(operation: Operation, centre: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Interval:
    """Derivatives by a nonlinear operation's inputs, from those by its output and the inputs' ranges."""
    curve = curve_bounds(operation)
    if curve is None:
        return _through_selection(operation, centre, radius, low, high)
    least, most = (_known(side, low, high).flatten(1)[:, None] for side in curve.derivative(operation, low, high))
    return _product(centre, radius, least, most)


def _product(centre: Tensor, radius: Tensor, least: Tensor, most: Tensor) -> Interval:
    """Products of all numbers within a radius around a centre and all between two ends."""
    first, second = centre - radius, centre + radius
    corners = [first * least, first * most, second * least, second * most]
    low = torch.minimum(torch.minimum(corners[0], corners[1]), torch.minimum(corners[2], corners[3]))
    high = torch.maximum(torch.maximum(corners[0], corners[1]), torch.maximum(corners[2], corners[3]))
    return (low + high) / 2, (high - low) / 2


def _known(slopes: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Slopes, NaN where the range is no range: every comparison with NaN is false and would look like a decision."""
    return torch.where(low <= high, slopes, math.nan)


def _through_selection(operation: Operation, centre: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Interval:
    """A selection hands its derivative to an input: for certain, perhaps or not at all."""
    kind, (_, channels, height, width) = KINDS[operation.kind], low.shape
    assert isinstance(kind, Selection)
    places, least, most = kind.derivative(operation, low, high)
    spread = (*centre.shape[:2], channels, 1, -1)
    targets = places.clamp(min=0).flatten().expand(*centre.shape[:2], channels, -1)
    middle, around = _product(centre.view(spread), radius.view(spread), least[:, None], most[:, None])
    return _gather_back(middle, targets, height * width), _gather_back(around, targets, height * width)


def _gather_back(values: Tensor, targets: Tensor, plane: int) -> Tensor:
    """Sum derivatives ``[nodes, rows, channels, kernel, outputs]`` over the windows that hold an input."""
    result = values.new_zeros(*values.shape[:3], plane)
    return result.scatter_add_(3, targets, values.flatten(3)).flatten(2)
