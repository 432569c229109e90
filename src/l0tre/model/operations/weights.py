"""What linear operations have in common: weights, constants, and the dimensions along which inputs are repeated."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from l0tre.model.operations.kind import At
from l0tre.model.operations.operation import Operation

__all__ = [
    "absolute_weights",
    "always",
    "collect",
    "few_terms",
    "magnitude_weights",
    "no_matrix",
    "no_window",
    "plain_weights",
    "two_terms",
    "whole",
]

CONSTANTS = ("bias", "shift")


def absolute_weights(operation: Operation, power: int, constants: bool) -> Operation:
    """The absolute values of weights to a power, with or without those of the constants."""
    tensors = {key: value.abs() ** power for key, value in operation.tensors.items() if key in ("weight", "scale")}
    if constants:
        tensors.update(_sizes(operation))
    return replace(operation, tensors=tensors)


def magnitude_weights(operation: Operation) -> Operation:
    """See ``LinearBounds.magnitude``."""
    return absolute_weights(operation, 1, True)


def _sizes(operation: Operation) -> dict[str, Tensor]:
    """Absolute values of constants; one that was summed from others counts with their absolute values."""
    return {
        key: operation.tensors.get(f"{key}_terms", operation.tensors[key]).abs()
        for key in CONSTANTS
        if key in operation.tensors
    }


def plain_weights(operation: Operation) -> Operation:
    """See ``LinearBounds.plain``."""
    return replace(operation, tensors={key: v for key, v in operation.tensors.items() if key not in CONSTANTS})


def collect(shaped: Tensor, source: tuple[int, ...]) -> Tensor:
    """Sum coefficients ``[batch, rows, *shape]`` over the dimensions along which an input ``source`` was repeated."""
    lead = shaped.ndim - 2 - len(source)
    if lead:
        shaped = shaped.sum(tuple(range(2, 2 + lead)))
    repeated = [d + 2 for d, size in enumerate(source) if size == 1 and shaped.shape[d + 2] > 1]
    return shaped.sum(repeated, keepdim=True) if repeated else shaped


def whole(_: Operation) -> Operation:
    """For operations without weights and constants."""
    return _


def always(_: Operation) -> bool:
    """For operations that are the same everywhere."""
    return True


def no_matrix(_: Operation) -> int:
    """For operations whose way back is cheaper than a product of matrices."""
    return 0


def no_window(operation: Operation, rows: Tensor, at: At) -> Tensor:
    """For operations that are not local."""
    raise AssertionError(f"{operation.kind} is not local: {tuple(rows.shape)}, {at}")


def two_terms(_: Operation, __: Sequence[tuple[int, ...]]) -> int:
    """For operations that add two numbers or multiply two."""
    return 2


def few_terms(_: Operation, __: Sequence[tuple[int, ...]]) -> float:
    """For operations that sum nothing up."""
    return 8.0
