"""Sums, differences and products of two values that both depend on the input."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from l0tre.model.operations.float32 import EXTRA, UNIT
from l0tre.model.operations.kind import Errors, Join, Linear, LinearBounds, Other, Unbounded
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import collect, few_terms, no_matrix, no_window, two_terms, whole

__all__ = ["ADD", "MUL", "SUB"]


def _absolute(operation: Operation, _: int, __: bool) -> Operation:
    return replace(operation, kind="add")


def _magnitude(operation: Operation) -> Operation:
    return replace(operation, kind="add")


def _add_backward(_: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [collect(rows, sources[0]), collect(rows, sources[1])]


def _sub_backward(_: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [collect(rows, sources[0]), collect(-rows, sources[1])]


def _fits(operation: Operation, sources: Sequence[tuple[int, ...]]) -> bool:
    return all(source == operation.shape for source in sources)


ADD = Linear(
    forward=lambda _, x, y: x + y,
    absolute=_absolute,
    summing="sum",
    terms=two_terms,
    place=Join(_fits, lambda _, parts, __: parts[0] + parts[1]),
    bounds=LinearBounds(
        magnitude=_magnitude,
        plain=whole,
        backward=_add_backward,
        backward_window=no_window,
        products=no_matrix,
        terms=few_terms,
    ),
)

SUB = Linear(
    forward=lambda _, x, y: x - y,
    absolute=_absolute,
    summing="sum",
    terms=two_terms,
    place=Join(_fits, lambda _, parts, __: parts[0] - parts[1]),
    bounds=LinearBounds(
        magnitude=_magnitude,
        plain=whole,
        backward=_sub_backward,
        backward_window=no_window,
        products=no_matrix,
        terms=few_terms,
    ),
)


def _mul_errors(_: Operation, inputs: Sequence[Errors]) -> Errors:
    (size, worst, square), (other, its_worst, its_square) = inputs
    product = size * other
    unit = EXTRA * UNIT * product
    return (
        product,
        worst * other + its_worst * size + worst * its_worst + unit,
        2 * (square * other**2 + its_square * size**2 + square * its_square) + unit**2,
    )


def _mul_reached(_: Operation, touched: Sequence[Tensor]) -> Tensor:
    return touched[0] | touched[1]


MUL = Other(
    forward=lambda _, x, y: x * y,
    errors=_mul_errors,
    reached=_mul_reached,
    bounds=Unbounded("mul (a product of two values that both depend on the input)"),
)
