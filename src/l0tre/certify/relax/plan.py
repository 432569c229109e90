"""What bounding a network needs and no image changes: operations, rounding errors, which rows stay in windows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0tre.certify.relax.interval import magnitude
from l0tre.certify.relax.supported import is_nonlinear, linear_bounds, reduce_graph
from l0tre.domain import Domain
from l0tre.locality.local_part import local_place
from l0tre.model.graph import Graph, Operation, run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import At, Linear, Local

__all__ = ["UNIT", "Plan", "backward", "backward_window", "base_values", "make_plan", "terms"]

# A convolution is written as a matrix if that has at most so many entries, and so many times the work: one product is
# faster than a product and a sum of patches as long as the matrix is not mostly zeros, on a GPU even then.
MATRIX_ENTRIES = 2**22
MATRIX_WASTE = {"cpu": 8, "cuda": 64}
MOST_HANDED = 4096  # neurons of which an open node keeps what its parent knew
# The sum of n products is off by at most about n * 2**-53 of the sum of their absolute values, for any order of
# summation; 32 covers the chained passes, the lines' own rounding and the widening of the bounds they rest on.
UNIT = 32 * 2.0**-53
# A product below 2**-1022 is off by 2**-1074, or by all of it where such numbers are flushed to zero. In a value that
# is as if it were FLOOR at least, in a coefficient of a form at most SMALLEST for each unit of what it multiplies.
FLOOR = 2.0**-960
SMALLEST = 2.0**-1000


@dataclass(frozen=True)
class ReceptiveField:
    """The window of the input that an output at (row, column) sees, as (rows, columns).

    Attributes:
        stride: How far the window moves with the output.
        offset: Where the window of output (0, 0) begins.
        size: Height and width of the window.
    """

    stride: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]

    def spread(self, values: Tensor, origin: tuple[int, int], shape: tuple[int, int]) -> Tensor:
        """Give every pixel the sum over the outputs that see it.

        Args:
            values: float64 ``[..., height, width]`` of outputs.
            origin: Row and column of the input where the result begins.
            shape: Height and width of the result.

        Returns:
            ``[..., *shape]``.
        """
        rows, columns = (self._seen(d, values.shape[values.ndim - 2 + d], origin[d], shape[d], values) for d in (0, 1))
        return rows.T @ (values @ columns)  # one product with all columns first

    def _seen(self, axis: int, outputs: int, origin: int, inputs: int, like: Tensor) -> Tensor:
        first = torch.arange(outputs, device=like.device) * self.stride[axis] + self.offset[axis] - origin
        places = torch.arange(inputs, device=like.device)
        seen = (places >= first[:, None]) & (places < first[:, None] + self.size[axis])
        return seen.to(like)


@dataclass(frozen=True)
class Plan:
    """A network ready to be bounded, in float64 on one device.

    Attributes:
        graph: The reduced operations.
        bounded: Positions whose ranges are needed, in order: inputs of nonlinear operations.
        affine: Positions that depend on the input by linear operations alone.
        borders: Affine positions that others than affine ones read.
        receptive_fields: What an output sees of the input, for positions that see windows of it: their rows can be
            carried backwards in windows instead of whole maps.
        handed: Positions whose ranges a search node hands on to its parts, with their places in a common row; the
            last layers if not all fit.
        magnitudes: For each position float64 ``[*shape]``, the largest absolute values that a sum can pass through.
        slack: Likewise the largest error that rounding can cause in a bound of it.
        matrices: Convolutions as matrices, by position and window; filled as they are needed.
        jacobians: The linear maps from the input to affine positions, likewise.
    """

    graph: Graph
    bounded: tuple[int, ...]
    affine: frozenset[int]
    borders: tuple[int, ...]
    receptive_fields: dict[int, "ReceptiveField"]
    handed: dict[int, slice]
    magnitudes: tuple[Tensor, ...]
    slack: tuple[Tensor, ...]
    matrices: dict[tuple[int, int, int], Tensor | None] = field(default_factory=dict)
    jacobians: dict[int, Tensor] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.slack[0].device

    @property
    def neurons(self) -> int:
        """Number of values with ranges of their own."""
        return sum(math.prod(self.graph.operations[position].shape) for position in self.bounded)


def make_plan(graph: Graph, domain: Domain, device: torch.device) -> Plan:
    """Prepare a network.

    Args:
        graph: In float64, see ``Network.exact``.
        domain: Its box limits the values, and so the rounding errors.
        device: Where to compute.

    Returns:
        The plan.

    Raises:
        ModelError: Naming an operation that cannot be bounded.
    """
    graph = reduce_graph(graph).to(device, torch.float64)
    operations = graph.operations
    affine, reach = {0}, {0: ReceptiveField((1, 1), (0, 0), (1, 1))} if len(operations[0].shape) == 3 else {}
    for position, operation in enumerate(operations[1:], start=1):
        if not is_nonlinear(operation) and affine.issuperset(operation.inputs):
            affine.add(position)
        if _windowed(operation, operations) and operation.inputs[0] in reach:
            reach[position] = _reach(operation, reach[operation.inputs[0]])
    readers = {source for operation in operations if is_nonlinear(operation) for source in operation.inputs}
    read = {source for place, operation in enumerate(operations) if place not in affine for source in operation.inputs}
    return Plan(
        graph,
        tuple(sorted(readers)),
        frozenset(affine),
        tuple(sorted(read & affine)),
        reach,
        _handed(operations, readers - affine),
        *_rounding(graph, domain, device),
    )


def _handed(operations: tuple[Operation, ...], positions: set[int]) -> dict[int, slice]:
    places: dict[int, slice] = {}
    start = 0
    for position in sorted(positions, reverse=True):
        size = math.prod(operations[position].shape)
        if start + size <= MOST_HANDED:
            places[position] = slice(start, start + size)
            start += size
    return places


def _windowed(operation: Operation, operations: tuple[Operation, ...]) -> bool:
    """Whether an output of an operation on maps sees a window of one input map."""
    kind = KINDS[operation.kind]
    place = kind.place if isinstance(kind, Linear) else local_place(operation)
    shapes = [operations[source].shape for source in operation.inputs]
    return len(operation.shape) == 3 and isinstance(place, Local) and place.sees(operation, shapes[0])


def _reach(operation: Operation, source: ReceptiveField) -> ReceptiveField:
    """What the outputs of an operation see, from what its inputs see."""
    windows = [local_place(operation).window(operation, axis) for axis in (0, 1)]
    first, seen, step = [], [], []
    for axis, window in enumerate(windows):
        pace = source.stride[axis]
        first.append(source.offset[axis] - window.padding * pace)
        seen.append(source.size[axis] + window.dilation * (window.kernel - 1) * pace)
        step.append(pace * window.stride)
    return ReceptiveField((step[0], step[1]), (first[0], first[1]), (seen[0], seen[1]))


def _rounding(graph: Graph, domain: Domain, device: torch.device) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The largest absolute values that a sum can pass through, and the rounding errors of bounds, multiples of them."""
    largest = torch.maximum(domain.low.abs(), domain.high.abs()).double().to(device).view(1, *domain.shape)
    largest = largest.clamp(min=FLOOR)
    sizes, values, slack = [64.0], [largest], [UNIT * 64 * largest[0]]
    multiplied = largest.sum()
    for operation in graph.operations[1:]:
        values.append(magnitude(operation, [values[source] for source in operation.inputs]).clamp(min=FLOOR))
        multiplied = multiplied + values[-1].sum()
        sizes.append(terms(operation, graph) + max(sizes[source] for source in operation.inputs))
        slack.append(UNIT * sizes[-1] * values[-1][0] + SMALLEST * sizes[-1] * multiplied)
    return tuple(value[0] for value in values), tuple(slack)


def terms(operation: Operation, graph: Graph) -> float:
    """How many products one output value sums up, and some for the operation itself."""
    if is_nonlinear(operation):  # the gaps of all lines of a layer are summed
        return 8.0 + math.prod(operation.shape)
    return linear_bounds(operation).terms(operation, [graph.operations[source].shape for source in operation.inputs])


def backward(plan: Plan, position: int, rows: Tensor) -> list[Tensor]:
    """Coefficients of a linear operation's inputs from those of its output.

    Args:
        plan: The network.
        position: Of the operation.
        rows: float64 ``[batch, rows, values]``.

    Returns:
        For each input ``[batch, rows, values]``.
    """
    operation = plan.graph.operations[position]
    bounds, shapes = linear_bounds(operation), [plan.graph.operations[source].shape for source in operation.inputs]

    def map_back(some: Tensor) -> Tensor:
        return bounds.backward(operation, some[None], shapes)[0][0]

    if bounds.products(operation):
        matrix = _matrix(plan, position, (position, -1, operation.shape[2]), operation.shape, map_back)
        if matrix is not None:
            return [(rows.flatten(0, 1) @ matrix).view(*rows.shape[:2], -1)]
    return [
        part.flatten(2) for part in bounds.backward(operation, rows.view(*rows.shape[:2], *operation.shape), shapes)
    ]


def backward_window(plan: Plan, position: int, rows: Tensor, at: At) -> Tensor:
    """Coefficients of all that windows of a local linear operation see, padding included.

    Args:
        plan: The network.
        position: Of the operation.
        rows: float64 ``[n, C, height, width]``, coefficients of windows of its output.
        at: Values of a map at the windows' positions.

    Returns:
        ``[n, C, height, width]`` of the input.
    """
    operation = plan.graph.operations[position]
    bounds = linear_bounds(operation)
    if not bounds.products(operation):
        return bounds.backward_window(operation, rows, at)
    shape, windows = tuple(rows.shape[1:]), [local_place(operation).window(operation, axis) for axis in (0, 1)]
    key = (position, rows.shape[2], rows.shape[3])

    def map_back(some: Tensor) -> Tensor:
        return bounds.backward_window(operation, some, at)

    matrix = _matrix(plan, position, key, shape, map_back)
    if matrix is None:
        return map_back(rows)
    size = [window.sees(length) for window, length in zip(windows, shape[1:], strict=True)]
    return (rows.flatten(1) @ matrix).view(len(rows), plan.graph.operations[operation.inputs[0]].shape[0], *size)


def _matrix(
    plan: Plan, position: int, key: tuple[int, int, int], shape: tuple[int, ...], map_back: Callable[[Tensor], Tensor]
) -> Tensor | None:
    """A map of coefficients ``[n, *shape]`` as a matrix ``[outputs, inputs]``, if that is the faster way."""
    if key not in plan.matrices:
        plan.matrices[key] = _made_matrix(plan, position, shape, map_back)
    return plan.matrices[key]


def _made_matrix(
    plan: Plan, position: int, shape: tuple[int, ...], map_back: Callable[[Tensor], Tensor]
) -> Tensor | None:
    operation, device = plan.graph.operations[position], plan.device
    inputs = map_back(torch.zeros(1, *shape, device=device, dtype=torch.float64)).numel()
    outputs = math.prod(shape)
    work = outputs * linear_bounds(operation).products(operation)
    if outputs * inputs > min(MATRIX_ENTRIES, MATRIX_WASTE["cuda" if device.type == "cuda" else "cpu"] * work):
        return None
    matrix = torch.empty(outputs, inputs, device=device, dtype=torch.float64)
    size = max(1, 2**22 // outputs)
    for start in range(0, outputs, size):
        stop = min(start + size, outputs)
        unit = torch.zeros(stop - start, outputs, device=device, dtype=torch.float64)
        unit[torch.arange(stop - start), torch.arange(start, stop)] = 1
        matrix[start:stop] = map_back(unit.view(-1, *shape)).flatten(1)
    return matrix


def base_values(plan: Plan, images: Tensor) -> dict[int, Tensor]:
    """The images' own values at the inputs and outputs of nonlinear operations, of linear layers, and at the end.

    Args:
        plan: The network.
        images: float64 ``[images, values]``.

    Returns:
        By position, ``[images, *shape]``.
    """
    operations = plan.graph.operations
    known = (p for p, operation in enumerate(operations) if is_nonlinear(operation) or operation.kind == "linear")
    kept = {*plan.bounded, *plan.borders, *known, *operations[-1].inputs, len(operations) - 1}
    last = plan.graph.last_use()
    values = {0: images.view(-1, *operations[0].shape)}
    for position, operation in enumerate(operations[1:], start=1):
        values[position] = run_operation(operation, *(values[source] for source in operation.inputs))
        for source in operation.inputs:
            if last[source] == position and source not in kept:
                values.pop(source, None)
    return {position: value for position, value in values.items() if position in kept}
