"""Plain interval arithmetic through the network: the cheap bounds that decide most signs."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.certify.relax.supported import ELEMENTWISE
from l0tre.model.graph import Operation, run_operation

__all__ = ["Interval", "absolute", "magnitude", "step"]

Interval = tuple[Tensor, Tensor]


def step(operation: Operation, inputs: Sequence[Interval]) -> Interval:
    """The range of an operation's output.

    Args:
        operation: Any operation that ``support`` allows but the input.
        inputs: Smallest and largest values of its inputs, each ``[batch, *shape]``.

    Returns:
        The range, rounding errors not included.
    """
    if operation.kind in ELEMENTWISE:
        return _curve(operation, *inputs[0])
    if operation.kind == "max_pool":
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
    if operation.kind in ("sigmoid", "tanh"):
        return inputs[0] + 1  # their lines, of slope 1 at most, are summed too
    if operation.kind == "leaky_relu":
        return inputs[0] * max(1.0, abs(operation.number("slope")))
    if operation.kind in ("relu", "max_pool"):
        return run_operation(operation, inputs[0])
    positive = absolute(operation)
    constants = {
        key: operation.tensors.get(f"{key}_terms", operation.tensors[key]).abs()
        for key in ("bias", "shift")
        if key in operation.tensors
    }
    value = {"value": abs(operation.number("value"))} if operation.kind == "pad" else {}
    full = replace(positive, tensors={**positive.tensors, **constants}, attributes={**positive.attributes, **value})
    return run_operation(full, *inputs)


def _curve(operation: Operation, low: Tensor, high: Tensor) -> Interval:
    ends = run_operation(operation, low), run_operation(operation, high)
    # A leaky ReLU of negative slope has its smallest value at zero.
    bend = torch.where((low < 0) & (high > 0), 0.0, ends[0]) if operation.kind == "leaky_relu" else ends[0]
    return torch.minimum(torch.minimum(*ends), bend), torch.maximum(*ends)


def absolute(operation: Operation) -> Operation:
    """A linear operation with the absolute values of its weights and without its constants."""
    tensors = {key: value.abs() for key, value in operation.tensors.items() if key in ("weight", "scale")}
    attributes = {**operation.attributes, "value": 0.0} if operation.kind == "pad" else operation.attributes
    return replace(
        operation, kind="add" if operation.kind == "sub" else operation.kind, tensors=tensors, attributes=attributes
    )
