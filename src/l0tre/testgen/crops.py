"""A neuron of a map sees a window of the input: its value is computed from that alone, many times faster."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.locality.local_part import local_place
from l0tre.model.graph import Graph, Operation, run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Curve

__all__ = ["Crop", "make_crop"]

MOST_SHARE = 0.7  # of the input that a window may take; beyond, whole inputs are as good


@dataclass(frozen=True)
class _Stage:
    """An operation on windows, and where the window of its input lies for the output (0, 0) of the watched map.

    Attributes:
        operation: Without padding.
        padded: Whether it reads zeros around its input.
        shape: Height and width of its input's map.
        size: Of the window there.
        stride: How far the window moves with the watched output.
        offset: Its first row and column.
    """

    operation: Operation
    padded: bool
    shape: tuple[int, int]
    size: tuple[int, int]
    stride: tuple[int, int]
    offset: tuple[int, int]


@dataclass(frozen=True)
class Crop:
    """The operations up to a map, on the windows of single neurons.

    Attributes:
        stages: In order.
        shape: Of the input.
        plane: Height and width of the watched map.
    """

    stages: tuple[_Stage, ...]
    shape: tuple[int, int, int]
    plane: tuple[int, int]

    @property
    def inner(self) -> int:
        """Values of a window, and all that is computed from it."""
        sizes = [*(stage.size for stage in self.stages), (1, 1)]
        channels = [self.shape[0], *(stage.operation.shape[0] for stage in self.stages)]
        return sum(count * height * width for count, (height, width) in zip(channels, sizes, strict=True))

    def values(self, x: Tensor, neurons: Tensor) -> Tensor:
        """The value of one neuron for each row.

        Args:
            x: float32 ``[rows, values]``.
            neurons: int64 ``[rows]``, numbers in the flattened map.

        Returns:
            float32 ``[rows]``.
        """
        height, width = self.plane
        channel, row, column = neurons // (height * width), neurons // width % height, neurons % width
        first, (channels, rows, columns) = self.stages[0], self.shape
        y, y_inside = _lines(first, 0, row)
        z, z_inside = _lines(first, 1, column)
        plane = (y.clamp(0, rows - 1) * columns)[:, :, None] + z.clamp(0, columns - 1)[:, None]
        index = plane[:, None] + torch.arange(channels, device=x.device)[:, None, None] * rows * columns
        window = x.gather(1, index.flatten(1)).view(len(x), channels, *first.size)
        for stage in self.stages:
            if stage.padded:
                y_inside, z_inside = _lines(stage, 0, row)[1], _lines(stage, 1, column)[1]
                window = window * (y_inside[:, None, :, None] & z_inside[:, None, None, :])
            window = run_operation(stage.operation, window)
        return window.flatten(1).gather(1, channel[:, None])[:, 0]

    def pixels(self, neurons: Tensor) -> Tensor:
        """Where the window of each neuron lies in the flattened input, int64 ``[rows, values]``; -1 outside of it."""
        height, width = self.plane
        channels, rows, columns = self.shape
        (y, y_inside), (z, z_inside) = (
            _lines(self.stages[0], 0, neurons // width % height),
            _lines(self.stages[0], 1, neurons % width),
        )
        plane = ((y * columns)[:, :, None] + z[:, None])[:, None]
        index = plane + torch.arange(channels, device=neurons.device)[:, None, None] * rows * columns
        inside = (y_inside[:, :, None] & z_inside[:, None])[:, None]
        return torch.where(inside, index, -1).flatten(1)


def _lines(stage: _Stage, axis: int, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Rows or columns of each window, int64 ``[windows, size]``, and which of them are on the map."""
    start = outputs * stage.stride[axis] + stage.offset[axis]
    lines = start[:, None] + torch.arange(stage.size[axis], device=outputs.device)
    return lines, (lines >= 0) & (lines < stage.shape[axis])


def make_crop(graph: Graph, position: int) -> Crop | None:
    """Compute the neurons of a map from windows.

    Args:
        graph: The network, its constants where they are needed.
        position: Of the map.

    Returns:
        The crop; ``None`` if the map is not reached by a chain of local operations, or windows are nearly whole inputs.
    """
    operations = graph.operations
    if len(operations[position].shape) != 3 or len(operations[0].shape) != 3:
        return None
    size, stride, offset = (1, 1), (1, 1), (0, 0)
    stages: list[_Stage] = []
    while position:
        operation = operations[position]
        if not _croppable(operation, operations):
            return None
        windows = [local_place(operation).window(operation, axis) for axis in (0, 1)]
        size = (windows[0].sees(size[0]), windows[1].sees(size[1]))
        offset = tuple(o * w.stride - w.padding for o, w in zip(offset, windows, strict=True))  # type: ignore[assignment]
        stride = (stride[0] * windows[0].stride, stride[1] * windows[1].stride)
        position = operation.inputs[0]
        padded = any(window.padding for window in windows)
        bare = replace(operation, attributes={**operation.attributes, "padding": (0, 0)}) if padded else operation
        _, height, width = operations[position].shape
        stages.append(_Stage(bare, padded, (height, width), size, stride, offset))
    channels, height, width = operations[0].shape
    if not stages or size[0] * size[1] > MOST_SHARE * height * width:
        return None
    end = graph.operations[-1].shape
    return Crop(tuple(reversed(stages)), (channels, height, width), (end[1], end[2]))


def _croppable(operation: Operation, operations: tuple[Operation, ...]) -> bool:
    """Whether an operation does the same at all positions of one map, and reads nothing but zeros around it."""
    kind = KINDS[operation.kind]
    if len(operation.inputs) != 1 or len(operations[operation.inputs[0]].shape) != 3:
        return False
    if isinstance(kind, Curve):
        return True
    if operation.kind == "conv":
        return True
    if operation.kind == "scale":
        return all(value.numel() == 1 or value.shape[1:] == (1, 1) for value in operation.tensors.values())
    return operation.kind in ("max_pool", "avg_pool") and not any(operation.ints("padding"))
