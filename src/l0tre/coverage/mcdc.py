"""Sign-sign MC/DC on dense layers: one condition changes its sign alone, and so does a decision that it feeds."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from l0tre.coverage.criteria import CoverageFigure, Criterion
from l0tre.coverage.neurons import Layer
from l0tre.errors import ConfigError

__all__ = ["SignSign", "dense_pairs"]

BLOCK = 512  # inputs whose signs are compared with all others at once


def dense_pairs(layers: Sequence[Layer]) -> tuple[tuple[int, int], ...]:
    """Adjacent dense layers, by their places among the layers."""
    return tuple((i, i + 1) for i, (a, b) in enumerate(pairwise(layers)) if (a.after, b.after) == ("linear", "linear"))


class SignSign:
    """Pairs of a condition neuron and a decision neuron of the next dense layer, shown by two inputs.

    A pair is covered if two inputs give all neurons of the condition's layer the same sign but the condition, and the
    decision another one. Distinct patterns of signs are kept, so that inputs of different batches pair up.
    """

    key = "mcdc"

    def __init__(self, layers: Sequence[Layer], device: torch.device) -> None:
        self.layers = tuple(layers)
        self.pairs = dense_pairs(layers)
        if not self.pairs:
            raise ConfigError("mcdc needs two dense layers of neurons one after the other, which the network has not")
        self.device = device
        self.inputs = 0
        self.patterns: list[Tensor] = []
        self.reset()

    def reset(self) -> None:
        """Forget all inputs."""
        self.inputs = 0
        sizes = [self.layers[a].size + self.layers[b].size for a, b in self.pairs]
        self.patterns = [torch.zeros(0, size, dtype=torch.bool, device=self.device) for size in sizes]

    def update(self, values: Sequence[Tensor]) -> None:
        """Take a batch of inputs into account."""
        for place, (a, b) in enumerate(self.pairs):
            signs = torch.cat([values[a] > 0, values[b] > 0], 1)
            self.patterns[place] = torch.cat([self.patterns[place], signs]).unique(dim=0)
        self.inputs += len(values[0])

    def merge(self, other: Criterion) -> None:
        """Take what another one of the same kind has seen into account."""
        if not isinstance(other, SignSign) or [len(p.T) for p in other.patterns] != [len(p.T) for p in self.patterns]:
            raise ValueError("only criteria of one kind, of the same layers, can be merged")
        both = zip(self.patterns, other.patterns, strict=True)
        self.patterns = [torch.cat([own, more.to(self.device)]).unique(dim=0) for own, more in both]
        self.inputs += other.inputs

    def compute(self) -> CoverageFigure:
        """The coverage so far."""
        covered = total = 0
        for (a, b), patterns in zip(self.pairs, self.patterns, strict=True):
            conditions, decisions = self.layers[a].size, self.layers[b].size
            covered += int(_shown(patterns, conditions, decisions).sum())
            total += conditions * decisions
        used = sorted({place for pair in self.pairs for place in pair})
        layers = [self.layers[place] for place in used]
        return CoverageFigure(
            self.key,
            covered,
            total,
            "pairs of neurons",
            "two inputs differ in the sign of one neuron of a dense layer alone, and of one of the next layer",
            tuple(layer.name for layer in layers),
            sum(layer.size for layer in layers),
            self.inputs,
        )


def _shown(patterns: Tensor, conditions: int, decisions: int) -> Tensor:
    """Which pairs are shown, bool ``[conditions, decisions]``."""
    shown = torch.zeros(conditions, decisions, dtype=torch.bool, device=patterns.device)
    first, second = patterns[:, :conditions].float(), patterns[:, conditions:]
    norms = first.sum(1)
    for start in range(0, len(patterns), BLOCK):
        part = first[start : start + BLOCK]
        # Signs that differ: those of either that the other has not.
        differing = norms[start : start + BLOCK, None] + norms - 2 * part @ first.T
        one, two = (differing == 1).nonzero(as_tuple=True)
        condition = (part[one] != first[two]).int().argmax(1)
        decided = second[start + one] != second[two]
        for row in range(0, len(one), BLOCK):
            rows = slice(row, row + BLOCK)
            hit, decision = decided[rows].nonzero(as_tuple=True)
            shown[condition[rows][hit], decision] = True
    return shown
