"""Small networks with windows, written as graphs: recipes for every kind of layer, and their random weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from l0tre.model.graph import Graph, GraphBuilder

Layer = tuple[str, dict[str, Any]]
Pair = tuple[int, int]


def conv(out: int, kernel: int | Pair, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Layer:
    shape = (kernel, kernel) if isinstance(kernel, int) else kernel
    pairs = {"stride": (stride, stride), "padding": (padding, padding), "dilation": (dilation, dilation)}
    return "conv", {"out": out, "kernel": shape, **pairs, "groups": groups}


def pool(kernel: int, stride: int, padding: int = 0, dilation: int = 1) -> Layer:
    names = ("kernel", "stride", "padding", "dilation")
    return "max_pool", {name: (v, v) for name, v in zip(names, (kernel, stride, padding, dilation), strict=True)}


def pad(*padding: int, value: float) -> Layer:
    return "pad", {"padding": padding, "value": value}


def leaky(slope: float) -> Layer:
    return "leaky_relu", {"slope": slope}


RELU: Layer = ("relu", {})
SIGMOID: Layer = ("sigmoid", {})
TANH: Layer = ("tanh", {})
SCALE: Layer = ("scale", {})  # drawn: a factor and a constant for each channel, the factors of both signs


@dataclass(frozen=True, eq=False)
class Recipe:
    """A network: windows, then dense layers. Each recipe is itself only, so that what is built by it can be kept.

    Attributes:
        shape: Of the input, ``(C, H, W)``.
        layers: Up to the first dense layer.
        hidden: Widths of dense layers before the scores.
        bend: What follows each of them.
        end: What follows the scores.
        join: ``add``, ``sub`` or ``concat``: a shortcut past a second dense layer.
    """

    shape: tuple[int, int, int]
    layers: tuple[Layer, ...]
    hidden: tuple[int, ...] = ()
    bend: Layer = RELU
    end: tuple[Layer, ...] = field(default=())
    join: str = ""


FLAT: dict[str, Recipe] = {
    "plain": Recipe((1, 7, 7), (conv(3, 2), RELU, conv(3, 2), RELU)),
    "padded": Recipe((3, 6, 5), (conv(4, 3, padding=1), RELU)),
    "stride": Recipe((1, 10, 10), (conv(3, 3, 2, 1), RELU, conv(3, 2), RELU)),
    "stride, colours": Recipe((3, 7, 8), (conv(3, 2, 2, 1), leaky(0.2), conv(2, 2, 1, 1), RELU)),
    "pool": Recipe((1, 8, 9), (conv(3, 3), RELU, pool(2, 2))),
    "padded pool": Recipe((1, 9, 9), (conv(2, 2, padding=1), leaky(1.7), pool(3, 2, 1), conv(2, 2), RELU)),
    "overlapping pools": Recipe((1, 8, 8), (pool(2, 1), conv(3, 2), RELU, pool(2, 1, 1, 2))),
    "pool after stride": Recipe((1, 12, 12), (conv(2, 2, 2), RELU, pool(2, 2))),
    "scaled": Recipe((3, 6, 6), (SCALE, conv(3, 2), SCALE, RELU)),
    "scaled again": Recipe((1, 6, 6), (conv(3, 2), RELU, SCALE, conv(2, 2), SCALE, TANH)),
    "pads": Recipe(
        (1, 6, 6), (pad(1, 2, 0, 1, value=0.5), conv(3, 2), RELU, pad(0, 1, 1, 0, value=-0.3), conv(2, 2), RELU)
    ),
    "pad before a pool": Recipe((2, 6, 6), (conv(3, 2), SCALE, pad(1, 0, 0, 1, value=0.1), pool(2, 2))),
    "dilated": Recipe((1, 8, 7), (conv(3, 2, dilation=2), RELU, conv(2, 2, padding=1), RELU)),
    "grouped": Recipe((3, 6, 6), (conv(6, 3, padding=1, groups=3), RELU, conv(4, 1), RELU)),
    "narrow kernels": Recipe((1, 6, 8), (conv(3, (1, 3)), RELU, conv(3, (2, 1)), RELU)),
    "smooth": Recipe((1, 6, 6), (conv(3, 2), SIGMOID, conv(3, 2, padding=1), TANH)),
    "wide": Recipe((2, 9, 9), (conv(4, 3, padding=1), RELU, conv(4, 3), RELU, conv(3, 2, 2, 1), RELU)),
    "skipping": Recipe((1, 8, 8), (conv(3, 1, 2), RELU, conv(3, 2), RELU)),
    "linear": Recipe((2, 4, 4), ()),
}
DEEP: dict[str, Recipe] = {
    "one hidden": Recipe((1, 6, 6), (conv(3, 2), RELU), (6,)),
    "two hidden": Recipe((1, 7, 6), (conv(3, 2, 1, 1), RELU, conv(2, 2), RELU), (6, 5), leaky(0.3)),
    "hidden, colours": Recipe((3, 6, 6), (SCALE, conv(3, 2, padding=1), RELU, pool(2, 2, 1)), (5,), TANH),
    "hidden, stride": Recipe((1, 8, 8), (conv(3, 3, 2, 1), SIGMOID), (5,), SIGMOID),
    "only dense": Recipe((1, 4, 4), (), (7, 5)),
    "bent scores": Recipe((1, 6, 6), (conv(3, 2), RELU), (), end=(TANH,)),
    "scaled hidden": Recipe((1, 6, 6), (conv(3, 2), RELU), (5, 4), SCALE),
    "scores as a map": Recipe(
        (1, 6, 6), (conv(3, 2), RELU), (), end=(("reshape", {"shape": (3, 1, 1)}), TANH, ("reshape", {"shape": (3,)}))
    ),
    "scaled scores": Recipe((1, 6, 6), (conv(3, 2), RELU), (5,), end=(("scale", {}),)),
    "shortcut": Recipe((1, 6, 6), (conv(3, 2), RELU), (5,), join="add"),
    "difference": Recipe((1, 6, 6), (conv(3, 2), RELU), (5,), join="sub"),
    "two branches": Recipe((1, 6, 6), (conv(3, 2), RELU), (5,), leaky(0.1), join="concat"),
}
RECIPES = {**FLAT, **DEEP}


class _Builder:
    """Appends layers with random weights to a graph."""

    def __init__(self, shape: Sequence[int], generator: torch.Generator) -> None:
        self.graph = GraphBuilder(shape)
        self.generator = generator
        self.here = 0

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def put(self, layer: Layer) -> None:
        op, settings = layer
        if op == "conv":
            kernel, channels = settings["kernel"], self.graph.shape(self.here)[0] // settings["groups"]
            gain = 1.6 / math.sqrt(channels * kernel[0] * kernel[1])
            tensors = {
                "weight": gain * self.normal(settings["out"], channels, *kernel),
                "bias": 0.4 * self.normal(settings["out"]),
            }
            rest = {key: value for key, value in settings.items() if key not in ("out", "kernel")}
            self.here = self.graph.add("conv", [self.here], tensors, **rest)
        elif op == "scale":
            shape = self.graph.shape(self.here)
            each = (shape[0], *[1] * (len(shape) - 1))
            tensors = {"scale": 1.5 * self.normal(*each), "shift": 0.3 * self.normal(*each)}
            self.here = self.graph.add("scale", [self.here], tensors)
        else:
            self.here = self.graph.add(op, [self.here], **settings)

    def dense(self, out: int) -> None:
        wide = self.graph.shape(self.here)[0]
        tensors = {"weight": 1.6 / math.sqrt(wide) * self.normal(out, wide), "bias": 0.2 * self.normal(out)}
        self.here = self.graph.add("linear", [self.here], tensors)


@cache
def build(recipe: Recipe, seed: int, classes: int = 3) -> Graph:
    """The network of a recipe with random weights."""
    builder = _Builder(recipe.shape, torch.Generator().manual_seed(seed))
    for layer in recipe.layers:
        builder.put(layer)
    wide = math.prod(builder.graph.shape(builder.here))
    builder.here = builder.graph.add("reshape", [builder.here], shape=(wide,))
    for width in recipe.hidden:
        builder.dense(width)
        builder.put(recipe.bend)
    if recipe.join:
        before = builder.here
        builder.dense(recipe.hidden[-1])
        builder.put(recipe.bend)
        extra: dict[str, Any] = {"dim": 0} if recipe.join == "concat" else {}
        builder.here = builder.graph.add(recipe.join, [before, builder.here], **extra)
    builder.dense(classes)
    for layer in recipe.end:
        builder.put(layer)
    return Graph(tuple(builder.graph.operations)).to("cpu")
