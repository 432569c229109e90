"""Which operations can be bounded, and their reduction to fewer kinds."""

from dataclasses import replace

from l0tre.errors import ModelError
from l0tre.model.graph import Graph, Operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Curve, CurveBounds, Linear, LinearBounds, Rewritten, Selection, Unbounded

__all__ = [
    "SUPPORTED",
    "absolute",
    "curve_bounds",
    "is_nonlinear",
    "linear_bounds",
    "plain",
    "pools_first",
    "reduce_graph",
    "unsupported",
]

SUPPORTED = tuple(
    name for name, kind in KINDS.items() if isinstance(kind, Selection) or not isinstance(kind.bounds, Unbounded)
)


def unsupported(graph: Graph) -> str:
    """Why a graph cannot be bounded, in words that name the operation; empty if it can."""
    for operation in graph.operations[1:]:
        what = _refused(operation)
        if what:
            where = f" ({operation.name})" if operation.name else ""
            return f"the operation {what}{where} cannot be bounded; supported: {', '.join(SUPPORTED)}"
    return ""


def _refused(operation: Operation) -> str:
    kind = KINDS[operation.kind]
    if isinstance(kind, Selection):
        return ""
    if isinstance(kind.bounds, Unbounded):
        return kind.bounds.what or operation.kind
    return kind.bounds.refuse(operation) if isinstance(kind.bounds, CurveBounds) else ""


def reduce_graph(graph: Graph) -> Graph:
    """Write operations that have no bounds of their own as others: average pools as convolutions, clips as ReLUs.

    Args:
        graph: In float64.

    Returns:
        A graph with the same output, of operations for which :func:`is_nonlinear` or :func:`linear_bounds` hold.

    Raises:
        ModelError: Naming an operation that cannot be bounded.
    """
    reason = unsupported(graph)
    if reason:
        raise ModelError(reason)
    made: list[Operation] = []
    place: list[int] = []
    for operation in graph.operations:
        operation = replace(operation, inputs=tuple(place[source] for source in operation.inputs))
        kind = KINDS.get(operation.kind)
        if isinstance(kind, Linear | Curve) and isinstance(kind.bounds, Rewritten):
            made.extend(kind.bounds.rewrite(operation, made[operation.inputs[0]].shape, len(made)))
        else:
            made.append(operation)
        place.append(len(made) - 1)
    return Graph(tuple(made))


def is_nonlinear(operation: Operation) -> bool:
    """Whether an operation of a reduced graph is enclosed between lines; the input is not."""
    return isinstance(KINDS.get(operation.kind), Curve | Selection)


def linear_bounds(operation: Operation) -> LinearBounds:
    """How a linear operation of a reduced graph is bounded."""
    kind = KINDS[operation.kind]
    assert isinstance(kind, Linear)
    assert isinstance(kind.bounds, LinearBounds)
    return kind.bounds


def curve_bounds(operation: Operation) -> CurveBounds | None:
    """How an elementwise operation of a reduced graph is bounded; ``None`` for any other."""
    kind = KINDS.get(operation.kind)
    return kind.bounds if isinstance(kind, Curve) and isinstance(kind.bounds, CurveBounds) else None


def absolute(operation: Operation) -> Operation:
    """A linear operation with the absolute values of its weights and without its constants; another one as it is."""
    kind = KINDS.get(operation.kind)
    return kind.absolute(operation, 1, False) if isinstance(kind, Linear) else operation


def plain(operation: Operation) -> Operation:
    """A linear operation on differences: its constants drop out; another one as it is."""
    return linear_bounds(operation).plain(operation) if isinstance(KINDS.get(operation.kind), Linear) else operation


def pools_first(graph: Graph) -> Graph:
    """Swap elementwise operations that never fall with the max pools that alone read them, which gives the same.

    Less is to be bounded then, and a bound is off once rather than for every input of a pool.
    """
    operations = list(graph.operations)
    readers = [sum(place in operation.inputs for operation in operations) for place in range(len(operations))]
    for place, operation in enumerate(operations[:-1]):
        pool, curve = operations[place + 1], curve_bounds(operation)
        selects = isinstance(KINDS.get(pool.kind), Selection) and pool.inputs == (place,)
        if selects and readers[place] == 1 and curve is not None and curve.slopes(operation)[0] >= 0:
            operations[place] = replace(pool, inputs=operation.inputs)
            operations[place + 1] = replace(operation, inputs=(place,), shape=pool.shape)
    return Graph(tuple(operations))
