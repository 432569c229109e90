"""Zeros around a map as the padding of the convolution that reads it.

Networks that were made with another library's rules pad in an operation of its own, which costs a copy of the map, and
the larger map then costs the convolution more than padding of its own does: up to two thirds of its time on a CPU.
"""

from dataclasses import replace

from l0tre.model.graph import Graph, GraphBuilder
from l0tre.model.operations import Operation

__all__ = ["pad_inside"]


def pad_inside(graph: Graph) -> Graph:
    """The same function, with what pads alike on both sides done by convolutions; no convolution has other weights."""
    operations = list(graph.operations)
    for place, operation in enumerate(operations):
        while operation.kind == "conv" and (sides := _sides(operations[operation.inputs[0]])) is not None:
            rows, columns = operation.pair("padding")
            wider = {**operation.attributes, "padding": (rows + sides[0], columns + sides[1])}
            operation = replace(operation, inputs=operations[operation.inputs[0]].inputs, attributes=wider)
        operations[place] = operation
    builder = GraphBuilder(graph.input_shape)
    builder.operations = operations
    return builder.build(len(operations) - 1)


def _sides(operation: Operation) -> tuple[int, int] | None:
    """Rows above and below, columns left and right that an operation adds; ``None`` if it does anything else."""
    if operation.kind != "pad" or operation.number("value") != 0.0 or len(operation.shape) != 3:
        return None
    left, right, top, bottom, *others = (*operation.ints("padding"), 0, 0, 0, 0)[:6]
    return (top, left) if left == right >= 0 and top == bottom >= 0 and not any(others) else None
