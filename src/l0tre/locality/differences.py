"""What changed pixels do to a network's output, carried forwards as the difference to the unchanged image.

A difference lives in a box of each map, the positions that the changed pixels reach, and is zero elsewhere; the box
grows from layer to layer until it is the whole map. So early layers cost little, late ones what a forward pass costs,
and no layer has to be named where the one way ends and the other begins.

Linear operations map differences to differences. Their rounding errors are a share of the difference itself, not of
the values that it is added to: even half precision, scaled so that small numbers do not vanish, knows a change of a
thousandth of a score to three digits, where the score itself would have lost it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.locality.fused import fused_change
from l0tre.locality.local_part import Span, is_local, local_place, need, reach
from l0tre.locality.own_padding import pad_inside
from l0tre.locality.windows import Box, shifted, sums_products
from l0tre.model.graph import Graph, Operation, run_operation
from l0tre.model.network import exact_float32
from l0tre.model.operations import KINDS
from l0tre.model.operations.conv import convolve
from l0tre.model.operations.kind import Curve, Join, Linear, LinearBounds, Selection

__all__ = [
    "FLOAT32",
    "HALF",
    "Differences",
    "Precision",
    "Watch",
    "boxes",
    "make_differences",
    "output_change",
    "row_bytes",
]

LARGE = 6e4  # half precision ends at 65504

# The position of an operation, which of its inputs, and its change: ``[rows, C, rows of the box, columns of the box]``
# or ``[rows, *shape]``.
Watch = Callable[[int, int, Tensor], None]


@dataclass(frozen=True)
class Precision:
    """How differences are stored and multiplied.

    Attributes:
        dtype: float32, or float16 on a GPU.
        scale: Differences are stored so many times as large, a power of two: float16 has no small numbers.
    """

    dtype: torch.dtype
    scale: float


FLOAT32 = Precision(torch.float32, 1.0)
HALF = Precision(torch.float16, 256.0)


@dataclass(frozen=True)
class Differences:
    """A network around one image.

    Attributes:
        graph: Its operations in float32; convolutions pad by themselves.
        constants: The operations without additive constants, in the precision of the differences, by position.
        base: Output of every operation for the unchanged image, float32 ``[1, *shape]``.
        precision: Of the differences.
    """

    graph: Graph
    constants: Mapping[int, Operation]
    base: tuple[Tensor, ...]
    precision: Precision


@torch.inference_mode()
def make_differences(graph: Graph, image: Tensor, precision: Precision) -> Differences:
    """Get ready for one image.

    Args:
        graph: The network, float32 on the image's device.
        image: float32 ``input_shape``.
        precision: Of the differences.

    Returns:
        The network around it.
    """
    graph = pad_inside(graph)
    with exact_float32(image.device):
        values = [_arranged(image[None], precision)]
        for operation in graph.operations[1:]:
            values.append(run_operation(operation, *(values[source] for source in operation.inputs)))
    constants = {}
    for place, operation in enumerate(graph.operations):
        kind = KINDS[operation.kind] if place else None
        if isinstance(kind, Linear) and isinstance(kind.bounds, LinearBounds):
            plain = kind.bounds.plain(operation)
            tensors = {key: _arranged(value.to(precision.dtype), precision) for key, value in plain.tensors.items()}
            constants[place] = replace(plain, tensors=tensors)
        elif place:
            constants[place] = operation
    return Differences(graph, constants, tuple(values), precision)


def _arranged(x: Tensor, precision: Precision) -> Tensor:
    """Maps and kernels with their channels last in half precision, as a GPU's tensor cores take them, and on a CPU."""
    last = x.ndim == 4 and (precision.dtype == torch.float16 or not x.is_cuda)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def boxes(graph: Graph, box: Box | None, *, even: bool = False) -> tuple[Box | None, ...]:
    """The box of every operation in which a change of the input inside a box can be seen.

    Args:
        graph: The network.
        box: Rows and columns of the input; ``None`` for all of it, or if it is no map.
        even: Whether boxes at the edges are as large as those in the middle: more work, but of fewer shapes, each of
            which a GPU has to plan.

    Returns:
        One box for each operation, ``None`` where it is everything.
    """
    found: list[Box | None] = [box]
    for operation in graph.operations[1:]:
        sources = [found[source] for source in operation.inputs]
        shapes = [graph.operations[source].shape for source in operation.inputs]
        known = [source for source in sources if source is not None]
        if len(known) < len(sources) or not is_local(operation, shapes):
            found.append(None)
            continue
        within = _moved if even else _clipped
        rows, columns = (
            within(reach(operation, [source[axis] for source in known], axis), operation.shape[1 + axis])
            for axis in (0, 1)
        )
        found.append((rows, columns))
    return tuple(found)


def _clipped(span: Span, size: int) -> Span:
    """A span within a map; of an empty one the nearest position, where the difference is zero."""
    first = min(max(span.first, 0), size - 1)
    return Span(first, max(first, min(span.last, size - 1)))


def _moved(span: Span, size: int) -> Span:
    """A span of the same length that holds what another one has of a map; the map if that is shorter."""
    length = min(max(span.size, 1), size)
    first = min(max(span.first, 0), size - length)
    return Span(first, first + length - 1)


def row_bytes(graph: Graph, where: Sequence[Box | None], precision: Precision) -> int:
    """Estimated peak memory of one row, in bytes: the largest inputs and outputs alive together, with copies."""
    sizes = []
    for operation, box in zip(graph.operations, where, strict=True):
        positions = operation.shape[1:] if box is None else (box[0].size, box[1].size)
        sizes.append(torch.Size((*operation.shape[:1], *positions)).numel())
    last = graph.last_use()
    alive, most = set[int](), 0
    for place, operation in enumerate(graph.operations):
        alive.add(place)
        most = max(
            most, sum(sizes[other] for other in alive) + 2 * sizes[place] + sum(sizes[s] for s in operation.inputs)
        )
        alive = {other for other in alive if last[other] > place}
    return precision.dtype.itemsize * most


@torch.inference_mode()
def output_change(around: Differences, change: Tensor, where: Sequence[Box | None], see: Watch | None = None) -> Tensor:
    """What changes of the input do to the output.

    Args:
        around: The network around the image.
        change: Difference to the image, float32 ``[rows, C, rows of the box, columns of the box]``, or ``[rows,
            *input_shape]`` where the input's box is everything.
        where: What :func:`boxes` gives.
        see: Shown the changes of what every operation reads that is not linear.

    Returns:
        float32 ``[rows, *output_shape]``; not finite where half precision does not suffice.
    """
    graph, precision = around.graph, around.precision
    last = graph.last_use()
    values = {0: _arranged((change * precision.scale).to(precision.dtype), precision)}
    with exact_float32(change.device):
        for place, operation in enumerate(graph.operations[1:], start=1):
            sources = [values[source] for source in operation.inputs]
            origins = [where[source] for source in operation.inputs]
            box = where[place]
            if see is not None and not isinstance(KINDS[operation.kind], Linear):
                for slot, value in enumerate(sources):
                    see(place, slot, value)
            # What a convolution or a dense layer gives is a tensor of its own.
            source = operation.inputs[0]
            spare = source > 0 and last[source] == place and sums_products(graph.operations[source])
            if box is None:
                spread = [
                    _whole(value, origin, graph.operations[source].shape)
                    for value, origin, source in zip(sources, origins, operation.inputs, strict=True)
                ]
                values[place] = _step(around, place, spread, spare)
            else:
                known = [origin for origin in origins if origin is not None]
                values[place] = _window_step(around, place, sources, known, box, spare)
            for source in {*operation.inputs}:
                if last[source] == place:
                    del values[source]
    return values[len(graph.operations) - 1].float() / precision.scale


def _whole(value: Tensor, box: Box | None, shape: Sequence[int]) -> Tensor:
    """A difference known in a box on its whole map."""
    if box is None:
        return value
    return shifted(value, box, (Span(0, shape[1] - 1), Span(0, shape[2] - 1)))


def _part(value: Tensor, box: Box) -> Tensor:
    rows, columns = box
    return value[:, :, rows.first : rows.last + 1, columns.first : columns.last + 1]


def _window_step(
    around: Differences, place: int, sources: Sequence[Tensor], origins: Sequence[Box], box: Box, spare: bool
) -> Tensor:
    """One operation in windows; ``spare`` says that nothing else reads what it reads."""
    operation, source = around.graph.operations[place], around.graph.operations[place].inputs[0]
    kind, plain = KINDS[operation.kind], around.constants[place]
    first, origin = sources[0], origins[0]
    if isinstance(kind, Curve):
        before, after = (_part(around.base[of], box) for of in (source, place))
        return _curve(operation, shifted(first, origin, box), before, after, around.precision, spare)
    if isinstance(kind, Linear) and isinstance(kind.place, Join):
        parts = [shifted(value, now, box) for value, now in zip(sources, origins, strict=True)]
        return kind.place.combine(operation, parts, 1)
    wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
    if isinstance(kind, Selection):
        scale = around.precision.scale
        known = (_clipped(wanted[0], around.base[source].shape[2]), _clipped(wanted[1], around.base[source].shape[3]))
        before = F.pad(
            _part(around.base[source], known),
            (
                known[1].first - wanted[1].first,
                wanted[1].last - known[1].last,
                known[0].first - wanted[0].first,
                wanted[0].last - known[0].last,
            ),
            value=float("-inf"),
        )
        value = local_place(operation).patches(operation, shifted(first, origin, wanted) / scale + before)
        return ((value - _part(around.base[place], box)) * scale).to(around.precision.dtype)
    if operation.kind == "conv":
        sides = [(now.first - wish.first, wish.last - now.last) for now, wish in zip(origin, wanted, strict=True)]
        # The zeros that a convolution puts around both ends cost no copy; a few too many at the far end, fewer than
        # its stride, reach no output.
        strides = operation.ints("stride")
        if all(
            near >= 0
            and far <= near
            and (origin[axis].size + 2 * near - _extent(operation, axis)) // strides[axis] + 1 == box[axis].size
            for axis, (near, far) in enumerate(sides)
        ):
            return convolve(plain, first, None, (sides[0][0], sides[1][0]))
        return convolve(plain, shifted(first, origin, wanted), None, (0, 0))
    return local_place(operation).patches(plain, shifted(first, origin, wanted))


def _extent(operation: Operation, axis: int) -> int:
    window = local_place(operation).window(operation, axis)
    return (window.kernel - 1) * window.dilation + 1


def _step(around: Differences, place: int, sources: Sequence[Tensor], spare: bool) -> Tensor:
    """One operation on whole values; see :func:`_window_step`."""
    operation, precision = around.graph.operations[place], around.precision
    kind = KINDS[operation.kind]
    before = [around.base[source] for source in operation.inputs]
    if isinstance(kind, Curve):
        return _curve(operation, sources[0], before[0], around.base[place], precision, spare)
    if isinstance(kind, Linear) and isinstance(kind.bounds, LinearBounds):
        return run_operation(around.constants[place], *sources)
    if operation.kind == "mul":
        # (a + da)(b + db) - ab, without the large product that would round the small one away.
        (a, b), (da, db) = before, sources
        if da.numel() < db.numel():
            a, b, da, db = b, a, db, da
        return torch.addcmul(da * (b.to(da.dtype) + db / precision.scale), a.to(da.dtype), db)
    changed = (value / precision.scale + own for value, own in zip(sources, before, strict=True))
    after = run_operation(operation, *changed) - around.base[place]
    return (after * precision.scale).to(precision.dtype)


def _curve(
    operation: Operation, change: Tensor, before: Tensor, after: Tensor, precision: Precision, spare: bool
) -> Tensor:
    """An elementwise operation: what it makes of a change of its input, in whose place it may stand if that is spare.

    ReLU and clip move the change to where the limits are, so that nothing large is added and taken off again.
    """
    fused = fused_change(operation, change, before, precision.scale)
    if fused is not None:
        return fused
    if operation.kind in ("relu", "clip"):
        high = None
        if operation.kind == "relu":
            low, gone = -before, before.clamp(max=0)
        else:
            limits = (operation.number("low"), operation.number("high"))
            low, high = (_stored(limit - before, precision) for limit in limits)
            gone = before - after
        low, gone = _stored(low, precision), _stored(gone, precision)
        return torch.clamp(change, low, high, out=change if spare else None).add_(gone)
    if change.dtype == torch.float32:
        return run_operation(operation, change + before).sub_(after)
    value = run_operation(operation, change / precision.scale + before)
    return ((value - after) * precision.scale).to(precision.dtype)


def _stored(value: Tensor, precision: Precision) -> Tensor:
    if precision.dtype == torch.float32:
        return value
    return (value * precision.scale).clamp(-LARGE, LARGE).to(precision.dtype)
