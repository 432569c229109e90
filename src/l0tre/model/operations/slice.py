"""Slices: starts, steps and sizes for every dimension of a sample, and the shape of what is sliced (source)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from l0tre.model.operations.kind import At, Linear, LinearBounds, Local, Window
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import always, few_terms, no_matrix, two_terms, whole

if TYPE_CHECKING:
    from l0tre.model.call_site import CallSite, Var
    from l0tre.model.graph import GraphBuilder
    from l0tre.model.onnx_call import OnnxCall

__all__ = ["ATEN", "ONNX", "SLICE"]

T = TypeVar("T")


def _slices(operation: Operation) -> list[slice]:
    settings = zip(*(operation.ints(key) for key in ("starts", "steps", "sizes")), strict=True)
    return [slice(start, start + (size - 1) * step + 1, step) for start, step, size in settings]


def _forward(operation: Operation, x: Tensor) -> Tensor:
    return x[:, *_slices(operation)]


def _backward(operation: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    result = rows.new_zeros(*rows.shape[:2], *sources[0])
    result[:, :, *_slices(operation)] = rows
    return [result]


def _backward_window(operation: Operation, rows: Tensor, _: At) -> Tensor:
    steps = operation.ints("steps")[1:]
    height, width = ((length - 1) * step + 1 for length, step in zip(rows.shape[2:], steps, strict=True))
    result = rows.new_zeros(len(rows), operation.ints("source")[0], height, width)
    result[:, _slices(operation)[0], :: steps[0], :: steps[1]] = rows
    return result


def _patches(operation: Operation, x: Tensor) -> Tensor:
    _, rows, columns = operation.ints("steps")
    return x[:, _slices(operation)[0], ::rows, ::columns].clone()  # what it gives is changed in place


def _window(operation: Operation, axis: int) -> Window:
    return Window(stride=operation.ints("steps")[1 + axis], padding=-operation.ints("starts")[1 + axis])


def _sees(operation: Operation, source: tuple[int, ...]) -> bool:
    return len(source) == 3 == len(operation.shape)


SLICE = Linear(
    forward=_forward,
    absolute=lambda operation, _, __: operation,
    summing="move",
    terms=two_terms,
    place=Local(_sees, always, _window, _patches, spills=True),
    bounds=LinearBounds(
        magnitude=whole,
        plain=whole,
        backward=_backward,
        backward_window=_backward_window,
        products=no_matrix,
        terms=few_terms,
    ),
)


@dataclass(frozen=True)
class _Sliced:
    """What a slice reads and takes."""

    source: int
    shape: tuple[int, ...]
    ranges: list[range]

    def add(self, add: Callable[..., T]) -> T:
        """Add the operation by a function that takes its attributes."""
        return add(
            starts=tuple(taken.start for taken in self.ranges),
            steps=tuple(taken.step for taken in self.ranges),
            sizes=tuple(len(taken) for taken in self.ranges),
            source=self.shape,
        )


def _sliced(builder: "GraphBuilder", source: int, slices: Mapping[int, slice]) -> _Sliced:
    """Slices along some dimensions of a sample; a slice of a slice is one slice."""
    shape = builder.shape(source)
    ranges = [range(size)[slices.get(dim, slice(None))] for dim, size in enumerate(shape)]
    before = builder.operations[source]
    if before.kind == "slice":
        earlier = zip(*(before.ints(key) for key in ("starts", "steps", "sizes")), strict=True)
        ranges = [
            range(start, start + step * size, step)[taken.start : taken.stop : taken.step]
            for (start, step, size), taken in zip(earlier, ranges, strict=True)
        ]
        (source,), shape = before.inputs, before.ints("source")
    return _Sliced(source, shape, ranges)


def _aten_slice(site: "CallSite", a: Mapping[str, object]) -> "Var":
    source = site.variable(a["self"])
    (dim,) = site.ints(a["dim"])
    start, end = (None if a[key] is None else site.ints(a[key])[0] for key in ("start", "end"))
    (step,) = site.ints(a["step"])
    if step < 1:
        raise site.refuse(f"has the step {step}; only positive steps are supported")
    if dim % (len(site.sample(source)) + 1) == 0 and range(site.batch)[start:end:step] == range(site.batch):
        return site.same(source)
    found = _sliced(site.builder, source, {site.dim(dim, source): slice(start, end, step)})
    if not all(found.ranges):
        raise site.refuse("leaves nothing")
    return found.add(partial(site.add, "slice", [found.source]))


ATEN: Mapping[str, Callable[["CallSite", Mapping[str, object]], object]] = {"aten.slice.Tensor": _aten_slice}


def _onnx_slice(call: "OnnxCall") -> int:
    source, rank = call.variable(), len(call.shape()) + 1
    starts, ends = ([int(n) for n in call.given(position)] for position in (1, 2))
    axes, steps = call.constant(3), call.constant(4)
    along = range(len(starts)) if axes is None else [int(axis) for axis in axes]
    paces = [1] * len(starts) if steps is None else [int(step) for step in steps]
    if min(paces, default=1) < 1:
        raise call.refuse(f"has the steps {paces}; only positive steps are supported")
    slices = {
        call.dim(axis, rank): slice(start, end, step)
        for axis, start, end, step in zip(along, starts, ends, paces, strict=True)
        if axis % rank or (start, step) != (0, 1) or end < 2**31 - 1
    }
    found = _sliced(call.builder, source, slices)
    if not all(found.ranges):
        raise call.refuse("leaves nothing")
    return found.add(partial(call.add, "slice", found.source))


ONNX: Mapping[str, Callable[["OnnxCall"], int]] = {"Slice": _onnx_slice}
