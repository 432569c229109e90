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

from l0tre.certify.regions.nodes import Nodes
from l0tre.certify.relax.bounds import batch_sizes, input_ranges
from l0tre.certify.relax.crown import through_linear
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.plan import FLOOR, UNIT, Plan
from l0tre.certify.relax.supported import NONLINEAR
from l0tre.domain import Domain
from l0tre.errors import ConfigError
from l0tre.model.graph import Graph, Operation

__all__ = ["axis_gaps", "group_costs"]

# Derivatives of sigmoid and tanh are computed to a few units in the last place of 1, far less than this.
FUNCTION_ERROR = 2.0**-46
# For the sums behind the last linear operation: of rows, of halves of gaps, of the values of a group.
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
    points = grid.double().sort(1).values
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
    absolute = _absolute(plan)
    filled = (instance.tree.order >= 0).nonzero()[:, 0]
    members, groups = instance.members[filled], instance.tree.order[filled]
    halves = F.pad(gaps / 2, (0, 1))[members]
    costs = instance.images.new_empty(len(instance.images), len(filled))
    images = torch.arange(len(costs), device=plan.device)
    for some in images.split(_batch(instance, budget)):
        # The root's only cell holds all groups.
        nodes = Nodes(some, torch.ones(len(some), t, dtype=torch.int64, device=plan.device))
        slopes = F.pad(_slopes(instance, absolute, nodes, batch_sizes(instance, t, budget)[1]), (0, 1))
        costs[some[:, None], groups] = (slopes[:, members] * halves).sum(2) * MARGIN
    # Not a number somewhere in the network may meet none of the derivatives.
    return costs.masked_fill_(~torch.isfinite(instance.slack).all(1, keepdim=True), math.inf)


def _batch(instance: Instance, budget: int) -> int:
    """How many nodes go backwards together."""
    plan = instance.plan
    pools = [operation for operation in plan.graph.operations if operation.kind == "max_pool"]
    windows = max((math.prod((*operation.ints("kernel"), *operation.shape)) for operation in pools), default=0)
    widest = max(slack.numel() for slack in plan.slack)
    per_node = 8 * (12 * plan.neurons + instance.rows.shape[1] * 10 * (widest + windows))
    return max(1, min(8192 if plan.device.type == "cuda" else 64, budget // 2 // per_node))


def _slopes(instance: Instance, absolute: Plan, nodes: Nodes, row_bytes: int) -> Tensor:
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
        if operation.kind in NONLINEAR:
            parts = [_through_curve(operation, centre, radius, *ranges[operation.inputs[0]])]
        else:
            # Covers the rounding of this operation and of the sums and products since the last one.
            radius = radius + UNIT * _terms(operation) * (centre.abs() + radius) + FLOOR
            middles = through_linear(plan, position, operation, centre)
            parts = list(
                zip(
                    middles,
                    through_linear(absolute, position, absolute.graph.operations[position], radius),
                    strict=True,
                )
            )
        for source, (middle, around) in zip(operation.inputs, parts, strict=True):
            before = open_.get(source)
            open_[source] = (middle, around) if before is None else (before[0] + middle, before[1] + around)
    if 0 not in open_:  # the margins do not depend on the input
        return rows.new_zeros(len(nodes), instance.values)
    centre, radius = open_[0]
    return (centre.abs() + radius).amax(1)


def _absolute(plan: Plan) -> Plan:
    """The same network with the absolute values of its weights, to carry radii."""
    operations = []
    for operation in plan.graph.operations:
        tensors = {key: value.abs() for key, value in operation.tensors.items()}
        kind = "add" if operation.kind == "sub" else operation.kind
        operations.append(replace(operation, kind=kind, tensors=tensors))
    return replace(plan, graph=Graph(tuple(operations)), matrices={})


def _terms(operation: Operation) -> int:
    """How many products one input of a linear operation sums up backwards, at the most, and some."""
    weight = operation.tensors.get("weight")
    return 8 + (math.prod(operation.shape) if weight is None else weight.numel() // max(1, weight.shape[1]))


def _through_curve(operation: Operation, centre: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Interval:
    """Derivatives by a nonlinear operation's inputs, from those by its output and the inputs' ranges."""
    if operation.kind == "max_pool":
        return _through_pool(operation, centre, radius, low, high)
    least, most = (_known(side, low, high).flatten(1)[:, None] for side in _derivative(operation, low, high))
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


def _derivative(operation: Operation, low: Tensor, high: Tensor) -> Interval:
    """The smallest and the largest derivative of an elementwise operation on ranges."""
    if operation.kind in ("relu", "leaky_relu"):
        slope = 0.0 if operation.kind == "relu" else operation.number("slope")
        linear, side = (low >= 0) | (high <= 0), torch.where(low >= 0, torch.ones_like(low), slope)
        return torch.where(linear, side, min(slope, 1.0)), torch.where(linear, side, max(slope, 1.0))

    def steepness(z: Tensor) -> Tensor:
        y = z.sigmoid() if operation.kind == "sigmoid" else z.tanh()
        return y * (1 - y) if operation.kind == "sigmoid" else 1 - y * y

    # Steepest at zero, and less so the further away.
    least = torch.minimum(steepness(low), steepness(high)) - FUNCTION_ERROR
    nearest = torch.maximum(low, torch.minimum(high, torch.zeros_like(low)))
    return least, steepness(nearest) + FUNCTION_ERROR


def _through_pool(operation: Operation, centre: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Interval:
    """A max pool hands its derivative to the largest input: for certain, perhaps or not at all."""
    _, channels, height, width = low.shape
    places = _places(operation, height, width, low.device)  # [kernel, outputs]
    real = places >= 0
    index = places.clamp(min=0)
    lows, highs = (side.flatten(2)[:, :, index].masked_fill(~real, -math.inf) for side in (low, high))
    least = _known((lows > _largest_other(highs)).to(low), lows, highs)
    most = _known((highs >= _largest_other(lows)).to(low), lows, highs) * real
    spread = (*centre.shape[:2], channels, 1, -1)
    targets = index.flatten().expand(*centre.shape[:2], channels, -1)
    middle, around = _product(centre.view(spread), radius.view(spread), least[:, None], most[:, None])
    return _gather_back(middle, targets, height * width), _gather_back(around, targets, height * width)


def _gather_back(values: Tensor, targets: Tensor, plane: int) -> Tensor:
    """Sum derivatives ``[nodes, rows, channels, kernel, outputs]`` over the windows that hold an input."""
    result = values.new_zeros(*values.shape[:3], plane)
    return result.scatter_add_(3, targets, values.flatten(3)).flatten(2)


def _places(operation: Operation, height: int, width: int, device: torch.device) -> Tensor:
    """Which input of a map lies at each place of each window, int64 ``[kernel, outputs]``; -1 in the padding."""
    (top, left), kernel = operation.ints("padding"), operation.ints("kernel")
    numbers = torch.arange(height * width, device=device, dtype=torch.float64).view(1, 1, height, width)
    padded = F.pad(numbers, (left, left, top, top), value=-1.0)
    return F.unfold(padded, kernel, operation.ints("dilation"), 0, operation.ints("stride"))[0].long()


def _largest_other(values: Tensor) -> Tensor:
    """For every place of windows ``[nodes, channels, kernel, outputs]`` the largest value at another place."""
    best, place = values.max(2, keepdim=True)
    second = values.scatter(2, place, -math.inf).amax(2, keepdim=True)
    own = torch.arange(values.shape[2], device=values.device)[:, None] == place
    return torch.where(own, second, best)
