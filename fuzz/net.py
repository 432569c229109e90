"""A network as a list of operations: every kind of source, and the exact function, are made from it."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.exact_ops import real_arithmetic
from fuzz.torch_ops import TORCH

__all__ = ["Array", "Draft", "Net", "Op", "Shape", "biased"]

Array = NDArray[np.float32]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One operation on samples.

    Attributes:
        kind: Key of the tables of the backends, or ``"input"``.
        inputs: Positions of the operations that it reads.
        shape: Shape of its output, without the batch.
        constants: float32 arrays by name.
        settings: Everything else; numbers are float32 numbers, so that every format holds them as they are.
    """

    kind: str
    inputs: tuple[int, ...]
    shape: Shape
    constants: Mapping[str, Array] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Net:
    """A classifier.

    Attributes:
        ops: In execution order; the first is the input, the last gives the scores.
        head: Position of the dense layer whose bias is calibrated.
        fine: Positions of sums behind it that hold the digits which that bias cannot.
    """

    ops: tuple[Op, ...]
    head: int
    fine: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """Shape of one input."""
        return self.ops[0].shape

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.ops[-1].shape[0]


def biased(net: Net, label: int, by: Decimal) -> Net:
    """The network with the score of one class moved by a number, or by as little less as its constants can hold.

    Several constants hold the digits of one float64 number, not more: so many has any sum of them.
    """
    places = [(net.head, "bias"), *((place, "value") for place in net.fine)]
    ops = list(net.ops)
    with real_arithmetic():
        wanted = by + sum(Decimal(float(net.ops[place].constants[name][label])) for place, name in places)
        if net.fine:
            wanted = Decimal(float64_below(wanted))
        for number, (place, name) in enumerate(places):
            last = number == len(places) - 1
            value = float32_below(wanted) if last else np.float32(float(wanted))
            constant = ops[place].constants[name].copy()
            constant[label] = value
            ops[place] = replace(ops[place], constants={**ops[place].constants, name: constant})
            wanted -= Decimal(float(value))
    return replace(net, ops=tuple(ops))


def float32_below(value: Decimal) -> np.float32:
    """The largest float32 number that is not above a number."""
    near = np.float32(float(value))
    return near if Decimal(float(near)) <= value else np.nextafter(near, np.float32(-np.inf))


def float64_below(value: Decimal) -> float:
    """The largest float64 number that is not above a number."""
    near = float(value)
    return near if Decimal(near) <= value else math.nextafter(near, -math.inf)


class Draft:
    """A network that is being made: its operations so far, and the chance that decides about the next.

    Attributes:
        draw: For choices.
        numbers: For arrays.
        here: Position of the newest operation on the way to the scores.
        hints: Inputs, as positions and values, where a planted network is expected to change its decision.
        low: Smallest input value.
        high: Largest input value.
        room: The range of every input value that may change.
        onnx: Whether it will be written to an ONNX file.
    """

    def __init__(
        self,
        shape: Shape,
        draw: random.Random,
        low: float,
        high: float,
        room: Mapping[int, tuple[float, float]],
        *,
        onnx: bool,
    ) -> None:
        self.draw = draw
        self.numbers = np.random.default_rng(draw.getrandbits(64))
        self.ops = [Op("input", (), shape)]
        self.here = 0
        self.hints: list[dict[int, float]] = []
        self.low, self.high, self.room, self.onnx = low, high, room, onnx

    @property
    def shape(self) -> Shape:
        """Shape of a sample at the newest operation."""
        return self.ops[self.here].shape

    def add(self, kind: str, *inputs: int, constants: Mapping[str, Array] | None = None, **settings: Any) -> int:
        """Append an operation on the newest one, or on those given, and give its position."""
        sources = inputs or (self.here,)
        given = {name: np.asarray(array, np.float32) for name, array in (constants or {}).items()}
        blank = Op(kind, sources, (), given, settings)
        with torch.no_grad():
            tensors = {name: torch.from_numpy(array.copy()) for name, array in given.items()}
            samples = [torch.zeros(2, *self.ops[source].shape) for source in sources]
            shape = tuple(TORCH[kind](settings, tensors, *samples).shape[1:])
        self.ops.append(replace(blank, shape=shape))
        self.here = len(self.ops) - 1
        return self.here

    def values(self, count: int = 32) -> NDArray[np.float64]:
        """What the newest operation gives for random inputs and for those of the hints, ``[count, *shape]``."""
        x = self.numbers.uniform(self.low, self.high, (count, *self.ops[0].shape))
        for row, hint in zip(x, self.hints, strict=False):
            row.reshape(-1)[list(hint)] = list(hint.values())
        values = [torch.from_numpy(x)]
        with torch.no_grad():
            for op in self.ops[1 : self.here + 1]:
                tensors = {name: torch.from_numpy(array.astype(np.float64)) for name, array in op.constants.items()}
                values.append(TORCH[op.kind](op.settings, tensors, *(values[source] for source in op.inputs)))
        return np.asarray(values[-1].numpy())

    def alive(self) -> bool:
        """Whether the newest operation depends on the input in numbers that can be used."""
        found = self.values()
        spread = found.max(0) - found.min(0)
        return bool(np.isfinite(found).all() and spread.max() > 1e-5 * np.abs(found).max())

    def mark(self) -> tuple[int, int, int]:
        """Where the draft stands, for :meth:`back`."""
        return len(self.ops), self.here, len(self.hints)

    def back(self, mark: tuple[int, int, int]) -> None:
        """Forget everything behind a mark."""
        ops, self.here, hints = mark
        del self.ops[ops:], self.hints[hints:]

    def normal(self, *shape: int, size: float = 1.0) -> Array:
        """Random numbers around zero."""
        return (size * self.numbers.standard_normal(shape)).astype(np.float32)

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        """Random numbers between two."""
        return self.numbers.uniform(low, high, shape).astype(np.float32)

    def number(self, low: float, high: float) -> float:
        """One random float32 number between two."""
        return float(np.float32(self.draw.uniform(low, high)))
