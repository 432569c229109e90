"""What a map is about: the score of a class, or the value of a hidden neuron, as one number for each input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.errors import ConfigError
from l0tre.model.graph import Graph, GraphBuilder, Operation, run
from l0tre.model.network import Network, exact_float32

__all__ = ["Observed", "ObservedLayer", "layers", "observe_class", "observe_neuron"]


@dataclass(frozen=True)
class Observed:
    """One number that a network gives for an input.

    Attributes:
        words: What it is, as the subject of a sentence.
        unit: What it is measured in, in words.
        number: Of inputs ``[rows, *input_shape]`` on the network's device the number of each, float32 ``[rows]``.
        graph: The operations that lead to it, float32, output ``(1,)``; ``None`` for a function without a graph.
        network: Whose number it is.
    """

    words: str
    unit: str
    number: Callable[[Tensor], Tensor]
    graph: Graph | None
    network: Network


@dataclass(frozen=True)
class ObservedLayer:
    """A layer whose neurons can be observed.

    Attributes:
        position: In the network's graph, from 1.
        kind: Of the operation.
        name: The source's own name; can be empty.
        shape: ``(channels, height, width)`` or other.
    """

    position: int
    kind: str
    name: str
    shape: tuple[int, ...]


def observe_class(network: Network, target: int, classes: Sequence[str] = ()) -> Observed:
    """The score of a class.

    Args:
        network: The classifier.
        target: The class.
        classes: Names of the classes; default those of the network.

    Raises:
        ConfigError: If there is no such class.
    """
    if not 0 <= target < network.classes:
        raise ConfigError(f"the target is class {target}: give one of 0 to {network.classes - 1}")
    graph = None
    if network.graph is not None:
        last = len(network.graph.operations) - 1
        graph = _single(network.graph, last, target, network.device)
    names = classes or network.names.classes
    label = names[target] if target < len(names) else str(target)
    return Observed(
        f"score of class {label}",
        "units of the score",
        lambda x: network.scores(x)[:, target],
        graph,
        network,
    )


def layers(network: Network) -> list[ObservedLayer]:
    """The layers whose neurons can be observed; empty for a function without a graph."""
    operations = () if network.graph is None else network.graph.operations
    return [
        ObservedLayer(place, operation.kind, operation.name, operation.shape)
        for place, operation in enumerate(operations)
        if place
    ]


def observe_neuron(network: Network, neuron: str) -> Observed:
    """The value of a hidden neuron.

    Args:
        network: The classifier.
        neuron: ``layer:channel`` for the mean of a channel's map, ``layer:channel:row:column`` for one of its
            positions, ``layer:number`` in a layer without a map; a layer by its position or its name.

    Raises:
        ConfigError: If there is no such neuron.
    """
    if network.graph is None:
        raise ConfigError(f"{network.name} has no graph, so none of its neurons is known: {network.note}")
    layer, numbers = _split(network, neuron)
    shape = layer.shape
    if len(numbers) not in ((1, 3) if len(shape) == 3 else (1,)):
        wanted = "layer:channel or layer:channel:row:column" if len(shape) == 3 else "layer:number"
        raise ConfigError(f"the neuron {neuron!r} is of a layer of shape {shape}: give {wanted}")
    sizes = shape if len(shape) == 3 else (torch.Size(shape).numel(),)
    if any(not 0 <= number < size for number, size in zip(numbers, sizes, strict=False)):
        raise ConfigError(f"there is no neuron {neuron!r}: the layer's shape is {shape}")
    operations = list(network.graph.operations[: layer.position + 1])
    place = layer.position
    title = layer.name or layer.kind
    if len(shape) == 3 and len(numbers) == 1:
        mean = Operation("mean", (place,), (shape[0],), attributes={"dims": (1, 2), "keepdim": False})
        operations.append(mean)
        where = f"mean over {shape[1]} x {shape[2]} positions"
        words, flat, place = f"channel {numbers[0]} of {title} ({where})", numbers[0], place + 1
    else:
        words = f"neuron {':'.join(str(number) for number in numbers)} of {title}"
        flat = int(torch.arange(torch.Size(sizes).numel()).reshape(sizes)[tuple(numbers)])
    graph = _single(Graph(tuple(operations)), place, flat, network.device)

    def number(x: Tensor) -> Tensor:
        with exact_float32(network.device):
            return run(graph, x)[:, 0]

    return Observed(words, "units of the neuron", number, graph, network)


def _split(network: Network, neuron: str) -> tuple[ObservedLayer, list[int]]:
    """The layer and the numbers behind it; names of layers may hold colons."""
    known = layers(network)
    by_name = {layer.name: layer for layer in known if layer.name} | {str(layer.position): layer for layer in known}
    parts = neuron.split(":")
    for cut in range(len(parts) - 1, 0, -1):
        name, rest = ":".join(parts[:cut]), parts[cut:]
        if name in by_name and all(part.isdecimal() for part in rest):
            return by_name[name], [int(part) for part in rest]
    raise ConfigError(
        f"the neuron {neuron!r} is not one of {network.name}: give layer:channel, with a layer of 1 to "
        f"{len(known)} or its name (saliency with `layers` lists them)"
    )


def _single(graph: Graph, place: int, number: int, device: torch.device) -> Graph:
    """The operations up to a place, and of its flattened output one number."""
    operations = list(graph.operations[: place + 1])
    size = torch.Size(operations[-1].shape).numel()
    if operations[-1].shape != (size,):
        operations.append(Operation("reshape", (place,), (size,), attributes={"shape": (size,)}))
    weight = torch.zeros(1, size, device=device)
    weight[0, number] = 1.0
    operations.append(Operation("linear", (len(operations) - 1,), (1,), {"weight": weight}))
    builder = GraphBuilder(graph.input_shape)
    builder.operations = operations
    return builder.build(len(operations) - 1)
