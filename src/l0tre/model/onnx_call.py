"""One operator of an ONNX file with its inputs resolved: what the importers of :mod:`onnx_operators` work on.

A value of the ONNX graph is an array (a constant) or the position of an operation in the builder (it depends on the
input). ONNX counts the batch as dimension 0; a graph leaves it out, so an ONNX axis ``a`` is sample dimension
``a - 1`` and nothing may reduce, move or merge axis 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.model.call_site import UnsupportedOperationError
from l0tre.model.graph import Attribute, GraphBuilder

__all__ = ["Array", "OnnxCall", "Value"]

Array = NDArray[Any]
Value = Array | int


@dataclass(frozen=True)
class OnnxCall:
    """One ONNX node that reads at least one value that depends on the input.

    Attributes:
        builder: Collects the operations of the graph.
        operator: ONNX name of the operator.
        name: Name of the node, for messages.
        inputs: Its inputs; ``None`` for an optional input left out.
        attributes: Its attributes; texts are bytes.
        opset: Version of the operator set of the file.
        batch: The batch size that the file's own constants assume: the declared one, or 1.
        outputs: How many outputs it has.
    """

    builder: GraphBuilder
    operator: str
    name: str
    inputs: Sequence[Value | None]
    attributes: Mapping[str, Any]
    opset: int
    batch: int
    outputs: int

    def refuse(self, reason: str) -> ModelError:
        """The error that says why this node cannot be imported."""
        return UnsupportedOperationError(f"ONNX node {self.name} ({self.operator}) {reason}")

    def variable(self, index: int = 0) -> int:
        """The position of an input that depends on the network's input."""
        value = self.inputs[index]
        if not isinstance(value, int):
            raise self.refuse(f"has a constant as input {index}, where only a computed value is supported")
        return value

    def constant(self, index: int) -> Array | None:
        """An input that must be a constant, ``None`` if it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, int):
            raise self.refuse(f"has input {index} computed from the network's input; only a constant is supported")
        return value

    def given(self, index: int) -> Array:
        """A constant input that cannot be left out."""
        value = self.constant(index)
        if value is None:
            raise self.refuse(f"lacks input {index}")
        return value

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of one sample of a variable input."""
        return self.builder.shape(self.variable(index))

    def ints(self, key: str, default: Sequence[int]) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        return tuple(int(value) for value in self.attributes.get(key, default))

    def number(self, key: str, default: float) -> float:
        """An attribute that is a number; ONNX keeps them in float32, and so its defaults."""
        return float(np.float32(self.attributes.get(key, default)))

    def axes(self, index: int) -> tuple[int, ...] | None:
        """The ``axes`` setting: an attribute in old operator sets, input ``index`` in new ones."""
        if "axes" in self.attributes:
            return self.ints("axes", ())
        value = self.constant(index)
        return None if value is None else tuple(int(axis) for axis in value.reshape(-1))

    def dim(self, axis: int, rank: int) -> int:
        """An ONNX axis as a sample dimension.

        Args:
            axis: The axis as ONNX counts it, with the batch; negative from the end.
            rank: Number of ONNX dimensions, with the batch.
        """
        if not -rank <= axis < rank:
            raise self.refuse(f"names axis {axis} of a value with {rank} dimensions")
        if axis % rank == 0:
            raise self.refuse("works along the batch (axis 0), but every sample must be scored on its own")
        return axis % rank - 1

    def add(
        self, op: str, *inputs: int, tensors: Mapping[str, Array | None] | None = None, **attributes: Attribute
    ) -> int:
        """Append an operation to the graph."""
        constants = {key: None if value is None else self.tensor(value) for key, value in (tensors or {}).items()}
        return self.builder.add(op, inputs, constants, self.name, **attributes)

    def tensor(self, value: Array) -> Tensor:
        """A constant as a tensor, in float64 if it is not a whole number."""
        converted = np.array(value, dtype=np.int64 if value.dtype.kind in "iu" else np.float64)
        if not np.isfinite(converted.astype(np.float32)).all():
            raise self.refuse("has constants that are infinite or not a number in float32; train or export it again")
        return torch.from_numpy(converted)

    def per_sample(self, value: Array, shape: tuple[int, ...]) -> Array:
        """A constant that ONNX broadcasts against a batch, without the batch dimension.

        Args:
            value: The constant as written in the file.
            shape: Shape of one sample of the other operand; the constant must not enlarge it.
        """
        if value.ndim == len(shape) + 1 and value.shape[0] == 1:
            value = value[0]
        if value.ndim > len(shape) or np.broadcast_shapes(value.shape, shape) != shape:
            raise self.refuse(f"combines samples of shape {shape} with a constant of shape {value.shape}")
        return value.astype(np.float64)

    def reshape(self, shape: Sequence[int]) -> int:
        """Reshape input 0 to an ONNX shape (with the batch)."""
        source = self.shape()
        if not shape or shape[0] != self.batch or math.prod(shape[1:]) != math.prod(source):
            raise self.refuse(
                f"turns a batch of {self.batch} of shape {source} into {tuple(shape)}; "
                "the sizes must agree and the batch stay the first dimension"
            )
        return self.add("reshape", self.variable(), shape=tuple(shape[1:]))
