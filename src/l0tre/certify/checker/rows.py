"""Linear forms carried from any layer back to the input, for the checker of certificates.

A row is a linear form of the difference between a layer's values and those at the image. On the way back every
coefficient takes the line below its operation (above, if it is negative), so that the form nowhere grows. What a line
misses at the image's own value is its gap. An output that sees no changed pixel keeps its value, its gap need not be
paid: instead of paying all gaps of a layer once, each changed pixel can pay those of all outputs that see it. Both are
lower bounds, since gaps are never above 0, and the better is taken for each row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.certify.checker.layers import Layers, ReceptiveField
from l0tre.certify.checker.lines import Around
from l0tre.model.graph import Operation, run_operation

__all__ = ["Form", "InputPart", "carry", "carry_windows"]


@dataclass(frozen=True)
class InputPart:
    """A part of the input for each entry of a batch, of which some may lie outside the input.

    Attributes:
        top: int64 ``[batch]``, its first row.
        left: int64 ``[batch]``, its first column.
        size: Height and width.
    """

    top: Tensor
    left: Tensor
    size: tuple[int, int]

    def plane(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Numbers of its pixels in maps ``(C, H, W)``, int64 ``[batch, pixels]``, and which of them exist.

        The number of a pixel that does not exist is that of another one.
        """
        (y, has_y), (x, has_x) = (
            (place.clamp(0, most - 1), (place >= 0) & (place < most))
            for place, most in (
                (self.top[:, None] + torch.arange(self.size[0], device=self.top.device), shape[1]),
                (self.left[:, None] + torch.arange(self.size[1], device=self.top.device), shape[2]),
            )
        )
        numbers = y[:, :, None] * shape[2] + x[:, None]
        return numbers.flatten(1), (has_y[:, :, None] & has_x[:, None]).flatten(1)

    def index(self, shape: tuple[int, ...]) -> Tensor:
        """Numbers of its values in flattened maps ``(C, H, W)``, int64 ``[batch, C * pixels]``."""
        channel = torch.arange(shape[0], device=self.top.device) * (shape[1] * shape[2])
        return (self.plane(shape)[0][:, None] + channel[:, None]).flatten(1)


@dataclass(frozen=True)
class Form:
    """Lower bounds ``constant + gradient * (x - image)``, less what changed pixels cost whatever their values.

    Attributes:
        gradient: float64 ``[batch, rows, values]``; of a window, ``[batch, rows, channels * pixels]``.
        constant: float64 ``[batch, rows]``.
        costs: float64 ``[batch, rows, pixels]``, at most 0; ``None`` for none.
        window: Which part of the input the form is about; ``None`` for all of it.
    """

    gradient: Tensor
    constant: Tensor
    costs: Tensor | None = None
    window: InputPart | None = None


def carry(layers: Layers, position: int, rows: Tensor, lines: Mapping[int, Around], changes: int) -> Form:
    """Carry rows of whole layers to the input.

    Args:
        layers: The network.
        position: Whose values the rows are of.
        rows: float64 ``[batch, rows, values]``.
        lines: Of all operations before that are not linear, for the same batch.
        changes: Most pixels that change; 0 if all gaps are to be paid.

    Returns:
        Lower bounds of the rows over the regions of the batch.
    """
    operations, constant = layers.operations, rows.new_zeros(rows.shape[:2])
    costs: Tensor | None = None
    pending = {position: rows}
    for place in range(position, 0, -1):
        if place not in pending:
            continue
        operation, rows = operations[place], pending.pop(place)
        shapes = [operations[source].shape for source in operation.inputs]
        if place in lines:
            line = lines[place]
            rows, gaps = _relaxed(rows, line.maps)
            if changes and place in layers.reach:
                reach, (height, width) = layers.reach[place], operations[0].shape[1:]
                gaps = gaps.view(*rows.shape[:2], *operation.shape)
                paid, costs = _charged(gaps, reach, reach.offset, (height, width), changes, costs)
            else:
                paid = gaps.sum(2)
            constant += paid
            if line.index is not None:
                blank = rows.new_zeros(*rows.shape[:2], layers.values(operation.inputs[0]))
                rows = blank.scatter_add_(2, line.index[:, None].expand_as(rows), rows)
            parts = [rows]
        else:
            parts = [
                part.flatten(2) for part in _transposed(operation, shapes, rows.view(*rows.shape[:2], *operation.shape))
            ]
        for source, part in zip(operation.inputs, parts, strict=True):
            pending[source] = pending[source] + part if source in pending else part
    gradient = pending[0] if 0 in pending else constant.new_zeros(*constant.shape, layers.values(0))
    return Form(gradient, constant, costs)


def carry_windows(
    layers: Layers, position: int, neurons: Tensor, owner: Tensor, lines: Mapping[int, Around], changes: int
) -> Form:
    """Carry single values of a map, and their negatives, to the part of the input that they see.

    Args:
        layers: The network.
        position: Whose values they are, one of ``layers.windowed``.
        neurons: int64 ``[batch]``, their numbers in the flattened map.
        owner: int64 ``[batch]``, the entry of the lines that holds for each.
        lines: Of all operations before that are not linear.
        changes: Most pixels that change; 0 if all gaps are to be paid.

    Returns:
        Lower bounds of the values (row 0) and of their negatives (row 1).
    """
    shape = layers.operations[position].shape
    channel, place = neurons // (shape[1] * shape[2]), neurons % (shape[1] * shape[2])
    window = InputPart(place // shape[2], place % shape[2], (1, 1))
    rows = torch.zeros(len(neurons), 2, shape[0], 1, 1, dtype=torch.float64, device=neurons.device)
    rows[torch.arange(len(neurons)), 0, channel], rows[torch.arange(len(neurons)), 1, channel] = 1.0, -1.0
    constant, seen = rows.new_zeros(len(neurons), 2), layers.reach[position].size
    costs: Tensor | None = None
    while position:
        operation = layers.operations[position]
        source = layers.operations[operation.inputs[0]].shape
        if position in lines:
            line = lines[position]
            index = window.index(operation.shape) + owner[:, None] * layers.values(position)
            flat, gaps = _relaxed(rows.flatten(2), line.maps.flatten(1)[:, index])
            rows, gaps = flat.view(rows.shape), gaps.view(rows.shape)
            if changes:
                # All windows of an entry begin with what the value sees, and so does the result.
                paid, costs = _charged(gaps, layers.reach[position], (0, 0), seen, changes, costs)
            else:
                paid = gaps.flatten(2).sum(2)
            constant += paid
            if line.index is not None:
                rows, window = _unpooled(operation, source, rows, window, line.index.flatten()[index])
        elif operation.kind == "scale":
            if "scale" in operation.tensors:
                factors = operation.tensors["scale"].expand(operation.shape).flatten()[window.index(operation.shape)]
                rows = rows * factors.view(-1, 1, *rows.shape[2:])
        elif operation.kind == "pad":
            left, _, top, *_ = (*operation.ints("padding"), 0, 0)
            rows, window = _cut(rows, replace(window, top=window.top - top, left=window.left - left), source)
        elif operation.kind == "slice":
            rows, window = _unsliced(operation, source, rows, window)
        else:
            moved = _source_window(operation, window)
            blank = replace(operation, attributes={**operation.attributes, "padding": (0, 0)})
            rows = _transposed(blank, [(source[0], *moved.size)], rows)[0]
            rows, window = _cut(rows, moved, source)
        position = operation.inputs[0]
    return Form(rows.flatten(2), constant, costs, window)


def _relaxed(rows: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of an operation's outputs as rows of its inputs, and the gaps, each ``[batch, rows, values]``."""
    below, above, gap_below, gap_above = maps[:, :, None]
    up, down = rows.clamp(min=0), rows.clamp(max=0)
    return (up * below).addcmul_(down, above), up.mul_(gap_below).addcmul_(down, gap_above)


def _charged(
    gaps: Tensor,
    reach: ReceptiveField,
    first: tuple[int, int],
    seen: tuple[int, int],
    changes: int,
    costs: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Pay the gaps of a layer at once or leave them to the changed pixels, whichever is less.

    Args:
        gaps: float64 ``[batch, rows, channels, height, width]``.
        reach: What the outputs see.
        first: Row and column of the pixels that the first output sees first.
        seen: Height and width of the pixels.
        changes: Most pixels that change.
        costs: What pixels pay so far, ``[batch, rows, pixels]``.

    Returns:
        What is paid at once, ``[batch, rows]``, and what pixels pay now.
    """
    # A line that rounding puts on the wrong side at the image must not be a gain, several times over.
    plane = gaps.clamp_(max=0).sum(2)
    rows, columns = (reach.seen(d, plane.shape[2 + d], first[d], seen[d], gaps) for d in (0, 1))
    each = (rows.T @ plane @ columns).flatten(2)
    once = plane.sum((2, 3))
    # So the pixels never pay more than all gaps together, and the bound on the round-off holds for them too.
    less = changes * each.amin(2) > once
    each = each.where(less[:, :, None], 0.0)
    return once.masked_fill(less, 0.0), each if costs is None else costs + each


def _transposed(operation: Operation, shapes: list[tuple[int, ...]], rows: Tensor) -> list[Tensor]:
    """Rows of a linear operation's output, ``[batch, rows, *shape]``, as rows of its inputs of some shapes."""
    zeros = [rows.new_zeros(1, *shape) for shape in shapes]
    back = torch.func.vjp(lambda *inputs: run_operation(operation, *inputs), *zeros)[1]
    parts = torch.func.vmap(back)(rows.flatten(0, 1)[:, None])
    return [part.view(*rows.shape[:2], *shape) for part, shape in zip(parts, shapes, strict=True)]


def _unsliced(
    operation: Operation, source: tuple[int, ...], rows: Tensor, window: InputPart
) -> tuple[Tensor, InputPart]:
    """Rows of a slice's outputs as rows of the inputs between the first and the last that it takes."""
    (channel, top, left), (_, down, right) = operation.ints("starts"), operation.ints("steps")
    height, width = (window.size[0] - 1) * down + 1, (window.size[1] - 1) * right + 1
    moved = InputPart(window.top * down + top, window.left * right + left, (height, width))
    settings = {**operation.attributes, "starts": (channel, 0, 0), "sizes": (operation.shape[0], *window.size)}
    rows = _transposed(replace(operation, attributes=settings), [(source[0], height, width)], rows)[0]
    return _cut(rows, moved, source)


def _source_window(operation: Operation, window: InputPart) -> InputPart:
    """The part of an operation's input that a part of its output is computed from."""
    kernel = operation.tensors["weight"].shape[2:] if operation.kind == "conv" else operation.ints("kernel")
    dilation = (1, 1) if operation.kind == "avg_pool" else operation.ints("dilation")
    stride, padding = operation.ints("stride"), operation.ints("padding")
    height, width = ((window.size[d] - 1) * stride[d] + (kernel[d] - 1) * dilation[d] + 1 for d in (0, 1))
    return InputPart(window.top * stride[0] - padding[0], window.left * stride[1] - padding[1], (height, width))


def _cut(rows: Tensor, window: InputPart, shape: tuple[int, ...]) -> tuple[Tensor, InputPart]:
    """Rows that are 0 in the padding around a map of some shape, and their window."""
    inside = window.plane(shape)[1].view(-1, 1, 1, *window.size)
    return rows * inside, window


def _unpooled(
    operation: Operation, source: tuple[int, ...], rows: Tensor, window: InputPart, index: Tensor
) -> tuple[Tensor, InputPart]:
    """Rows of a maximum's outputs as rows of the inputs that its lines are functions of."""
    moved = _source_window(operation, window)
    (height, width), plane = moved.size, source[1] * source[2]
    # Outputs that do not exist have zero rows, and what is known of others may lie outside.
    y = (index % plane // source[2] - moved.top[:, None]).clamp(0, height - 1)
    x = (index % source[2] - moved.left[:, None]).clamp(0, width - 1)
    target = (index // plane * height + y) * width + x
    flat = rows.flatten(2)
    blank = flat.new_zeros(*flat.shape[:2], source[0] * height * width)
    flat = blank.scatter_add_(2, target[:, None].expand_as(flat), flat)
    return _cut(flat.view(*flat.shape[:2], source[0], height, width), moved, source)
