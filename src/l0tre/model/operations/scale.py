"""``x * scale + shift``, each optional and broadcast against one sample's shape: batch norm, constants."""

from collections.abc import Sequence

from torch import Tensor

from l0tre.model.operations.kind import At, Linear, LinearBounds, Local, Window
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import (
    absolute_weights,
    collect,
    few_terms,
    magnitude_weights,
    no_matrix,
    plain_weights,
    two_terms,
)

__all__ = ["SCALE"]


def _forward(operation: Operation, x: Tensor) -> Tensor:
    scale, shift = operation.tensors.get("scale"), operation.tensors.get("shift")
    x = x if scale is None else x * scale
    return x if shift is None else x + shift


def _backward(operation: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    scale = operation.tensors.get("scale")
    return [collect(rows if scale is None else rows * scale, sources[0])]


def _backward_window(operation: Operation, rows: Tensor, at: At) -> Tensor:
    scale = operation.tensors.get("scale")
    if scale is None:
        return rows
    if _uniform(operation):
        return rows * (scale.expand(operation.shape)[:, :1, :1] if scale.ndim else scale)
    return rows * at(scale.expand(operation.shape))


def _uniform(operation: Operation) -> bool:
    scale = operation.tensors.get("scale")
    return scale is None or scale.numel() == 1 or (scale.ndim == 3 and scale.shape[1:] == (1, 1))


def _sees(operation: Operation, source: tuple[int, ...]) -> bool:
    return source == operation.shape


def _patches(operation: Operation, x: Tensor) -> Tensor:
    scale = operation.tensors.get("scale")
    return x if scale is None else x * scale


SCALE = Linear(
    forward=_forward,
    absolute=absolute_weights,
    summing="sum",
    terms=two_terms,
    place=Local(_sees, _uniform, lambda _, __: Window(), _patches, spills=False),
    bounds=LinearBounds(
        magnitude=magnitude_weights,
        plain=plain_weights,
        backward=_backward,
        backward_window=_backward_window,
        products=no_matrix,
        terms=few_terms,
    ),
)
