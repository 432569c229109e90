"""What every output of a network's first layers sees of the input, for the checker of certificates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.checker.curves import CURVES
from l0tre.model.graph import Operation

__all__ = ["Layers", "ReceptiveField", "make_layers"]

BY_PLACE = ("relu", "leaky_relu", "clip", "sigmoid", "tanh", "scale", *CURVES)
BY_KERNEL = ("conv", "max_pool", "avg_pool")


@dataclass(frozen=True)
class ReceptiveField:
    """Which rows and columns of the input an output in some row and column can depend on; more is sound, less is not.

    Attributes:
        stride: Rows and columns of the input from one output to the next.
        offset: First row and column that output (0, 0) sees; negative outside the input.
        size: How many rows and columns it sees.
    """

    stride: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]

    def seen(self, axis: int, outputs: int, first: int, inputs: int, like: Tensor) -> Tensor:
        """Which rows (axis 0) or columns (axis 1) of the input some outputs see.

        Args:
            axis: 0 or 1.
            outputs: Number of outputs.
            first: First row of the input that the first of the outputs sees, counted from where the result begins.
            inputs: Number of the input's rows in the result.
            like: Gives type and device.

        Returns:
            ``[outputs, inputs]``, 1 where an output sees an input, else 0.
        """
        begin = first + self.stride[axis] * torch.arange(outputs, device=like.device)[:, None]
        place = torch.arange(inputs, device=like.device)
        return ((place >= begin) & (place < begin + self.size[axis])).to(like)


@dataclass(frozen=True)
class Layers:
    """A network and what its layers see of an input ``(C, H, W)``.

    Attributes:
        operations: The network in float64.
        reach: For the operations that are maps and see windows of the input.
        windowed: Those of them that are reached from the input by one path alone, of operations that do not treat the
            border in a way of their own: their rows can be carried back as windows.
    """

    operations: tuple[Operation, ...]
    reach: Mapping[int, ReceptiveField]
    windowed: frozenset[int]

    def values(self, position: int) -> int:
        """Number of values of an operation."""
        return math.prod(self.operations[position].shape)


def make_layers(operations: tuple[Operation, ...]) -> Layers:
    """Find out what the operations of a network see."""
    reach: dict[int, ReceptiveField] = {}
    windowed = set[int]()
    if len(operations[0].shape) == 3:
        reach[0] = ReceptiveField((1, 1), (0, 0), (1, 1))
        windowed.add(0)
    for position, operation in enumerate(operations[1:], start=1):
        if len(operation.shape) != 3 or not all(source in reach for source in operation.inputs):
            continue
        found = _reach(
            operation, [operations[source].shape for source in operation.inputs], [reach[s] for s in operation.inputs]
        )
        if found is None:
            continue
        reach[position] = found
        if windowed.issuperset(operation.inputs) and _same_everywhere(operation, operations[operation.inputs[0]].shape):
            windowed.add(position)
    return Layers(operations, reach, frozenset(windowed))


def _reach(operation: Operation, shapes: list[tuple[int, ...]], sources: list[ReceptiveField]) -> ReceptiveField | None:
    """What the outputs of an operation on maps see, from what its inputs see; ``None`` if that is no window."""
    source, axes = sources[0], (0, 1)
    if operation.kind in BY_PLACE:
        return source if shapes[0] == operation.shape else None
    if operation.kind in ("add", "sub") or (operation.kind == "concat" and operation.number("dim") == 0):
        if any(shape[1:] != operation.shape[1:] for shape in shapes) or len({s.stride for s in sources}) > 1:
            return None
        first = [min(s.offset[d] for s in sources) for d in axes]
        end = [max(s.offset[d] + s.size[d] for s in sources) for d in axes]
        return ReceptiveField(source.stride, (first[0], first[1]), (end[0] - first[0], end[1] - first[1]))
    if operation.kind == "pad":
        left, _, top, *_ = (*operation.ints("padding"), 0, 0)
        before: tuple[int, ...] = (top, left)
        kernel: tuple[int, ...] = (1, 1)
        stride: tuple[int, ...] = (1, 1)
        dilation: tuple[int, ...] = (1, 1)
    elif operation.kind == "slice":
        (_, top, left), (_, *paces) = operation.ints("starts"), operation.ints("steps")
        before, kernel, stride, dilation = (-top, -left), (1, 1), tuple(paces), (1, 1)
    elif operation.kind in BY_KERNEL:
        before, kernel, stride, dilation = _kernel(operation)
    else:
        return None
    offset = [source.offset[d] - before[d] * source.stride[d] for d in axes]
    size = [source.size[d] + (kernel[d] - 1) * dilation[d] * source.stride[d] for d in axes]
    step = [source.stride[d] * stride[d] for d in axes]
    return ReceptiveField((step[0], step[1]), (offset[0], offset[1]), (size[0], size[1]))


def _kernel(operation: Operation) -> tuple[tuple[int, ...], ...]:
    """Padding, size, stride and dilation of a kernel, of rows and columns each."""
    kernel = tuple(operation.tensors["weight"].shape[2:]) if operation.kind == "conv" else operation.ints("kernel")
    dilation = (1, 1) if operation.kind == "avg_pool" else operation.ints("dilation")
    return operation.ints("padding"), kernel, operation.ints("stride"), dilation


def _same_everywhere(operation: Operation, source: tuple[int, ...]) -> bool:
    """Whether the operation on one map is the same at the border, where padding is cut off afterwards."""
    if operation.kind == "avg_pool":
        return bool(operation.attributes["count_include_pad"]) or not any(operation.ints("padding"))
    if operation.kind == "pad":
        return source[0] == operation.shape[0]
    return operation.kind in BY_PLACE or operation.kind in BY_KERNEL or operation.kind == "slice"
