"""What float64 can be off by in forward forms: reckoned box by box, from the numbers that were met.

A sum of ``n`` products is off by at most ``n * 2**-53`` of the sum of their absolute values, in any order. Whatever an
operation adds in that way is added to the error of its form, and is carried on as the rest of that. A bound for all
boxes at once would have to reckon with the largest values that the whole domain allows, by absolute weights: in a deep
network these are many millions of times larger than what a few values cause.

Forms are about differences to the image's own values. Those are computed too, so they are off as well: by their drift.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from l0tre.certify.relax.plan import Plan
from l0tre.certify.relax.supported import absolute, curve_bounds, is_nonlinear, linear_bounds
from l0tre.model.graph import run_operation

__all__ = ["ELEMENT", "PRODUCT", "TINY", "drifts", "sum_unit", "total"]

# The errors of a few operations in a row with numbers of about one size, and of functions such as the exponential: at
# most some hundred times 2**-53.
ELEMENT = 2.0**-46
# Sums themselves: four times what the sum of so many products can be off by, since its terms are known up to round-off.
PRODUCT = 4 * 2.0**-53
# Products below 2**-1022 are off by as much: so are the sums of less than 2**40 of them.
TINY = 2.0**-980


def sum_unit(plan: Plan, place: int) -> float:
    """How far the output of a linear operation can be off, as a share of the sum of absolute products."""
    operation = plan.graph.operations[place]
    shapes = [plan.graph.operations[source].shape for source in operation.inputs]
    return PRODUCT * (8.0 + linear_bounds(operation).terms(operation, shapes))


def total(values: Tensor, dim: int) -> Tensor:
    """The sum of absolute values along a dimension, not rounded down: of many, ``ELEMENT`` would not do."""
    return values.abs().sum(dim) * (1 + 2.0**-52 * values.shape[dim])


def drifts(plan: Plan, images: Tensor, base: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """How far the images' own values can be from what they are in real arithmetic.

    Args:
        plan: The network.
        images: float64 ``[images, values]``, exact.
        base: Their own values as computed, by position, see ``plan.base_values``: all that operations read or give
            which are not linear, and the last ones.

    Returns:
        For the same positions ``[images, *shape]``, at least 0.
    """
    operations, last = plan.graph.operations, plan.graph.last_use()
    values = {0: images.view(-1, *operations[0].shape)}
    errors = {0: torch.zeros_like(values[0])}
    found: dict[int, Tensor] = {}
    for place, operation in enumerate(operations):
        if place:
            inputs, before = [values[source] for source in operation.inputs], [errors[s] for s in operation.inputs]
            values[place] = base[place] if place in base else run_operation(operation, *inputs)
            if is_nonlinear(operation):
                value, error, curve = inputs[0], before[0], curve_bounds(operation)
                if curve is None:  # the largest of some values moves by no more than one of them
                    errors[place] = run_operation(operation, error)
                else:
                    low, high = curve.interval(operation, value - error, value + error)
                    most = curve.magnitude(operation, value.abs() + error)
                    moved = torch.maximum(high - values[place], values[place] - low)
                    # What is zero on the whole range is exact, as for a neuron that is off.
                    exact = (low == 0) & (high == 0) & (values[place] == 0)
                    errors[place] = torch.where(exact, 0.0, moved + ELEMENT * most)
            else:
                sizes = [part.abs() + error for part, error in zip(inputs, before, strict=True)]
                own = run_operation(linear_bounds(operation).magnitude(operation), *sizes)
                through = run_operation(absolute(operation), *before)
                unit = sum_unit(plan, place)
                errors[place] = through * (1 + unit) + unit * own + TINY
        if place in base or place == 0:
            found[place] = errors[place]
        for source in operation.inputs:
            if last[source] == place:
                values.pop(source, None)
                errors.pop(source, None)
    return found
