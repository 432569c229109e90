"""Plain interval arithmetic through the network: the cheap bounds that decide most signs."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.certify.relax.supported import ELEMENTWISE
from l0tre.model.graph import Node, run_node

__all__ = ["Interval", "absolute", "magnitude", "step"]

Interval = tuple[Tensor, Tensor]


def step(node: Node, inputs: Sequence[Interval]) -> Interval:
    """The range of an operation's output.

    Args:
        node: Any operation that ``support`` allows but the input.
        inputs: Smallest and largest values of its inputs, each ``[batch, *shape]``.

    Returns:
        The range, rounding errors not included.
    """
    if node.op in ELEMENTWISE:
        return _curve(node, *inputs[0])
    if node.op == "max_pool":
        low, high = inputs[0]
        return run_node(node, low), run_node(node, high)
    centres = [(low + high) / 2 for low, high in inputs]
    radii = [(high - low) / 2 for low, high in inputs]
    centre, radius = run_node(node, *centres), run_node(absolute(node), *radii)
    return centre - radius, centre + radius


def magnitude(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """A bound on the absolute value of an operation's output, from bounds on its inputs' absolute values.

    It also bounds every intermediate sum of absolute values, so rounding errors are a small multiple of it.
    """
    if node.op in ("sigmoid", "tanh"):
        return inputs[0] + 1  # their lines, of slope 1 at most, are summed too
    if node.op == "leaky_relu":
        return inputs[0] * max(1.0, abs(node.number("slope")))
    if node.op in ("relu", "max_pool"):
        return run_node(node, inputs[0])
    positive = absolute(node)
    constants = {
        key: node.tensors.get(f"{key}_terms", node.tensors[key]).abs()
        for key in ("bias", "shift")
        if key in node.tensors
    }
    value = {"value": abs(node.number("value"))} if node.op == "pad" else {}
    full = replace(positive, tensors={**positive.tensors, **constants}, attributes={**positive.attributes, **value})
    return run_node(full, *inputs)


def _curve(node: Node, low: Tensor, high: Tensor) -> Interval:
    ends = run_node(node, low), run_node(node, high)
    # A leaky ReLU of negative slope has its smallest value at zero.
    bend = torch.where((low < 0) & (high > 0), 0.0, ends[0]) if node.op == "leaky_relu" else ends[0]
    return torch.minimum(torch.minimum(*ends), bend), torch.maximum(*ends)


def absolute(node: Node) -> Node:
    """A linear operation with the absolute values of its weights and without its constants."""
    tensors = {key: value.abs() for key, value in node.tensors.items() if key in ("weight", "scale")}
    attributes = {**node.attributes, "value": 0.0} if node.op == "pad" else node.attributes
    return replace(node, op="add" if node.op == "sub" else node.op, tensors=tensors, attributes=attributes)
