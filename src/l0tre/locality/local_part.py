"""Which part of a network is local, and which positions of its feature maps a changed pixel reaches.

A network that begins with convolutions, pooling and elementwise operations lets a pixel reach only a small window of
every feature map, up to the first dense layer. This module finds that part and the windows; nothing is computed here.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from l0tre.model.graph import Graph, Operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Curve, Everywhere, Join, Linear, Local, Place, Selection
from l0tre.model.operations.pointwise import POINTWISE
from l0tre.model.rounding import bends
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = [
    "LocalPlan",
    "Span",
    "bends_in_place",
    "is_curve",
    "is_local",
    "local_place",
    "need",
    "overlap",
    "plan_local",
    "reach",
    "selects",
    "spans",
    "stage_spans",
    "window_share",
]

# Share of the cut's map that one pixel may reach; beyond it whole forward passes are as good.
MOST_SHARE = {"linear": 0.8, "mean": 0.8, "map": 0.5}


@dataclass(frozen=True)
class Span:
    """An interval of positions along one axis of a feature map, both ends included; empty if ``last < first``."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of positions."""
        return max(self.last - self.first + 1, 0)


@dataclass(frozen=True)
class LocalPlan:
    """The local part of a graph.

    Attributes:
        graph: The network, its input seen as a map ``(C, H, W)``.
        cut: The last local operation; everything after it reads only this operation.
        head: What reads the cut: ``linear`` (a dense layer on the flattened map), ``mean`` (the mean of every channel)
            or ``map`` (anything else, which needs the whole map).
        tail: The first operation that is computed in full.
        strides: For each operation up to the cut, how many input pixels one step of its map stands for.
        joints: Operations up to the cut that alone connect what is before and after them, the input first.
        tuning: When convolutions of windows are matrices.
        matrices: These, worked out as they are needed.
    """

    graph: Graph
    cut: int
    head: str
    tail: int
    strides: tuple[int, ...]
    joints: tuple[int, ...]
    tuning: Tuning = DEFAULT_TUNING
    matrices: dict[Hashable, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def bends(self) -> dict[int, int]:
        """Numbers of the operations that are not linear, by position (see ``rounding.bends``)."""
        return bends(self.graph)

    @property
    def stride(self) -> int:
        """Stride of the cut: windows repeat with this period over the image."""
        return self.strides[self.cut]


def plan_local(
    graph: Graph, most_share: Mapping[str, float] = MOST_SHARE, tuning: Tuning = DEFAULT_TUNING
) -> LocalPlan | str:
    """Find the local part of a network.

    Args:
        graph: The network.
        most_share: The largest share of the cut's map that one pixel may reach, by what reads the cut.
        tuning: When convolutions of windows are matrices.

    Returns:
        The plan, or the reason why there is none.
    """
    graph = _as_map(graph)
    if len(graph.input_shape) != 3:
        return f"inputs of shape {graph.input_shape} are not maps of channels, height and width"
    strides = [1]
    for operation in graph.operations[1:]:
        stride = _stride(operation, graph, strides)
        if stride is None:
            break
        strides.append(stride)
    last = graph.last_use()
    joints = [place for place in range(len(strides)) if max(last[:place], default=place) <= place]
    for cut in reversed(joints):
        head, tail = _head(graph, cut)
        if (head == "map" and cut == 0) or window_share(graph, cut) > most_share[head]:
            continue
        kept = tuple(joint for joint in joints if joint <= cut)
        return LocalPlan(graph, cut, head, tail, tuple(strides[: cut + 1]), kept, tuning)
    stopper = graph.operations[len(strides)] if len(strides) < len(graph.operations) else graph.operations[-1]
    name = f"{stopper.name or stopper.kind} ({stopper.kind})"
    return f"a single pixel reaches most of the map before {name} mixes all positions"


def spans(graph: Graph, upto: int, first: Span, axis: int, start: int = 0) -> list[Span]:
    """What a span of one operation reaches at every later local operation.

    Args:
        graph: The network.
        upto: The last operation asked about.
        first: The span at operation ``start``.
        axis: 0 for rows, 1 for columns.
        start: A joint of the plan.

    Returns:
        One span for each operation from ``start`` to ``upto``, not clipped to the maps.
    """
    found = [first]
    for operation in graph.operations[start + 1 : upto + 1]:
        found.append(reach(operation, [found[source - start] for source in operation.inputs], axis))
    return found


def reach(operation: Operation, sources: Sequence[Span], axis: int) -> Span:
    """The positions of an operation's output that read any position of its inputs' spans."""
    sources = [span for span in sources if span.size]  # a branch that skips the position adds nothing
    if not sources:
        return Span(0, -1)
    low, high = min(span.first for span in sources), max(span.last for span in sources)
    window = local_place(operation).window(operation, axis)
    first = low + window.padding - (window.kernel - 1) * window.dilation
    return Span(-(-first // window.stride), (high + window.padding) // window.stride)


def need(operation: Operation, span: Span, axis: int) -> Span:
    """The positions of an operation's input that a span of its output reads."""
    window = local_place(operation).window(operation, axis)
    first, last = (end * window.stride - window.padding for end in (span.first, span.last))
    return Span(first, last + (window.kernel - 1) * window.dilation)


def overlap(a: Span, b: Span) -> Span:
    """The positions that two spans share."""
    return Span(max(a.first, b.first), min(a.last, b.last))


def is_curve(operation: Operation) -> bool:
    """Whether an operation is elementwise and not linear."""
    return isinstance(KINDS.get(operation.kind), Curve)


def selects(operation: Operation) -> bool:
    """Whether every output of an operation is one of its inputs, as with a max pool."""
    return isinstance(KINDS.get(operation.kind), Selection)


def bends_in_place(operation: Operation) -> bool:
    """Whether a local operation is not linear."""
    return isinstance(KINDS.get(operation.kind), Curve | Selection)


def local_place(operation: Operation) -> Local:
    """How a local operation sees its input; one that joins maps sees the same position of each."""
    place = _place(operation)
    return place if isinstance(place, Local) else POINTWISE


def _place(operation: Operation) -> Place:
    kind = KINDS[operation.kind]
    if isinstance(kind, Linear | Selection):
        return kind.place
    return POINTWISE if isinstance(kind, Curve) else Everywhere()


def is_local(operation: Operation, sources: Sequence[tuple[int, ...]]) -> bool:
    """Whether all outputs of an operation see like windows of its inputs, which have the shapes given."""
    place = _place(operation)
    if len(operation.shape) != 3 or any(len(source) != 3 for source in sources):
        return False
    if isinstance(place, Join):
        return place.fits(operation, sources)
    return isinstance(place, Local) and place.sees(operation, sources[0]) and place.uniform(operation)


def window_share(graph: Graph, cut: int) -> float:
    """The largest share of the cut's map that one pixel in the middle of the image reaches."""
    share = 1.0
    for axis in (0, 1):
        size = graph.input_shape[1 + axis]
        middle = range(size // 2, min(size, size // 2 + 8))
        extent = graph.operations[cut].shape[1 + axis]
        largest = max(spans(graph, cut, Span(i, i), axis)[-1].size for i in middle)
        share *= min(largest / extent, 1.0) if size > 1 else 1.0
    return share


def _stride(operation: Operation, graph: Graph, strides: Sequence[int]) -> int | None:
    """Stride of an operation's map in input pixels, or ``None`` if the operation is not local."""
    if len(operation.shape) != 3 or any(source >= len(strides) for source in operation.inputs):
        return None
    before = {strides[source] for source in operation.inputs}
    if len(before) > 1:
        return None
    (stride,) = before
    shapes = [graph.operations[source].shape for source in operation.inputs]
    if not is_local(operation, shapes):
        return None
    rows, columns = (local_place(operation).window(operation, axis).stride for axis in (0, 1))
    return stride * rows if rows == columns else None


def _head(graph: Graph, cut: int) -> tuple[str, int]:
    """What reads the cut, and the first operation after that."""
    readers = [place for place, operation in enumerate(graph.operations) if cut in operation.inputs]
    if len(readers) != 1:
        return "map", cut + 1
    reader = graph.operations[readers[0]]
    if reader.kind == "mean" and sorted(reader.ints("dims")) == [1, 2]:
        return "mean", readers[0] + 1
    if reader.kind == "reshape" and len(reader.shape) == 1:
        behind = [place for place, operation in enumerate(graph.operations) if readers[0] in operation.inputs]
        if len(behind) == 1 and graph.operations[behind[0]].kind == "linear":
            return "linear", behind[0] + 1
    return "map", cut + 1


def _as_map(graph: Graph) -> Graph:
    """A network on vectors as one on maps of a single row; others as they are."""
    if len(graph.input_shape) != 1:
        return graph
    size = graph.input_shape[0]
    operations: list[Operation] = [replace(graph.operations[0], shape=(1, 1, size))]
    rest = list(graph.operations[1:])
    while rest and _by_value(rest[0]) and rest[0].inputs == (len(operations) - 1,):
        operations.append(replace(rest.pop(0), shape=(1, 1, size)))
    place = len(operations)
    if any(source < place - 1 for operation in rest for source in operation.inputs):
        return graph  # something reads past the elementwise part
    operations.append(Operation("reshape", (place - 1,), (size,), attributes={"shape": (size,)}))
    moved = [replace(operation, inputs=tuple(source + 1 for source in operation.inputs)) for operation in rest]
    return Graph((*operations, *moved))


def _by_value(operation: Operation) -> bool:
    """Whether every output depends on the input in the same place alone, whatever the shape."""
    return is_curve(operation) or operation.kind == "scale"


def stage_spans(plan: LocalPlan, start: int, rows: Span, target: Span, axis: int) -> Mapping[int, Span]:
    """The positions to compute at every operation from ``start`` to the cut.

    Args:
        plan: The local part.
        start: A joint where the change is known.
        rows: What has changed there.
        target: What is wanted at the cut.
        axis: 0 for rows, 1 for columns.

    Returns:
        For each operation what is both reached by the change and read by the target.
    """
    graph = plan.graph
    reached = spans(graph, plan.cut, rows, axis, start)
    wanted: dict[int, Span] = {plan.cut: target}
    for place in range(plan.cut, start, -1):
        operation = graph.operations[place]
        if place not in wanted:
            continue
        back = need(operation, wanted[place], axis)
        for source in operation.inputs:
            if source >= start:
                known = wanted.get(source)
                wanted[source] = (
                    back if known is None else Span(min(known.first, back.first), max(known.last, back.last))
                )
    return {
        place: overlap(reached[place - start], wanted[place]) if place > start else rows
        for place in range(start, plan.cut + 1)
        if place in wanted or place == start
    }
