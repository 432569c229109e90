"""Decide an instance of VNN-LIB for a small ReLU network by a mixed-integer program: no line of l0tre in it.

The ONNX file is read by the package ``onnx`` and turned into matrices by NumPy, the property by a few regular
expressions; HiGHS (in SciPy) finds the least lead of the label. Values that may change, and the outputs of all ReLUs
whose sign is not known, are variables; every other value of the network is an affine function of them.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from scipy.optimize import Bounds, LinearConstraint, milp

__all__ = ["Property", "least_lead", "read_property"]

Floats = NDArray[np.float64]
GAIN = 1e3  # the solver stops within 1e-6 of the optimum of what it is given, so it is given more


@dataclass(frozen=True)
class Property:
    """A box, and the class that must lead in it."""

    low: Floats
    high: Floats
    label: int


def read_property(path: Path) -> Property:
    """Read a file whose disjunction names one label."""
    text = path.read_text()
    low, high = (
        {int(place): float(value) for place, value in re.findall(rf"\({sign} X_(\d+) ([^\s)]+)\)", text)}
        for sign in (">=", "<=")
    )
    (label,) = {int(label) for _, label in re.findall(r"\(>= Y_(\d+) Y_(\d+)\)", text)}
    least, most = (np.array([end[place] for place in sorted(end)]) for end in (low, high))
    return Property(least, most, label)


class Program:
    """Affine functions of variables: ``[values, 1 + variables]``, the constant first."""

    def __init__(self, low: Floats, high: Floats) -> None:
        free = np.flatnonzero(high > low)
        self.low, self.high = list(low[free]), list(high[free])
        self.whole: list[int] = []
        self.rows: list[tuple[Floats, float]] = []  # coefficients and constant of what must not be below 0
        self.value = np.zeros((len(low), 1 + len(free)))
        self.value[:, 0] = low
        self.value[free, 1 + np.arange(len(free))] = 1.0
        self.value[free, 0] = 0.0

    def relu(self) -> None:
        """The positive part of all values."""
        low, high = self.ends(self.value)
        open_ = np.flatnonzero((low < 0) & (high > 0))
        before = np.pad(self.value, ((0, 0), (0, 2 * len(open_))))
        self.rows = [(np.pad(row, (0, 2 * len(open_))), constant) for row, constant in self.rows]
        width = self.value.shape[1]
        self.value = np.where((low >= 0)[:, None], before, 0.0)
        for number, place in enumerate(open_):
            output, gate = width + 2 * number, width + 2 * number + 1
            self.low += [0.0, 0.0]
            self.high += [float(high[place]), 1.0]
            self.whole.append(gate - 1)
            for factor, on, constant in ((-1.0, 0.0, 0.0), (1.0, low[place], -low[place]), (0.0, high[place], 0.0)):
                # output >= z; output <= z - low (1 - gate); output <= high gate
                row = factor * before[place].copy()
                row[output] += 1.0 if factor < 0 else -1.0
                row[gate] += on
                row[0] += constant
                self.rows.append((row[1:], float(row[0])))
            self.value[place, output] = 1.0

    def ends(self, value: Floats) -> tuple[Floats, Floats]:
        """Least and largest values, over the ranges of the variables."""
        middle, half = (np.array(self.high) + self.low) / 2, (np.array(self.high) - self.low) / 2
        centre, radius = value[:, 0] + value[:, 1:] @ middle, np.abs(value[:, 1:]) @ half
        return centre - radius, centre + radius

    def least(self, row: Floats) -> float:
        """The least value of an affine function."""
        if not self.low:
            return float(row[0])
        matrix, constants = (np.array([pair[k] for pair in self.rows]) for k in (0, 1))
        whole = np.zeros(len(self.low))
        whole[self.whole] = 1
        found = milp(
            GAIN * row[1:],
            constraints=LinearConstraint(matrix, -constants, np.inf) if self.rows else None,
            bounds=Bounds(self.low, self.high),
            integrality=whole,
            options={"mip_rel_gap": 0.0},
        )
        assert found.success, found.message
        return float(found.fun / GAIN + row[0])


def least_lead(model: Path, wanted: Property) -> float:
    """The least lead of the label over any other class in the box, within the solver's tolerance of about 1e-6.

    Raises:
        NotImplementedError: For operators other than Gemm, Conv, ReLU and those that move or add constants.
    """
    graph = onnx.load(str(model)).graph
    constants = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in graph.initializer}
    shape = tuple(d.dim_value for d in graph.input[0].type.tensor_type.shape.dim)[1:]
    program, current = Program(wanted.low, wanted.high), graph.input[0].name
    for node in graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t).astype(np.float64)
            continue
        assert current in node.input, "the network is not a chain"
        shape = _step(program, node, [constants.get(name) for name in node.input], shape)
        current = node.output[0]
    rivals = [place for place in range(len(program.value)) if place != wanted.label]
    return min(program.least(program.value[wanted.label] - program.value[rival]) for rival in rivals)


def _step(program: Program, node: Any, inputs: list[Floats | None], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Take one operator; returns the shape of what it gives."""
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    kind, value = node.op_type, program.value
    if kind == "Relu":
        program.relu()
    elif kind in ("Flatten", "Reshape", "Identity"):
        return (len(value),)
    elif kind == "Gemm":
        weight, bias = inputs[1], inputs[2]
        assert weight is not None
        assert bias is not None
        weight = weight if options.get("transB", 0) else weight.T
        program.value = weight @ value
        program.value[:, 0] += bias
        return (len(program.value),)
    elif kind in ("Sub", "Add", "Div", "Mul"):
        constant = inputs[1]
        assert constant is not None
        flat = np.broadcast_to(constant, (1, *shape)).ravel()
        if kind in ("Sub", "Add"):
            value[:, 0] += flat if kind == "Add" else -flat
        else:
            value *= (flat if kind == "Mul" else 1 / flat)[:, None]
    elif kind == "Conv":
        weight = inputs[1]
        assert weight is not None
        matrix, size = _convolution(weight, shape, options)
        program.value = matrix @ value
        if len(inputs) > 2 and inputs[2] is not None:
            program.value[:, 0] += np.repeat(inputs[2], size[0] * size[1])
        return (len(weight), *size)
    else:
        raise NotImplementedError(kind)
    return shape


def _convolution(weight: Floats, shape: tuple[int, ...], options: dict[str, Any]) -> tuple[Floats, tuple[int, int]]:
    """The matrix of a convolution without groups, entry by entry."""
    assert options.get("group", 1) == 1
    stride, pads = options.get("strides", [1, 1]), options.get("pads", [0, 0, 0, 0])
    dilation, (channels, height, width) = options.get("dilations", [1, 1]), shape
    out, _, *kernel = weight.shape
    size = tuple(
        (side + pads[d] + pads[d + 2] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d, side in enumerate((height, width))
    )
    matrix = np.zeros((out, *size, channels, height, width))
    for y, x, i, j in np.ndindex(*size, *kernel):
        row, column = (
            place * stride[d] - pads[d] + step * dilation[d] for d, (place, step) in enumerate(((y, i), (x, j)))
        )
        if 0 <= row < height and 0 <= column < width:
            matrix[:, y, x, :, row, column] += weight[:, :, i, j]
    return matrix.reshape(out * size[0] * size[1], -1), (size[0], size[1])
