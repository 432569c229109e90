"""What every supported ONNX operator becomes in a :class:`~l0tre.model.graph.Graph`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from l0tre.model import compositions
from l0tre.model.onnx_call import Array, OnnxCall, Value
from l0tre.model.onnx_compositions import COMPOSITIONS, composer, or_sequences, padded_by_mode
from l0tre.model.operations.importers import ONNX
from l0tre.model.operations.silu import silu_of

__all__ = ["FOLDED", "OPERATORS"]

# TensorProto's codes of float32 and float64.
_FLOAT_TYPES = frozenset({1, 11})

# Operators that may also be met between constants only, where they are computed while importing; exporters write
# chains of these to compute the target of a reshape. All deterministic.
# fmt: off
FOLDED = frozenset({
    "Abs", "Add", "BatchNormalization", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape",
    "Div", "Equal", "Exp", "Expand", "Flatten", "Floor", "Gather", "Identity",
    "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Pow", "Range",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Shape",
    "Size", "Slice", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose",
    "Unsqueeze", "Where",
})
# fmt: on


def _elementwise(op: str) -> Callable[[OnnxCall], Value]:
    return lambda call: call.add(op, call.variable())


def _same(call: OnnxCall) -> Value:
    return call.variable()


def _spatial(call: OnnxCall) -> tuple[int, int]:
    """Height and width of the images that input 0 holds."""
    shape = call.shape()
    if len(shape) != 3:
        raise call.refuse(f"works on samples of shape {shape}; only images (channels, height, width) are supported")
    return shape[1], shape[2]


@dataclass(frozen=True)
class _Window:
    """How a convolution or pooling slides: pairs (height, width); padding before and after, what is seen beyond it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    extra: tuple[int, ...]


def _window(call: OnnxCall, kernel: tuple[int, ...]) -> _Window:
    size = _spatial(call)
    stride, dilation = call.ints("strides", (1, 1)), call.ints("dilations", (1, 1))
    pads = call.ints("pads", (0, 0, 0, 0))
    if not (len(kernel) == len(stride) == len(dilation) == 2 and len(pads) == 4 and min(pads) >= 0):
        raise call.refuse(f"has kernel {kernel}, strides {stride}, dilations {dilation}, pads {pads}; expected 2-D")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    before: tuple[int, ...] = pads[:2]
    after: tuple[int, ...] = pads[2:]
    mode = call.attributes.get("auto_pad", b"NOTSET")
    if mode == b"VALID":
        before = after = (0, 0)
    elif mode in (b"SAME_UPPER", b"SAME_LOWER"):
        if dilation != (1, 1):
            # onnxruntime refuses it for convolutions and leaves the dilation out for poolings.
            raise call.refuse("combines auto_pad with dilations; export it with explicit pads")
        # The output has ceil(size / stride) positions; an odd pad goes to the end (UPPER) or the beginning (LOWER).
        total = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(size, stride, reach, strict=True)]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        before, after = (small, large) if mode == b"SAME_UPPER" else (large, small)
    elif mode != b"NOTSET":
        raise call.refuse(f"has auto_pad {mode!r}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    extra = (0, 0)
    if int(call.number("ceil_mode", 0)):
        axes = zip(size, kernel, stride, zip(before, after, strict=True), dilation, strict=True)
        below, beside = (compositions.ceil_margins(*axis) for axis in axes)
        extra = (below, beside)
    return _Window(kernel, stride, dilation, before, after, extra)


def _margins(window: _Window) -> tuple[tuple[int, int], tuple[int, int]]:
    """What a window needs around its input, above and below, left and right."""
    (top, left), (bottom, right), (below, beside) = window.before, window.after, window.extra
    return (top, bottom + below), (left, right + beside)


def _conv(call: OnnxCall) -> Value:
    weight, bias = call.given(1), call.constant(2)
    window = _window(call, weight.shape[2:])
    source, padding = call.variable(), window.before
    if window.before != window.after:
        source, padding = composer(call).framed(source, *_margins(window)), (0, 0)
    return call.add(
        "conv",
        source,
        tensors={"weight": weight, "bias": bias},
        stride=window.stride,
        padding=padding,
        dilation=window.dilation,
        groups=int(call.number("group", 1)),
    )


def _needs_pad_node(window: _Window) -> bool:
    """Whether the padding is other than what torch's poolings take: symmetric, at most half the kernel."""
    wide = any(2 * b > k for b, k in zip(window.before, window.kernel, strict=True))
    return window.before != window.after or any(window.extra) or wide


def _max_pool(call: OnnxCall) -> Value:
    window = _window(call, call.ints("kernel_shape", ()))
    source, padding = call.variable(), window.before
    if _needs_pad_node(window):
        (down, across), (rows, columns) = window.dilation, _margins(window)
        source = compositions.framed_for_maxima(composer(call), source, rows, columns, (down, across))
        padding = (0, 0)
    return call.add(
        "max_pool",
        source,
        kernel=window.kernel,
        stride=window.stride,
        padding=padding,
        dilation=window.dilation,
    )


def _average_pool(call: OnnxCall) -> Value:
    window = _window(call, call.ints("kernel_shape", ()))
    if window.dilation != (1, 1):
        raise call.refuse(f"has dilations {window.dilation}; only an average over adjacent pixels is supported")
    include = bool(call.number("count_include_pad", 0))
    if _needs_pad_node(window):
        pairs = ((a, b) for a, b in (window.kernel, window.stride, window.before, window.after, window.extra))
        return compositions.ragged_average(composer(call), call.variable(), *pairs, include=include)
    return call.add(
        "avg_pool",
        call.variable(),
        kernel=window.kernel,
        stride=window.stride,
        padding=window.before,
        count_include_pad=include,
    )


def _global_average_pool(call: OnnxCall) -> Value:
    return call.add("mean", call.variable(), dims=tuple(range(1, len(call.shape()))), keepdim=True)


def _global_max_pool(call: OnnxCall) -> Value:
    one = (1, 1)
    return call.add("max_pool", call.variable(), kernel=_spatial(call), stride=one, padding=(0, 0), dilation=one)


def _gemm(call: OnnxCall) -> Value:
    if call.number("transA", 0):
        raise call.refuse("transposes the batch (transA = 1), but every sample must be scored on its own")
    if len(call.shape()) != 1:
        raise call.refuse(f"works on samples of shape {call.shape()}; expected a vector, so add a Flatten before it")
    weight = call.given(1).astype(np.float64) * call.number("alpha", 1.0)
    weight = weight if call.number("transB", 0) else weight.T
    bias = call.constant(2)
    if bias is not None:
        bias = call.per_sample(bias, weight.shape[:1]) * call.number("beta", 1.0)
        bias = np.broadcast_to(bias, weight.shape[:1])
    return call.add("linear", call.variable(), tensors={"weight": weight, "bias": bias})


def _matmul(call: OnnxCall) -> Value:
    weight, source = call.given(1), call.variable()
    while 2 < weight.ndim <= len(call.shape()) + 1 and weight.shape[0] == 1:
        weight = weight[0]
    if weight.ndim == 1:
        column = call.add("linear", source, tensors={"weight": weight[None]})
        return call.add("reshape", column, shape=call.shape()[:-1])
    if weight.ndim != 2:
        raise call.refuse(f"multiplies by a constant of shape {weight.shape}; only a matrix is supported")
    return call.add("linear", source, tensors={"weight": weight.T})


def _arithmetic(call: OnnxCall) -> Value:
    left, right = call.inputs
    if isinstance(left, int) and isinstance(right, int):
        if call.operator == "Div":
            raise call.refuse("divides by a value computed from the input; only division by a constant is supported")
        swish = silu_of(call.builder.operations, left, right) if call.operator == "Mul" else None
        if swish is not None:
            return call.add("silu", swish)
        if len(call.shape(0)) != len(call.shape(1)):
            raise call.refuse(f"combines samples of shapes {call.shape(0)} and {call.shape(1)}; expected equal ranks")
        return call.add(call.operator.lower(), left, right)
    variable, position = (0, 1) if isinstance(left, int) else (1, 0)
    constant = call.per_sample(call.given(position), call.shape(variable))
    if call.operator == "Add":
        tensors: dict[str, Array | None] = {"shift": constant}
    elif call.operator == "Mul":
        tensors = {"scale": constant}
    elif call.operator == "Sub":
        tensors = {"shift": -constant} if variable == 0 else {"scale": np.asarray(-1.0), "shift": constant}
    elif variable == 0:
        tensors = {"scale": 1.0 / constant}
    else:
        raise call.refuse("divides a constant by a value computed from the input, which is not supported")
    return call.add("scale", call.variable(variable), tensors=tensors)


def _neg(call: OnnxCall) -> Value:
    return call.add("scale", call.variable(), tensors={"scale": np.asarray(-1.0)})


def _leaky_relu(call: OnnxCall) -> Value:
    return call.add("leaky_relu", call.variable(), slope=call.number("alpha", 0.01))


def _clip(call: OnnxCall) -> Value:
    low, high = call.constant(1), call.constant(2)
    bottom = call.number("min", -math.inf) if low is None else float(low.item())
    top = call.number("max", math.inf) if high is None else float(high.item())
    if bottom == 0 and top == math.inf:
        return call.add("relu", call.variable())
    return call.add("clip", call.variable(), low=bottom, high=top)


def _reduce_mean(call: OnnxCall) -> Value:
    axes, rank = call.axes(1), len(call.shape()) + 1
    if not axes and call.number("noop_with_empty_axes", 0):
        return call.variable()
    dims = tuple(call.dim(axis, rank) for axis in axes or range(rank))
    return call.add("mean", call.variable(), dims=dims, keepdim=bool(call.number("keepdims", 1)))


def _flatten(call: OnnxCall) -> Value:
    full = (call.batch, *call.shape())
    axis = int(call.number("axis", 1))
    axis = axis + len(full) if axis < 0 else axis
    return call.reshape((math.prod(full[:axis]), math.prod(full[axis:])))


def _reshape(call: OnnxCall) -> Value:
    full = (call.batch, *call.shape())
    target = [int(size) for size in call.given(1)]
    if not call.number("allowzero", 0):
        target = [full[index] if size == 0 else size for index, size in enumerate(target)]
    if -1 in target:
        known = math.prod(size for size in target if size != -1)
        target[target.index(-1)] = math.prod(full) // max(known, 1)
    return call.reshape(target)


def _squeeze(call: OnnxCall) -> Value:
    axes, shape = call.axes(1), call.shape()
    if axes is None:
        raise call.refuse("names no axes, so that it would remove a batch of 1; export it with explicit axes")
    dims = {call.dim(axis, len(shape) + 1) for axis in axes}
    return call.reshape((call.batch, *(size for dim, size in enumerate(shape) if dim not in dims)))


def _unsqueeze(call: OnnxCall) -> Value:
    axes, rest = call.axes(1) or (), iter(call.shape())
    rank = len(call.shape()) + 1 + len(axes)
    dims = {call.dim(axis, rank) for axis in axes}
    return call.reshape((call.batch, *(1 if dim in dims else next(rest) for dim in range(rank - 1))))


def _transpose(call: OnnxCall) -> Value:
    rank = len(call.shape()) + 1
    order = call.ints("perm", range(rank - 1, -1, -1))
    if order[0] != 0:
        raise call.refuse(f"moves the batch (perm = {list(order)}); the batch must stay the first dimension")
    return call.add("transpose", call.variable(), permutation=tuple(axis - 1 for axis in order[1:]))


def _concat(call: OnnxCall) -> Value:
    sources = [call.variable(index) for index in range(len(call.inputs))]
    dim = call.dim(int(call.attributes["axis"]), len(call.shape()) + 1)
    return call.add("concat", *sources, dim=dim)


def _pad(call: OnnxCall) -> Value:
    mode, rank = call.attributes.get("mode", b"constant"), len(call.shape()) + 1
    pads = call.ints("pads", ()) if "pads" in call.attributes else tuple(int(pad) for pad in call.given(1))
    filled = call.constant(2)
    axes = call.axes(3) or tuple(range(rank))
    if min(pads) < 0:
        raise call.refuse(f"pads by {pads}; cropping is not supported")
    padding = [0] * (2 * rank - 2)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if before or after:
            # F.pad starts at the last dimension.
            place = 2 * (rank - 2 - call.dim(axis, rank))
            padding[place : place + 2] = before, after
    if mode != b"constant":
        return padded_by_mode(call, mode.decode(), padding)
    value = call.number("value", 0.0) if filled is None else float(filled.item())
    return call.add("pad", call.variable(), padding=tuple(padding), value=value) if any(pads) else call.variable()


def _batch_normalization(call: OnnxCall) -> Value:
    if call.number("training_mode", 0) or not call.number("spatial", 1):
        raise call.refuse("is in training mode or not per channel; export the network in evaluation mode")
    gamma, beta, mean, variance = (call.given(index).astype(np.float64) for index in range(1, 5))
    scale = gamma / np.sqrt(variance + call.number("epsilon", 1e-5))
    shape = (-1, *(1 for _ in call.shape()[1:]))
    tensors = {"scale": scale, "shift": beta - mean * scale, "shift_terms": abs(beta) + abs(mean * scale)}
    return call.add("scale", call.variable(), tensors={key: value.reshape(shape) for key, value in tensors.items()})


def _softmax(call: OnnxCall) -> Value:
    op = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[call.operator]
    shape = call.shape()
    dim = call.dim(int(call.number("axis", 1 if call.opset < 13 else -1)), len(shape) + 1)
    if call.opset >= 13 or math.prod(shape[dim + 1 :]) == 1:
        return call.add(op, call.variable(), dim=dim)
    # Before operator set 13 it normalises over the axis and all that follow, as one.
    flat = call.add("reshape", call.variable(), shape=(*shape[:dim], math.prod(shape[dim:])))
    return call.add("reshape", call.add(op, flat, dim=dim), shape=shape)


def _dropout(call: OnnxCall) -> Value:
    training = call.constant(2)
    if training is not None and training.any():
        raise call.refuse("is in training mode; export the network in evaluation mode")
    return call.variable()


def _cast(call: OnnxCall) -> Value:
    # To a narrower type: see ``onnx_types``.
    if int(call.attributes["to"]) not in _FLOAT_TYPES:
        raise call.refuse("turns computed values into something other than floats, which is not supported")
    return call.variable()


def _shape(call: OnnxCall) -> Value:
    full = (call.batch, *call.shape())
    start, end = int(call.number("start", 0)), int(call.number("end", len(full)))
    return np.array(full[slice(start, end)], dtype=np.int64)


# What each operator on computed values becomes.
OPERATORS: Mapping[str, Callable[[OnnxCall], Value | tuple[Value, ...]]] = {
    **ONNX,
    **COMPOSITIONS,
    "Add": _arithmetic,
    "AveragePool": or_sequences(_average_pool),
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": or_sequences(_conv),
    "Div": _arithmetic,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "Identity": _same,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": or_sequences(_max_pool),
    "Mul": _arithmetic,
    "Neg": _neg,
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Relu": _elementwise("relu"),
    "Reshape": _reshape,
    "Shape": _shape,
    "Sigmoid": _elementwise("sigmoid"),
    "Softmax": _softmax,
    "Squeeze": _squeeze,
    "Sub": _arithmetic,
    "Tanh": _elementwise("tanh"),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
