"""Where one operator becomes operations of a graph, with the checks of its arguments.

The batch size is a number here: that of the example for a program with a static batch, a large prime for one
with a dynamic batch. A shape keeps the samples apart exactly if its first dimension still is that number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.model.graph import Attribute, GraphBuilder, UnsupportedOperationError

__all__ = ["Arguments", "CallSite", "Handler", "Missing", "Size", "UnsupportedOperationError", "Var"]


@dataclass(frozen=True)
class Var:
    """A value that depends on the input: an operation of the graph."""

    position: int


@dataclass(frozen=True)
class Size:
    """A number computed from the batch size; only shapes may use it."""

    value: int


class Missing:
    """A result that the graph does not have, such as the indices of a max pool."""


@dataclass(frozen=True)
class CallSite:
    """Where a handler works: one call, with checks of its arguments that refuse what does not fit."""

    builder: GraphBuilder
    batch: int
    target: str
    name: str

    def refuse(self, reason: str) -> UnsupportedOperationError:
        """The error for this call; ``reason`` continues the sentence "operation ..."."""
        return UnsupportedOperationError(f"operation {self.target} ({self.name}) {reason}")

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        tensors: Mapping[str, Tensor | None] | None = None,
        **settings: Attribute,
    ) -> Var:
        """Append an operation to the graph."""
        return Var(self.builder.add(kind, inputs, tensors, name=self.name, **settings))

    def same(self, source: int) -> Var:
        """The value of an operation that is there already."""
        return Var(source)

    def sample(self, source: int) -> tuple[int, ...]:
        """Shape of one sample of an operation."""
        return self.builder.shape(source)

    def full(self, source: int) -> list[int]:
        """Shape of the whole tensor of an operation, batch first."""
        return [self.batch, *self.sample(source)]

    def variable(self, value: object, dims: int | None = None) -> int:
        """The position of an argument that depends on the input, its samples of ``dims`` dimensions if given."""
        if not isinstance(value, Var):
            raise self.refuse("needs a value computed from the input where it has a constant")
        if dims is not None and len(self.sample(value.position)) != dims:
            raise self.refuse(f"needs samples of {dims} dimensions, not of shape {self.sample(value.position)}")
        return value.position

    def constant(self, value: object) -> Tensor:
        """An argument that must be a constant tensor."""
        if not isinstance(value, Tensor):
            raise self.refuse("needs a constant weight where it has a value computed from the input")
        return value

    def optional(self, value: object) -> Tensor | None:
        """An argument that must be a constant tensor or absent."""
        return None if value is None else self.constant(value)

    def number(self, value: object) -> float:
        """An argument that must be a number (infinite at most); sizes of the batch are none."""
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise self.refuse("needs a plain number as its argument")
        return float(value)

    def ints(self, value: object) -> list[int]:
        """A whole number or a list of them."""
        items = value if isinstance(value, list | tuple) else [value]
        sizes = [item.value if isinstance(item, Size) else item for item in items]
        whole = [size for size in sizes if isinstance(size, int)]
        if len(whole) != len(sizes):
            raise self.refuse("needs whole numbers as its argument")
        return whole

    def pair(self, value: object) -> tuple[int, int]:
        """One or two whole numbers, for height and width."""
        first, *rest = self.ints(value)
        return first, (rest[0] if rest else first)

    def dim(self, value: object, source: int) -> int:
        """A dimension of the whole tensor as one of a sample."""
        (dim,) = self.ints(value)
        count = len(self.sample(source)) + 1
        if not -count <= dim < count or dim % count == 0:
            raise self.refuse("works across the samples of a batch")
        return dim % count - 1

    def reshape(self, source: int, sizes: Sequence[int]) -> Var:
        """A reshape of the whole tensor, with at most one -1, that keeps the batch first."""
        total, known = self.batch * math.prod(self.sample(source)), math.prod(s for s in sizes if s != -1)
        full = [total // known if size == -1 and known else size for size in sizes]
        if math.prod(full) != total or full[:1] != [self.batch]:
            raise self.refuse("changes the batch dimension, which must stay the first")
        shape = tuple(full[1:])
        return Var(source) if shape == self.sample(source) else self.add("reshape", [source], shape=shape)

    def operand(self, value: object, source: int) -> Tensor:
        """A number or constant tensor that is combined with every sample of an operation."""
        sample = self.sample(source)
        constant = value if isinstance(value, Tensor) else torch.tensor(self.number(value), dtype=torch.float64)
        if constant.ndim == len(sample) + 1 and constant.shape[0] == 1:
            constant = constant[0]
        if constant.ndim > len(sample) or torch.broadcast_shapes(constant.shape, sample) != sample:
            raise self.refuse(f"combines samples of shape {sample} with a constant of {tuple(constant.shape)}")
        return constant


# Arguments of a call by name, and what makes operations of it.
Arguments = Mapping[str, object]
Handler = Callable[[CallSite, Arguments], object]
