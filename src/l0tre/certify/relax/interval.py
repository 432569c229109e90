"""Plain interval arithmetic through the network: the cheap bounds that decide most signs."""

from collections.abc import Sequence

from torch import Tensor

from l0tre.certify.relax.supported import absolute, curve_bounds, is_nonlinear, linear_bounds
from l0tre.model.graph import Operation, run_operation
from l0tre.model.operations.kind import Interval

__all__ = ["Interval", "magnitude", "step"]


def step(operation: Operation, inputs: Sequence[Interval]) -> Interval:
    """The range of an operation's output.

    Args:
        operation: Any operation of a reduced graph but the input.
        inputs: Smallest and largest values of its inputs, each ``[batch, *shape]``.

    Returns:
        The range, rounding errors not included.
    """
    curve = curve_bounds(operation)
    if curve is not None:
        return curve.interval(operation, *inputs[0])
    if is_nonlinear(operation):
        low, high = inputs[0]
        return run_operation(operation, low), run_operation(operation, high)
    centres = [(low + high) / 2 for low, high in inputs]
    radii = [(high - low) / 2 for low, high in inputs]
    centre, radius = run_operation(operation, *centres), run_operation(absolute(operation), *radii)
    return centre - radius, centre + radius


def magnitude(operation: Operation, inputs: Sequence[Tensor]) -> Tensor:
    """A bound on the absolute value of an operation's output, from bounds on its inputs' absolute values.

    It also bounds every intermediate sum of absolute values, so rounding errors are a small multiple of it.
    """
    curve = curve_bounds(operation)
    if curve is not None:
        return curve.magnitude(operation, inputs[0])
    if is_nonlinear(operation):
        return run_operation(operation, inputs[0])
    return run_operation(linear_bounds(operation).magnitude(operation), *inputs)
