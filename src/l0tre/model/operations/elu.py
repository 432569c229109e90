"""ELU: ``x`` above zero, ``alpha (exp(x) - 1)`` below; and softplus, ``log(1 + exp(x))``."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from l0tre.model.operations.operation import Operation
from l0tre.model.operations.smooth import Piece, Smooth, smooth_curve

if TYPE_CHECKING:
    from l0tre.model.call_site import CallSite, Var
    from l0tre.model.onnx_call import OnnxCall

__all__ = ["ATEN", "ELU", "ONNX", "SOFTPLUS"]

SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)  # alpha and scale


@functools.cache
def _elu(alpha: float) -> Smooth:
    return Smooth(
        value=lambda x: torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0))),
        derivative=lambda x: alpha * x.clamp(max=0).exp(),
        pieces=(Piece(-math.inf, 0.0, 1), Piece(0.0, math.inf, 0, 1.0)),
        slopes=(0.0, max(1.0, alpha)),
        limit=lambda size: size.clamp(min=alpha),
    )


def _refuse(operation: Operation) -> str:
    alpha = operation.number("alpha")
    return "" if 0 <= alpha < math.inf else f"elu with alpha {alpha}"


ELU = smooth_curve(lambda operation: _elu(operation.number("alpha")), _refuse)


def _softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0) + torch.log1p((-x.abs()).exp())


_SOFTPLUS = Smooth(
    value=_softplus,
    derivative=torch.sigmoid,
    pieces=(Piece(-math.inf, math.inf, 1),),
    slopes=(0.0, 1.0),
    limit=lambda size: size + math.log(2),
)
SOFTPLUS = smooth_curve(lambda _: _SOFTPLUS)


def _scaled(site: "CallSite", source: int, factor: float) -> int:
    if factor == 1:
        return source
    return site.add("scale", [source], {"scale": torch.tensor(factor, dtype=torch.float64)}).position


def _aten_elu(site: "CallSite", a: Mapping[str, object]) -> "Var":
    alpha, scale, inner = (site.number(a[key]) for key in ("alpha", "scale", "input_scale"))
    if inner != 1:
        raise site.refuse("scales its input, which is not supported")
    found = site.add("elu", [site.variable(a["self"])], alpha=alpha)
    return type(found)(_scaled(site, found.position, scale))


def _aten_selu(site: "CallSite", a: Mapping[str, object]) -> "Var":
    found = site.add("elu", [site.variable(a["self"])], alpha=SELU[0])
    return type(found)(_scaled(site, found.position, SELU[1]))


def _aten_softplus(site: "CallSite", a: Mapping[str, object]) -> "Var":
    # Above its threshold torch gives the input itself, which is the same in float32.
    beta, threshold = site.number(a["beta"]), site.number(a["threshold"])
    if beta <= 0 or threshold < 20:
        raise site.refuse("needs a positive beta and a threshold of 20 or more, below which it is another function")
    found = site.add("softplus", [_scaled(site, site.variable(a["self"]), beta)])
    return type(found)(_scaled(site, found.position, 1 / beta))


ATEN: Mapping[str, Callable[["CallSite", Mapping[str, object]], object]] = {
    "aten.elu.default": _aten_elu,
    "aten.selu.default": _aten_selu,
    "aten.softplus.default": _aten_softplus,
}


def _onnx_selu(call: "OnnxCall") -> int:
    found = call.add("elu", call.variable(), alpha=call.number("alpha", float(np.float32(SELU[0]))))
    scale = np.asarray(call.number("gamma", float(np.float32(SELU[1]))))
    return call.add("scale", found, tensors={"scale": scale})


ONNX: Mapping[str, Callable[["OnnxCall"], int]] = {
    "Elu": lambda call: call.add("elu", call.variable(), alpha=call.number("alpha", 1.0)),
    "Selu": _onnx_selu,
    "Softplus": lambda call: call.add("softplus", call.variable()),
}
