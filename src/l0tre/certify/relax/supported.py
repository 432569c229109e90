"""Which operations can be bounded, and their reduction to fewer kinds."""

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from l0tre.errors import ModelError
from l0tre.model.graph import Attribute, Graph, Operation

__all__ = ["ELEMENTWISE", "NONLINEAR", "reduce_graph", "unsupported"]

LINEAR = ("conv", "linear", "scale", "reshape", "transpose", "pad", "mean", "add", "sub", "concat")
ELEMENTWISE = ("relu", "leaky_relu", "sigmoid", "tanh")
NONLINEAR = (*ELEMENTWISE, "max_pool")
REDUCED = ("avg_pool", "clip")  # to the ones above
SUPPORTED = (*LINEAR, *NONLINEAR, *REDUCED)


def unsupported(graph: Graph) -> str:
    """Why a graph cannot be bounded, in words that name the operation; empty if it can."""
    for operation in graph.operations[1:]:
        what = operation.kind
        bent_back = what == "leaky_relu" and operation.number("slope") < 0
        if what in SUPPORTED and not bent_back:
            continue
        if bent_back:
            what = "leaky_relu with a negative slope"
        if what == "mul":
            what = "mul (a product of two values that both depend on the input)"
        where = f" ({operation.name})" if operation.name else ""
        return f"the operation {what}{where} cannot be bounded; supported: {', '.join(SUPPORTED)}"
    return ""


def reduce_graph(graph: Graph) -> Graph:
    """Write average pools as convolutions and clips as ReLUs.

    Args:
        graph: In float64.

    Returns:
        A graph of the operations ``LINEAR`` and ``NONLINEAR`` alone, with the same output.

    Raises:
        ModelError: Naming an operation that cannot be bounded.
    """
    reason = unsupported(graph)
    if reason:
        raise ModelError(reason)
    operations: list[Operation] = []
    place: list[int] = []
    for operation in graph.operations:
        operation = replace(operation, inputs=tuple(place[source] for source in operation.inputs))
        if operation.kind == "avg_pool":
            _append_avg_pool(operations, operation)
        elif operation.kind == "clip":
            _append_clip(operations, operation)
        else:
            operations.append(operation)
        place.append(len(operations) - 1)
    return Graph(tuple(operations))


def _append_avg_pool(operations: list[Operation], operation: Operation) -> None:
    """A depthwise convolution; where padding is not counted, a scale puts the true number of values."""
    channels, height, width = operations[operation.inputs[0]].shape
    kernel, padding = operation.ints("kernel"), operation.ints("padding")
    weight = torch.full((channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), dtype=torch.float64)
    settings: Mapping[str, Attribute] = {
        "stride": operation.attributes["stride"],
        "padding": operation.attributes["padding"],
        "dilation": (1, 1),
        "groups": channels,
    }
    operations.append(replace(operation, kind="conv", tensors={"weight": weight}, attributes=settings))
    if not operation.attributes["count_include_pad"] and any(padding):
        ones = torch.ones(1, 1, height, width, dtype=torch.float64)
        share = F.avg_pool2d(ones, kernel, operation.ints("stride"), padding)[0]
        operations.append(
            Operation("scale", (len(operations) - 1,), operation.shape, {"scale": 1 / share}, name=operation.name)
        )


def _append_clip(operations: list[Operation], operation: Operation) -> None:
    """``clip(z) = low + relu(z - low) - relu(z - high)``; an infinite limit leaves its part out."""
    (source,), shape = operation.inputs, operation.shape
    high = operation.number("high")
    low = min(operation.number("low"), high)  # as torch: the upper limit wins

    def shifted(position: int, by: float) -> int:
        shift = torch.tensor(by, dtype=torch.float64)
        operations.append(Operation("scale", (position,), shape, {"shift": shift}, name=operation.name))
        return len(operations) - 1

    def relu(position: int) -> int:
        operations.append(Operation("relu", (position,), shape, name=operation.name))
        return len(operations) - 1

    above = source if low == float("-inf") else shifted(relu(shifted(source, -low)), low)
    if high == float("inf"):
        if above == source:
            operations.append(Operation("reshape", (source,), shape, {}, {"shape": shape}, name=operation.name))
        return
    over = relu(shifted(source, -high))
    operations.append(Operation("sub", (above, over), shape, name=operation.name))
