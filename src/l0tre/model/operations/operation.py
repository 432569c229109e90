"""One operation of a graph, as data: its kind, what it reads, its constants and settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Attribute", "Operation"]

Attribute = int | float | bool | tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        kind: Key of :data:`l0tre.model.operations.KINDS`, or ``"input"``.
        inputs: Positions of the operations whose outputs it reads, all smaller than its own.
        shape: Shape of its output for one sample.
        tensors: Constants: ``weight``, ``bias``, ``scale``, ``shift``, as imported in float64, without any rounding. A
            bias or shift that was summed from other constants comes with the sum of their absolute values
            (``bias_terms``, ``shift_terms``), which its own rounding error is a share of.
        attributes: Other settings: stride, padding, dimensions without the batch, slope.
        name: The source's own name, for messages.
    """

    kind: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""

    def ints(self, key: str) -> tuple[int, ...]:
        """The attribute ``key`` as a tuple of integers."""
        value = self.attributes[key]
        return value if isinstance(value, tuple) else (int(value),)

    def number(self, key: str) -> float:
        """The attribute ``key`` as a float."""
        value = self.attributes[key]
        if isinstance(value, tuple):
            raise TypeError(f"attribute {key} of {self.kind} is a tuple")
        return float(value)

    def pair(self, key: str) -> tuple[int, int]:
        """The attribute ``key`` as two integers, for rows and columns."""
        first, second = self.ints(key)
        return first, second
