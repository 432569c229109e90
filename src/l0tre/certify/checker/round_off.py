"""What float64 can be off by where forms are carried forwards: reckoned from the numbers that are met, box by box.

A sum of ``n`` products is off by at most about ``n * 2**-53`` of the sum of their absolute values, in any order. What
an operation can be off by is added to the constants of its forms, outwards, so forms always enclose; the next
operations carry it on as the rest of them. One term for the whole domain, as for ``margins``, would have to reckon with
the largest values that all inputs allow by absolute weights, and grows with every layer of a deep network.

Forms are about differences from the image's own values in real arithmetic. Those are computed too: ``drift`` bounds
how far each is off, and is paid wherever one is used. Products below ``2**-1022`` are off by as much: ``TINY``.
"""

import math

import torch
from torch import Tensor

from l0tre.certify.checker.margins import LINEAR, absolute, curve_interval
from l0tre.model.graph import Operation, run_operation

__all__ = ["ELEMENT", "TINY", "drifts", "mass", "product_unit"]

# A few operations in a row with numbers of about one size, lines and curves ("a few units in the last place") among
# them, and sums of less than 64 numbers.
ELEMENT = 2.0**-45
PRODUCT = 4 * 2.0**-53
TINY = 2.0**-980
# Operations that move numbers, or that compute few of them from each.
MOVES = ("reshape", "transpose", "pad", "slice", "concat")


def product_unit(operation: Operation, shapes: list[tuple[int, ...]]) -> float:
    """How far the output of a linear operation can be off, as a share of the sum of its absolute products.

    Args:
        operation: The operation.
        shapes: Those of its inputs.
    """
    if operation.kind in MOVES:
        return 0.0
    if operation.kind in ("conv", "linear"):
        weight = operation.tensors["weight"]
        products = weight.numel() / weight.shape[0]
    elif operation.kind == "avg_pool":
        products = math.prod(operation.ints("kernel"))
    elif operation.kind in ("add", "sub", "scale"):
        products = 1.0
    else:
        products = max(math.prod(shape) for shape in shapes)
    return PRODUCT * (8.0 + products)


def mass(lower: Tensor, upper: Tensor) -> Tensor:
    """The sum over the columns of the larger absolute values of two forms, as one column: ``[batch, 1, ...]``."""
    return torch.maximum(lower.abs(), upper.abs()).sum(1, keepdim=True) * (1 + ELEMENT * lower.shape[1])


def drifts(operations: tuple[Operation, ...], own: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """How far the image's own values can be from those of real arithmetic.

    Args:
        operations: The network, float64.
        own: What its operations give for the image, as computed; the image itself is exact.

    Returns:
        float64 of the same shapes, at least 0.
    """
    found = [torch.zeros_like(own[0])]
    for operation, after in zip(operations[1:], own[1:], strict=True):
        inputs, errors = ([table[s][None] for s in operation.inputs] for table in (own, found))
        if operation.kind in LINEAR:
            unit = product_unit(operation, [x.shape for x in inputs])
            products = run_operation(
                absolute(operation, with_constants=True), *(x.abs() + e for x, e in zip(inputs, errors, strict=True))
            )
            through = run_operation(absolute(operation, with_constants=False), *errors)
            moved = through * (1 + unit) + unit * products + (TINY if unit else 0.0)
        else:
            (value,), (error,) = inputs, errors
            low, high = curve_interval(operation, value - error, value + error)
            moved = torch.maximum(high - after, after - low)
            size = low.abs() + high.abs() + after.abs()
            if operation.kind != "max_pool":
                size = size + value.abs() + error
            # What is zero on the whole range is exact, as for a neuron that is off.
            moved = torch.where((low == 0) & (high == 0) & (after == 0), 0.0, moved + ELEMENT * size)
        found.append(moved[0])
    return tuple(found)
