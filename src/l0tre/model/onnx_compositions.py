"""What the ONNX operators become that are compositions of others: transposed ones, sequences, resizing, choices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from l0tre.model import compositions
from l0tre.model.compositions import Composer
from l0tre.model.onnx_call import Array, OnnxCall, Value

__all__ = ["COMPOSITIONS", "composer", "or_sequences", "padded_by_mode"]

Handler = Callable[[OnnxCall], Value]


def composer(call: OnnxCall) -> Composer:
    """What adds the operations of a call."""
    return Composer(call.builder, call.name)


def _map(call: OnnxCall) -> int:
    if len(call.shape()) != 3:
        raise call.refuse(
            f"works on samples of shape {call.shape()}; only images (channels, height, width) are supported"
        )
    return call.variable()


def or_sequences(handler: Handler) -> Handler:
    """The handler of an operator on maps as one for sequences ``(C, L)`` too: maps of one row."""

    def handle(call: OnnxCall) -> Value:
        if len(call.shape()) != 2:
            return handler(call)
        on_row = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0}
        attributes = {key: (on_row[key], *value) if key in on_row else value for key, value in call.attributes.items()}
        if "pads" in attributes:
            first, last = attributes["pads"]
            attributes["pads"] = (0, first, 0, last)
        weights = [value if value is None or value.ndim != 3 else value[:, :, None] for value in _constants(call)]

        def work(position: int) -> int:
            lifted = replace(call, inputs=[position, *weights], attributes=attributes)
            return replace(call, inputs=[handler(lifted)]).variable()

        return compositions.lifted(composer(call), call.variable(), work)

    return handle


def _constants(call: OnnxCall) -> list[Array | None]:
    return [call.constant(index) for index in range(1, len(call.inputs))]


def _exact(call: OnnxCall, value: Array, index: int = 0) -> Tensor:
    return call.tensor(call.per_sample(value, call.shape(index)))


def _prelu(call: OnnxCall) -> Value:
    return compositions.prelu(composer(call), call.variable(), _exact(call, call.given(1)))


def _absolute(call: OnnxCall) -> Value:
    return compositions.absolute(composer(call), call.variable())


def _extreme(call: OnnxCall) -> Value:
    """The largest or smallest of several values, constants among them."""
    sign = 1 if call.operator == "Max" else -1
    order = sorted(range(len(call.inputs)), key=lambda index: not isinstance(call.inputs[index], int))
    found = call.variable(order[0])
    for index in order[1:]:
        value = call.inputs[index]
        if isinstance(value, int) and len(call.shape(index)) != len(call.builder.shape(found)):
            raise call.refuse(f"combines samples of shapes {call.builder.shape(found)} and {call.shape(index)}")
        other = value if isinstance(value, int) else _exact(call, call.given(index), order[0])
        found = compositions.larger(composer(call), found, other, 1 if sign > 0 else -1)
    return found


def _conv_transpose(call: OnnxCall) -> Value:
    source, weight, bias = _map(call), call.given(1), call.constant(2)
    if call.attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or "output_shape" in call.attributes:
        raise call.refuse("has auto_pad or output_shape; export it with explicit pads")
    stride, dilation = call.ints("strides", (1, 1)), call.ints("dilations", (1, 1))
    pads, more = call.ints("pads", (0, 0, 0, 0)), call.ints("output_padding", (0, 0))
    if not len(stride) == len(dilation) == len(more) == 2 == weight.ndim - 2 == len(pads) / 2:
        raise call.refuse(f"has strides {stride}, dilations {dilation}, pads {pads}; expected 2-D")
    return compositions.transposed_conv(
        composer(call),
        source,
        call.tensor(weight),
        None if bias is None else call.tensor(bias),
        (stride[0], stride[1]),
        (pads[0], pads[1]),
        (pads[2] - more[0], pads[3] - more[1]),
        (dilation[0], dilation[1]),
        int(call.number("group", 1)),
    )


def _depth_to_space(call: OnnxCall) -> Value:
    last = call.attributes.get("mode", b"DCR") == b"DCR"
    return compositions.shuffle(composer(call), _map(call), int(call.attributes["blocksize"]), channels_last=last)


def padded_by_mode(call: OnnxCall, mode: str, padding: Sequence[int]) -> Value:
    """A map padded with its own values.

    Args:
        call: The call.
        mode: ``reflect`` or ``edge``.
        padding: As ``F.pad`` takes it, last axis first.
    """
    source = _map(call)
    if any(padding[4:]) or mode not in ("reflect", "edge"):
        raise call.refuse(f"pads in mode {mode}; only rows and columns of images can be padded so")
    kind = {"reflect": "reflect", "edge": "replicate"}[mode]
    return _separable(call, source, lambda x: F.pad(x, list(padding[:4]), mode=kind))


def _separable(call: OnnxCall, source: int, function: Callable[[Tensor], Tensor]) -> int:
    found = compositions.separable(composer(call), source, function)
    if found is None:
        raise call.refuse("works on too large a map")
    return found


def _resize(call: OnnxCall) -> Value:
    """Resizing as PyTorch's exporter writes it."""
    source = _map(call)
    _, height, width = call.shape()
    scales, sizes = (call.constant(index) if index < len(call.inputs) else None for index in (2, 3))
    mode, where = (call.attributes.get(key, default).decode() for key, default in _RESIZE)
    if call.attributes.get("antialias") or call.attributes.get("axes") is not None:
        raise call.refuse("has antialias or axes, which are not supported")
    kind = {"nearest": "nearest", "linear": "bilinear"}.get(mode)
    rounding = call.attributes.get("nearest_mode", b"round_prefer_floor").decode()
    known = where == "asymmetric" and rounding == "floor" if kind == "nearest" else where in _LINEAR
    if kind is None or not known:
        raise call.refuse(f"resizes by {mode}, {where}, {rounding}; only what PyTorch exports is supported")
    corners = None if kind == "nearest" else where == "align_corners"
    if scales is not None and scales.size:
        if scales.size != 4 or (scales[:2] != 1).any():
            raise call.refuse("resizes samples or channels")
        factors = (float(scales[2]), float(scales[3]))
        return _separable(
            call, source, lambda x: F.interpolate(x, scale_factor=factors, mode=kind, align_corners=corners)
        )
    if sizes is None or sizes.size != 4:
        raise call.refuse("has neither scales nor sizes for images")
    target = (int(sizes[2]), int(sizes[3]))
    if kind == "nearest" and (target[0] % height or target[1] % width):
        raise call.refuse(f"turns {height} x {width} into {target}; only whole multiples are supported")
    return _separable(call, source, lambda x: F.interpolate(x, size=target, mode=kind, align_corners=corners))


_RESIZE = (("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel"))
_LINEAR = ("half_pixel", "pytorch_half_pixel", "align_corners")


def _split(call: OnnxCall) -> tuple[Value, ...]:
    rank = len(call.shape()) + 1
    dim = call.dim(int(call.number("axis", 0)), rank)
    length, given = call.shape()[dim], call.constant(1)
    if "split" in call.attributes:
        given = np.array(call.attributes["split"])
    if given is None:
        parts = int(call.number("num_outputs", 0)) or call.outputs
        size = -(-length // parts)
        sizes = [min(size, length - start) for start in range(0, length, size)]
    else:
        sizes = [int(size) for size in given]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    add = composer(call)
    return tuple(add.slice(call.variable(), dim, range(a, a + n)) for a, n in zip(starts, sizes, strict=True))


def _reduce_sum(call: OnnxCall) -> Value:
    axes, rank = call.axes(1), len(call.shape()) + 1
    if not axes:
        raise call.refuse("works across the samples of a batch")
    dims = [call.dim(axis, rank) for axis in axes]
    return compositions.summed(composer(call), call.variable(), dims, keep=bool(call.number("keepdims", 1)))


def _reduce_max(call: OnnxCall) -> Value:
    source, axes = _map(call), call.axes(1)
    if axes is None or sorted(call.dim(axis, 4) for axis in axes) != [1, 2]:
        raise call.refuse("is not over the rows and columns of maps")
    return compositions.top_of_planes(composer(call), source, keep=bool(call.number("keepdims", 1)))


def _gather(call: OnnxCall) -> Value:
    """One place of an axis, or places at equal distances."""
    index, rank = call.given(1), len(call.shape()) + 1
    dim = call.dim(int(call.number("axis", 0)), rank)
    shape = call.shape()
    places = [int(place) % shape[dim] for place in index.reshape(-1)]
    step = places[1] - places[0] if len(places) > 1 else 1
    taken = range(places[0], places[0] + step * len(places), step) if step else range(0)
    if index.ndim > 1 or list(taken) != places or step < 1:
        raise call.refuse("picks places that are not at equal distances")
    found = composer(call).slice(call.variable(), dim, range(places[0], places[-1] + 1, step))
    if index.ndim == 1:
        return found
    rest = (*shape[:dim], *shape[dim + 1 :])
    if not rest:
        raise call.refuse("leaves a single number of a vector")
    return composer(call).reshape(found, *rest)


COMPOSITIONS: Mapping[str, Callable[[OnnxCall], Value | tuple[Value, ...]]] = {
    "Abs": _absolute,
    "ConvTranspose": or_sequences(_conv_transpose),
    "DepthToSpace": _depth_to_space,
    "Gather": _gather,
    "Max": _extreme,
    "Min": _extreme,
    "PRelu": _prelu,
    "ReduceMax": _reduce_max,
    "ReduceSum": _reduce_sum,
    "Resize": _resize,
    "Split": _split,
}
