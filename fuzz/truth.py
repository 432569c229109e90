"""The scores of a network as a function of real numbers, and margins at inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from fuzz.exact_ops import EXACT, Constants, Decimals, decimals, real_arithmetic
from fuzz.net import Array, Net, Op

__all__ = ["Normalisation", "Truth"]

ENDS = ("softmax", "log_softmax")


@dataclass(frozen=True)
class Normalisation:
    """``(x - mean) / std`` before the network, as given to ``l0tre.load``; arrays broadcast against a sample."""

    mean: Array
    std: Array


class Truth:
    """A network in real arithmetic, without a softmax at its end: that does not change the order of scores."""

    def __init__(self, net: Net, normalisation: Normalisation | None) -> None:
        self.ops = net.ops[:-1] if net.ops[-1].kind in ENDS else net.ops
        self.shape = net.shape
        self.constants: list[Constants] = [
            {name: decimals(array) for name, array in op.constants.items()} for op in self.ops
        ]
        self.before = None
        if normalisation is not None:
            self.before = decimals(normalisation.mean), decimals(normalisation.std)

    def scores(self, x: NDArray[np.float64]) -> Decimals:
        """The scores of one input, float64 ``[values]``."""
        with real_arithmetic():
            values = [decimals(x).reshape(self.shape)]
            if self.before is not None:
                values = [(values[0] - self.before[0]) / self.before[1]]
            for op, constants in zip(self.ops[1:], self.constants[1:], strict=True):
                values.append(_run(op, constants, [values[source] for source in op.inputs]))
        return values[-1]

    def margin(self, x: NDArray[np.float64], label: int) -> Decimal:
        """How far the label's score is above the best other one."""
        with real_arithmetic():
            return least_margin(self.scores(x), label)


def least_margin(scores: Decimals, label: int) -> Decimal:
    """How far a score is above the best other one."""
    own, others = scores[label], np.delete(scores, label)
    margin: Decimal = own - max(others)
    return margin


def _run(op: Op, constants: Constants, inputs: Sequence[Decimals]) -> Decimals:
    return EXACT[op.kind](op.settings, constants, *inputs)
