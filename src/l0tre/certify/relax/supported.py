"""Which operations can be bounded, and their reduction to fewer kinds."""

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from l0tre.errors import ModelError
from l0tre.model.graph import Attribute, Graph, Node

__all__ = ["ELEMENTWISE", "NONLINEAR", "reduce_graph", "unsupported"]

LINEAR = ("conv", "linear", "scale", "reshape", "transpose", "pad", "mean", "add", "sub", "concat")
ELEMENTWISE = ("relu", "leaky_relu", "sigmoid", "tanh")
NONLINEAR = (*ELEMENTWISE, "max_pool")
REDUCED = ("avg_pool", "clip")  # to the ones above
SUPPORTED = (*LINEAR, *NONLINEAR, *REDUCED)


def unsupported(graph: Graph) -> str:
    """Why a graph cannot be bounded, in words that name the operation; empty if it can."""
    for node in graph.nodes[1:]:
        what = node.op
        bent_back = what == "leaky_relu" and node.number("slope") < 0
        if what in SUPPORTED and not bent_back:
            continue
        if bent_back:
            what = "leaky_relu with a negative slope"
        if what == "mul":
            what = "mul (a product of two values that both depend on the input)"
        where = f" ({node.name})" if node.name else ""
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
    nodes: list[Node] = []
    place: list[int] = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(place[source] for source in node.inputs))
        if node.op == "avg_pool":
            _append_avg_pool(nodes, node)
        elif node.op == "clip":
            _append_clip(nodes, node)
        else:
            nodes.append(node)
        place.append(len(nodes) - 1)
    return Graph(tuple(nodes))


def _append_avg_pool(nodes: list[Node], node: Node) -> None:
    """A depthwise convolution; where padding is not counted, a scale puts the true number of values."""
    channels, height, width = nodes[node.inputs[0]].shape
    kernel, padding = node.ints("kernel"), node.ints("padding")
    weight = torch.full((channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), dtype=torch.float64)
    settings: Mapping[str, Attribute] = {
        "stride": node.attributes["stride"],
        "padding": node.attributes["padding"],
        "dilation": (1, 1),
        "groups": channels,
    }
    nodes.append(replace(node, op="conv", tensors={"weight": weight}, attributes=settings))
    if not node.attributes["count_include_pad"] and any(padding):
        ones = torch.ones(1, 1, height, width, dtype=torch.float64)
        share = F.avg_pool2d(ones, kernel, node.ints("stride"), padding)[0]
        nodes.append(Node("scale", (len(nodes) - 1,), node.shape, {"scale": 1 / share}, name=node.name))


def _append_clip(nodes: list[Node], node: Node) -> None:
    """``clip(z) = low + relu(z - low) - relu(z - high)``; an infinite limit leaves its part out."""
    (source,), shape = node.inputs, node.shape
    high = node.number("high")
    low = min(node.number("low"), high)  # as torch: the upper limit wins

    def shifted(position: int, by: float) -> int:
        shift = torch.tensor(by, dtype=torch.float64)
        nodes.append(Node("scale", (position,), shape, {"shift": shift}, name=node.name))
        return len(nodes) - 1

    def relu(position: int) -> int:
        nodes.append(Node("relu", (position,), shape, name=node.name))
        return len(nodes) - 1

    above = source if low == float("-inf") else shifted(relu(shifted(source, -low)), low)
    if high == float("inf"):
        if above == source:
            nodes.append(Node("reshape", (source,), shape, {}, {"shape": shape}, name=node.name))
        return
    over = relu(shifted(source, -high))
    nodes.append(Node("sub", (above, over), shape, name=node.name))
