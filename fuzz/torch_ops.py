"""What every operation is in PyTorch: from its settings, its constants and its inputs (batch first)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["NOTHING", "TORCH"]

Settings = Mapping[str, Any]
Tensors = Mapping[str, Tensor]

ATEN: Any = torch.ops.aten  # for overloads that torch's own functions rarely call


def _asymmetric(s: Settings) -> bool:
    """Whether the padding (top, left, bottom, right) of a window is more than torch's own operations take."""
    pads, kernel = s["pads"], s.get("kernel")
    return pads[:2] != pads[2:] or (kernel is not None and any(2 * p > k for p, k in zip(pads, kernel, strict=False)))


def _padded(x: Tensor, pads: tuple[int, ...], value: float = 0.0) -> Tensor:
    top, left, bottom, right = pads
    return F.pad(x, (left, right, top, bottom), value=value)


def _conv(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    if s["how"] == "same":
        return F.conv2d(x, c["weight"], c.get("bias"), padding="same", dilation=s["dilation"], groups=s["groups"])
    pads, padding = s["pads"], s["pads"][:2]
    if _asymmetric(s):
        x, padding = _padded(x, pads), (0, 0)
    return F.conv2d(x, c["weight"], c.get("bias"), s["stride"], padding, s["dilation"], s["groups"])


def _linear(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    weight, bias = c["weight"], c.get("bias")
    if s["how"] == "linear":
        return F.linear(x, weight, bias)
    if s["how"] == "addmm" and bias is not None:
        return torch.addmm(bias, x, weight.t(), beta=s["beta"], alpha=s["alpha"])
    product = torch.mm(x, weight.t()) if s["how"] == "mm" else torch.matmul(x, weight.t())
    return product if bias is None else product + bias


def _batch_norm(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    mean, variance, weight, bias = c["mean"], c["variance"], c.get("weight"), c.get("bias")
    if s["how"] == "native":
        return _tensor(ATEN.native_batch_norm(x, weight, bias, mean, variance, False, 0.1, s["eps"])[0])
    if s["how"] == "legit":
        return _tensor(ATEN._native_batch_norm_legit(x, weight, bias, mean, variance, False, 0.1, s["eps"])[0])
    return F.batch_norm(x, mean, variance, weight, bias, eps=s["eps"])


def _tensor(value: Any) -> Tensor:
    """What an overload gives, which is not typed."""
    assert isinstance(value, Tensor)
    return value


def _operand(s: Settings, c: Tensors) -> Any:
    return c.get("value", s.get("value"))


def _max_pool(s: Settings, _: Tensors, x: Tensor) -> Tensor:
    if s["how"].startswith("adaptive"):
        return F.adaptive_max_pool2d(x, s["size"])
    padding = s["pads"][:2]
    if _asymmetric(s):
        x, padding = _padded(x, s["pads"], -math.inf), (0, 0)
    if s["how"] == "indices":
        return _tensor(ATEN.max_pool2d_with_indices(x, s["kernel"], s["stride"], padding, s["dilation"])[0])
    return F.max_pool2d(x, s["kernel"], s["stride"], padding, s["dilation"])


def _avg_pool(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    if s["how"] == "adaptive":
        return F.adaptive_avg_pool2d(x, s["size"])
    if s["how"] == "adaptive_raw":
        return _tensor(ATEN._adaptive_avg_pool2d(x, s["size"]))
    if not _asymmetric(s):
        return F.avg_pool2d(x, s["kernel"], s["stride"], s["pads"][:2], count_include_pad=s["include"])
    pooled = F.avg_pool2d(_padded(x, s["pads"]), s["kernel"], s["stride"])
    return pooled if s["include"] else pooled * math.prod(s["kernel"]) / c["count"]


def _clip(s: Settings, _: Tensors, x: Tensor) -> Tensor:
    low, high = s["low"], s["high"]
    if s["how"] == "relu6":
        return F.relu6(x)
    if s["how"] == "hardtanh":
        return F.hardtanh(x, low, high)
    if high == math.inf:
        return x.clamp_min(low)
    return x.clamp_max(high) if low == -math.inf else x.clamp(low, high)


def _reshape(s: Settings, _: Tensors, x: Tensor) -> Tensor:
    batch, shape = x.shape[0], s["shape"]
    match s["how"]:
        case "flatten":
            return x.flatten(1)
        case "unflatten":
            return _tensor(x.unflatten(1, shape))
        case "squeeze":
            return x.squeeze(s["dim"])
        case "squeeze_several":
            return x.squeeze((s["dim"],))
        case "unsqueeze":
            return x.unsqueeze(s["dim"])
        case "view":
            return x.contiguous().view(-1, *shape)
        case "unsafe_view":
            return _tensor(ATEN._unsafe_view(x.contiguous(), (batch, *shape)))
    return x.reshape(batch, *shape)


def _transpose(s: Settings, _: Tensors, x: Tensor) -> Tensor:
    order = [dim + 1 for dim in s["order"]]
    moved = [dim for dim in range(1, x.ndim) if order[dim - 1] != dim]
    if s["how"] == "transpose" and len(moved) == 2:
        return x.transpose(*moved)
    return x.permute(0, *order)


# Ways to change nothing.
NOTHING: Mapping[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.5, train=False),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=False),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, train=False)[0],
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: ATEN.contiguous(x),
    "detach": lambda x: x.detach(),
    "alias": lambda x: ATEN.alias(x),
    "lift": lambda x: ATEN.lift_fresh_copy(x),
    "cast": lambda x: x.to(x.dtype),
    "cast_copy": lambda x: ATEN._to_copy(x, dtype=x.dtype),
    "cast_layout": lambda x: ATEN.to.dtype_layout(x, dtype=x.dtype),
    "cast_device": lambda x: ATEN.to.device(x, x.device, x.dtype),
}


def _relu(s: Settings, _: Tensors, x: Tensor) -> Tensor:
    return x.clone().relu_() if s["how"] == "in_place" else x.relu()


def _minus(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    if "scalar" in s:
        return _tensor(ATEN.sub.Scalar(x, s["value"], s["alpha"]))
    return torch.sub(x, _operand(s, c), alpha=s["alpha"])


def _shift(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    if "scalar" in s:
        return _tensor(ATEN.add.Scalar(x, s["value"], s["alpha"]))
    return torch.add(x, _operand(s, c), alpha=s["alpha"])


def _reverse(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    value = _operand(s, c)
    return _tensor(torch.rsub(x, value) if "scalar" in s or isinstance(value, Tensor) else value - x)


def _scale(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    return _tensor(ATEN.mul.Scalar(x, s["value"]) if "scalar" in s else x * _operand(s, c))


def _divide(s: Settings, c: Tensors, x: Tensor) -> Tensor:
    return _tensor(ATEN.div.Scalar(x, s["value"]) if "scalar" in s else x / _operand(s, c))


TORCH: Mapping[str, Callable[..., Tensor]] = {
    "conv": _conv,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "scale": _scale,
    "shift": _shift,
    "minus": _minus,
    "reverse": _reverse,
    "divide": _divide,
    "negate": lambda _s, _c, x: -x,
    "relu": _relu,
    "leaky_relu": lambda s, _c, x: F.leaky_relu(x, s["slope"]),
    "sigmoid": lambda _s, _c, x: x.sigmoid(),
    "tanh": lambda _s, _c, x: x.tanh(),
    "elu": lambda s, _c, x: F.elu(x, s["alpha"]),
    "softplus": lambda _s, _c, x: F.softplus(x, threshold=60.0),
    "silu": lambda _s, _c, x: F.silu(x),
    "gelu": lambda _s, _c, x: F.gelu(x),
    "gelu_tanh": lambda _s, _c, x: F.gelu(x, approximate="tanh"),
    "hard_swish": lambda _s, _c, x: F.hardswish(x),
    "slice": lambda s, _c, x: x[:, *(slice(*cut) for cut in s["cuts"])],
    "clip": _clip,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "mean": lambda s, _c, x: x.mean([dim + 1 for dim in s["dims"]], keepdim=s["keepdim"]),
    "pad": lambda s, _c, x: F.pad(x, s["padding"], value=s["value"]),
    "round": lambda s, _c, x: x.to(getattr(torch, s["to"])).to(x.dtype),
    "reshape": _reshape,
    "transpose": _transpose,
    "nothing": lambda s, _c, x: NOTHING[s["how"]](x),
    "add": lambda s, _c, x, y: torch.add(x, y, alpha=s["alpha"]),
    "sub": lambda s, _c, x, y: torch.sub(x, y, alpha=s["alpha"]),
    "mul": lambda _s, _c, x, y: x * y,
    "concat": lambda s, _c, *xs: torch.cat(xs, s["dim"] + 1),
    "softmax": lambda s, _c, x: x.softmax(s["dim"] + 1),
    "log_softmax": lambda s, _c, x: x.log_softmax(s["dim"] + 1),
}
