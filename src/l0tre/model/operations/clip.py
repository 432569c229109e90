"""Clip to limits: low, high, either infinite. The prover writes it as ReLUs."""

import math

import torch
from torch import Tensor

from l0tre.model.operations.float32 import curve_errors
from l0tre.model.operations.kind import Curve, Errors, Rewritten
from l0tre.model.operations.operation import Operation

__all__ = ["CLIP"]


def _forward(operation: Operation, x: Tensor) -> Tensor:
    return x.clamp(operation.number("low"), operation.number("high"))


def _errors(operation: Operation, errors: Errors) -> Errors:
    low, high = operation.number("low"), operation.number("high")
    if low <= 0 <= high:  # nothing grows
        return curve_errors(errors, errors[0].clamp(max=max(-low, high)), 1.0)
    kept = max([abs(limit) for limit in (low, high) if math.isfinite(limit)], default=0.0)
    return curve_errors(errors, errors[0].clamp(min=kept), 1.0)


def _gate(operation: Operation) -> bool:
    return 0 <= operation.number("low") <= operation.number("high")


def _rewrite(operation: Operation, _: tuple[int, ...], place: int) -> list[Operation]:
    """``clip(z) = low + relu(z - low) - relu(z - high)``; an infinite limit leaves its part out."""
    (source,), shape, name = operation.inputs, operation.shape, operation.name
    high = operation.number("high")
    low = min(operation.number("low"), high)  # as torch: the upper limit wins
    result: list[Operation] = []

    def append(made: Operation) -> int:
        result.append(made)
        return place + len(result) - 1

    def shifted(position: int, by: float) -> int:
        shift = torch.tensor(by, dtype=torch.float64)
        return append(Operation("scale", (position,), shape, {"shift": shift}, name=name))

    def relu(position: int) -> int:
        return append(Operation("relu", (position,), shape, name=name))

    above = source if low == -math.inf else shifted(relu(shifted(source, -low)), low)
    if high < math.inf:
        append(Operation("sub", (above, relu(shifted(source, -high))), shape, name=name))
    elif above == source:
        append(Operation("reshape", (source,), shape, {}, {"shape": shape}, name=name))
    return result


CLIP = Curve(forward=_forward, errors=_errors, gate=_gate, bounds=Rewritten(_rewrite))
