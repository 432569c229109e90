"""Fewer operations for the same decisions: what every engine sees after an import."""

import math
from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.model.graph import Graph, GraphBuilder, Operation

__all__ = ["final_softmax", "simplify", "without_softmax"]


def simplify(graph: Graph) -> Graph:
    """Merge and drop operations without changing the decision.

    A scale after a convolution, linear layer or scale that nothing else reads is folded into it (computed in float64,
    stored in the precision of its constants), reshapes are merged, unused operations removed. A final softmax or
    log-softmax over the classes is dropped: the order of the scores stays, the scores become logits. Otherwise the
    output is that of ``graph`` up to rounding.

    Args:
        graph: Any graph; it is not changed.

    Returns:
        The simpler graph, of the same input and output shape.
    """
    while True:
        operations = list(graph.operations)
        _drop_softmax(operations)
        output = _merge_reshapes(operations)
        # Unused operations must be gone before readers are counted.
        pruned = list(_pruned(operations, output).operations)
        _fold_scales(pruned)
        simpler = _pruned(pruned, len(pruned) - 1)
        if len(simpler.operations) == len(graph.operations):
            return simpler
        graph = simpler


def without_softmax(graph: Graph) -> Graph:
    """The graph without the operation that :func:`final_softmax` names; nothing else is changed."""
    operations = list(graph.operations)
    _drop_softmax(operations)
    return Graph(tuple(operations))


def final_softmax(graph: Graph) -> str:
    """The operation over all classes that :func:`simplify` drops: ``softmax``, ``log_softmax`` or nothing."""
    operation = graph.operations[-1]
    while operation.kind == "reshape":
        operation = graph.operations[operation.inputs[0]]
    over_all = operation.kind in ("softmax", "log_softmax") and operation.shape[
        int(operation.number("dim"))
    ] == math.prod(operation.shape)
    return operation.kind if over_all else ""


def _pruned(operations: list[Operation], output: int) -> Graph:
    builder = GraphBuilder(operations[0].shape)
    builder.operations = operations
    return builder.build(output)


def _drop_softmax(operations: list[Operation]) -> None:
    """Put reshapes, which change nothing, for the softmaxes over all classes that only reshapes follow."""
    position = len(operations) - 1
    while (operation := operations[position]).kind in ("reshape", "softmax", "log_softmax"):
        if operation.kind != "reshape":
            if operation.shape[int(operation.number("dim"))] != math.prod(operation.shape):
                break
            operations[position] = replace(operation, kind="reshape", attributes={"shape": operation.shape})
        position = operation.inputs[0]


def _merge_reshapes(operations: list[Operation]) -> int:
    """Let operations read past reshapes that another one follows or that change nothing; gives the output's place."""
    alias = list(range(len(operations)))
    for position, operation in enumerate(operations):
        operation = replace(operation, inputs=tuple(alias[source] for source in operation.inputs))
        if operation.kind == "reshape":
            source = operation.inputs[0]
            if operations[source].kind == "reshape" and operations[source].shape != operation.shape:
                source = operations[source].inputs[0]
            operation = replace(operation, inputs=(source,))
            if operations[source].shape == operation.shape:
                alias[position] = source
        operations[position] = operation
    return alias[-1]


def _fold_scales(operations: list[Operation]) -> None:
    """Put a merged operation for every scale whose source nothing else reads; the source is then unused."""
    readers = Counter(source for operation in operations for source in operation.inputs)
    for position, operation in enumerate(operations):
        if operation.kind == "scale" and readers[operation.inputs[0]] == 1:
            merged = _merged(operations[operation.inputs[0]], operation)
            # The merged operation reads what its source read, and the source is gone: the counts stay right.
            operations[position] = operation if merged is None else merged


def _merged(source: Operation, scale: Operation) -> Operation | None:
    """One operation for a scale and the operation before it, ``None`` if they do not merge."""
    factor, shift = (_wide(scale.tensors.get(key)) for key in ("scale", "shift"))
    if source.kind == "scale":
        gain, offset = "scale", "shift"
        weight_factor = factor
    elif source.kind in ("conv", "linear") and scale.shape == source.shape:
        gain, offset = "weight", "bias"
        channel = 0 if source.kind == "conv" else len(source.shape) - 1
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
        added = added if source.kind == "scale" else added.reshape(-1).expand_as(shift)
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
