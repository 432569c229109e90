"""Operators for onnx's reference evaluator where its own are wrong or slow (onnx 1.16 to 1.22).

- BatchNormalization before operator set 14 takes the statistics of the batch.
- Softmax and LogSoftmax before operator set 13 normalise over one axis instead of all that follow.
- MaxPool gives another shape for ``auto_pad = SAME_LOWER``, and goes through the outputs one by one.
- Gelu and HardSwish have constants, and Erf has a result, that are rounded to float32 whatever they are given.

All of them are a few lines of numpy after the operators' specification, and share nothing with the importer.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l0tre.errors import require

__all__ = ["corrected_operators"]

Array = NDArray[np.float64]


def corrected_operators(opset: int) -> list[type[Any]]:
    """The classes to give to ``ReferenceEvaluator`` as ``new_ops`` for a file of an operator set."""
    base = require("onnx.reference.op_run", "onnx").OpRun

    def make(name: str, method: Any) -> type[Any]:
        return type(name, (base,), {"op_domain": "", "_run": method})

    found = [make("BatchNormalization", _batch_normalization), make("MaxPool", _max_pool)]
    found += [make("Gelu", _gelu), make("HardSwish", _hard_swish), make("Erf", _erf)]
    if opset < 13:
        found += [make("Softmax", _softmax), make("LogSoftmax", _log_softmax)]
    return found


def _batch_normalization(
    _: Any, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float = 1e-5, **__: Any
) -> tuple[Array]:
    scale, bias, mean, variance = (part.reshape(-1, *[1] * (x.ndim - 2)) for part in (scale, bias, mean, variance))
    return ((x - mean) / np.sqrt(variance + epsilon) * scale + bias,)


def _erf(_: Any, x: Array, **__: Any) -> tuple[Array]:
    return (np.array([math.erf(value) for value in x.ravel().tolist()], dtype=np.float64).reshape(x.shape),)


def _gelu(_: Any, x: Array, approximate: str = "none", **__: Any) -> tuple[Array]:
    if approximate == "tanh":
        return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
    return (0.5 * x * (1 + _erf(_, x / math.sqrt(2))[0]),)


def _hard_swish(_: Any, x: Array, **__: Any) -> tuple[Array]:
    return (x * np.clip(x / 6 + 0.5, 0, 1),)


def _softmax(self: Any, x: Array, axis: int | None = None) -> tuple[Array]:
    flat = _rows(self, x, axis)
    raised = np.exp(flat - flat.max(1, keepdims=True))
    return ((raised / raised.sum(1, keepdims=True)).reshape(x.shape),)


def _log_softmax(self: Any, x: Array, axis: int | None = None) -> tuple[Array]:
    flat = _rows(self, x, axis)
    moved = flat - flat.max(1, keepdims=True)
    return ((moved - np.log(np.exp(moved).sum(1, keepdims=True))).reshape(x.shape),)


def _rows(operator: Any, x: Array, axis: int | None) -> Array:
    """The dimensions from ``axis`` on as one; 1 by default, where the evaluator gives that of a newer operator set."""
    written = any(attribute.name == "axis" for attribute in operator.onnx_node.attribute)
    axis = (axis if written and axis is not None else 1) % x.ndim
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _max_pool(
    _: Any,
    x: Array,
    auto_pad: str | None = None,
    dilations: list[int] | None = None,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
    ceil_mode: int | None = 0,
    **__: Any,
) -> tuple[Array]:
    kernel, rank = list(kernel_shape or ()), x.ndim - 2
    steps, spread = list(strides or [1] * rank), list(dilations or [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    margins = list(zip(pads[:rank], pads[rank:], strict=True)) if pads else [(0, 0)] * rank
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        total = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(x.shape[2:], steps, reach, strict=True)]
        halves = [(t // 2, t - t // 2) for t in total]
        margins = halves if auto_pad == "SAME_UPPER" else [(large, small) for small, large in halves]
    if ceil_mode:  # room for one more window, which must begin before the padding at the end
        margins = [(before, after + step - 1) for (before, after), step in zip(margins, steps, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *margins], constant_values=-np.inf)
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
    ends = [n + before if ceil_mode else None for n, (before, _) in zip(x.shape[2:], margins, strict=True)]
    starts = (slice(None, end, step) for end, step in zip(ends, steps, strict=True))
    every = (slice(None), slice(None), *starts, *(slice(None, None, d) for d in spread))
    return (windows[every].max(axis=tuple(range(x.ndim, x.ndim + rank))),)
