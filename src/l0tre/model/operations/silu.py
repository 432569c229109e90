"""Curves that fall first and rise then: SiLU (swish), GELU in both forms, hard swish."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from l0tre.model.operations.operation import Operation
from l0tre.model.operations.smooth import Piece, Smooth, smooth_curve

if TYPE_CHECKING:
    from l0tre.model.call_site import CallSite, Var
    from l0tre.model.onnx_call import OnnxCall

__all__ = ["ATEN", "GELU", "GELU_TANH", "HARD_SWISH", "ONNX", "SILU", "silu_of"]


def _pieces(inflection: float) -> tuple[Piece, ...]:
    """Convex between two inflection points, concave outside."""
    return (
        Piece(-math.inf, -inflection, -1),
        Piece(-inflection, inflection, 1),
        Piece(inflection, math.inf, -1),
    )


def _silu_derivative(x: Tensor) -> Tensor:
    y = x.sigmoid()
    # Far out the product of infinity and zero would not be a number.
    return y * (1 + x.clamp(-700, 700) * (-x).sigmoid())


# Its second derivative is y (1 - y) (2 - x tanh(x / 2)) with y the sigmoid: x tanh(x / 2) = 2 for one positive x alone.
_SILU = Smooth(
    value=lambda x: x * x.sigmoid(),
    derivative=_silu_derivative,
    pieces=_pieces(2.3993572805154677),
    slopes=(-0.1, 1.1),
    limit=lambda size: size,
)
SILU = smooth_curve(lambda _: _SILU)


def _density(x: Tensor) -> Tensor:
    return (-0.5 * x * x).exp() / math.sqrt(2 * math.pi)


def _gelu_derivative(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x.clamp(-100, 100) * _density(x.clamp(-100, 100))


# Its second derivative is (2 - x^2) times the density of the normal distribution.
_GELU = Smooth(
    value=lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    derivative=_gelu_derivative,
    pieces=_pieces(math.sqrt(2)),
    slopes=(-0.13, 1.13),
    limit=lambda size: size,
)
GELU = smooth_curve(lambda _: _GELU)

_ROOT, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh_derivative(x: Tensor) -> Tensor:
    x = x.clamp(-100, 100)  # beyond, the tangent is the asymptote in float64
    inner = _ROOT * (x + _CUBIC * x * x * x)
    y = inner.tanh()
    steepness = 1 / inner.clamp(-300, 300).cosh() ** 2
    return 0.5 * (1 + y) + 0.5 * x * steepness * _ROOT * (1 + 3 * _CUBIC * x * x)


# The inflection points are roots of its second derivative, see the tests.
_GELU_TANH = Smooth(
    value=lambda x: 0.5 * x * (1 + (_ROOT * (x + _CUBIC * x * x * x)).tanh()),
    derivative=_gelu_tanh_derivative,
    pieces=_pieces(1.4185040087908283),
    slopes=(-0.13, 1.13),
    limit=lambda size: size,
)
GELU_TANH = smooth_curve(lambda _: _GELU_TANH)

_HARD_SWISH = Smooth(
    value=lambda x: x * (x + 3).clamp(0, 6) / 6,
    derivative=lambda x: (2 * x.clamp(-3, 3) + 3) / 6,
    pieces=(Piece(-math.inf, -3.0, 0, 0.0), Piece(-3.0, 3.0, 1), Piece(3.0, math.inf, 0, 1.0)),
    slopes=(-0.5, 1.5),
    limit=lambda size: size,
)
HARD_SWISH = smooth_curve(lambda _: _HARD_SWISH)


def silu_of(operations: Sequence[Operation], first: int, second: int) -> int | None:
    """What a SiLU reads that is written as the product of two operations, a value and its sigmoid; else ``None``."""
    for value, other in ((first, second), (second, first)):
        if operations[other].kind == "sigmoid" and operations[other].inputs == (value,):
            return value
    return None


def _gelu_kind(form: object) -> str:
    """The kind for an argument ``approximate``; empty for one that is not known."""
    name = form.decode() if isinstance(form, bytes) else form
    return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(name), "")


def _aten_gelu(site: "CallSite", a: Mapping[str, object]) -> "Var":
    kind = _gelu_kind(a["approximate"])
    if not kind:
        raise site.refuse(f"has the form {a['approximate']}; only none and tanh are supported")
    return site.add(kind, [site.variable(a["self"])])


def _aten_hard_sigmoid(site: "CallSite", a: Mapping[str, object]) -> "Var":
    tensors = {"scale": torch.tensor(1 / 6, dtype=torch.float64), "shift": torch.tensor(0.5, dtype=torch.float64)}
    inner = site.add("scale", [site.variable(a["self"])], tensors)
    return site.add("clip", [inner.position], low=0.0, high=1.0)


ATEN: Mapping[str, Callable[["CallSite", Mapping[str, object]], object]] = {
    "aten.silu.default": lambda site, a: site.add("silu", [site.variable(a["self"])]),
    "aten.gelu.default": _aten_gelu,
    "aten.hardswish.default": lambda site, a: site.add("hard_swish", [site.variable(a["self"])]),
    "aten.hardsigmoid.default": _aten_hard_sigmoid,
}


def _onnx_gelu(call: "OnnxCall") -> int:
    form = call.attributes.get("approximate", b"none")
    kind = _gelu_kind(form)
    if not kind:
        raise call.refuse(f"has the form {form}; only none and tanh are supported")
    return call.add(kind, call.variable())


def _onnx_hard_sigmoid(call: "OnnxCall") -> int:
    # The attributes are float32, as onnxruntime computes with them.
    scale, shift = (np.asarray(call.number(key, default)) for key, default in (("alpha", 0.2), ("beta", 0.5)))
    inner = call.add("scale", call.variable(), tensors={"scale": scale, "shift": shift})
    return call.add("clip", inner, low=0.0, high=1.0)


ONNX: Mapping[str, Callable[["OnnxCall"], int]] = {
    "Gelu": _onnx_gelu,
    "HardSigmoid": _onnx_hard_sigmoid,
    "HardSwish": lambda call: call.add("hard_swish", call.variable()),
}
