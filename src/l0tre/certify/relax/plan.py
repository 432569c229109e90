"""What bounding a network needs and no image changes: operations, rounding errors, which rows stay in windows."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.relax.interval import magnitude
from l0tre.certify.relax.supported import ELEMENTWISE, NONLINEAR, reduce_graph
from l0tre.domain import Domain
from l0tre.model.graph import Graph, Operation, run_operation

__all__ = ["Plan", "make_plan"]

WINDOWED = (*ELEMENTWISE, "conv", "scale", "max_pool", "pad")
# A convolution is written as a matrix if that has at most so many entries, and so many times the work: one product is
# faster than a product and a sum of patches as long as the matrix is not mostly zeros, on a GPU even then.
MATRIX_ENTRIES = 2**22
MATRIX_WASTE = {"cpu": 8, "cuda": 64}
MOST_SIGNS = 4096  # bytes that an open node keeps of its parent
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
        return rows.T @ values @ columns

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
        signed: Positions of neurons that see everything and go into ReLUs, with their places in a common row: the
            signs that a search node knows of them are handed on to its children.
        slack: For each position float64 ``[*shape]``, the largest error that rounding can cause in a bound of it.
        matrices: Convolutions as matrices, by position and window; filled as they are needed.
        jacobians: The linear maps from the input to affine positions, likewise.
    """

    graph: Graph
    bounded: tuple[int, ...]
    affine: frozenset[int]
    borders: tuple[int, ...]
    receptive_fields: dict[int, "ReceptiveField"]
    signed: dict[int, slice]
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
        if operation.kind not in NONLINEAR and affine.issuperset(operation.inputs):
            affine.add(position)
        if _windowed(operation, operations) and operation.inputs[0] in reach:
            reach[position] = _reach(operation, reach[operation.inputs[0]])
    readers = {source for operation in operations if operation.kind in NONLINEAR for source in operation.inputs}
    read = {source for place, operation in enumerate(operations) if place not in affine for source in operation.inputs}
    return Plan(
        graph,
        tuple(sorted(readers)),
        frozenset(affine),
        tuple(sorted(read & affine)),
        reach,
        _signed(operations, readers - affine - set(reach)),
        _slack(graph, domain, device),
    )


def _signed(operations: tuple[Operation, ...], positions: set[int]) -> dict[int, slice]:
    places: dict[int, slice] = {}
    start = 0
    for position in sorted(positions):
        readers = {o.kind for o in operations if o.kind in NONLINEAR and position in o.inputs}
        bends = readers <= {"relu", "leaky_relu"}
        size = math.prod(operations[position].shape)
        if bends and start + size <= MOST_SIGNS:
            places[position] = slice(start, start + size)
            start += size
    return places


def _windowed(operation: Operation, operations: tuple[Operation, ...]) -> bool:
    """Whether an output of an operation on maps sees a window of one input map."""
    if operation.kind not in WINDOWED or len(operation.shape) != 3:
        return False
    source = operations[operation.inputs[0]].shape
    return not (operation.kind == "scale" and source != operation.shape) and not (
        operation.kind == "pad" and source[0] != operation.shape[0]
    )


def _reach(operation: Operation, source: ReceptiveField) -> ReceptiveField:
    """What the outputs of an operation see, from what its inputs see."""
    if operation.kind == "pad":
        left, _, top, *_ = (*operation.ints("padding"), 0, 0)
        offset = (source.offset[0] - top * source.stride[0], source.offset[1] - left * source.stride[1])
        return ReceptiveField(source.stride, offset, source.size)
    if operation.kind not in ("conv", "max_pool"):
        return source
    kernel = operation.tensors["weight"].shape[2:] if operation.kind == "conv" else operation.ints("kernel")
    stride, padding, dilation = (operation.ints(key) for key in ("stride", "padding", "dilation"))
    axes = range(2)
    step, before = source.stride, source.offset
    first = [before[d] - padding[d] * step[d] for d in axes]
    seen = [source.size[d] + dilation[d] * (kernel[d] - 1) * step[d] for d in axes]
    return ReceptiveField((step[0] * stride[0], step[1] * stride[1]), (first[0], first[1]), (seen[0], seen[1]))


def _slack(graph: Graph, domain: Domain, device: torch.device) -> tuple[Tensor, ...]:
    """Rounding errors of bounds: a multiple of the largest absolute values that a sum can pass through."""
    largest = torch.maximum(domain.low.abs(), domain.high.abs()).double().to(device).view(1, *domain.shape)
    largest = largest.clamp(min=FLOOR)
    sizes, values, slack = [64.0], [largest], [UNIT * 64 * largest[0]]
    multiplied = largest.sum()
    for operation in graph.operations[1:]:
        values.append(magnitude(operation, [values[source] for source in operation.inputs]).clamp(min=FLOOR))
        multiplied = multiplied + values[-1].sum()
        sizes.append(_terms(operation, graph) + max(sizes[source] for source in operation.inputs))
        slack.append(UNIT * sizes[-1] * values[-1][0] + SMALLEST * sizes[-1] * multiplied)
    return tuple(slack)


def _terms(operation: Operation, graph: Graph) -> float:
    """How many products one output value sums up, and some for the operation itself."""
    if "weight" in operation.tensors:
        # Backwards an input collects from every output that reads it, which can be more.
        weight = operation.tensors["weight"]
        return 8.0 + max(weight[0].numel(), weight.numel() // max(1, weight.shape[1]))
    if operation.kind == "mean":
        return 8.0 + math.prod(graph.operations[operation.inputs[0]].shape)
    # The gaps of all lines of a layer are summed.
    return 8.0 + (math.prod(operation.shape) if operation.kind in NONLINEAR else 0)


def conv_backward(plan: Plan, position: int, rows: Tensor, height: int, width: int, *, whole: bool) -> Tensor:
    """Coefficients of a convolution's inputs from those of its outputs.

    Args:
        plan: The network.
        position: Of the convolution.
        rows: float64 ``[rows, channels * height * width]``.
        height: Of the window (or map) of outputs.
        width: Likewise.
        whole: Whether it is the whole map, padding cut off, or a window that keeps what lies in the padding.

    Returns:
        ``[rows, channels * height * width]`` of the inputs.
    """
    operation = plan.graph.operations[position]
    shape = (operation.shape[0], height, width)
    key = (position, -1 if whole else height, width)
    if key not in plan.matrices:
        plan.matrices[key] = _matrix(
            operation, plan.graph.operations[operation.inputs[0]].shape, shape, whole, plan.device
        )
    matrix = plan.matrices[key]
    if matrix is not None:
        return rows @ matrix
    return _transposed(
        operation, plan.graph.operations[operation.inputs[0]].shape, rows.view(-1, *shape), whole
    ).flatten(1)


def _transposed(operation: Operation, source: tuple[int, ...], rows: Tensor, whole: bool) -> Tensor:
    """A transposed convolution as one product of matrices and a sum of overlapping patches."""
    weight, groups = operation.tensors["weight"], int(operation.number("groups"))
    stride, padding, dilation, kernel = (
        *(operation.ints(k) for k in ("stride", "padding", "dilation")),
        weight.shape[2:],
    )
    count, channels, height, width = rows.shape
    spread = rows.view(count, groups, channels // groups, height * width)
    patches = weight.view(groups, channels // groups, -1).transpose(1, 2) @ spread
    size = source[1:]
    if not whole:
        padding = (0, 0)
        size = tuple((rows.shape[2 + d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 for d in (0, 1))
    return F.fold(patches.flatten(1, 2), size, tuple(kernel), dilation, padding, stride)


def _matrix(
    operation: Operation, source: tuple[int, ...], shape: tuple[int, int, int], whole: bool, device: torch.device
) -> Tensor | None:
    """The transposed convolution of a window as a matrix ``[outputs, inputs]``, if that is the faster way."""
    probe = torch.zeros(1, *shape, device=device, dtype=torch.float64)
    inputs = _transposed(operation, source, probe, whole)[0].numel()
    outputs = math.prod(shape)
    work = outputs * operation.tensors["weight"][0].numel()
    if outputs * inputs > min(MATRIX_ENTRIES, MATRIX_WASTE["cuda" if device.type == "cuda" else "cpu"] * work):
        return None
    matrix = torch.empty(outputs, inputs, device=device, dtype=torch.float64)
    size = max(1, 2**22 // outputs)
    for start in range(0, outputs, size):
        stop = min(start + size, outputs)
        unit = torch.zeros(stop - start, outputs, device=device, dtype=torch.float64)
        unit[torch.arange(stop - start), torch.arange(start, stop)] = 1
        matrix[start:stop] = _transposed(operation, source, unit.view(-1, *shape), whole).flatten(1)
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
    known = (p for p, operation in enumerate(operations) if operation.kind in (*NONLINEAR, "linear"))
    kept = {*plan.bounded, *plan.borders, *known, *operations[-1].inputs, len(operations) - 1}
    last = plan.graph.last_use()
    values = {0: images.view(-1, *operations[0].shape)}
    for position, operation in enumerate(operations[1:], start=1):
        values[position] = run_operation(operation, *(values[source] for source in operation.inputs))
        for source in operation.inputs:
            if last[source] == position and source not in kept:
                values.pop(source, None)
    return {position: value for position, value in values.items() if position in kept}
