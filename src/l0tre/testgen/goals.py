"""What tests are to reach: every neuron above its threshold. Values are taken where gradients tell the way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.coverage.neurons import Layer, inner_values, source_position
from l0tre.model.graph import Graph
from l0tre.model.network import exact_float32
from l0tre.testgen.before_activation import limits_before
from l0tre.testgen.crops import Crop, make_crop

__all__ = ["Goals", "Target", "make_goals"]

LEAK = 0.1


@dataclass(frozen=True)
class Target:
    """A layer as it is looked at.

    Attributes:
        layer: The neurons.
        watched: Position whose values are looked at: what goes into the activation, whose gradient does not vanish or
            mislead where the neuron is off; the activation's output where that does not tell whether it is on.
        graph: The operations up to there.
        soft: The same with ReLUs that leak: its gradients tell of ways through neurons that are off.
        crop: The same on windows, where neurons see windows.
        soft_crop: Likewise with leaks.
    """

    layer: Layer
    watched: int
    graph: Graph
    soft: Graph
    crop: Crop | None
    soft_crop: Crop | None


@dataclass(frozen=True)
class Goals:
    """Neurons and the thresholds that they must exceed, on one device.

    Attributes:
        graph: The network in float32, up to the last watched operation.
        wide: The network in float64, up to the last activation, by whose output every hit is confirmed.
        targets: The layers.
        thresholds: float64 ``[neurons]``, in the units of the neurons' values.
        limits: float32 ``[neurons]``, what the watched values must exceed for that.
    """

    graph: Graph
    wide: Graph
    targets: tuple[Target, ...]
    thresholds: Tensor
    limits: Tensor

    @property
    def count(self) -> int:
        """Number of neurons."""
        return len(self.thresholds)

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.thresholds.device

    @property
    def row_bytes(self) -> int:
        """Memory that one input takes on its way, its values of all neurons included."""
        inner = sum(math.prod(operation.shape) for operation in self.graph.operations)
        return 4 * (inner + 3 * self.count)

    def to(self, device: torch.device) -> "Goals":
        """The same on another device."""
        if device == self.device:
            return self
        layers = [target.layer for target in self.targets]
        return make_goals(self.wide.to("cpu", torch.float64), layers, self.thresholds.cpu(), device)

    def values(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each layer's watched values, float32 ``[rows, neurons]`` from ``[rows, values]``, and their limits."""
        with exact_float32(self.device):
            watched = [target.watched for target in self.targets]
            found = inner_values(self.graph, watched, x.view(-1, *self.graph.input_shape))
        return [(own, self.limits[target.layer.place]) for own, target in zip(found, self.targets, strict=True)]

    def excess(self, x: Tensor) -> Tensor:
        """How far each neuron is above its limit, float32 ``[rows, neurons]`` from ``[rows, values]``."""
        return torch.cat([value - limit for value, limit in self.values(x)], 1)

    def hits(self, x: Tensor) -> Tensor:
        """Which neurons inputs activate, as far as float32 tells; bool ``[rows, neurons]`` from ``[rows, values]``."""
        return torch.cat([value > limit for value, limit in self.values(x)], 1)

    def confirmed(self, x: Tensor) -> Tensor:
        """Which neurons an input activates, computed in float64; bool ``[rows, neurons]`` from ``[rows, values]``."""
        inputs = x.to(torch.float64).view(-1, *self.wide.input_shape)
        positions = [target.layer.position for target in self.targets]
        return torch.cat(inner_values(self.wide, positions, inputs), 1) > self.thresholds

    def own_excess(self, target: Target, x: Tensor, neurons: Tensor, *, soft: bool = False) -> Tensor:
        """The excess of one neuron of a layer for each row.

        Args:
            target: The layer.
            x: float32 ``[rows, values]``.
            neurons: int64 ``[rows]``, numbers among all neurons.
            soft: Whether ReLUs leak on the way.

        Returns:
            float32 ``[rows]``.
        """
        crop, graph = (target.soft_crop, target.soft) if soft else (target.crop, target.graph)
        numbers = neurons - target.layer.start
        with exact_float32(self.device):
            if crop is not None:
                own = crop.values(x, numbers)
            else:
                (values,) = inner_values(graph, (target.watched,), x.view(-1, *self.graph.input_shape))
                own = values.gather(1, numbers[:, None])[:, 0]
        return own - self.limits[neurons]

    def share(self, target: Target) -> float:
        """What :meth:`own_excess` of one input costs, as a share of a pass through all layers, by values computed."""
        inner = self._inner(target)
        return inner / self._inner(self.targets[-1], whole=True)

    def own_bytes(self, target: Target) -> int:
        """Memory that a row of :meth:`own_excess` takes, its gradient included."""
        return int(8 * self._inner(target)) + 16 * math.prod(self.graph.input_shape)

    def _inner(self, target: Target, *, whole: bool = False) -> float:
        """Values that are computed for one neuron of a layer, or for the whole layer."""
        if target.crop is None or whole:
            return sum(math.prod(operation.shape) for operation in target.graph.operations)
        return target.crop.inner


def make_goals(graph: Graph, layers: Sequence[Layer], thresholds: Tensor, device: torch.device) -> Goals:
    """Get ready to look for inputs that activate neurons.

    Args:
        graph: The network in float64 on the CPU.
        layers: The neurons.
        thresholds: float64 ``[neurons]``.
        device: Where to compute.

    Returns:
        The goals.
    """
    ready = graph.to(device, torch.float32)
    targets, limits = [], []
    for layer in layers:
        before = limits_before(graph.operations[layer.position], thresholds[layer.place])
        watched = layer.position if before is None else source_position(graph, layer)
        limits.append(thresholds[layer.place] if before is None else before)
        part = _upto(ready, watched)
        soft = _leaky(part)
        targets.append(Target(layer, watched, part, soft, make_crop(part, watched), make_crop(soft, watched)))
    seen, end = max(target.watched for target in targets), max(layer.position for layer in layers)
    wide, most = _upto(graph.to(device, torch.float64), end), torch.cat(limits).to(device, torch.float32)
    return Goals(_upto(ready, seen), wide, tuple(targets), thresholds.to(device), most)


def _leaky(graph: Graph) -> Graph:
    """The same with leaky ReLUs."""
    return Graph(
        tuple(
            replace(operation, kind="leaky_relu", attributes={"slope": LEAK}) if operation.kind == "relu" else operation
            for operation in graph.operations
        )
    )


def _upto(graph: Graph, position: int) -> Graph:
    """The operations up to one, in their places."""
    return Graph(graph.operations[: position + 1])
