"""The interaction of two groups, carried by itself: what inclusion and exclusion of whole windows gives."""

from typing import Any

import pytest
import torch

from l0tre.domain import make_domain
from l0tre.grid import make_grid
from l0tre.locality import interactions as interaction
from l0tre.locality.interactions import interactions, make_patterns
from l0tre.locality.local_part import LocalPlan, plan_local
from l0tre.locality.pair_interactions import is_chain
from l0tre.locality.single_pixels import Locality, make_locality, meet, single_changes
from l0tre.locality.windows import base_values
from l0tre.model.graph import Graph, GraphBuilder

BUDGET = 2**24
CONV, RELU, TANH, LEAKY = ("conv", 3, 1, 0, 1), ("relu",), ("tanh",), ("leaky_relu",)
CHAINS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "one layer": (CONV, RELU),
    "two layers": (CONV, RELU, ("conv", 2, 1, 1, 1), TANH),
    "linear after linear": (("conv", 2, 1, 0, 1), ("scale",), ("conv", 2, 1, 1, 1), RELU, ("conv", 2, 1, 0, 1)),
    "pool": (CONV, RELU, ("max_pool", 2, 2, 0)),
    "padded pool": (("conv", 2, 1, 1, 1), LEAKY, ("max_pool", 3, 2, 1), ("conv", 2, 1, 1, 1), TANH),
    "pool of a pool": (("conv", 2, 1, 1, 1), ("max_pool", 2, 1, 1), ("max_pool", 2, 2, 0), RELU),
    "padded pool of a pool": (("conv", 2, 1, 1, 1), ("max_pool", 2, 2, 0), ("max_pool", 2, 2, 1), TANH),
    "a meeting skipped": (("conv", 2, 1, 0, 1), TANH, ("conv", 1, 2, 0, 1), TANH, ("conv", 2, 1, 0, 1), TANH),
    "bent twice": (("conv", 2, 1, 0, 1), TANH, LEAKY, ("max_pool", 2, 1, 0), TANH, ("conv", 2, 1, 1, 1)),
    "average": (CONV, RELU, ("avg_pool", 2, 2, 1), TANH),
    "padding": (RELU, ("pad",), ("conv", 2, 2, 0, 1), RELU, ("pad",), ("scale",), TANH),
    "dilated": (("conv", 2, 1, 1, 2), TANH, ("conv", 3, 2, 2, 1), RELU),
    "far strides": (("conv", 1, 2, 0, 1), RELU, ("conv", 2, 1, 0, 1), TANH),
}


def chain(name: str, channels: int, head: str = "linear") -> Graph:
    """A network that is a chain of operations, with random weights."""
    generator = torch.Generator().manual_seed(len(name) + channels)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    build = GraphBuilder((channels, 6, 7))
    at = 0
    for kind, *numbers in CHAINS[name]:
        depth, height, width = build.shape(at)
        if kind == "conv":
            kernel, stride, padding, dilation = numbers
            weights = {"weight": random(3, depth, kernel, kernel) / kernel, "bias": random(3)}
            sizes: dict[str, Any] = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (dilation,) * 2}
            at = build.add("conv", [at], weights, groups=1, **sizes)
        elif kind in ("max_pool", "avg_pool"):
            sizes = dict(zip(("kernel", "stride", "padding"), ((number,) * 2 for number in numbers), strict=True))
            more: dict[str, Any] = {"dilation": (1, 1)} if kind == "max_pool" else {"count_include_pad": True}
            at = build.add(kind, [at], **sizes, **more)
        elif kind == "scale":
            at = build.add("scale", [at], {"scale": random(depth, 1, 1), "shift": random(depth, height, width)})
        elif kind == "pad":
            at = build.add("pad", [at], padding=(1, 0, 0, 1), value=0.3)
        else:
            slope: dict[str, Any] = {"slope": 0.1} if kind == "leaky_relu" else {}
            at = build.add(kind, [at], **slope)
    if head == "mean":
        at = build.add("mean", [at], dims=(1, 2), keepdim=False)
    size = torch.Size(build.shape(at)).numel()
    at = build.add("reshape", [at], shape=(size,))
    at = build.add("linear", [at], {"weight": random(4, size) / size**0.5, "bias": random(4)})
    return build.build(at).to("cpu")


def pair_table(locality: Locality, images: torch.Tensor) -> torch.Tensor:
    """The interactions of all pairs whose windows meet, ``[images, pairs, points ** 2, features]``."""
    base = base_values(locality.plan, images.view(-1, *locality.plan.graph.input_shape))
    singles = single_changes(locality, images, base, keep=True, budget=BUDGET)
    count = locality.domain.groups
    a, b = torch.triu_indices(count, count, 1)
    near = meet(locality, a, b)
    sets = torch.stack([a[near], b[near]], 1)
    points, features = locality.grid.shape[1], singles.head.shape[-1]
    table = torch.full((len(images), len(sets), points**2, features), torch.nan)
    for pattern in make_patterns(locality, sets, len(images), BUDGET):
        table[:, pattern.rows] = interactions(locality, singles, pattern)
    return table


@pytest.mark.family
@pytest.mark.parametrize("head", ["linear", "mean"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CHAINS)
def test_rests_are_what_whole_windows_leave(
    name: str, channels: int, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(name, channels, head)
    plan = plan_local(graph, {"linear": 1.0, "mean": 1.0, "map": 1.0})
    assert isinstance(plan, LocalPlan)
    assert is_chain(plan)
    domain = make_domain(graph.input_shape)
    grid = make_grid(domain, 0.5, colours="corners" if channels > 1 else "grid")[:, :3]
    locality = make_locality(plan, domain, grid)
    assert isinstance(locality, Locality)
    images = torch.rand(2, domain.members.numel(), generator=torch.Generator().manual_seed(5))
    found = pair_table(locality, images)
    monkeypatch.setattr(interaction, "is_chain", lambda _: False)
    wanted = pair_table(locality, images)
    assert bool(torch.isfinite(found).all())
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max().clamp(min=1)))
    assert float(wanted.abs().max()) > 1e-3


def test_branches_are_no_chain() -> None:
    build = GraphBuilder((1, 4, 4))
    weight = torch.ones(1, 1, 1, 1)
    sizes: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    inner = build.add("relu", [build.add("conv", [0], {"weight": weight, "bias": torch.zeros(1)}, **sizes)])
    joined = build.add("add", [0, inner])
    flat = build.add("reshape", [joined], shape=(16,))
    graph = build.build(build.add("linear", [flat], {"weight": torch.ones(2, 16), "bias": torch.zeros(2)})).to("cpu")
    plan = plan_local(graph)
    assert isinstance(plan, LocalPlan)
    assert plan.cut == joined
    assert not is_chain(plan)
