"""What is refused of an ONNX file before anything of it runs: loops, and sizes that no memory holds.

A few hundred bytes can ask a runtime for a loop without end, for functions that expand to billions of nodes, or for
a constant of a terabyte; a runtime finds out when it is too late.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l0tre.errors import ModelError, require
from l0tre.limits import refuse_large
from l0tre.model.onnx_call import Array

__all__ = ["refuse_hostile", "refuse_large_fold", "refuse_large_values"]

LOOPS = frozenset({"Loop", "Scan", "SequenceMap"})
MOST_NODES = 200_000  # with all functions expanded; networks of this package's size have some hundreds
LEAST, WIDEST = 1, 16  # bytes of the smallest and the largest number type
COPIES = 3  # of a file's bytes: read, parsed, as arrays


def refuse_hostile(model: Any, path: Path) -> None:
    """Refuse a file that can loop, or whose functions or constants are too large; nothing of it was run yet.

    Args:
        model: The ModelProto as read.
        path: Where from.

    Raises:
        ModelError: If it is refused.
    """
    for node in _all_nodes(model):
        if node.op_type in LOOPS:
            raise ModelError(
                f"ONNX node {node.name or next(iter(node.output), '')} ({node.op_type}) of {path} can loop, which is "
                "refused: export the network without loops"
            )
    count = _expanded(model, path)
    if count > MOST_NODES:
        raise ModelError(f"{path} has {count:,} nodes with its functions expanded, at most {MOST_NODES:,} are read")
    try:
        refuse_large(COPIES * path.stat().st_size, "reading it")
        for name, dims in _all_constants(model):
            refuse_large(LEAST * math.prod(dims), f"its constant {name}")
            if min(dims, default=0) < 0:
                raise ValueError(f"its constant {name} has the shape {tuple(dims)}")
    except ValueError as error:
        raise ModelError(f"{path} is not read: {error}") from error


def _all_nodes(model: Any) -> Iterator[Any]:
    """Every node: of the graph, of functions, of the graphs that are attributes of nodes."""
    pending = [model.graph.node, *(function.node for function in model.functions)]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                pending += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]


def _all_constants(model: Any) -> Iterator[tuple[str, Sequence[int]]]:
    """Names and shapes of all constants, of sparse ones those that they stand for."""
    for tensor in model.graph.initializer:
        yield tensor.name, tensor.dims
    for sparse in model.graph.sparse_initializer:
        yield sparse.values.name, sparse.dims
    for node in _all_nodes(model):
        for attribute in node.attribute:
            for tensor in (attribute.t, *attribute.tensors):
                yield tensor.name or attribute.name, tensor.dims
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield sparse.values.name or attribute.name, sparse.dims


def _expanded(model: Any, path: Path) -> int:
    """Number of nodes when every call of a function is replaced by its nodes."""
    functions = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_calls: list[tuple[str, str]] = []

    def size(key: tuple[str, str]) -> int:
        if key in open_calls:
            raise ModelError(f"{path} has a function {key[1]} that calls itself: export the network without loops")
        if key not in sizes:
            open_calls.append(key)
            sizes[key] = sum(size_of(node) for node in functions[key].node)
            open_calls.pop()
        return sizes[key]

    def size_of(node: Any) -> int:
        key = (node.domain, node.op_type)
        return size(key) if key in functions else 1

    if len(functions) > 500:  # chains of calls are followed by calls of our own
        raise ModelError(f"{path} has {len(functions)} functions of its own, at most 500 are read")
    return sum(size_of(node) for node in model.graph.node)


def refuse_large_values(model: Any, path: Path) -> None:
    """Refuse a file one of whose values is too large for one sample, as far as its shapes can be inferred.

    Args:
        model: The ModelProto, its functions inlined.
        path: Where from.

    Raises:
        ModelError: If it is refused.
    """
    onnx = require("onnx", "onnx")
    require("onnx.shape_inference", "onnx")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # what it cannot infer, the importer or the runtime will refuse
        return
    for value in inferred.graph.value_info:
        sizes = [int(dim.dim_value) if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim]
        try:
            refuse_large(4 * math.prod(sizes), f"its value {value.name} of shape {tuple(sizes)}")
        except ValueError as error:
            raise ModelError(f"{path} is not run: {error}") from error


def refuse_large_fold(operator: str, inputs: Sequence[Array]) -> None:
    """Refuse to compute a constant that is too large, from the constants that it is computed from.

    Args:
        operator: Its ONNX name.
        inputs: Its inputs, those left out left out.

    Raises:
        ValueError: If it is too large.
    """
    refuse_large(WIDEST * _folded_elements(operator, inputs), f"its result of {operator}")


def _folded_elements(operator: str, inputs: Sequence[Array]) -> int:
    """At most so many elements has the result of an operator on constants."""
    shapes = [array.shape for array in inputs]
    total = sum(math.prod(shape) for shape in shapes)
    numbers = [[int(number) for number in array.reshape(-1)] for array in inputs if array.dtype.kind in "iu"]
    match operator:
        case "ConstantOfShape":
            return math.prod(numbers[0]) if numbers else 0
        case "Expand":
            return math.prod(shapes[0]) * max(1, math.prod(numbers[-1])) if numbers else total
        case "Tile":
            return math.prod(shapes[0]) * math.prod(numbers[-1]) if numbers else total
        case "Range":
            start, limit, delta = (float(array.reshape(-1)[0]) for array in inputs)
            return math.ceil(abs((limit - start) / delta)) if delta else 0
        case "Gather":
            # Each index picks a slice.
            return math.prod(shapes[0]) * max(1, math.prod(shapes[1])) // max(1, min(shapes[0], default=1))
        case "MatMul":
            return math.prod(shapes[0][:-1]) * math.prod(shapes[1][:-2]) * shapes[1][-1] if shapes[1] else 0
        case _:
            try:
                return max(total, math.prod(np.broadcast_shapes(*shapes)))
            except ValueError:  # not an operator that broadcasts
                return total
