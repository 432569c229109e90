"""Measure a network's coverage by inputs, all criteria in one pass."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from l0tre.coverage.criteria import (
    Boundary,
    ChannelCoverage,
    CoverageFigure,
    Criterion,
    Multisection,
    NeuronCoverage,
    TopK,
)
from l0tre.coverage.mcdc import SignSign
from l0tre.coverage.neurons import Layer, inner_values, layers_of
from l0tre.coverage.ranges import Ranges
from l0tre.errors import ConfigError, DataError
from l0tre.model.graph import Graph
from l0tre.model.network import Network, exact_float32

__all__ = ["CRITERIA", "RANGED", "Coverage", "measure_ranges"]

CRITERIA = ("neuron", "channel", "kmnc", "boundary", "strong", "top-k", "mcdc")
RANGED = ("kmnc", "boundary", "strong")
BATCH_BYTES = 2**27


class Coverage:
    """Coverage criteria of one network, with torchmetrics' contract.

    ``update`` takes inputs, ``compute`` gives a :class:`CoverageFigure` for each criterion, ``reset`` forgets,
    ``merge`` takes in what another one has seen, as in another process. Everything is computed on the network's device.
    """

    def __init__(
        self,
        network: Network,
        criteria: Sequence[str] = ("neuron",),
        *,
        layers: Sequence[str] = (),
        threshold: float = 0.0,
        channel_threshold: float = 0.25,
        k: int = 2,
        sections: int = 1000,
        ranges: Ranges | None = None,
    ) -> None:
        """Choose what is measured.

        Args:
            network: With a graph.
            criteria: Of :data:`CRITERIA`.
            layers: Names of layers; all if empty.
            threshold: Of ``neuron``, in the units of the neurons' values.
            channel_threshold: Of ``channel``, at least 0, less than 1.
            k: Of ``top-k``.
            sections: Of ``kmnc``.
            ranges: Of the neurons on training data, for ``kmnc``, ``boundary`` and ``strong``.

        Raises:
            L0treError: If the network has no neurons, or a criterion or layer is unknown or lacks its ranges.
        """
        unknown = [name for name in criteria if name not in CRITERIA]
        if unknown or not criteria:
            given = repr(unknown[0]) if unknown else "missing"
            raise ConfigError(f"the `criterion` {given} is unknown: give some of {', '.join(CRITERIA)}")
        if k < 1 or sections < 1:
            raise ConfigError(f"k is {k} and the number of `sections` {sections}: give 1 or more")
        if not math.isfinite(threshold):
            raise ConfigError(f"the `threshold` is {threshold}: give a number, for example 0")
        if not 0 <= channel_threshold < 1:
            raise ConfigError(f"the `channel_threshold` is {channel_threshold}: give 0 or more, less than 1")
        self.network = network
        self.layers = layers_of(network, layers)
        self._graph = _ready(network)
        device = network.device
        made: list[Criterion] = []
        for name in dict.fromkeys(criteria):
            if name in RANGED and ranges is None:
                raise ConfigError(f"{name} needs the ranges of neurons on training data: give `ranges`")
            if name == "neuron":
                made.append(NeuronCoverage(self.layers, device, threshold))
            elif name == "channel":
                made.append(ChannelCoverage(self.layers, device, channel_threshold))
            elif name == "top-k":
                made.append(TopK(self.layers, device, k))
            elif name == "mcdc":
                made.append(SignSign(self.layers, device))
            elif ranges is not None:
                _check(ranges, self.layers)
                if name == "kmnc":
                    made.append(Multisection(self.layers, ranges, sections))
                else:
                    made.append(Boundary(self.layers, ranges, lower=name == "boundary"))
        self.criteria = tuple(made)

    def update(self, inputs: Tensor) -> None:
        """Take inputs ``[inputs, *input_shape]`` into account."""
        if tuple(inputs.shape[1:]) != self.network.input_shape:
            raise DataError(
                f"inputs have shape {tuple(inputs.shape[1:])}, the network takes {self.network.input_shape}"
            )
        for values in _values(self.network, self._graph, self.layers, inputs):
            for criterion in self.criteria:
                criterion.update(values)

    def compute(self) -> dict[str, CoverageFigure]:
        """The coverage so far, by criterion."""
        return {criterion.key: criterion.compute() for criterion in self.criteria}

    def reset(self) -> None:
        """Forget all inputs."""
        for criterion in self.criteria:
            criterion.reset()

    def merge(self, other: "Coverage") -> None:
        """Take what another one with the same criteria has seen into account."""
        if [criterion.key for criterion in self.criteria] != [criterion.key for criterion in other.criteria]:
            raise ValueError("only coverages with the same criteria can be merged")
        for own, more in zip(self.criteria, other.criteria, strict=True):
            own.merge(more)


def measure_ranges(
    network: Network,
    inputs: Tensor,
    source: str,
    layers: Sequence[str] = (),
    pulse: Callable[[], None] = lambda: None,
) -> Ranges:
    """The ranges of a network's neurons on some inputs.

    Args:
        network: With a graph.
        inputs: ``[inputs, *input_shape]``.
        source: Where they come from, in words.
        layers: Names of layers; all if empty.
        pulse: Felt before every batch.

    Returns:
        The ranges, on the network's device.
    """
    chosen = layers_of(network, layers)
    if not len(inputs):
        raise DataError("no inputs to take ranges from: give at least one")
    ranges = Ranges.nothing(sum(layer.size for layer in chosen), network.device, source)
    for values in _values(network, _ready(network), chosen, inputs):
        pulse()
        ranges = ranges.widened(values)
    return ranges


def _check(ranges: Ranges, layers: Sequence[Layer]) -> None:
    neurons = sum(layer.size for layer in layers)
    if len(ranges.low) != neurons:
        raise ConfigError(
            f"`ranges` are those of {len(ranges.low)} neurons, the layers have {neurons}: measure them anew"
        )


def _ready(network: Network) -> Graph:
    graph = network.exact or network.graph
    assert graph is not None  # layers_of refuses such a network
    return graph.to(network.device, torch.float32)


@torch.inference_mode()
def _values(network: Network, graph: Graph, layers: Sequence[Layer], inputs: Tensor) -> Iterator[list[Tensor]]:
    positions = [layer.position for layer in layers]
    inner = sum(torch.Size(operation.shape).numel() for operation in graph.operations)
    for part in inputs.split(max(1, BATCH_BYTES // (16 * inner))):
        with exact_float32(network.device):
            yield inner_values(graph, positions, part.to(network.device, torch.float32))
