"""What the engines know of a kind of operation: records of plain functions, one for each kind, in a table.

A kind is linear, a curve (elementwise), a selection (every output is one of its inputs) or something else, which is
computed but not bounded. Engines ask the record and never look at names, so a new operation is a new file beside this
one and its entry in the table. All functions work on batches of any size, batch first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from l0tre.model.operations.operation import Operation

__all__ = [
    "At",
    "Curve",
    "CurveBounds",
    "Errors",
    "Everywhere",
    "Interval",
    "Join",
    "Linear",
    "LinearBounds",
    "Lines",
    "Local",
    "OperationKind",
    "Other",
    "Parallel",
    "Place",
    "Rewritten",
    "Selection",
    "Unbounded",
    "Window",
]

Shape = tuple[int, ...]
Interval = tuple[Tensor, Tensor]  # smallest and largest values
Lines = tuple[Tensor, Tensor, Tensor, Tensor]  # slope below, slope above, intercept below, intercept above
Parallel = tuple[Tensor, Tensor, Tensor]  # slope of both lines, intercept below, intercept above
Errors = tuple[Tensor, Tensor, Tensor]  # in float32: magnitudes, worst errors, mean squares of errors
At = Callable[[Tensor], Tensor]  # values of a map ``[C, H, W]`` at the positions of windows


@dataclass(frozen=True)
class Window:
    """What an output position sees along one axis: ``kernel`` inputs, ``dilation`` apart.

    Output ``i`` sees inputs from ``i * stride - padding`` on; the padding is negative where outputs begin later.
    """

    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def sees(self, outputs: int) -> int:
        """How many inputs adjacent outputs see together, from the first to the last."""
        return (outputs - 1) * self.stride + self.dilation * (self.kernel - 1) + 1


@dataclass(frozen=True)
class Everywhere:
    """An operation whose outputs may depend on every position of its input."""


@dataclass(frozen=True)
class Local:
    """An operation on maps ``(C, H, W)`` whose outputs see a window of one input.

    Attributes:
        sees: Whether that holds for an operation, from the shape of its input.
        uniform: Whether it is the same at all positions.
        window: What an output sees along axis 0 (rows) or 1 (columns).
        patches: The operation on patches ``[n, C, rows, columns]`` that hold all that their outputs see, padding
            included; a linear one without its constants.
        spills: Whether outputs outside the map can see positions inside the map of the input.
    """

    sees: Callable[[Operation, Shape], bool]
    uniform: Callable[[Operation], bool]
    window: Callable[[Operation, int], Window]
    patches: Callable[[Operation, Tensor], Tensor]
    spills: bool


@dataclass(frozen=True)
class Join:
    """An operation that combines the same position of several maps.

    Attributes:
        fits: Whether that holds for an operation, from the shapes of its inputs.
        combine: The operation on windows that lie alike, with the dimension of the channels.
    """

    fits: Callable[[Operation, Sequence[Shape]], bool]
    combine: Callable[[Operation, Sequence[Tensor], int], Tensor]


Place = Everywhere | Local | Join


@dataclass(frozen=True)
class Rewritten:
    """An operation that the prover writes as others.

    Attributes:
        rewrite: From the operation, the shape of its input and the position of the first new one to the new
            operations in order, the last of them with the same output.
    """

    rewrite: Callable[[Operation, Shape, int], Sequence[Operation]]


@dataclass(frozen=True)
class Unbounded:
    """An operation that the prover has no bounds for.

    Attributes:
        what: The operation in words, for messages; empty for its name.
    """

    what: str = ""


@dataclass(frozen=True)
class LinearBounds:
    """How the prover bounds a linear operation.

    Attributes:
        magnitude: The operation with the absolute values of weights and constants: it maps bounds of absolute values
            to such bounds, and to bounds of all intermediate sums.
        plain: The operation on differences, without its constants.
        backward: Coefficients of each input ``[batch, rows, *source]`` from those of the output ``[batch, rows,
            *shape]``, with the shapes of the inputs.
        backward_window: The same for windows ``[n, C, rows, columns]`` of the output, where it is local: coefficients
            of all that these see, ``[n, C, rows, columns]``, padding included. The last argument gives values of a map
            at the windows' positions, ``[n, C, rows, columns]``.
        products: How many products one output sums up if the way back is worth writing as a matrix, else 0.
        terms: How many roundings an output or, backwards, an input is after, at the most, and some to spare.
    """

    magnitude: Callable[[Operation], Operation]
    plain: Callable[[Operation], Operation]
    backward: Callable[[Operation, Tensor, Sequence[Shape]], Sequence[Tensor]]
    backward_window: Callable[[Operation, Tensor, At], Tensor]
    products: Callable[[Operation], int]
    terms: Callable[[Operation, Sequence[Shape]], float]


@dataclass(frozen=True)
class Linear:
    """A linear operation, constants allowed.

    Attributes:
        forward: What it computes from its inputs.
        absolute: The operation with its weights' absolute values to a power, with or without its constants.
        summing: Whether float32 rounds a sum of products, an average of equal weights, or nothing at all.
        terms: How many numbers one output sums up, from the shapes of the inputs.
        place: What its outputs see.
        bounds: How the prover bounds it.
    """

    forward: Callable[..., Tensor]
    absolute: Callable[[Operation, int, bool], Operation]
    summing: Literal["sum", "average", "move"]
    terms: Callable[[Operation, Sequence[Shape]], int]
    place: Place
    bounds: LinearBounds | Rewritten


@dataclass(frozen=True)
class CurveBounds:
    """How the prover bounds an elementwise operation. Ranges are float64; NaN in a range gives NaN.

    Attributes:
        refuse: The operation in words if it cannot be bounded with its settings, else empty.
        interval: Smallest and largest value on ranges.
        magnitude: A bound of the absolute value of the output and of all sums of its lines, from one of the input.
        lines: A line below and a line above on ranges ``low`` to ``high``; with the image's own values, where most
            outputs keep theirs, lines that touch there.
        parallel: Two lines of one slope on ranges, one below and one above, close together.
        derivative: The smallest and the largest derivative on ranges, rounding included.
        slopes: The smallest and the largest derivative anywhere; the slopes of all lines lie between them too.
        by_sign: Whether it is linear on both sides of zero, so that a range's sign decides its lines.
    """

    refuse: Callable[[Operation], str]
    interval: Callable[[Operation, Tensor, Tensor], Interval]
    magnitude: Callable[[Operation, Tensor], Tensor]
    lines: Callable[[Operation, Tensor, Tensor, Tensor | None], Lines]
    parallel: Callable[[Operation, Tensor, Tensor], Parallel]
    derivative: Callable[[Operation, Tensor, Tensor], Interval]
    slopes: Callable[[Operation], tuple[float, float]]
    by_sign: bool


@dataclass(frozen=True)
class Curve:
    """An elementwise operation.

    Attributes:
        forward: What it computes.
        errors: What it does to magnitudes and errors in float32.
        gate: Whether it is the same everywhere below zero, so that errors do not pass there either.
        bounds: How the prover bounds it.
    """

    forward: Callable[[Operation, Tensor], Tensor]
    errors: Callable[[Operation, Errors], Errors]
    gate: Callable[[Operation], bool]
    bounds: CurveBounds | Rewritten | Unbounded


@dataclass(frozen=True)
class Selection:
    """An operation on maps whose outputs each are one of the inputs in a window.

    Attributes:
        forward: What it computes; it never falls.
        place: What its outputs see.
        places: From the operation, height and width of its input, and a device: the input in each place of each window,
            int64 ``[kernel, outputs]`` of one channel, -1 in the padding.
        lines: From ranges, the image's own inputs and its own outputs: float64 ``[4, batch, outputs]``, slopes below
            and above and gaps below and above, and int64 ``[batch, outputs]``, the input that they belong to.
        derivative: From ranges ``[batch, C, H, W]``: the input in each place of each window, as from ``places``, and
            the smallest and largest derivative by it, each ``[batch, C, kernel, outputs]``.
    """

    forward: Callable[[Operation, Tensor], Tensor]
    place: Local
    places: Callable[[Operation, int, int, torch.device], Tensor]
    lines: Callable[[Operation, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    derivative: Callable[[Operation, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Other:
    """An operation that is computed, but neither bounded nor local.

    Attributes:
        forward: What it computes.
        errors: What it does to magnitudes and errors in float32, from those of its inputs.
        reached: Which outputs depend on inputs that may change, bool, from such marks of the inputs.
        bounds: Why it is not bounded.
    """

    forward: Callable[..., Tensor]
    errors: Callable[[Operation, Sequence[Errors]], Errors]
    reached: Callable[[Operation, Sequence[Tensor]], Tensor]
    bounds: Unbounded


OperationKind = Linear | Curve | Selection | Other
