"""Small networks on images that are larger than what a neuron sees, with every kind of groups."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from l0tre.domain import Domain, make_domain
from l0tre.model.graph import GraphBuilder
from tests.certify.proving import as_network
from tests.certify.random_networks import Case

__all__ = ["DOMAINS", "WIDE", "wide_case"]

Build = Callable[[GraphBuilder, Callable[..., Tensor]], int]


def conv(graph: GraphBuilder, source: int, weights: Callable[..., Tensor], out: int, **options: Any) -> int:
    """A 3 x 3 convolution."""
    groups = options.pop("groups", 1)
    tensors = {"weight": weights(out, graph.shape(source)[0] // groups, 3, 3), "bias": 0.2 * weights(out)}
    settings = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **options}
    return graph.add("conv", [source], tensors, groups=groups, **settings)


def _shallow(graph: GraphBuilder, weights: Callable[..., Tensor]) -> int:
    return graph.add("tanh", [conv(graph, graph.add("relu", [conv(graph, 0, weights, 2)]), weights, 2)])


def _deep(graph: GraphBuilder, weights: Callable[..., Tensor]) -> int:
    top = graph.add("relu", [conv(graph, 0, weights, 3, padding=(1, 1))])
    top = graph.add("relu", [conv(graph, top, weights, 2, stride=(2, 1))])
    return graph.add("relu", [conv(graph, top, weights, 3, padding=(1, 0))])


def _pools(graph: GraphBuilder, weights: Callable[..., Tensor]) -> int:
    top = graph.add("relu", [conv(graph, 0, weights, 2, padding=(1, 1))])
    top = graph.add("max_pool", [top], kernel=(2, 3), stride=(1, 2), padding=(1, 1), dilation=(1, 1))
    top = graph.add("relu", [conv(graph, top, weights, 2)])
    return graph.add("max_pool", [top], kernel=(2, 2), stride=(1, 1), padding=(0, 0), dilation=(2, 1))


def _curves(graph: GraphBuilder, weights: Callable[..., Tensor]) -> int:
    top = graph.add("pad", [0], padding=(1, 0, 2, -1), value=0.3)
    top = graph.add("tanh", [conv(graph, top, weights, 2, padding=(0, 1))])
    top = graph.add("scale", [top], {"scale": weights(*graph.shape(top)), "shift": weights(2, 1, 1)})
    top = graph.add("sigmoid", [conv(graph, top, weights, 2, groups=2, dilation=(2, 1), padding=(1, 1))])
    top = graph.add("leaky_relu", [graph.add("scale", [top], {"scale": weights(2, 1, 1), "shift": None})], slope=1.7)
    return graph.add("avg_pool", [top], kernel=(2, 2), stride=(2, 2), padding=(1, 1), count_include_pad=False)


def _branches(graph: GraphBuilder, weights: Callable[..., Tensor]) -> int:
    """A sum, whose neurons are carried whole, comes before neurons that are carried in windows."""
    first = graph.add("relu", [conv(graph, 0, weights, graph.shape(0)[0], padding=(1, 1))])
    first = graph.add("relu", [graph.add("sub", [first, 0])])
    second = graph.add("clip", [conv(graph, 0, weights, 2, padding=(1, 1))], low=-0.2, high=0.5)
    second = graph.add("relu", [conv(graph, graph.add("relu", [second]), weights, 2, padding=(1, 1))])
    return graph.add("concat", [first, second], dim=0)


def _turned(graph: GraphBuilder, weights: Callable[..., Tensor]) -> int:
    """Maps that lie in memory in another order than their values are counted."""
    top = graph.add("relu", [conv(graph, 0, weights, 3)])
    top = graph.add("transpose", [conv(graph, top, weights, 3)], permutation=(2, 0, 1))
    top = graph.add("relu", [top])
    top = graph.add("transpose", [top], permutation=(1, 2, 0))
    return graph.add("sigmoid", [conv(graph, top, weights, 2, padding=(1, 1))])


WIDE: dict[str, Build] = {
    "shallow": _shallow,
    "deep": _deep,
    "pools": _pools,
    "curves": _curves,
    "branches": _branches,
    "turned": _turned,
}
DOMAINS = ("pixel", "feature", "blocks", "scattered", "masked")


def wide_domain(shape: tuple[int, ...], how: str, random: torch.Generator) -> Domain:
    _, height, width = shape
    if how in ("pixel", "feature"):
        return make_domain(shape, groups="pixel" if how == "pixel" else "feature")
    if how == "blocks":
        rows, columns = torch.arange(height) // 2, torch.arange(width) // 2
        return make_domain(shape, groups=rows[:, None] * width + columns, low=-0.5)
    if how == "scattered":
        pairs = torch.randperm(math.prod(shape), generator=random).reshape(shape) // 2
        return make_domain(shape, groups=pairs - 3)  # three pairs never change
    return make_domain(shape, mask=torch.rand(shape, generator=random) < 0.7, low=-1.0, high=2.0)


def wide_case(build: str, how: str, seed: int = 0, side: int = 7) -> Case:
    """A network on images that are larger than what a neuron sees; odd seeds give two channels."""
    random = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> Tensor:
        return 1.5 * torch.randn(*shape, generator=random) / math.sqrt(math.prod(shape[1:]) or 1)

    graph = GraphBuilder((1 + seed % 2, side + 1 - seed % 2, side + seed % 2))
    top = WIDE[build](graph, weights)
    top = graph.add("reshape", [top], shape=(math.prod(graph.shape(top)),))
    built = graph.build(graph.add("linear", [top], {"weight": weights(3, graph.shape(top)[0]), "bias": weights(3)})).to(
        "cpu"
    )
    domain = wide_domain(built.input_shape, how, random)
    image = torch.rand(built.input_shape, generator=random)
    return Case(torch.nn.Identity(), built, as_network(built), image, 1, domain, build)
