"""What every operation is in an ONNX file that is put together node by node."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fuzz.net import Net, Op

__all__ = ["ONNX", "Writer", "make_model"]

Settings = Mapping[str, Any]
AXES_AS_INPUT = 13  # first operator set in which Squeeze and Unsqueeze take their axes as an input


class Writer:
    """Collects nodes and constants under new names."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def name(self, stem: str) -> str:
        """A name that nothing has yet."""
        return f"{stem}_{len(self.nodes) + len(self.weights)}"

    def weight(self, array: NDArray[Any] | np.float32) -> str:
        """A constant."""
        name = self.name("constant")
        self.weights.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node; gives the name of its first output."""
        name = self.name(kind)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def ints(self, numbers: Any) -> str:
        """A constant of whole numbers."""
        return self.weight(np.array(numbers, np.int64))

    def constant(self, op: Op, name: str = "value") -> str:
        """A constant of an operation, an array or a number."""
        return self.weight(op.constants[name] if name in op.constants else np.float32(op.settings[name]))


Emit = Callable[..., str]


def _same(kind: str) -> Emit:
    return lambda w, _op, *xs: w.node(kind, *xs)


def _conv(w: Writer, op: Op, x: str) -> str:
    s = op.settings
    given = [w.weight(op.constants[name]) for name in ("weight", "bias") if name in op.constants]
    common = {"strides": s["stride"], "dilations": s["dilation"], "group": s["groups"]}
    if s["how"] == "same" and tuple(s["dilation"]) == (1, 1):
        return w.node("Conv", x, *given, auto_pad="SAME_UPPER", **common)
    return w.node("Conv", x, *given, pads=s["pads"], **common)


def _linear(w: Writer, op: Op, x: str) -> str:
    s, weight, bias = op.settings, op.constants["weight"], op.constants.get("bias")
    if s["how"] == "linear" and len(op.shape) == 1:
        given = [w.weight(array) for array in (weight, bias) if array is not None]
        return w.node("Gemm", x, *given, transB=1)
    if s["how"] == "addmm":
        given = [w.weight(array) for array in (weight.T, bias) if array is not None]
        return w.node("Gemm", x, *given, alpha=s["alpha"], beta=s["beta"])
    product = w.node("MatMul", x, w.weight(weight.T))
    return product if bias is None else w.node("Add", product, w.weight(bias))


def _batch_norm(w: Writer, op: Op, x: str) -> str:
    mean = op.constants["mean"]
    weight = op.constants.get("weight", np.ones_like(mean))
    bias = op.constants.get("bias", np.zeros_like(mean))
    given = [w.weight(array) for array in (weight, bias, mean, op.constants["variance"])]
    return w.node("BatchNormalization", x, *given, epsilon=op.settings["eps"])


def _with_constant(kind: str, *, reverse: bool = False) -> Emit:
    def emit(w: Writer, op: Op, x: str) -> str:
        value, alpha = w.constant(op), op.settings.get("alpha", 1.0)
        if alpha != 1.0:
            value = w.node("Mul", value, w.weight(np.float32(alpha)))
        return w.node(kind, value, x) if reverse else w.node(kind, x, value)

    return emit


def _together(kind: str) -> Emit:
    def emit(w: Writer, op: Op, x: str, y: str) -> str:
        if op.settings["alpha"] != 1.0:
            y = w.node("Mul", y, w.weight(np.float32(op.settings["alpha"])))
        return w.node(kind, x, y)

    return emit


def _clip(w: Writer, op: Op, x: str) -> str:
    limits = [op.settings[name] for name in ("low", "high")]
    given = ["" if math.isinf(limit) else w.weight(np.float32(limit)) for limit in limits]
    return w.node("Clip", x, *(given if given[1] else given[:1]))


def _max_pool(w: Writer, op: Op, x: str) -> str:
    s = op.settings
    if s["how"] == "adaptive" and op.shape[1:] == (1, 1):
        return w.node("GlobalMaxPool", x)
    window = {"kernel_shape": s["kernel"], "strides": s["stride"], "pads": s["pads"], "dilations": s["dilation"]}
    return w.node("MaxPool", x, **window)


def _avg_pool(w: Writer, op: Op, x: str) -> str:
    s = op.settings
    if s["how"] == "adaptive" and op.shape[1:] == (1, 1):
        return w.node("GlobalAveragePool", x)
    window = {"kernel_shape": s["kernel"], "strides": s["stride"], "pads": s["pads"]}
    return w.node("AveragePool", x, **window, count_include_pad=int(s["include"]))


def _mean(w: Writer, op: Op, x: str) -> str:
    return w.node("ReduceMean", x, axes=[dim + 1 for dim in op.settings["dims"]], keepdims=int(op.settings["keepdim"]))


def _pad(w: Writer, op: Op, x: str) -> str:
    padding, rank = op.settings["padding"], len(op.shape) + 1
    pairs = [*zip(padding[::2], padding[1::2], strict=True)]
    around = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]
    pads = [before for before, _ in around] + [after for _, after in around]
    return w.node("Pad", x, w.ints(pads), w.weight(np.float32(op.settings["value"])))


def _round(w: Writer, op: Op, x: str) -> str:
    types = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
    return w.node("Cast", w.node("Cast", x, to=types[op.settings["to"]]), to=TensorProto.FLOAT)


def _with_axes(w: Writer, kind: str, x: str, axes: list[int]) -> str:
    return w.node(kind, x, w.ints(axes)) if w.opset >= AXES_AS_INPUT else w.node(kind, x, axes=axes)


def _reshape(w: Writer, op: Op, x: str) -> str:
    match op.settings["how"]:
        case "flatten":
            return w.node("Flatten", x)
        case "squeeze" | "squeeze_several":
            return _with_axes(w, "Squeeze", x, [op.settings["dim"]])
        case "unsqueeze":
            return _with_axes(w, "Unsqueeze", x, [op.settings["dim"]])
        case "view":  # as exporters write it: the batch from the input's own shape
            batch = w.node("Slice", w.node("Shape", x), w.ints([0]), w.ints([1]))
            return w.node("Reshape", x, w.node("Concat", batch, w.ints(op.shape), axis=0))
        case "unflatten":
            return w.node("Reshape", x, w.ints([-1, *op.shape]))
    return w.node("Reshape", x, w.ints([0, -1, *op.shape[1:]]))


def _transpose(w: Writer, op: Op, x: str) -> str:
    return w.node("Transpose", x, perm=[0, *(dim + 1 for dim in op.settings["order"])])


def _nothing(w: Writer, op: Op, x: str) -> str:
    if "dropout" in op.settings["how"]:
        return w.node("Dropout", x)
    return w.node("Cast", x, to=TensorProto.FLOAT) if op.settings["how"] == "cast" else w.node("Identity", x)


def _slice(w: Writer, op: Op, x: str) -> str:
    starts, ends, steps = zip(*op.settings["cuts"], strict=True)
    axes = range(1, len(starts) + 1)
    return w.node("Slice", x, w.ints(starts), w.ints(ends), w.ints(list(axes)), w.ints(steps))


def _softmax(kind: str) -> Emit:
    return lambda w, op, x: w.node(kind, x, axis=op.settings["dim"] + 1)


ONNX: Mapping[str, Emit] = {
    "conv": _conv,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "scale": _with_constant("Mul"),
    "shift": _with_constant("Add"),
    "minus": _with_constant("Sub"),
    "reverse": _with_constant("Sub", reverse=True),
    "divide": _with_constant("Div"),
    "negate": _same("Neg"),
    "relu": _same("Relu"),
    "leaky_relu": lambda w, op, x: w.node("LeakyRelu", x, alpha=op.settings["slope"]),
    "sigmoid": _same("Sigmoid"),
    "tanh": _same("Tanh"),
    "elu": lambda w, op, x: w.node("Elu", x, alpha=op.settings["alpha"]),
    "silu": lambda w, _op, x: w.node("Mul", x, w.node("Sigmoid", x)),
    "slice": _slice,
    "softplus": _same("Softplus"),
    "gelu": _same("Gelu"),
    "gelu_tanh": lambda w, _op, x: w.node("Gelu", x, approximate="tanh"),
    "hard_swish": _same("HardSwish"),
    "clip": _clip,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "mean": _mean,
    "pad": _pad,
    "round": _round,
    "reshape": _reshape,
    "transpose": _transpose,
    "nothing": _nothing,
    "add": _together("Add"),
    "sub": _together("Sub"),
    "mul": _same("Mul"),
    "concat": lambda w, op, *xs: w.node("Concat", *xs, axis=op.settings["dim"] + 1),
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
}


def make_model(net: Net, opset: int) -> Any:
    """The network as an ONNX model whose batch size is open."""
    writer, names = Writer(opset), ["x"]
    for op in net.ops[1:]:
        names.append(ONNX[op.kind](writer, op, *(names[source] for source in op.inputs)))
    scores = writer.node("Identity", names[-1])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("x", net.shape), (scores, net.ops[-1].shape))
    ]
    graph = helper.make_graph(writer.nodes, "net", ends[:1], ends[1:], writer.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model
