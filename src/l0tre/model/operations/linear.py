"""Linear layer: weight ``[out, in]``, bias; on the last dimension."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from l0tre.model.operations.kind import Everywhere, Linear, LinearBounds
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import absolute_weights, magnitude_weights, no_matrix, no_window, plain_weights

__all__ = ["LINEAR"]


def _forward(operation: Operation, x: Tensor) -> Tensor:
    return F.linear(x, operation.tensors["weight"], operation.tensors.get("bias"))


def _backward(operation: Operation, rows: Tensor, _: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [rows @ operation.tensors["weight"]]


def _terms(operation: Operation, _: Sequence[tuple[int, ...]]) -> int:
    return 1 + operation.tensors["weight"][0].numel()


def _bound_terms(operation: Operation, _: Sequence[tuple[int, ...]]) -> float:
    # Backwards an input collects from every output, which can be more.
    weight = operation.tensors["weight"]
    return 8.0 + max(weight[0].numel(), weight.numel() // max(1, weight.shape[1]))


LINEAR = Linear(
    forward=_forward,
    absolute=absolute_weights,
    summing="sum",
    terms=_terms,
    place=Everywhere(),
    bounds=LinearBounds(
        magnitude=magnitude_weights,
        plain=plain_weights,
        backward=_backward,
        backward_window=no_window,
        products=no_matrix,
        terms=_bound_terms,
    ),
)
