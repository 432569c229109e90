"""Mean over some dimensions of a sample: dims, keepdim."""

import math
from collections.abc import Sequence

from torch import Tensor

from l0tre.model.operations.kind import Everywhere, Linear, LinearBounds
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import no_matrix, no_window, whole

__all__ = ["MEAN"]


def _forward(operation: Operation, x: Tensor) -> Tensor:
    return x.mean([dim + 1 for dim in operation.ints("dims")], keepdim=bool(operation.attributes["keepdim"]))


def _backward(operation: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    (source,), dims = sources, operation.ints("dims")
    kept = [1 if d in dims else size for d, size in enumerate(source)]
    share = 1.0
    for d in dims:
        share /= source[d]
    return [(rows.reshape(*rows.shape[:2], *kept) * share).expand(*rows.shape[:2], *source)]


def _terms(operation: Operation, sources: Sequence[tuple[int, ...]]) -> int:
    return math.prod(sources[0]) // max(1, math.prod(operation.shape))


def _bound_terms(_: Operation, sources: Sequence[tuple[int, ...]]) -> float:
    return 8.0 + math.prod(sources[0])


MEAN = Linear(
    forward=_forward,
    absolute=lambda operation, _, __: operation,
    summing="average",
    terms=_terms,
    place=Everywhere(),
    bounds=LinearBounds(
        magnitude=whole,
        plain=whole,
        backward=_backward,
        backward_window=no_window,
        products=no_matrix,
        terms=_bound_terms,
    ),
)
