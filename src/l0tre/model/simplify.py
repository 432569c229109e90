"""Fewer nodes for the same decisions: what every engine sees after an import."""

import math
from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.model.graph import Graph, GraphBuilder, Node

__all__ = ["final_softmax", "simplify", "without_softmax"]


def simplify(graph: Graph) -> Graph:
    """Merge and drop nodes without changing the decision.

    A scale after a convolution, linear layer or scale that nothing else reads is folded into it (computed in float64,
    stored in the precision of its constants), reshapes are merged, unused nodes removed. A final softmax or log-softmax
    over the classes is dropped: the order of the scores stays, the scores become logits. Otherwise the output is
    that of ``graph`` up to rounding.

    Args:
        graph: Any graph; it is not changed.

    Returns:
        The simpler graph, of the same input and output shape.
    """
    while True:
        nodes = list(graph.nodes)
        _drop_softmax(nodes)
        output = _merge_reshapes(nodes)
        # Unused nodes must be gone before readers are counted.
        pruned = list(_pruned(nodes, output).nodes)
        _fold_scales(pruned)
        simpler = _pruned(pruned, len(pruned) - 1)
        if len(simpler.nodes) == len(graph.nodes):
            return simpler
        graph = simpler


def without_softmax(graph: Graph) -> Graph:
    """The graph without the operation that :func:`final_softmax` names; nothing else is changed."""
    nodes = list(graph.nodes)
    _drop_softmax(nodes)
    return Graph(tuple(nodes))


def final_softmax(graph: Graph) -> str:
    """The operation over all classes that :func:`simplify` drops: ``softmax``, ``log_softmax`` or nothing."""
    node = graph.nodes[-1]
    while node.op == "reshape":
        node = graph.nodes[node.inputs[0]]
    over_all = node.op in ("softmax", "log_softmax") and node.shape[int(node.number("dim"))] == math.prod(node.shape)
    return node.op if over_all else ""


def _pruned(nodes: list[Node], output: int) -> Graph:
    builder = GraphBuilder(nodes[0].shape)
    builder.nodes = nodes
    return builder.build(output)


def _drop_softmax(nodes: list[Node]) -> None:
    """Put reshapes, which change nothing, for the softmaxes over all classes that only reshapes follow."""
    position = len(nodes) - 1
    while (node := nodes[position]).op in ("reshape", "softmax", "log_softmax"):
        if node.op != "reshape":
            if node.shape[int(node.number("dim"))] != math.prod(node.shape):
                break
            nodes[position] = replace(node, op="reshape", attributes={"shape": node.shape})
        position = node.inputs[0]


def _merge_reshapes(nodes: list[Node]) -> int:
    """Let nodes read past reshapes that another reshape follows or that change nothing; gives the output's position."""
    alias = list(range(len(nodes)))
    for position, node in enumerate(nodes):
        node = replace(node, inputs=tuple(alias[source] for source in node.inputs))
        if node.op == "reshape":
            source = node.inputs[0]
            if nodes[source].op == "reshape" and nodes[source].shape != node.shape:
                source = nodes[source].inputs[0]
            node = replace(node, inputs=(source,))
            if nodes[source].shape == node.shape:
                alias[position] = source
        nodes[position] = node
    return alias[-1]


def _fold_scales(nodes: list[Node]) -> None:
    """Put a merged node for every scale whose source nothing else reads; the source is then unused."""
    readers = Counter(source for node in nodes for source in node.inputs)
    for position, node in enumerate(nodes):
        if node.op == "scale" and readers[node.inputs[0]] == 1:
            merged = _merged(nodes[node.inputs[0]], node)
            # The merged node reads what its source read, and the source is gone: the counts stay right.
            nodes[position] = node if merged is None else merged


def _merged(source: Node, scale: Node) -> Node | None:
    """One node for a scale and the node before it, ``None`` if they do not merge."""
    factor, shift = (_wide(scale.tensors.get(key)) for key in ("scale", "shift"))
    if source.op == "scale":
        gain, offset = "scale", "shift"
        weight_factor = factor
    elif source.op in ("conv", "linear") and scale.shape == source.shape:
        gain, offset = "weight", "bias"
        channel = 0 if source.op == "conv" else len(source.shape) - 1
        if not all(_only_along(channel, t, source.shape) for t in (factor, shift) if t is not None):
            return None
        channels = source.shape[channel]
        factor, shift = (t if t is None else t.reshape(-1).expand(channels) for t in (factor, shift))
        # Output channels come first in both kinds of weights.
        weight_factor = None if factor is None else factor.reshape(-1, *[1] * (source.tensors[gain].ndim - 1))
    else:
        return None
    # (x * weight + bias) * factor + shift
    weight, bias = _wide(source.tensors.get(gain)), _wide(source.tensors.get(offset))
    weight = weight_factor if weight is None else weight if weight_factor is None else weight * weight_factor
    # A sum of constants can cancel: its rounding error is a share of their absolute values, which are kept for that.
    own = None if bias is None else _wide(source.tensors.get(f"{offset}_terms", bias.abs()))
    added = None
    if shift is not None:
        added = scale.tensors.get("shift_terms", scale.tensors["shift"].abs()).to(shift)
        added = added if source.op == "scale" else added.reshape(-1).expand_as(shift)
    own = own if own is None or factor is None else own * factor.abs()
    terms = added if own is None else own if added is None else own + added
    bias = bias if bias is None or factor is None else bias * factor
    bias = shift if bias is None else bias if shift is None else bias + shift
    kept = [*source.tensors.values(), *scale.tensors.values()]
    found = ((gain, weight), (offset, bias), (f"{offset}_terms", terms))
    return replace(source, shape=scale.shape, tensors={key: t.to(kept[0].dtype) for key, t in found if t is not None})


def _wide(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(torch.float64)


def _only_along(dim: int, tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor that broadcasts against ``shape`` varies along dimension ``dim`` only."""
    sizes = (1,) * (len(shape) - tensor.ndim) + tuple(tensor.shape)
    return all(size == 1 for place, size in enumerate(sizes) if place != dim)
