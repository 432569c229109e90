"""Operations that move values and compute nothing: reshape, transpose, pad, concat."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.model.operations.kind import At, Everywhere, Join, Linear, LinearBounds, Local, Window
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import always, few_terms, no_matrix, no_window, two_terms, whole

__all__ = ["CONCAT", "PAD", "RESHAPE", "TRANSPOSE"]


def _bounds_of_moves(
    backward: Callable[[Operation, Tensor, Sequence[tuple[int, ...]]], Sequence[Tensor]],
) -> LinearBounds:
    return LinearBounds(whole, whole, backward, no_window, no_matrix, few_terms)


def _reshape_backward(_: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [rows.reshape(*rows.shape[:2], *sources[0])]


def _transpose(operation: Operation, x: Tensor) -> Tensor:
    return x.permute(0, *(dim + 1 for dim in operation.ints("permutation")))


def _transpose_backward(operation: Operation, rows: Tensor, _: Sequence[tuple[int, ...]]) -> list[Tensor]:
    forward = operation.ints("permutation")
    return [rows.permute(0, 1, *(forward.index(d) + 2 for d in range(len(forward))))]


def _concat(operation: Operation, *xs: Tensor) -> Tensor:
    return torch.cat(xs, int(operation.number("dim")) + 1)


def _concat_backward(operation: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    dim = int(operation.number("dim"))
    return list(rows.split([source[dim] for source in sources], dim + 2))


def _concat_fits(operation: Operation, sources: Sequence[tuple[int, ...]]) -> bool:
    return all(source[1:] == operation.shape[1:] for source in sources) and operation.number("dim") == 0


def _pad(operation: Operation, x: Tensor) -> Tensor:
    return F.pad(x, operation.ints("padding"), value=operation.number("value"))


def _pad_value(operation: Operation, value: float) -> Operation:
    return replace(operation, attributes={**operation.attributes, "value": value})


def _pad_absolute(operation: Operation, _: int, constants: bool) -> Operation:
    # Minus infinity stands around max pools and is never rounded.
    value = abs(operation.number("value"))
    return _pad_value(operation, value if constants and value < float("inf") else 0.0)


def _pad_magnitude(operation: Operation) -> Operation:
    return _pad_value(operation, abs(operation.number("value")))


def _pad_plain(operation: Operation) -> Operation:
    return _pad_value(operation, 0.0)


def _pad_backward(operation: Operation, rows: Tensor, _: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [F.pad(rows, [-amount for amount in operation.ints("padding")])]


def _channels(operation: Operation) -> tuple[int, int]:
    """Channels before and after."""
    first, last = (*operation.ints("padding"), 0, 0, 0, 0)[4:6]
    return first, last


def _pad_backward_window(operation: Operation, rows: Tensor, _: At) -> Tensor:
    first, last = _channels(operation)
    return rows[:, first : rows.shape[1] - last] if first or last else rows


def _pad_patches(operation: Operation, x: Tensor) -> Tensor:
    first, last = _channels(operation)
    return F.pad(x, (0, 0, 0, 0, first, last)) if first or last else x


def _pad_window(operation: Operation, axis: int) -> Window:
    left, _, top, *_ = (*operation.ints("padding"), 0, 0)  # F.pad lists the last axis first
    return Window(padding=(top, left)[axis])


def _pad_sees(operation: Operation, source: tuple[int, ...]) -> bool:
    return len(source) == 3 == len(operation.shape)


RESHAPE = Linear(
    forward=lambda operation, x: x.reshape(x.shape[0], *operation.ints("shape")),
    absolute=lambda operation, _, __: operation,
    summing="move",
    terms=two_terms,
    place=Everywhere(),
    bounds=_bounds_of_moves(_reshape_backward),
)

TRANSPOSE = Linear(
    forward=_transpose,
    absolute=lambda operation, _, __: operation,
    summing="move",
    terms=two_terms,
    place=Everywhere(),
    bounds=_bounds_of_moves(_transpose_backward),
)

CONCAT = Linear(
    forward=_concat,
    absolute=lambda operation, _, __: operation,
    summing="move",
    terms=two_terms,
    place=Join(_concat_fits, lambda _, parts, dim: torch.cat(list(parts), dim)),
    bounds=_bounds_of_moves(_concat_backward),
)

PAD = Linear(
    forward=_pad,
    absolute=_pad_absolute,
    summing="move",
    terms=two_terms,
    place=Local(_pad_sees, always, _pad_window, _pad_patches, spills=False),
    bounds=LinearBounds(
        magnitude=_pad_magnitude,
        plain=_pad_plain,
        backward=_pad_backward,
        backward_window=_pad_backward_window,
        products=no_matrix,
        terms=few_terms,
    ),
)
