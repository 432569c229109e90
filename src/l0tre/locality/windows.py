"""Exact effects of changed pixels, computed only inside the windows that they reach.

A change is carried through the local part of the network as a difference to the original activations: a linear
operation maps differences to differences, any other one is evaluated on the window taken from the original map.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.halting import beat
from l0tre.locality.local_part import LocalPlan, Span, is_curve, local_place, need, overlap, reach
from l0tre.model.graph import Operation, run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.conv import convolve
from l0tre.model.operations.kind import Join, Linear, LinearBounds, Selection
from l0tre.model.rounding import Peaks, gates

__all__ = [
    "Base",
    "Sites",
    "apply_head",
    "base_values",
    "carry",
    "carry_linear",
    "common_part",
    "convolve_window",
    "finish",
    "inside",
    "patches",
    "shifted",
    "sums_products",
    "window_values",
]

Box = tuple[Span, Span]  # rows and columns


@dataclass(frozen=True)
class Base:
    """The unchanged images.

    Attributes:
        maps: Output of every operation up to the cut, each ``[images, C, H, W]``.
        head: Output of the layer after the cut (``linear`` or ``mean``), ``[images, features]``.
        peaks: The largest values at what operations that are not linear read, by their number (see ``rounding.bends``).
        changes: Likewise the largest changes of these values that were met in windows.
        rests: Likewise the largest rests of pairs (see ``rests``).
    """

    maps: tuple[Tensor, ...]
    head: Tensor
    peaks: Peaks = field(default_factory=Peaks)
    changes: Peaks = field(default_factory=Peaks)
    rests: Peaks = field(default_factory=Peaks)


@dataclass(frozen=True)
class Sites:
    """Places where the same pattern of changes is looked at; all share one phase of the stride.

    Attributes:
        steps: int64 ``[2, sites]`` on the CPU: how many strides of the cut each place is away from the pattern's
            home, along rows and columns.
        rows: Window of every operation along rows, at the pattern's home.
        columns: Likewise along columns.
        known: Positions worked out already; they are the same for all images.
    """

    steps: Tensor
    rows: Mapping[int, Span]
    columns: Mapping[int, Span]
    known: dict[tuple[int, Box], tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return int(self.steps.shape[1])

    def part(self, first: int, last: int) -> "Sites":
        """Some of the places."""
        return Sites(self.steps[:, first:last], self.rows, self.columns)

    def box(self, place: int) -> Box:
        """Window of an operation at home."""
        return self.rows[place], self.columns[place]

    def positions(
        self, plan: LocalPlan, place: int, box: Box, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows ``[sites, rows, 1]`` and columns ``[sites, 1, columns]`` of a box on an operation's map, clamped to it.

        Returns:
            Both, and which positions are outside the map, bool ``[sites, rows, columns]``; ``None`` if none is.
        """
        key = (place, box)
        if key not in self.known:
            pace = plan.stride // plan.strides[place]
            height, width = plan.graph.operations[place].shape[1:]
            rows = (self.steps[0][:, None] * pace + torch.arange(box[0].first, box[0].last + 1))[:, :, None]
            columns = (self.steps[1][:, None] * pace + torch.arange(box[1].first, box[1].last + 1))[:, None, :]
            outside = ((rows < 0) | (rows >= height)) | ((columns < 0) | (columns >= width))
            mask = outside.to(device) if bool(outside.any()) else None
            self.known[key] = rows.clamp(0, height - 1).to(device), columns.clamp(0, width - 1).to(device), mask
        return self.known[key]


@torch.inference_mode()
def base_values(plan: LocalPlan, images: Tensor) -> Base:
    """Run the unchanged images.

    Args:
        plan: The local part; its head is not ``map``.
        images: float32 ``[images, C, H, W]``.

    Returns:
        Everything that windows are taken from.
    """
    values: dict[int, Tensor] = {0: images}
    for place, operation in enumerate(plan.graph.operations[1 : plan.tail], start=1):
        values[place] = run_operation(operation, *(values[source] for source in operation.inputs))
    base = Base(tuple(values[place] for place in range(plan.cut + 1)), values[plan.tail - 1].flatten(1))
    for place, number in plan.bends.items():
        operation = plan.graph.operations[place]
        if place <= plan.cut:
            base.peaks.see(number, base.maps[operation.inputs[0]], relu=gates(operation))
    return base


def carry(plan: LocalPlan, base: Base, sites: Sites, start: int, change: Tensor, upto: int | None = None) -> Tensor:
    """Carry a change from one operation to the cut (or to an earlier joint).

    Args:
        plan: The local part.
        base: The unchanged images.
        sites: Where, and the windows of all operations from ``start`` on.
        start: The joint at which the change is given.
        change: Difference to the original there, ``[images, sites, variants, C, rows, columns]``; it is overwritten.
        upto: Where to; default the cut.

    Returns:
        The difference at that operation, ``[images, sites, variants, C, rows, columns]`` in its window.
    """
    end = plan.cut if upto is None else upto
    last = plan.graph.last_use()
    values = {start: change}
    for place in range(start + 1, end + 1):
        if place not in sites.rows:
            continue
        beat()
        operation = plan.graph.operations[place]
        if not all(span.size for span in sites.box(place)):  # no position of this operation sees the change
            sizes = (span.size for span in sites.box(place))
            values[place] = change.new_zeros(*change.shape[:3], operation.shape[0], *sizes)
            continue
        sources = [values[source] for source in operation.inputs]
        if any(last[source] > place for source in operation.inputs) and is_curve(operation):
            sources = [source.clone() for source in sources]  # another operation still reads it
        values[place] = _step(plan, base, sites, place, operation, sources)
        for source in set(operation.inputs):
            if last[source] == place:
                del values[source]
    return values[end]


def _step(
    plan: LocalPlan, base: Base, sites: Sites, place: int, operation: Operation, sources: Sequence[Tensor]
) -> Tensor:
    box, origins = sites.box(place), [sites.box(source) for source in operation.inputs]
    first, source = sources[0], operation.inputs[0]
    if place in plan.bends:
        base.changes.see(plan.bends[place], first)
    if is_curve(operation):
        before = window_values(base.maps[source], plan, sites, source, box)
        value = shifted(first, origins[0], box).add_(before[:, :, None])
        # Outside the map nothing changed, and f(0) - f(0) is no change either.
        return run_operation(operation, value).sub_(run_operation(operation, before)[:, :, None])
    kind = KINDS[operation.kind]
    if isinstance(kind, Linear) and isinstance(kind.place, Join):
        parts = [shifted(value, origin, box) for value, origin in zip(sources, origins, strict=True)]
        return kind.place.combine(operation, parts, 3)
    if isinstance(kind, Selection):
        wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
        patch = window_values(base.maps[source], plan, sites, source, wanted, float("-inf"))
        value = shifted(first, origins[0], wanted) + patch[:, :, None]
        result = patches(operation, value) - patches(operation, patch[:, :, None])
        # Where a whole patch lies outside, infinity minus infinity; the mask below clears it.
        return inside(result, plan, sites, place)
    return carry_linear(plan, sites, place, operation, first)


def carry_linear(plan: LocalPlan, sites: Sites, place: int, operation: Operation, value: Tensor) -> Tensor:
    """A difference after a convolution, an average pool, a scaling or a padding.

    Args:
        plan: The local part.
        sites: Where, and the windows of the operation and of what it reads.
        place: The operation's number.
        operation: The operation.
        value: The difference that it reads, ``[images, sites, variants, C, rows, columns]``.

    Returns:
        The difference in the operation's window; never the given tensor itself.
    """
    box, origin = sites.box(place), sites.box(operation.inputs[0])
    wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
    if sums_products(operation):
        return inside(convolve_window(plan, operation, value, origin, wanted, box), plan, sites, place)
    result = patches(operation, shifted(value, origin, wanted))
    if local_place(operation).spills:
        return inside(result, plan, sites, place)
    return result.clone() if result.data_ptr() == value.data_ptr() else result


def sums_products(operation: Operation) -> bool:
    """Whether an operation is a convolution, whose windows can be written as matrices."""
    kind = KINDS[operation.kind]
    return isinstance(kind, Linear) and isinstance(kind.bounds, LinearBounds) and kind.bounds.products(operation) > 0


def patches(operation: Operation, value: Tensor) -> Tensor:
    """An operation on ready-made patches ``[images, sites, variants, C, rows, columns]``: no padding, no constants."""
    result = local_place(operation).patches(operation, value.flatten(0, 2))
    return result.reshape(*value.shape[:3], *result.shape[1:])


def convolve_window(plan: LocalPlan, operation: Operation, value: Tensor, now: Box, wanted: Box, box: Box) -> Tensor:
    """A convolution of a difference known on ``now``, for the outputs in ``box`` that read ``wanted``; no bias."""
    channels, rows, columns = value.shape[3:]
    weight, groups = operation.tensors["weight"], int(operation.number("groups"))
    out = (weight.shape[0], box[0].size, box[1].size)
    flat = value.flatten(0, 2)

    def windows(x: Tensor) -> Tensor:
        return convolve(operation, shifted(x, now, wanted), None, (0, 0))

    # A convolution of a small window is faster as one matrix product: on a GPU unless the matrix is mostly zeros, on a
    # CPU only if it has few rows.
    entries, tuning = channels * rows * columns * out[0] * out[1] * out[2], plan.tuning
    if value.is_cuda:
        as_matrix = entries <= min(tuning.matrix_size, tuning.matrix_work * out[1] * out[2] * weight.numel())
    else:
        most = tuning.matrix_rows_64 if value.dtype == torch.float64 else tuning.matrix_rows
        as_matrix = channels * rows * columns <= most
    if as_matrix:
        # Only sizes and distances count, so that many patterns share a matrix.
        key: Hashable = (
            id(weight),
            *((a.size, b.first - a.first, b.last - a.last, c.size) for a, b, c in zip(now, wanted, box, strict=True)),
        )
        if key not in plan.matrices:
            if sum(matrix.numel() for matrix in plan.matrices.values()) > tuning.matrix_entries:
                plan.matrices.clear()
            unit = torch.eye(channels * rows * columns, device=value.device, dtype=value.dtype)
            plan.matrices[key] = windows(unit.reshape(-1, channels, rows, columns)).flatten(1)
        result = flat.flatten(1) @ plan.matrices[key]
    elif not value.is_cuda and groups == 1 and operation.ints("stride") == (1, 1):
        # The other way round: what every input adds to its outputs, without multiplying the zeros around it.
        key = ("turned", id(weight))
        if key not in plan.matrices:
            turned = weight.transpose(0, 1).flip(2, 3)
            plan.matrices[key] = (turned.permute(2, 3, 0, 1) if weight.dtype == torch.float64 else turned).contiguous()
        spread = _spread if weight.dtype == torch.float64 else F.conv_transpose2d
        full = spread(flat, plan.matrices[key], dilation=operation.pair("dilation"))
        reached = (reach(operation, [now[0]], 0), reach(operation, [now[1]], 1))
        result = shifted(full, reached, box)
    else:
        result = windows(flat)
    return result.reshape(*value.shape[:3], *out)


def _spread(x: Tensor, weight: Tensor, *, dilation: tuple[int, int]) -> Tensor:
    """What inputs ``[n, C, rows, columns]`` add to outputs by weights ``[height, width, C, out]``: a product for each.

    In float64, PyTorch has one small product for each of the ``n`` instead.
    """
    n, _, rows, columns = x.shape
    height, width, _, out = weight.shape
    flat = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    found = x.new_zeros(n, rows + (height - 1) * dilation[0], columns + (width - 1) * dilation[1], out)
    for i in range(height):
        for j in range(width):
            top, left = i * dilation[0], j * dilation[1]
            found[:, top : top + rows, left : left + columns] += (flat @ weight[i, j]).view(n, rows, columns, out)
    return found.permute(0, 3, 1, 2).contiguous()


def common_part(value: Tensor, now: Box, wanted: Box) -> tuple[Tensor, Box]:
    """The part of something known on one box (its last two dimensions) that another box wants, and where that is.

    To cut before rows are picked copies only what is wanted; :func:`shifted` then adds the zeros around.
    """
    common = (overlap(now[0], wanted[0]), overlap(now[1], wanted[1]))
    rows, columns = (slice(c.first - n.first, max(c.last - n.first + 1, 0)) for n, c in zip(now, common, strict=True))
    return value[..., rows, columns], common


def shifted(value: Tensor, now: Box, wanted: Box) -> Tensor:
    """A difference known on one box, on another one: zero outside, cut where it is larger."""
    if now == wanted:
        return value
    (rows, columns), (to_rows, to_columns) = now, wanted
    if not (overlap(rows, to_rows).size and overlap(columns, to_columns).size):
        return value.new_zeros(*value.shape[:-2], to_rows.size, to_columns.size)
    return F.pad(
        value,
        (
            columns.first - to_columns.first,
            to_columns.last - columns.last,
            rows.first - to_rows.first,
            to_rows.last - rows.last,
        ),
    )


def window_values(source: Tensor, plan: LocalPlan, sites: Sites, place: int, box: Box, fill: float = 0.0) -> Tensor:
    """Windows of a map ``[n, C, H, W]`` as ``[n, sites, C, rows, columns]``; ``fill`` outside the map."""
    rows, columns, outside = sites.positions(plan, place, box, source.device)
    # Advanced indices in the last two places give [n, C, sites, rows, columns].
    found = source[:, :, rows, columns].transpose(1, 2)
    return found if outside is None else found.masked_fill(outside[:, None], fill)


def inside(value: Tensor, plan: LocalPlan, sites: Sites, place: int, box: Box | None = None) -> Tensor:
    """No difference outside the map, where there is nothing; in the operation's window or another box."""
    outside = sites.positions(plan, place, box or sites.box(place), value.device)[2]
    return value if outside is None else value.masked_fill_(outside[:, None, None], 0.0)


def apply_head(plan: LocalPlan, sites: Sites, change: Tensor) -> Tensor:
    """The difference after the cut: of the dense layer's or the mean's output.

    Args:
        plan: The local part, with a ``linear`` or ``mean`` head.
        sites: Where; the window is that of the cut.
        change: ``[images, sites, variants, C, rows, columns]``.

    Returns:
        ``[images, sites, variants, features]``.
    """
    shape = plan.graph.operations[plan.cut].shape
    if plan.head == "mean":
        return change.sum((4, 5)) / (shape[1] * shape[2])
    if "head" not in plan.matrices:
        weight = plan.graph.operations[plan.tail - 1].tensors["weight"].reshape(-1, *shape)
        plan.matrices["head"] = weight.permute(2, 3, 1, 0).contiguous()  # [H, W, C, features]: windows copy fast
    rows, columns, _ = sites.positions(plan, plan.cut, sites.box(plan.cut), change.device)
    # Outside the map any weight will do: there is no change.
    matrix = plan.matrices["head"][rows, columns].flatten(1, 3)  # [sites, rows * columns * C, features]
    images, count, variants = change.shape[:3]
    flat = change.permute(1, 0, 2, 4, 5, 3).reshape(count, images * variants, -1)
    return torch.bmm(flat, matrix).reshape(count, images, variants, -1).transpose(0, 1)


def finish(plan: LocalPlan, head: Tensor, peaks: Peaks) -> Tensor:
    """Run the rest of the network.

    Args:
        plan: The local part.
        head: Output of the head, ``[rows, features]``.
        peaks: Receives the largest values on the way.

    Returns:
        Scores, ``[rows, classes]``.
    """
    values = {plan.tail - 1: head.reshape(-1, *plan.graph.operations[plan.tail - 1].shape)}
    for place, operation in enumerate(plan.graph.operations[plan.tail :], start=plan.tail):
        if place in plan.bends:
            for source in operation.inputs:
                peaks.see(plan.bends[place], values[source], relu=gates(operation))
        values[place] = run_operation(operation, *(values[source] for source in operation.inputs))
    return values[len(plan.graph.operations) - 1]
