"""What the search will do with a network, in words and numbers."""

import math
from dataclasses import dataclass

from l0tre.exhaustive.scanner import Engine
from l0tre.locality.differences import boxes
from l0tre.locality.local_part import LocalPlan, Span, spans
from l0tre.model.graph import Operation

__all__ = ["Description", "LayerReach", "describe"]

HEADS = {
    "linear": "a dense layer reads the flattened map",
    "mean": "the mean of every channel is taken",
    "map": "what follows needs the whole map",
}


@dataclass(frozen=True)
class LayerReach:
    """How far one pixel in the middle of the image reaches at a layer.

    Attributes:
        name: The operation, with the source's name for it.
        shape: Shape of its output for one sample.
        window: Height and width of what the pixel reaches.
        share: The part of the map that this is.
        field: Height and width of the input pixels that one position reads (its receptive field).
        stride: How many input pixels one step of the map stands for.
    """

    name: str
    shape: tuple[int, ...]
    window: tuple[int, int]
    share: float
    field: tuple[int, int]
    stride: int


@dataclass(frozen=True)
class Description:
    """What ``l0tre inspect`` shows.

    Attributes:
        windows: Whether windows are used instead of whole forward passes.
        reason: Why, in words.
        layers: Reach of one pixel at every local layer; empty for forward passes.
        levels: The levels ``t`` that windows can do.
        saving: Multiplications of a whole forward pass for each one of a window at t = 1; 1 for forward passes.
    """

    windows: bool
    reason: str
    layers: tuple[LayerReach, ...]
    levels: tuple[int, ...]
    saving: float


def describe(engine: Engine) -> Description:
    """Put the choice of an engine into words and numbers."""
    locality = engine.locality
    if locality is None:
        return Description(False, engine.reason, (), (), 1.0)
    plan = locality.plan
    levels = (1,) if plan.head == "map" else (1, 2, 3)
    layers = tuple(_layer(plan, place) for place in range(plan.cut + 1))
    return Description(True, HEADS[plan.head], layers, levels, _saving(plan, layers))


def _label(operation: Operation) -> str:
    return (
        operation.kind
        if not operation.name or operation.name == operation.kind
        else f"{operation.kind} ({operation.name})"
    )


def _layer(plan: LocalPlan, place: int) -> LayerReach:
    operation = plan.graph.operations[place]
    window, field = [], []
    for axis in (0, 1):
        size = plan.graph.input_shape[1 + axis]
        middle = size // 2
        window.append(min(spans(plan.graph, place, Span(middle, middle), axis)[-1].size, operation.shape[1 + axis]))
        centre = operation.shape[1 + axis] // 2
        reached = [spans(plan.graph, place, Span(i, i), axis)[-1] for i in range(size)]
        field.append(sum(span.first <= centre <= span.last for span in reached))
    share = math.prod(window) / math.prod(operation.shape[1:])
    return LayerReach(
        _label(operation), operation.shape, (window[0], window[1]), share, (field[0], field[1]), plan.strides[place]
    )


def _saving(plan: LocalPlan, layers: tuple[LayerReach, ...]) -> float:
    operations = plan.graph.operations
    if plan.head == "map":
        height, width = plan.graph.input_shape[1:]
        reached = boxes(plan.graph, (Span(height // 2, height // 2), Span(width // 2, width // 2)))
        shares = [
            1.0 if box is None else box[0].size * box[1].size / math.prod(operation.shape[1:])
            for operation, box in zip(operations, reached, strict=True)
        ]
    else:
        cut = layers[plan.cut].share
        head = cut if plan.head == "linear" else 1.0
        shares = [layer.share for layer in layers]
        shares += [head if place == plan.tail - 1 else 1.0 for place in range(plan.cut + 1, len(operations))]
    whole = sum(_products(operation, 1.0) for operation in operations)
    cropped = sum(_products(operation, share) for operation, share in zip(operations, shares, strict=True))
    return whole / max(cropped, 1.0)


def _products(operation: Operation, share: float) -> float:
    """Multiplications of an operation when a share of its positions (for a dense layer: of its inputs) is computed."""
    if operation.kind == "conv":
        return share * operation.tensors["weight"].numel() * operation.shape[1] * operation.shape[2]
    return share * operation.tensors["weight"].numel() if operation.kind == "linear" else 0.0
