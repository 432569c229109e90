"""The neurons of a network: every output of an activation, wherever the source has it (module, function or fused)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from l0tre.errors import ConfigError, ModelError
from l0tre.model.graph import Graph, run_operation
from l0tre.model.network import Network
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Curve

__all__ = ["Layer", "find_layers", "inner_values", "layers_of", "source_position"]

WEIGHTED = ("conv", "linear")  # an activation before the first of them prepares the input, and has no neurons


@dataclass(frozen=True)
class Layer:
    """The outputs of one activation; each position of a map is a neuron.

    Attributes:
        name: The kind and a number by order, as in ``relu2``.
        source: What the network's source calls the operation; may be empty.
        kind: Key of :data:`l0tre.model.operations.KINDS`.
        position: Of the operation in the graph.
        shape: Of one sample: ``(C, H, W)`` for maps, ``(neurons,)`` for dense layers.
        start: Number of the layer's first neuron among all neurons of the chosen layers.
        after: Kind of the weighted operation that it activates, ``conv`` or ``linear``.
    """

    name: str
    source: str
    kind: str
    position: int
    shape: tuple[int, ...]
    start: int
    after: str

    @property
    def size(self) -> int:
        """Number of neurons."""
        return math.prod(self.shape)

    @property
    def place(self) -> slice:
        """The layer's neurons among all."""
        return slice(self.start, self.start + self.size)

    def words(self, neuron: int) -> str:
        """A neuron of the layer in words: ``channel 3, row 5, column 7`` or ``12``."""
        if len(self.shape) != 3:
            return str(neuron)
        _, height, width = self.shape
        return f"channel {neuron // (height * width)}, row {neuron // width % height}, column {neuron % width}"


def layers_of(network: Network, wanted: Sequence[str] = ()) -> tuple[Layer, ...]:
    """The layers of a network's neurons, see :func:`find_layers`.

    Raises:
        ModelError: If the network has no graph, or no activations.
        ConfigError: If it has no layer of a name.
    """
    graph = network.exact or network.graph
    if graph is None:
        raise ModelError(f"{network.name} has no graph, so none of its neurons is known: {network.note}")
    return find_layers(graph, wanted, network.name)


def find_layers(graph: Graph, wanted: Sequence[str] = (), network: str = "the network") -> tuple[Layer, ...]:
    """The layers of neurons: outputs of activations after the first weights.

    Args:
        graph: The network.
        wanted: Names of layers (``relu2``, or the source's own); all if empty.
        network: Its name, for messages.

    Returns:
        The layers in order; their neurons are numbered through.

    Raises:
        ModelError: If there are no activations.
        ConfigError: If there is no layer of a name.
    """
    behind = [""] * len(graph.operations)
    numbers: dict[str, int] = {}
    found: list[Layer] = []
    for position, operation in enumerate(graph.operations):
        before = next((behind[source] for source in operation.inputs if behind[source]), "")
        behind[position] = operation.kind if operation.kind in WEIGHTED else before
        if position and before and isinstance(KINDS[operation.kind], Curve):
            numbers[operation.kind] = numbers.get(operation.kind, 0) + 1
            name = f"{operation.kind}{numbers[operation.kind]}"
            found.append(Layer(name, operation.name, operation.kind, position, operation.shape, 0, before))
    if not found:
        raise ModelError(f"{network} has no activations (ReLU or another curve after weights), so it has no neurons")
    unknown = [name for name in wanted if all(name not in (layer.name, layer.source) for layer in found)]
    if unknown:
        known = ", ".join(f"{layer.name} {'x'.join(map(str, layer.shape))}" for layer in found)
        raise ConfigError(f"{network} has no layer {unknown[0]!r}; its `layers` are {known}")
    chosen = [layer for layer in found if not wanted or layer.name in wanted or layer.source in wanted]
    starts = [0]
    for layer in chosen:
        starts.append(starts[-1] + layer.size)
    return tuple(replace(layer, start=start) for layer, start in zip(chosen, starts, strict=False))


def source_position(graph: Graph, layer: Layer) -> int:
    """The operation whose output a layer activates: what goes into the curve."""
    return graph.operations[layer.position].inputs[0]


def inner_values(graph: Graph, positions: Sequence[int], x: Tensor) -> list[Tensor]:
    """Outputs of some operations; what lies after the last of them is not computed.

    Args:
        graph: The network, its constants on the device and in the precision of ``x``.
        positions: Of the operations.
        x: ``[batch, *graph.input_shape]``.

    Returns:
        For each position ``[batch, values]``.
    """
    last, end, wanted = graph.last_use(), max(positions), set(positions)
    values: dict[int, Tensor] = {0: x}
    kept: dict[int, Tensor] = {}
    for position, operation in enumerate(graph.operations[: end + 1]):
        if position:
            values[position] = run_operation(operation, *(values[source] for source in operation.inputs))
        if position in wanted:
            kept[position] = values[position].flatten(1)
        for source in set(operation.inputs):
            if last[source] == position:
                del values[source]
    return [kept[position] for position in positions]
