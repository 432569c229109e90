"""The one graph of operations that every engine works on.

A graph is a tuple of operations in execution order. Operation 0 is the input, the last operation the output. Shapes are
those of one sample: the batch dimension is never part of an operation and always comes first in the tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.halting import beat
from l0tre.model.operations import KINDS, Attribute, Operation

__all__ = ["Attribute", "Graph", "GraphBuilder", "Operation", "UnsupportedOperationError", "run", "run_operation"]

LARGEST_WHOLE = 2**53  # up to here float64 holds every whole number


class UnsupportedOperationError(ModelError):
    """The network uses an operation, or an option of one, that l0tre's graph cannot express."""


@dataclass(frozen=True)
class Graph:
    """A network as a tuple of operations in execution order; the last operation gives the scores."""

    operations: tuple[Operation, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input sample."""
        return self.operations[0].shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output for one sample, ``(classes,)`` for a classifier."""
        return self.operations[-1].shape

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "Graph":
        """The same graph with its constants on another device or in another precision."""
        return Graph(
            tuple(
                replace(operation, tensors={key: value.to(device, dtype) for key, value in operation.tensors.items()})
                for operation in self.operations
            )
        )

    def last_use(self) -> tuple[int, ...]:
        """For every operation the position of the last operation that reads it (its own position if none does)."""
        last = list(range(len(self.operations)))
        for position, operation in enumerate(self.operations):
            for source in operation.inputs:
                last[source] = position
        return tuple(last)


def run_operation(operation: Operation, *inputs: Tensor) -> Tensor:
    """The output of one operation for a batch.

    Args:
        operation: Any operation but the input.
        inputs: Outputs of ``operation.inputs``, each ``[batch, *shape]``.

    Returns:
        ``[batch, *operation.shape]``.

    Raises:
        Halted: If the step at work should end.
    """
    beat()
    return KINDS[operation.kind].forward(operation, *inputs)


def run(graph: Graph, x: Tensor, see: Callable[[int, Tensor], None] | None = None) -> Tensor:
    """Evaluate a graph; an intermediate result is dropped as soon as nothing reads it any more.

    Args:
        graph: The network, its constants on the device and in the precision of ``x``.
        x: ``[batch, *graph.input_shape]``.
        see: Shown what every operation reads, by the operation's position.

    Returns:
        ``[batch, *graph.output_shape]``.
    """
    last, output = graph.last_use(), len(graph.operations) - 1
    values: dict[int, Tensor] = {0: x}
    for position, operation in enumerate(graph.operations[1:], start=1):
        if see is not None:
            for source in operation.inputs:
                see(position, values[source])
        values[position] = run_operation(operation, *(values[source] for source in operation.inputs))
        for source in {*operation.inputs, position}:
            if last[source] == position != output:
                del values[source]
    return values[output]


def _exact(constant: Tensor, name: str) -> Tensor:
    """A constant in float64, which holds all numbers of the narrower types."""
    if constant.is_complex() or constant.is_quantized:
        raise ModelError(f"operation {name} has a constant of type {constant.dtype}; only real numbers are supported")
    if not constant.is_floating_point() and bool((constant.abs() > LARGEST_WHOLE).any()):
        raise ModelError(f"operation {name} has a whole number above 2**53 as a constant, which float64 would round")
    return constant.detach().to(torch.float64)


def _blank(batch: int, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(batch, *shape, device="meta", dtype=torch.float64)


class GraphBuilder:
    """Collects operations; shapes are inferred by running each operation on empty (meta) batches."""

    def __init__(self, input_shape: Sequence[int], name: str = "input") -> None:
        self.operations: list[Operation] = [Operation("input", (), tuple(input_shape), name=name)]

    def shape(self, position: int) -> tuple[int, ...]:
        """Shape of one sample at an operation."""
        return self.operations[position].shape

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        tensors: Mapping[str, Tensor | None] | None = None,
        name: str = "",
        **attributes: Attribute,
    ) -> int:
        """Append an operation.

        Args:
            kind: Key of :data:`l0tre.model.operations.KINDS`.
            inputs: Positions of its inputs.
            tensors: Constants by name; ``None`` values are left out.
            name: The source's own name of the operation, for messages.
            attributes: Settings of the operation.

        Returns:
            The position of the new operation.

        Raises:
            ModelError: If the operation does not fit the shapes of its inputs, or a constant is no number that float64
                holds.
            UnsupportedOperationError: If its result has no axis but the batch, which no engine can split.
        """
        constants = {k: _exact(v, name or kind) for k, v in (tensors or {}).items() if v is not None}
        operation = Operation(kind, tuple(inputs), (), constants, attributes, name)
        blank = replace(operation, tensors={k: v.to("meta") for k, v in constants.items()})
        try:
            # Two sizes: a broadcast that takes the batch for another dimension fits one of them at most.
            small, large = (
                run_operation(blank, *(_blank(batch, self.shape(source)) for source in inputs)).shape
                for batch in (2, 3)
            )
        except (RuntimeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(self.shape(source)) for source in inputs)
            reason = str(error).splitlines()[0]
            raise ModelError(f"operation {name or kind} does not fit inputs of shape {shapes}: {reason}") from error
        if (small[:1], large[:1]) != ((2,), (3,)) or small[1:] != large[1:]:
            raise ModelError(f"operation {name or kind} mixes the samples of a batch, which l0tre cannot use")
        if len(small) == 1:
            raise UnsupportedOperationError(
                f"operation {name or kind} gives one number without an axis of its own, as a sum of all values does: "
                "keep the axis (keepdim=True)"
            )
        self.operations.append(replace(operation, shape=tuple(small[1:])))
        return len(self.operations) - 1

    def build(self, output: int) -> Graph:
        """The graph up to operation ``output``, without operations that it does not need."""
        needed = {output, 0}
        for position in range(output, 0, -1):
            if position in needed:
                needed.update(self.operations[position].inputs)
        order = sorted(needed)
        place = {old: new for new, old in enumerate(order)}
        return Graph(
            tuple(
                replace(self.operations[old], inputs=tuple(place[source] for source in self.operations[old].inputs))
                for old in order
            )
        )
