"""Coverage criteria: how much of what it could do a network was seen to do.

Each has torchmetrics' contract (``update``, ``compute``, ``reset``, ``merge``) over the values of layers. A figure
carries its definition, since the literature uses one name for several things.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from l0tre.coverage.neurons import Layer
from l0tre.coverage.ranges import Ranges

__all__ = ["Boundary", "ChannelCoverage", "CoverageFigure", "Criterion", "Multisection", "NeuronCoverage", "TopK"]


@dataclass(frozen=True)
class CoverageFigure:
    """A coverage with everything that it depends on.

    Attributes:
        criterion: Its key, as in ``--criterion``.
        covered: How much was seen.
        total: Of how much.
        unit: What is counted.
        definition: When one of them counts as covered.
        layers: Names of the layers.
        neurons: Number of their neurons.
        inputs: Of how many inputs.
    """

    criterion: str
    covered: int
    total: int
    unit: str
    definition: str
    layers: tuple[str, ...]
    neurons: int
    inputs: int

    @property
    def share(self) -> float:
        """From 0 to 1; NaN where there is nothing to cover."""
        return self.covered / self.total if self.total else float("nan")

    def to_json(self) -> dict[str, Any]:
        """For files."""
        return {**asdict(self), "layers": list(self.layers), "share": self.share if self.total else None}

    def __str__(self) -> str:
        return (
            f"{self.criterion} {100 * self.share:.2f} % ({self.covered:,} of {self.total:,} {self.unit}; "
            f"{self.definition}; {self.neurons:,} neurons of {', '.join(self.layers)}; {self.inputs:,} inputs)"
        )


class Criterion(Protocol):
    """What all criteria can do; ``values`` are float32 ``[batch, values]`` of each layer, on the criterion's device."""

    key: str

    def update(self, values: Sequence[Tensor]) -> None:
        """Take a batch of inputs into account."""

    def compute(self) -> CoverageFigure:
        """The coverage so far."""

    def reset(self) -> None:
        """Forget all inputs."""

    def merge(self, other: "Criterion") -> None:
        """Take what another one of the same kind has seen into account."""


class _Marks(ABC):
    """A mark for each of what can be covered, and the number of inputs."""

    key = ""

    def __init__(self, layers: Sequence[Layer], shape: tuple[int, ...], device: torch.device) -> None:
        self.layers = tuple(layers)
        self.marks = torch.zeros(shape, dtype=torch.bool, device=device)
        self.inputs = 0

    def reset(self) -> None:
        """Forget all inputs."""
        self.marks = torch.zeros_like(self.marks)
        self.inputs = 0

    def merge(self, other: Criterion) -> None:
        """Take what another one of the same kind has seen into account."""
        if not isinstance(other, _Marks) or not self._counts_like(other):
            raise ValueError("only criteria with one definition, of the same layers, can be merged")
        self.marks = self.marks | other.marks.to(self.marks.device)
        self.inputs += other.inputs

    @property
    @abstractmethod
    def definition(self) -> str:
        """When one of what is counted is covered."""

    def _counts_like(self, other: "_Marks") -> bool:
        same = (self.key, self.definition, self.marks.shape) == (other.key, other.definition, other.marks.shape)
        return same and [layer.name for layer in self.layers] == [layer.name for layer in other.layers]

    def _figure(self, unit: str, possible: Tensor | None = None) -> CoverageFigure:
        marks = self.marks if possible is None else self.marks[possible]
        names = tuple(layer.name for layer in self.layers)
        neurons = sum(layer.size for layer in self.layers)
        return CoverageFigure(
            self.key, int(marks.sum()), marks.numel(), unit, self.definition, names, neurons, self.inputs
        )


def _count(layers: Sequence[Layer]) -> int:
    return sum(layer.size for layer in layers)


class NeuronCoverage(_Marks):
    """A neuron is covered if some input brings it above a threshold; every position of a map is a neuron."""

    key = "neuron"

    def __init__(self, layers: Sequence[Layer], device: torch.device, threshold: float = 0.0) -> None:
        super().__init__(layers, (_count(layers),), device)
        self.threshold = threshold

    def update(self, values: Sequence[Tensor]) -> None:
        """Take a batch of inputs into account."""
        self.marks = self.marks | (torch.cat(list(values), 1) > self.threshold).any(0)
        self.inputs += len(values[0])

    @property
    def definition(self) -> str:
        """When one of what is counted is covered."""
        return f"value above {self.threshold:g} at its position"

    def compute(self) -> CoverageFigure:
        """The coverage so far."""
        return self._figure("neurons")


class ChannelCoverage(_Marks):
    """DeepXplore's neuron coverage: a layer's values are scaled to [0, 1] for each input, and averaged by channel."""

    key = "channel"

    def __init__(self, layers: Sequence[Layer], device: torch.device, threshold: float = 0.25) -> None:
        super().__init__(layers, (sum(layer.shape[0] for layer in layers),), device)
        self.threshold = threshold

    def update(self, values: Sequence[Tensor]) -> None:
        """Take a batch of inputs into account."""
        means = []
        for layer, value in zip(self.layers, values, strict=True):
            low, high = value.amin(1, keepdim=True), value.amax(1, keepdim=True)
            scaled = (value - low) / (high - low)  # NaN where all values are equal: above no threshold
            means.append(scaled.view(len(value), layer.shape[0], -1).mean(2))
        self.marks = self.marks | (torch.cat(means, 1) > self.threshold).any(0)
        self.inputs += len(values[0])

    @property
    def definition(self) -> str:
        """When one of what is counted is covered."""
        return f"mean of the channel above {self.threshold:g}, its layer scaled to [0, 1] for each input"

    def compute(self) -> CoverageFigure:
        """The coverage so far."""
        return self._figure("channels")


class Multisection(_Marks):
    """The range of each neuron is cut into sections; a section is covered if some input gives a value in it."""

    key = "kmnc"

    def __init__(self, layers: Sequence[Layer], ranges: Ranges, sections: int = 1000) -> None:
        super().__init__(layers, (_count(layers), sections), ranges.low.device)
        self.ranges = ranges
        self.sections = sections

    def update(self, values: Sequence[Tensor]) -> None:
        """Take a batch of inputs into account."""
        low, high = self.ranges.low, self.ranges.high
        marks = self.marks.clone()
        rows = torch.arange(len(low), device=low.device)
        for value in torch.cat(list(values), 1):
            inside = (value >= low) & (value <= high) & (high > low)
            place = ((value - low) / (high - low) * self.sections)[inside].long().clamp(0, self.sections - 1)
            marks[rows[inside], place] = True
        self.marks = marks
        self.inputs += len(values[0])

    @property
    def definition(self) -> str:
        """When one of what is counted is covered."""
        return f"a value in each of {self.sections} sections of the neuron's range; {self.ranges.words}"

    def _counts_like(self, other: _Marks) -> bool:
        return isinstance(other, Multisection) and super()._counts_like(other) and self.ranges.same(other.ranges)

    def compute(self) -> CoverageFigure:
        """The coverage so far."""
        return self._figure("sections", self.ranges.high > self.ranges.low)


class Boundary(_Marks):
    """A neuron's corners are covered if some input brings it above, and some below, its range."""

    def __init__(self, layers: Sequence[Layer], ranges: Ranges, *, lower: bool = True) -> None:
        super().__init__(layers, (_count(layers), 2 if lower else 1), ranges.low.device)
        self.ranges = ranges
        self.lower = lower
        self.key = "boundary" if lower else "strong"

    def update(self, values: Sequence[Tensor]) -> None:
        """Take a batch of inputs into account."""
        every = torch.cat(list(values), 1)
        corners = [(every > self.ranges.high).any(0)]
        if self.lower:
            corners.append((every < self.ranges.low).any(0))
        self.marks = self.marks | torch.stack(corners, 1)
        self.inputs += len(every)

    @property
    def definition(self) -> str:
        """When one of what is counted is covered."""
        what = "a value above the neuron's range, and one below" if self.lower else "a value above the neuron's range"
        return f"{what}; {self.ranges.words}"

    def _counts_like(self, other: _Marks) -> bool:
        return isinstance(other, Boundary) and super()._counts_like(other) and self.ranges.same(other.ranges)

    def compute(self) -> CoverageFigure:
        """The coverage so far."""
        return self._figure("corners" if self.lower else "neurons")


class TopK(_Marks):
    """A neuron is covered if for some input it is among the most active ones of its layer."""

    key = "top-k"

    def __init__(self, layers: Sequence[Layer], device: torch.device, k: int = 2) -> None:
        super().__init__(layers, (_count(layers),), device)
        self.k = k

    def update(self, values: Sequence[Tensor]) -> None:
        """Take a batch of inputs into account."""
        marks = self.marks.clone()
        for layer, value in zip(self.layers, values, strict=True):
            marks[layer.start + value.topk(min(self.k, layer.size), 1).indices.flatten()] = True
        self.marks = marks
        self.inputs += len(values[0])

    @property
    def definition(self) -> str:
        """When one of what is counted is covered."""
        return f"among the {self.k} most active neurons of its layer for some input"

    def compute(self) -> CoverageFigure:
        """The coverage so far."""
        return self._figure("neurons")
