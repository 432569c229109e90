"""Which window of every map some changed pixels can reach, and moving differences from one window to the next.

Differences from the image are zero outside these windows, so a few changed pixels need a small part of every map. All
windows of a batch have the same sizes and are laid out alike: they begin at a corner whose row and column are multiples
of the network's strides, so that the same output always stands at the same place of its window.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.checker.layers import BY_KERNEL, BY_PLACE, Layers, ReceptiveField
from l0tre.certify.checker.rows import InputPart
from l0tre.model.graph import Operation, run_operation

__all__ = ["LocalLayers", "View", "aligned", "make_local", "map_window", "place_of", "read_window"]

SHARE = 0.5  # of a map that one pixel may reach, beyond which it is carried as a whole
LINEAR_LOCAL = frozenset(("conv", "avg_pool", "scale", "pad", "slice", "add", "sub", "concat"))


@dataclass(frozen=True)
class LocalLayers:
    """The first layers of a network, where differences are carried in windows.

    Attributes:
        reach: What the outputs of its operations see of the input; empty if nothing is carried in windows.
        exits: Those of them that later operations read, or the last of all.
        period: Rows and columns that corners of windows are multiples of.
        sight: Two pixels so many rows or so many columns apart are seen together by no operation here that is not
            linear.
        shapes: The shapes of all maps.
    """

    reach: Mapping[int, ReceptiveField]
    exits: tuple[int, ...]
    period: tuple[int, int]
    sight: tuple[int, int]
    shapes: Mapping[int, tuple[int, ...]]


def make_local(layers: Layers) -> LocalLayers:
    """Find the operations whose outputs see small windows of the input."""
    operations, reach = layers.operations, dict[int, ReceptiveField]()
    for position, operation in enumerate(operations):
        found = layers.reach.get(position)
        if found is None or not all(source in reach for source in operation.inputs):
            continue
        cells = math.prod(operation.shape[1:])
        touched = math.prod(found.size[d] // found.stride[d] + 1 for d in (0, 1))
        if position and (touched > SHARE * cells or not _simple(operation, operations)):
            continue
        reach[position] = found
    nonlinear = [reach[p].size for p in reach if p and operations[p].kind not in LINEAR_LOCAL]
    read = {source for p, o in enumerate(operations) if p not in reach for source in o.inputs}
    exits = tuple(p for p in reach if p in read or p == len(operations) - 1)
    period = tuple(math.lcm(1, *(found.stride[d] for found in reach.values())) for d in (0, 1))
    sight = tuple(max((size[d] for size in nonlinear), default=0) for d in (0, 1))
    return LocalLayers(
        reach, exits, (period[0], period[1]), (sight[0], sight[1]), {p: operations[p].shape for p in reach}
    )


def _simple(operation: Operation, operations: tuple[Operation, ...]) -> bool:
    """Whether an operation does the same everywhere, but for the border that is masked afterwards."""
    if operation.kind == "avg_pool":
        return bool(operation.attributes["count_include_pad"]) or not any(operation.ints("padding"))
    if operation.kind == "pad":
        return operations[operation.inputs[0]].shape[0] == operation.shape[0]
    return operation.kind in BY_PLACE or operation.kind in BY_KERNEL or operation.kind in LINEAR_LOCAL


@dataclass(frozen=True)
class View:
    """Where the windows of a batch are.

    Attributes:
        local: The layers.
        top: int64 ``[batch]``, row of the input where each begins, a multiple of the period.
        left: int64 ``[batch]``, likewise the column.
        extent: Rows and columns of the input that may change.
    """

    local: LocalLayers
    top: Tensor
    left: Tensor
    extent: tuple[int, int]

    def layout(self, position: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where the windows of a map begin, counted from the corner in steps of its stride, and their sizes."""
        reach = self.local.reach[position]
        begin, size = [], []
        for d in (0, 1):
            first = -((reach.offset[d] + reach.size[d] - 1) // reach.stride[d])
            last = (self.extent[d] - 1 - reach.offset[d]) // reach.stride[d]
            begin.append(first)
            size.append(max(1, last - first + 1))  # kernels smaller than their stride may see nothing
        return (begin[0], begin[1]), (size[0], size[1])

    def window(self, position: int) -> InputPart:
        """The windows of a map."""
        reach, (begin, size) = self.local.reach[position], self.layout(position)
        return InputPart(self.top // reach.stride[0] + begin[0], self.left // reach.stride[1] + begin[1], size)

    def values(self, operations: tuple[Operation, ...]) -> int:
        """Numbers in all windows of one entry together."""
        return sum(operations[p].shape[0] * math.prod(self.layout(p)[1]) for p in self.local.reach)


def place_of(view: View, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Where values of the input, int64 ``[batch, values]``, stand in its flattened windows; the size for none."""
    (_, (height, width)), window = view.layout(0), view.window(0)
    plane = shape[1] * shape[2]
    y = positions % plane // shape[2] - window.top[:, None]
    x = positions % shape[2] - window.left[:, None]
    place = (positions // plane * height + y) * width + x
    return torch.where(positions < shape[0] * plane, place, shape[0] * height * width)


def read_window(view: View, source: int, operation: Operation, position: int) -> InputPart:
    """The part of an input of an operation that the windows of its outputs are computed from."""
    reach, (begin, size) = view.local.reach[source], _needed(view, operation, position)
    return InputPart(view.top // reach.stride[0] + begin[0], view.left // reach.stride[1] + begin[1], size)


def _needed(view: View, operation: Operation, position: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where that part begins, counted as in :meth:`View.layout`, and its size."""
    begin, count = view.layout(position)
    stride, kernel, before, dilation = _steps(operation)
    start = [begin[d] * stride[d] - before[d] for d in (0, 1)]
    size = [(count[d] - 1) * stride[d] + (kernel[d] - 1) * dilation[d] + 1 for d in (0, 1)]
    return (start[0], start[1]), (size[0], size[1])


def aligned(view: View, source: int, operation: Operation, position: int, x: Tensor) -> Tensor:
    """What an operation reads for the windows of its outputs, from the windows of its input ``[..., rows, columns]``.

    Outside the windows nothing differs.
    """
    (have, sizes), (start, count) = view.layout(source), _needed(view, operation, position)
    amounts = [n for d in (1, 0) for n in (have[d] - start[d], start[d] + count[d] - have[d] - sizes[d])]
    # Wider first: where both do not meet, there would be less than nothing to pad.
    x = F.pad(x, [max(0, n) for n in amounts]) if max(amounts) > 0 else x
    return F.pad(x, [min(0, n) for n in amounts]) if min(amounts) < 0 else x


def _steps(operation: Operation) -> tuple[tuple[int, ...], ...]:
    """Stride, size, padding and dilation of an operation's kernel, of rows and columns each."""
    one = (1, 1)
    if operation.kind == "conv":
        kernel = tuple(operation.tensors["weight"].shape[2:])
        return operation.ints("stride"), kernel, operation.ints("padding"), operation.ints("dilation")
    if operation.kind in ("max_pool", "avg_pool"):
        dilation = one if operation.kind == "avg_pool" else operation.ints("dilation")
        return operation.ints("stride"), operation.ints("kernel"), operation.ints("padding"), dilation
    if operation.kind == "pad":
        left, _, top, *_ = (*operation.ints("padding"), 0, 0)
        return one, one, (top, left), one
    if operation.kind == "slice":
        (_, top, left), (_, *paces) = operation.ints("starts"), operation.ints("steps")
        return tuple(paces), one, (-top, -left), one
    return one, one, (0, 0), one


def map_window(view: View, operation: Operation, position: int, *inputs: Tensor) -> Tensor:
    """A linear operation without its constants, on windows of differences.

    Args:
        view: Where the windows are.
        operation: The operation, plain or with absolute weights.
        position: Its position.
        inputs: ``[batch, columns, C, rows, columns]``, the windows of each input.

    Returns:
        ``[batch, columns, C, rows, columns]``, not masked at the border.
    """
    parts = [aligned(view, s, operation, position, x) for s, x in zip(operation.inputs, inputs, strict=True)]
    first, kind = parts[0], operation.kind
    if kind in ("conv", "avg_pool"):
        inner = replace(operation, attributes={**operation.attributes, "padding": (0, 0)})
        result = run_operation(inner, first.flatten(0, 1))
        return result.view(*first.shape[:2], *result.shape[1:])
    if kind == "scale":
        if "scale" not in operation.tensors:
            return first
        factors = operation.tensors["scale"].expand(operation.shape).flatten()
        picked = factors[view.window(position).index(operation.shape)]
        return first * picked.view(len(first), 1, *first.shape[2:])
    if kind == "slice":
        (channel, *_), (pace, down, right) = operation.ints("starts"), operation.ints("steps")
        return first[:, :, channel::pace, ::down, ::right][:, :, : operation.shape[0]]
    if kind == "concat":
        return torch.cat(parts, 2)
    if kind in ("add", "sub"):
        return first + parts[1] if kind == "add" else first - parts[1]
    return first
