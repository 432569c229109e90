"""Softmax and its logarithm along one dimension. At a network's end they are dropped; elsewhere nothing bounds them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.model.operations.float32 import UNIT
from l0tre.model.operations.kind import Errors, Other, Unbounded
from l0tre.model.operations.operation import Operation

__all__ = ["LOG_SOFTMAX", "SOFTMAX"]


def _softmax(operation: Operation, x: Tensor) -> Tensor:
    return x.softmax(int(operation.number("dim")) + 1)


def _log_softmax(operation: Operation, x: Tensor) -> Tensor:
    return x.log_softmax(int(operation.number("dim")) + 1)


def _errors(largest: float, errors: Errors) -> Errors:
    """No output moves by more than twice the largest move of an input."""
    size, worst, square = errors
    last, spread = 64 * UNIT * (1 + largest), torch.ones_like(size)
    each = tuple(range(1, size.ndim))
    worst, square = worst.amax(each, keepdim=True), square.sum(each, keepdim=True)
    return largest * spread, (2 * worst + last) * spread, (4 * square + last**2) * spread


def _softmax_errors(_: Operation, inputs: Sequence[Errors]) -> Errors:
    return _errors(1.0, inputs[0])


def _log_softmax_errors(operation: Operation, inputs: Sequence[Errors]) -> Errors:
    return _errors(2 * float(inputs[0][0].max()) + math.log(max(2, operation.shape[-1])), inputs[0])


def _reached(operation: Operation, touched: Sequence[Tensor]) -> Tensor:
    return touched[0].any(int(operation.number("dim")) + 1, keepdim=True).expand_as(touched[0])


SOFTMAX = Other(forward=_softmax, errors=_softmax_errors, reached=_reached, bounds=Unbounded())
LOG_SOFTMAX = replace(SOFTMAX, forward=_log_softmax, errors=_log_softmax_errors)
