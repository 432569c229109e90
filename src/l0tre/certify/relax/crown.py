"""Linear forms carried backwards through the relaxed network, from any layer to the input.

A row is a linear form ``A (z - z0)`` of a layer's values, ``z0`` those of the image. Going backwards through a
nonlinear operation each coefficient takes the line below (positive) or above (negative), so the form stays a lower
bound; the lines' gaps at the image add up in a constant. Rows that start in a convolution are carried as windows: only
the part of each map that the neuron sees.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.relax.plan import Plan, backward, backward_window
from l0tre.certify.relax.relaxation import Relaxation
from l0tre.certify.relax.supported import is_nonlinear
from l0tre.locality.local_part import local_place
from l0tre.model.graph import Operation

__all__ = ["LinearBound", "carry", "carry_window", "neuron_rows", "window_rows"]

GetLines = Callable[[int], Relaxation]


@dataclass(frozen=True)
class LinearBound:
    """Lower bounds in terms of the input: ``constant + coefficients . (x - x0) + local`` of every changed pixel.

    Attributes:
        coefficients: float64 ``[batch, rows, values]``, or of a window ``[batch, rows, channels * height * width]``.
        constant: float64 ``[batch, rows]``.
        local: float64 ``[batch, rows, pixels]`` (of the window), at most 0: what changing a pixel costs besides,
            whatever its value; ``None`` for nothing.
        top: int64 ``[batch]``, first row of each window in the input; ``None`` for whole inputs.
        left: Likewise its first column.
        size: Height and width of the window.
    """

    coefficients: Tensor
    constant: Tensor
    local: Tensor | None = None
    top: Tensor | None = None
    left: Tensor | None = None
    size: tuple[int, int] = (0, 0)


def carry(
    plan: Plan,
    start: int,
    rows: Tensor,
    lines: GetLines,
    changes: int = 0,
    *,
    stop: int = 0,
    losses: dict[int, Tensor] | None = None,
) -> LinearBound:
    """Carry rows of whole layers to the input, or to an operation before which nothing is read from after it.

    Args:
        plan: The network.
        start: Position that the rows belong to.
        rows: float64 ``[batch, rows, values at start]``.
        lines: Gives the lines of a nonlinear operation, for the same batch.
        changes: If not 0, this many pixels change at the most, and gaps may be charged to them.
        stop: Where the rows are wanted.
        losses: Receives, by position of a nonlinear operation, what each output's larger gap can take from the rows,
            ``[batch, rows, values]``; given are the positions of interest.

    Returns:
        The form there.
    """
    constant = rows.new_zeros(rows.shape[:2])
    local: Tensor | None = None
    open_ = {start: rows}
    for position in range(start, stop, -1):
        if position not in open_:
            continue
        rows = open_.pop(position)
        operation = plan.graph.operations[position]
        if is_nonlinear(operation):
            picked = lines(position)
            if losses is not None and position in losses:
                below, above = picked.maps[2:, :, None]
                losses[position] = rows.abs() * torch.maximum(-below, above)
            if changes and position in plan.receptive_fields:
                plane = plan.graph.operations[0].shape[1:]
                rows, more, near = _charge(plan, position, rows, picked, changes, operation.shape[1:], (0, 0), plane)
                local = near if local is None else local.add_(near)
            else:
                rows, more = _through_lines(rows, picked)
            constant += more
            if picked.index is not None:
                size = plan.slack[operation.inputs[0]].numel()
                index = picked.index[:, None].expand_as(rows)
                rows = rows.new_zeros(*rows.shape[:2], size).scatter_add_(2, index, rows)
            parts = [rows]
        else:
            parts = backward(plan, position, rows)
        for source, part in zip(operation.inputs, parts, strict=True):
            open_[source] = open_[source] + part if source in open_ else part
    if stop not in open_:  # the rows do not depend on it
        open_[stop] = constant.new_zeros(*constant.shape, plan.slack[stop].numel())
    return LinearBound(open_[stop], constant, local)


def _charge(
    plan: Plan,
    position: int,
    rows: Tensor,
    lines: Relaxation,
    changes: int,
    size: tuple[int, ...],
    origin: tuple[int, int],
    shape: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Go through lines and charge their gaps to pixels where that costs less.

    The gap of a neuron is only paid if a changed pixel lies in what it sees: elsewhere its value is the image's own. So
    the gaps can be summed up once (the constant), or charged to every pixel that the neuron sees and paid by those
    that change, whichever is less for this row. Both are lower bounds, since gaps never raise a form.

    Returns:
        The rows, what the constant pays ``[batch, rows]``, and what pixels pay ``[batch, rows, pixels]``.
    """
    rows, gaps = _along(rows, lines)
    gaps = gaps.view(*rows.shape[:2], -1, *size).sum(2)
    near = plan.receptive_fields[position].spread(gaps, origin, (shape[0], shape[1])).flatten(2)
    once = gaps.sum((2, 3))
    cheaper = changes * near.amin(2) > once
    return rows, once.masked_fill_(cheaper, 0.0), near.mul_(cheaper[:, :, None])


def _through_lines(rows: Tensor, lines: Relaxation) -> tuple[Tensor, Tensor]:
    rows, gaps = _along(rows, lines)
    return rows, gaps.sum(2)


def _along(rows: Tensor, lines: Relaxation) -> tuple[Tensor, Tensor]:
    """Rows before an operation, and what the gap of each output adds: above zero by the lines below, else above."""
    below, above, gap_below, gap_above = lines.maps[:, :, None]
    if rows.is_cuda:  # the fewest passes over memory
        positive = rows > 0
        return torch.where(positive, below, above).mul_(rows), torch.where(positive, gap_below, gap_above).mul_(rows)
    # On a CPU choosing element by element is several times slower than arithmetic.
    up, down = rows.clamp(min=0), rows.clamp(max=0)
    return (up * below).addcmul_(down, above), up.mul_(gap_below).addcmul_(down, gap_above)


def neuron_rows(plan: Plan, position: int, neurons: Tensor) -> tuple[int, Tensor]:
    """Rows that stand for single neurons, int64 ``[batch, rows]``, and the position where they can start."""
    operation = plan.graph.operations[position]
    if operation.kind == "linear" and len(operation.shape) == 1:
        return operation.inputs[0], operation.tensors["weight"][neurons]
    unit = torch.zeros(*neurons.shape, plan.slack[position].numel(), device=plan.device, dtype=torch.float64)
    return position, unit.scatter_(2, neurons[:, :, None], 1.0)


@dataclass
class _Window:
    """Rows at one layer: coefficients ``[batch, rows, channels, height, width]`` and the windows' first positions."""

    rows: Tensor
    top: Tensor
    left: Tensor


def window_rows(plan: Plan, position: int, neurons: Tensor) -> tuple[int, _Window]:
    """Rows of single neurons of a map and their negatives, as windows.

    Args:
        plan: The network.
        position: One with a reach.
        neurons: int64 ``[batch]``, numbers in the flattened map.

    Returns:
        The position where the windows can start, and the windows, two rows each.
    """
    operation = plan.graph.operations[position]
    channels, height, width = operation.shape
    channel, rest = neurons // (height * width), neurons % (height * width)
    top, left = rest // width, rest % width
    if operation.kind == "conv" and int(operation.number("groups")) == 1 and operation.ints("dilation") == (1, 1):
        # Going back from a single output of a convolution gives its kernel.
        kernel = operation.tensors["weight"][channel][:, None]
        window = _Window(torch.cat([kernel, -kernel], 1), top, left)
        _move(plan, operation, window)
        return operation.inputs[0], window
    rows = torch.zeros(len(neurons), 2, channels, 1, 1, device=plan.device, dtype=torch.float64)
    number = torch.arange(len(neurons), device=plan.device)
    rows[number, 0, channel, 0, 0], rows[number, 1, channel, 0, 0] = 1.0, -1.0
    return position, _Window(rows, top, left)


def carry_window(
    plan: Plan, start: int, window: _Window, lines: GetLines, batch: Tensor, seen: tuple[int, int], changes: int = 0
) -> LinearBound:
    """Carry windows to the input.

    Args:
        plan: The network.
        start: A position with a reach.
        window: Rows there, which are used up.
        lines: Gives the lines of a nonlinear operation, for all search nodes.
        batch: int64 ``[batch]``, the search node of each window.
        seen: Height and width of the windows at the input.
        changes: See :func:`carry`.

    Returns:
        The form at the input, as windows.
    """
    constant = window.rows.new_zeros(window.rows.shape[:2])
    local: Tensor | None = None
    position = start
    while position:
        operation = plan.graph.operations[position]
        if is_nonlinear(operation):
            picked = _window_lines(operation, window, lines(position), batch)
            if changes:
                # Windows of one layer lie alike on the windows of the input: what they see begins at their corner.
                reach = plan.receptive_fields[position]
                size = window.rows.shape[3:]
                rows, more, near = _charge(
                    plan, position, window.rows.flatten(2), picked, changes, size, reach.offset, seen
                )
                local = near if local is None else local.add_(near)
            else:
                rows, more = _through_lines(window.rows.flatten(2), picked)
            constant += more
            window.rows = rows.view(window.rows.shape)
            if lines(position).index is not None:
                _window_pool(plan, operation, window, lines(position), batch)
        else:
            _window_linear(plan, position, window)
        position = operation.inputs[0]
    return LinearBound(window.rows.flatten(2), constant, local, window.top, window.left, seen)


def _window_index(window: _Window, shape: tuple[int, ...]) -> Tensor:
    """Numbers of a window's positions in a flattened map, ``[batch, channels, height, width]``; clamped outside."""
    channels, height, width = shape
    device = window.rows.device
    rows = window.top[:, None] + torch.arange(window.rows.shape[3], device=device)
    columns = window.left[:, None] + torch.arange(window.rows.shape[4], device=device)
    plane = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    return plane[:, None] + (torch.arange(channels, device=device) * height * width)[:, None, None]


def _window_lines(operation: Operation, window: _Window, lines: Relaxation, batch: Tensor) -> Relaxation:
    """The lines at each window's positions."""
    index = (_window_index(window, operation.shape) + (batch * lines.maps.shape[2])[:, None, None, None]).flatten(1)
    return Relaxation(lines.maps.flatten(1)[:, index])


def _window_linear(plan: Plan, position: int, window: _Window) -> None:
    operation, (batch, count) = plan.graph.operations[position], window.rows.shape[:2]

    def at(values: Tensor) -> Tensor:
        picked = values.reshape(-1)[_window_index(window, operation.shape)][:, None]
        return picked.expand(-1, count, -1, -1, -1).flatten(0, 1)

    rows = backward_window(plan, position, window.rows.flatten(0, 1), at)
    window.rows = rows.view(batch, count, *rows.shape[1:])
    _move(plan, operation, window)


def _move(plan: Plan, operation: Operation, window: _Window) -> None:
    """From positions of a linear operation's outputs to those of its inputs."""
    source = plan.graph.operations[operation.inputs[0]].shape
    rows, columns = (local_place(operation).window(operation, axis) for axis in (0, 1))
    window.top = window.top * rows.stride - rows.padding
    window.left = window.left * columns.stride - columns.padding
    # Padding may be at the end alone, where windows begin inside of the map and end after it.
    axes = zip((rows, columns), operation.shape[1:], source[1:], strict=True)
    if any(seen.padding > 0 or seen.sees(outputs) - seen.padding > inputs for seen, outputs, inputs in axes):
        _cut(window, source)


def _window_pool(plan: Plan, operation: Operation, window: _Window, lines: Relaxation, batch: Tensor) -> None:
    """Hand each output's coefficient to the input that its line belongs to."""
    assert lines.index is not None
    source = plan.graph.operations[operation.inputs[0]].shape
    _, source_height, source_width = source
    chosen = lines.index.flatten()[
        (_window_index(window, operation.shape) + (batch * lines.index.shape[1])[:, None, None, None])
    ]
    rows_seen, columns_seen = (local_place(operation).window(operation, axis) for axis in (0, 1))
    size = (rows_seen.sees(window.rows.shape[3]), columns_seen.sees(window.rows.shape[4]))
    top = window.top * rows_seen.stride - rows_seen.padding
    left = window.left * columns_seen.stride - columns_seen.padding
    channel, place = chosen // (source_height * source_width), chosen % (source_height * source_width)
    y = place // source_width - top[:, None, None, None]
    x = place % source_width - left[:, None, None, None]
    # Positions outside the map have coefficient 0, but their clamped choice may lie outside the window.
    index = channel * size[0] * size[1] + y.clamp(0, size[0] - 1) * size[1] + x.clamp(0, size[1] - 1)
    rows = window.rows.flatten(2)
    target = rows.new_zeros(*rows.shape[:2], source[0] * size[0] * size[1])
    target.scatter_add_(2, index.flatten(1)[:, None].expand_as(rows), rows)
    window.rows = target.view(*rows.shape[:2], source[0], *size)
    window.top, window.left = top, left
    _cut(window, source)


def _cut(window: _Window, shape: tuple[int, ...]) -> None:
    """Zero what lies in the padding around a map."""
    _, height, width = shape
    device = window.rows.device
    rows = window.top[:, None] + torch.arange(window.rows.shape[3], device=device)
    columns = window.left[:, None] + torch.arange(window.rows.shape[4], device=device)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    window.rows *= inside[:, None, None]
