"""What every aten operator becomes in a :class:`~l0tre.model.graph.Graph`: the table of operators."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from l0tre.model.aten_compositions import COMPOSITIONS, one_dimensional, pooling, separable, transposed_conv
from l0tre.model.aten_shapes import SHAPES
from l0tre.model.call_site import Arguments, CallSite, Handler, Missing, UnsupportedOperationError, Var
from l0tre.model.operations.importers import ATEN
from l0tre.model.operations.silu import silu_of

__all__ = ["CONSTANT_ONLY", "OPERATORS", "UnsupportedOperationError", "same"]


def _number(value: float) -> Tensor:
    """A number as a constant, not rounded to torch's default of float32."""
    return torch.tensor(value, dtype=torch.float64)


def same(_: CallSite, a: Arguments) -> object:
    """The handler of operators that change nothing."""
    return a["self"]


def _cast(site: CallSite, a: Arguments) -> object:
    dtype = a.get("dtype")
    if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
        raise site.refuse(f"turns values into {dtype}; only floating point is supported")
    return a["self"]


def _dropout(site: CallSite, a: Arguments) -> object:
    if a["train"]:
        raise site.refuse("drops values at random; export the model after model.eval()")
    return a["input"] if "input" in a else a["self"]  # the second in place


def _unary(op: str) -> Handler:
    return lambda site, a: site.add(op, [site.variable(a["self"])])


def _leaky_relu(site: CallSite, a: Arguments) -> object:
    return site.add("leaky_relu", [site.variable(a["self"])], slope=site.number(a["negative_slope"]))


def _clip(low: str | float, high: str | float) -> Handler:
    """A clip to limits that are numbers or the names of the arguments that give them."""

    def handler(site: CallSite, a: Arguments) -> object:
        given = [a[limit] if isinstance(limit, str) else limit for limit in (low, high)]
        bottom = -math.inf if given[0] is None else site.number(given[0])
        top = math.inf if given[1] is None else site.number(given[1])
        if (bottom, top) == (0.0, math.inf):
            return site.add("relu", [site.variable(a["self"])])
        return site.add("clip", [site.variable(a["self"])], low=bottom, high=top)

    return handler


def _conv(site: CallSite, a: Arguments) -> object:
    source, weight = site.variable(a["input"], dims=3), site.constant(a["weight"])
    if weight.ndim != 4:
        raise site.refuse("is not a plain convolution of images [channels, height, width]")
    dilation = site.pair(a["dilation"])
    if isinstance(a["padding"], str):
        total = [d * (k - 1) if a["padding"] == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        padding = (total[0] // 2, total[1] // 2)
        if any(t % 2 for t in total):  # the larger half goes to the right and bottom
            margins = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
            source, padding = site.add("pad", [source], padding=tuple(margins), value=0.0).position, (0, 0)
    else:
        padding = site.pair(a["padding"])
    (groups,) = site.ints(a["groups"])
    tensors = {"weight": weight, "bias": site.optional(a["bias"])}
    stride = site.pair(a["stride"])
    return site.add("conv", [source], tensors, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _affine(site: CallSite, x: object, weight: Tensor, bias: Tensor | None) -> Var:
    source = site.variable(x)
    if weight.ndim != 2 or not site.sample(source):
        raise site.refuse("needs a weight matrix and samples of at least one dimension")
    if bias is not None:
        bias = (bias[0] if bias.ndim == 2 and bias.shape[0] == 1 else bias).expand(weight.shape[0])
    return site.add("linear", [source], {"weight": weight, "bias": bias})


def _linear(site: CallSite, a: Arguments) -> object:
    return _affine(site, a["input"], site.constant(a["weight"]), site.optional(a["bias"]))


def _matmul(site: CallSite, a: Arguments) -> object:
    second = a["mat2"] if "mat2" in a else a["other"]
    return _affine(site, a["self"], site.constant(second).mT, None)


def _addmm(site: CallSite, a: Arguments) -> object:
    weight, bias = site.constant(a["mat2"]).mT, site.constant(a["self"])
    weight, bias = weight.double() * site.number(a["alpha"]), bias.double() * site.number(a["beta"])
    return _affine(site, a["mat1"], weight, bias)


def _batch_norm(site: CallSite, a: Arguments) -> object:
    if a.get("training"):
        raise site.refuse("uses the statistics of the batch; export the model after model.eval()")
    source = site.variable(a["input"])
    mean, variance = site.constant(a["running_mean"]).double(), site.constant(a["running_var"]).double()
    weight, bias = site.optional(a["weight"]), site.optional(a["bias"])
    scale = 1 / (variance + site.number(a["eps"] if "eps" in a else a["epsilon"])).sqrt()
    scale = scale if weight is None else scale * weight
    shift, terms = -mean * scale, (mean * scale).abs()
    if bias is not None:
        shift, terms = shift + bias, terms + bias.abs()
    shape = (-1, *[1] * (len(site.sample(source)) - 1))
    tensors = {"scale": scale, "shift": shift, "shift_terms": terms}
    return site.add("scale", [source], {key: value.reshape(shape) for key, value in tensors.items()})


def _combine(site: CallSite, op: str, x: object, y: object) -> Var:
    first, second = site.variable(x), site.variable(y)
    swish = silu_of(site.builder.operations, first, second) if op == "mul" else None
    if swish is not None:
        return site.add("silu", [swish])
    if len(site.sample(first)) != len(site.sample(second)):
        raise site.refuse(f"combines samples of shapes {site.sample(first)} and {site.sample(second)}")
    return site.add(op, [first, second])


def _sum(site: CallSite, x: object, y: object, factor: float) -> Var:
    """The value of ``x + factor * y``; at least one of them depends on the input."""
    if not isinstance(y, Var):
        source = site.variable(x)
        return site.add("scale", [source], {"shift": site.operand(y, source).double() * factor})
    if not isinstance(x, Var):
        return site.add("scale", [y.position], {"scale": _number(factor), "shift": site.operand(x, y.position)})
    if abs(factor) != 1:
        y, factor = site.add("scale", [y.position], {"scale": _number(factor)}), 1.0
    return _combine(site, "add" if factor == 1 else "sub", x, y)


def _add(site: CallSite, a: Arguments) -> object:
    return _sum(site, a["self"], a["other"], site.number(a["alpha"]))


def _sub(site: CallSite, a: Arguments) -> object:
    return _sum(site, a["self"], a["other"], -site.number(a["alpha"]))


def _rsub(site: CallSite, a: Arguments) -> object:
    return _sum(site, a["other"], a["self"], -site.number(a["alpha"]))


def _mul(site: CallSite, a: Arguments) -> object:
    x, y = a["self"], a["other"]
    if isinstance(x, Var) and isinstance(y, Var):
        return _combine(site, "mul", x, y)
    source, factor = (site.variable(x), y) if isinstance(x, Var) else (site.variable(y), x)
    return site.add("scale", [source], {"scale": site.operand(factor, source)})


def _div(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    return site.add("scale", [source], {"scale": site.operand(a["other"], source).double().reciprocal()})


def _neg(site: CallSite, a: Arguments) -> object:
    return site.add("scale", [site.variable(a["self"])], {"scale": _number(-1.0)})


def _adaptive_pool(op: str) -> Handler:
    def handler(site: CallSite, a: Arguments) -> object:
        source, size = site.variable(a["self"], dims=3), site.pair(a["output_size"])
        _, height, width = site.sample(source)
        if op == "avg_pool" and size == (1, 1):
            return site.add("mean", [source], dims=(1, 2), keepdim=True)
        if min(size) < 1 or height % size[0] or width % size[1]:
            if op == "avg_pool" and min(size) > 0:
                return separable(site, a)
            raise site.refuse(f"to {size} must divide the image of {height} x {width} evenly")
        kernel = (height // size[0], width // size[1])
        if op == "max_pool":
            return site.add(op, [source], kernel=kernel, stride=kernel, padding=(0, 0), dilation=(1, 1))
        return site.add(op, [source], kernel=kernel, stride=kernel, padding=(0, 0), count_include_pad=True)

    return handler


def _first_of(handler: Handler) -> Handler:
    """For operators with further results that the graph does not have."""
    return lambda site, a: (handler(site, a), Missing(), Missing(), Missing())


def _mean(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    if not a["dim"]:
        raise site.refuse("works across the samples of a batch")
    dims = tuple(sorted(site.dim(dim, source) for dim in site.ints(a["dim"])))
    return site.add("mean", [source], dims=dims, keepdim=bool(a["keepdim"]))


def _softmax(op: str) -> Handler:
    def handler(site: CallSite, a: Arguments) -> object:
        source = site.variable(a["self"])
        return site.add(op, [source], dim=site.dim(a["dim"], source))

    return handler


_adaptive_avg_pool, _adaptive_max_pool = _adaptive_pool("avg_pool"), _first_of(_adaptive_pool("max_pool"))
_conv1d = one_dimensional(_conv, {"stride": 1, "padding": 0, "dilation": 1})
_conv_transpose1d = COMPOSITIONS["aten.conv_transpose1d.default"]


def _convolution(site: CallSite, a: Arguments) -> object:
    """Any convolution: of maps or sequences, transposed or not."""
    flat = site.constant(a["weight"]).ndim == 3
    if a["transposed"]:
        return (_conv_transpose1d if flat else transposed_conv)(site, a)
    return (_conv1d if flat else _conv)(site, a)


# By operator and overload; an operator that works in place is found under the name of the one that does not.
OPERATORS: Mapping[str, Handler] = {
    **ATEN,
    **SHAPES,
    **COMPOSITIONS,
    "aten.conv2d.default": _conv,
    "aten.conv2d.padding": _conv,
    "aten.conv1d.default": _conv1d,
    "aten.conv1d.padding": _conv1d,
    "aten.convolution.default": _convolution,
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.mm.default": _matmul,
    "aten.matmul.default": _matmul,
    "aten.batch_norm.default": _batch_norm,
    "aten.native_batch_norm.default": _first_of(_batch_norm),
    "aten.cudnn_batch_norm.default": _first_of(_batch_norm),
    "aten._native_batch_norm_legit.default": _first_of(_batch_norm),
    "aten._native_batch_norm_legit_no_training.default": _first_of(_batch_norm),
    "aten.relu.default": _unary("relu"),
    "aten.relu6.default": _clip(0.0, 6.0),
    "aten.leaky_relu.default": _leaky_relu,
    "aten.sigmoid.default": _unary("sigmoid"),
    "aten.tanh.default": _unary("tanh"),
    "aten.clamp.default": _clip("min", "max"),
    "aten.clamp_min.default": _clip("min", math.inf),
    "aten.clamp_max.default": _clip(-math.inf, "max"),
    "aten.hardtanh.default": _clip("min_val", "max_val"),
    "aten.max_pool2d.default": pooling("max_pool"),
    "aten.avg_pool2d.default": pooling("avg_pool"),
    "aten.max_pool2d_with_indices.default": _first_of(pooling("max_pool")),
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "aten._adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "aten.adaptive_max_pool2d.default": _adaptive_max_pool,
    "aten.adaptive_avg_pool1d.default": one_dimensional(_adaptive_avg_pool, {"output_size": 1}),
    "aten.adaptive_max_pool1d.default": _first_of(one_dimensional(_adaptive_max_pool, {"output_size": 1})),
    "aten.mean.dim": _mean,
    "aten.softmax.int": _softmax("softmax"),
    "aten._softmax.default": _softmax("softmax"),
    "aten.log_softmax.int": _softmax("log_softmax"),
    "aten._log_softmax.default": _softmax("log_softmax"),
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": _sub,
    "aten.rsub.Tensor": _rsub,
    "aten.rsub.Scalar": _rsub,
    "aten.mul.Tensor": _mul,
    "aten.mul.Scalar": _mul,
    "aten.div.Tensor": _div,
    "aten.div.Scalar": _div,
    "aten.neg.default": _neg,
    "aten.dropout.default": _dropout,
    "aten.feature_dropout.default": _dropout,
    "aten.alpha_dropout.default": _dropout,
    "aten.native_dropout.default": _first_of(_dropout),
    "aten.clone.default": same,
    "aten.contiguous.default": same,
    "aten.alias.default": same,
    "aten.detach.default": same,
    "aten.lift_fresh_copy.default": same,
    "aten._to_copy.default": _cast,
    "aten.to.dtype": _cast,
    "aten.to.dtype_layout": _cast,
    "aten.to.device": _cast,
}

# Further operators that may be applied to constants alone (weights computed from parameters).
CONSTANT_ONLY = frozenset(
    f"aten.{name}"
    for name in (
        *("t.default", "numpy_T.default", "expand.default", "slice.Tensor", "select.int", "stack.default"),
        *("sqrt.default", "rsqrt.default", "reciprocal.default", "exp.default", "abs.default", "pow.Tensor_Scalar"),
        *("sum.default", "sum.dim_IntList", "mv.default", "dot.default", "vdot.default", "linalg_vector_norm.default"),
        *("_weight_norm.default", "_weight_norm_interface.default"),
    )
)
