"""Interval arithmetic: the range of every operation holds its values at random points; magnitudes bound them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from l0tre.certify.relax.interval import magnitude, step
from l0tre.certify.relax.supported import SUPPORTED, is_nonlinear, reduce_graph, unsupported
from l0tre.errors import ModelError
from l0tre.model.graph import Graph, GraphBuilder, Operation, run, run_operation

Weights = Callable[..., Tensor]


def conv(weights: Weights, groups: int = 1, **options: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    settings = {"stride": (1, 1), "padding": (1, 0), "dilation": (1, 1), "groups": groups, **options}
    return {"weight": weights(4, 2 // groups, 2, 3), "bias": weights(4)}, settings


def operations(seed: int = 0) -> list[tuple[Operation, list[tuple[int, ...]]]]:
    """An operation of every operation with all its settings, and the shapes of its inputs."""
    random = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    plane, vector = (2, 4, 5), (6,)
    pool = {"kernel": (2, 2), "stride": (2, 1), "padding": (1, 1)}
    made: list[tuple[str, list[tuple[int, ...]], dict[str, Tensor], dict[str, Any]]] = [
        ("conv", [plane], *conv(weights)),
        ("conv", [plane], *conv(weights, groups=2, stride=(2, 1), dilation=(1, 2))),
        ("linear", [vector], {"weight": weights(3, 6), "bias": weights(3)}, {}),
        ("linear", [plane], {"weight": weights(3, 5)}, {}),
        ("scale", [plane], {"scale": weights(2, 1, 1), "shift": weights(2, 4, 5)}, {}),
        ("scale", [vector], {"scale": weights(1)}, {}),
        ("scale", [(1, 5)], {"shift": weights(4, 5)}, {}),
        ("reshape", [plane], {}, {"shape": (8, 5)}),
        ("transpose", [plane], {}, {"permutation": (2, 0, 1)}),
        ("pad", [plane], {}, {"padding": (1, 0, 2, -1), "value": -1.5}),
        ("mean", [plane], {}, {"dims": (1, 2), "keepdim": True}),
        ("mean", [plane], {}, {"dims": (0,), "keepdim": False}),
        ("add", [plane, (1, 4, 5)], {}, {}),
        ("sub", [plane, (2, 1, 1)], {}, {}),
        ("concat", [plane, (3, 4, 5)], {}, {"dim": 0}),
        ("relu", [vector], {}, {}),
        ("leaky_relu", [vector], {}, {"slope": 0.1}),
        ("leaky_relu", [vector], {}, {"slope": 1.5}),
        ("sigmoid", [vector], {}, {}),
        ("tanh", [vector], {}, {}),
        ("elu", [vector], {}, {"alpha": 0.7}),
        ("elu", [vector], {}, {"alpha": 1.5}),
        ("softplus", [vector], {}, {}),
        ("silu", [vector], {}, {}),
        ("gelu", [vector], {}, {}),
        ("gelu_tanh", [vector], {}, {}),
        ("hard_swish", [vector], {}, {}),
        ("slice", [plane], {}, {"starts": (1, 0, 1), "steps": (1, 3, 2), "sizes": (1, 2, 2), "source": plane}),
        ("max_pool", [plane], {}, {**pool, "dilation": (1, 2)}),
        ("avg_pool", [plane], {}, {**pool, "count_include_pad": True}),
        ("avg_pool", [plane], {}, {**pool, "count_include_pad": False}),
        ("clip", [vector], {}, {"low": -0.4, "high": 0.9}),
        ("clip", [vector], {}, {"low": -math.inf, "high": 0.9}),
        ("clip", [vector], {}, {"low": 0.2, "high": math.inf}),
        ("clip", [vector], {}, {"low": -math.inf, "high": math.inf}),
    ]
    result = []
    for op, shapes, tensors, attributes in made:
        operations = [Operation("input", (), shape) for shape in shapes]
        constants = {key: value.double() for key, value in tensors.items()}
        operation = Operation(op, tuple(range(len(operations))), (), constants, attributes)
        shape = run_operation(operation, *(torch.zeros(1, *s, dtype=torch.float64) for s in shapes)).shape[1:]
        result.append((Operation(op, operation.inputs, tuple(shape), constants, attributes), shapes))
    return result


OPERATIONS = operations()
EVERY = pytest.mark.parametrize(
    ("operation", "shapes"),
    OPERATIONS,
    ids=[f"{operation.kind} {number}" for number, (operation, _) in enumerate(OPERATIONS)],
)


def test_every_operation_is_here() -> None:
    assert {operation.kind for operation, _ in OPERATIONS} == set(SUPPORTED)


def reduced(operation: Operation, shapes: list[tuple[int, ...]]) -> Graph:
    """The operation as the prover sees it, in a graph of its own; several inputs are parts of one vector."""
    builder = GraphBuilder((sum(math.prod(shape) for shape in shapes),))
    sources, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        part = builder.add("pad", [0], padding=(-start, start + size - builder.shape(0)[0]), value=0.0)
        sources.append(builder.add("reshape", [part], shape=shape))
        start += size
    settings: dict[str, Any] = dict(operation.attributes)
    top = builder.add(operation.kind, sources, operation.tensors, **settings)
    return reduce_graph(builder.build(top).to("cpu", torch.float64))


def random_ranges(shape: tuple[int, ...], random: torch.Generator) -> tuple[Tensor, Tensor]:
    ends = torch.randn(2, 3, *shape, dtype=torch.float64, generator=random).sort(0).values
    ends[1, 0] = ends[0, 0]  # no room
    ends[1, 1] = ends[0, 1].abs()  # around zero
    ends[0, 1] = -ends[1, 1]
    return ends[0], ends[1]


@EVERY
def test_ranges_hold_and_magnitudes_bound(operation: Operation, shapes: list[tuple[int, ...]]) -> None:
    random = torch.Generator().manual_seed(1)
    graph = reduced(operation, shapes)
    low, high = random_ranges(graph.input_shape, random)
    shares = torch.rand(200, 1, *graph.input_shape, dtype=torch.float64, generator=random)
    shares[:100] = shares[:100].round()
    points = (low + shares * (high - low)).flatten(0, 1)
    ranges, sizes, values = [(low, high)], [torch.maximum(low.abs(), high.abs())], [points]
    for own in graph.operations[1:]:
        ranges.append(step(own, [ranges[source] for source in own.inputs]))
        sizes.append(magnitude(own, [sizes[source] for source in own.inputs]))
        values.append(run_operation(own, *(values[source] for source in own.inputs)))
        least, most = ranges[-1]
        value = values[-1].unflatten(0, (200, 3))
        assert least.shape == most.shape == value.shape[1:]
        assert bool(((value >= least - 1e-12) & (value <= most + 1e-12)).all())
        assert bool((value.abs() <= sizes[-1] + 1e-12).all())
        assert bool((torch.maximum(least.abs(), most.abs()) <= sizes[-1] + 1e-12).all())
    parts = points.split([math.prod(shape) for shape in shapes], 1)
    wanted = run_operation(operation, *(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)))
    assert torch.allclose(values[-1], wanted, rtol=0, atol=1e-12)


@EVERY
def test_ranges_of_a_linear_operation_are_attained(operation: Operation, shapes: list[tuple[int, ...]]) -> None:
    """At the end of every value's range that its slope asks for, so interval arithmetic loses nothing."""
    if is_nonlinear(operation) or operation.kind in ("avg_pool", "clip"):
        return
    random = torch.Generator().manual_seed(2)
    inputs = [random_ranges(shape, random) for shape in shapes]
    least, most = (end.flatten(1) for end in step(operation, inputs))
    middle = [((low + high) / 2).requires_grad_() for low, high in inputs]
    for number in range(least.shape[1]):
        value = run_operation(operation, *middle).flatten(1)[:, number].sum()
        slopes = torch.autograd.grad(value, middle, materialize_grads=True, allow_unused=True)
        for wanted, ends in ((least, inputs), (most, [(high, low) for low, high in inputs])):
            worst = [torch.where(slope > 0, *pair) for slope, pair in zip(slopes, ends, strict=True)]
            found = run_operation(operation, *worst).flatten(1)[:, number]
            assert torch.allclose(wanted[:, number], found, rtol=0, atol=1e-12)


def test_a_leaky_relu_of_negative_slope_has_its_least_value_at_zero() -> None:
    operation = Operation("leaky_relu", (0,), (3,), {}, {"slope": -0.5})
    low, high = torch.tensor([[-2.0, -2.0, 1.0]]), torch.tensor([[1.5, -1.0, 2.0]])
    least, most = step(operation, [(low, high)])
    assert least.tolist() == [[0.0, 0.5, 1.0]]
    assert most.tolist() == [[1.5, 1.0, 2.0]]
    assert magnitude(operation, [torch.tensor([[2.0, 0.0, 1.0]])]).tolist() == [[2.0, 0.0, 1.0]]


def test_products_of_two_values_are_refused() -> None:
    builder = GraphBuilder((3,))
    graph = builder.build(builder.add("mul", [0, 0], name="gate"))
    assert "gate" in unsupported(graph)
    with pytest.raises(ModelError, match="mul"):
        reduce_graph(graph)
    assert run(graph, torch.ones(1, 3)).tolist() == [[1.0, 1.0, 1.0]]
