"""The graph itself: every operation against torch, memory, shapes and errors of the builder."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import l0tre.model.graph as graph_module
from l0tre.errors import ModelError
from l0tre.model.graph import Graph, GraphBuilder, Operation, run, run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.conv import conv_by_products

W = torch.linspace(-1, 1, 4 * 2 * 3 * 2).reshape(4, 2, 3, 2)
B = torch.linspace(-1, 1, 4)
M = torch.linspace(-1, 1, 15).reshape(3, 5)
PAIRS: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
POOL: dict[str, Any] = {"kernel": (2, 3), "stride": (1, 2), "padding": (1, 1)}

# One input of shape (2, 4, 5): operation, constants, attributes, what torch says.
CASES: list[tuple[str, dict[str, Tensor], dict[str, Any], Callable[[Tensor], Tensor]]] = [
    ("conv", {"weight": W, "bias": B}, {**PAIRS, "groups": 1}, lambda x: F.conv2d(x, W, B, (2, 1), (1, 0), (1, 2))),
    (
        "conv",
        {"weight": W[:, :1]},
        {**PAIRS, "groups": 2},
        lambda x: F.conv2d(x, W[:, :1], None, (2, 1), (1, 0), (1, 2), 2),
    ),
    ("linear", {"weight": M, "bias": B[:3]}, {}, lambda x: x @ M.T + B[:3]),
    ("linear", {"weight": M}, {}, lambda x: x @ M.T),
    ("scale", {"scale": B[:2, None, None], "shift": B[:, None]}, {}, lambda x: x * B[:2, None, None] + B[:, None]),
    ("scale", {"shift": B[:1]}, {}, lambda x: x + B[0]),
    ("scale", {"scale": B[:1]}, {}, lambda x: x * B[0]),
    ("relu", {}, {}, nn.ReLU()),
    ("leaky_relu", {}, {"slope": 0.2}, nn.LeakyReLU(0.2)),
    ("sigmoid", {}, {}, nn.Sigmoid()),
    ("tanh", {}, {}, nn.Tanh()),
    ("clip", {}, {"low": -0.5, "high": 0.25}, nn.Hardtanh(-0.5, 0.25)),
    ("elu", {}, {"alpha": 0.7}, nn.ELU(0.7)),
    ("softplus", {}, {}, nn.Softplus()),
    ("silu", {}, {}, nn.SiLU()),
    ("gelu", {}, {}, nn.GELU()),
    ("gelu_tanh", {}, {}, nn.GELU("tanh")),
    ("hard_swish", {}, {}, nn.Hardswish()),
    (
        "slice",
        {},
        {"starts": (1, 0, 1), "steps": (1, 3, 2), "sizes": (1, 2, 2), "source": (2, 4, 5)},
        lambda x: x[:, 1:, ::3, 1::2],
    ),
    ("max_pool", {}, {**POOL, "dilation": (2, 1)}, nn.MaxPool2d((2, 3), (1, 2), (1, 1), (2, 1))),
    ("avg_pool", {}, {**POOL, "count_include_pad": True}, nn.AvgPool2d((2, 3), (1, 2), (1, 1))),
    (
        "avg_pool",
        {},
        {**POOL, "count_include_pad": False},
        nn.AvgPool2d((2, 3), (1, 2), (1, 1), count_include_pad=False),
    ),
    ("mean", {}, {"dims": (1, 2), "keepdim": True}, nn.AdaptiveAvgPool2d(1)),
    ("mean", {}, {"dims": (0,), "keepdim": False}, lambda x: x.sum(1) / 2),
    ("reshape", {}, {"shape": (40,)}, nn.Flatten()),
    ("transpose", {}, {"permutation": (2, 0, 1)}, lambda x: torch.einsum("nchw->nwch", x)),
    ("pad", {}, {"padding": (1, 2, 3, 0), "value": 7.0}, nn.ConstantPad2d((1, 2, 3, 0), 7.0)),
    ("add", {}, {}, lambda x: 2 * x),
    ("sub", {}, {}, lambda x: 0 * x),
    ("mul", {}, {}, lambda x: x**2),
    ("concat", {}, {"dim": 1}, lambda x: x.repeat(1, 1, 2, 1)),
    ("softmax", {}, {"dim": 0}, nn.Softmax(1)),
    ("log_softmax", {}, {"dim": 2}, nn.LogSoftmax(3)),
]


@pytest.mark.parametrize(("op", "tensors", "attributes", "expected"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("batch", [1, 3])
def test_operations(op: str, tensors: dict[str, Tensor], attributes: dict[str, Any], expected: Any, batch: int) -> None:
    builder = GraphBuilder((2, 4, 5))
    inputs = (0, 0) if op in ("add", "sub", "mul", "concat") else (0,)
    graph = builder.build(builder.add(op, inputs, tensors, **attributes))
    graph = graph.to("cpu")
    x = torch.randn(batch, 2, 4, 5, generator=torch.Generator().manual_seed(batch))
    result = run(graph, x)
    torch.testing.assert_close(result, expected(x))
    assert result.shape == (batch, *graph.output_shape)
    torch.testing.assert_close(run_operation(graph.operations[1], *(x for _ in inputs)), result)


def test_every_operation_is_tested() -> None:
    assert {case[0] for case in CASES} == set(KINDS)


def residual() -> Graph:
    """0 input, 1 relu, 2 scale, 3 add(1, 2), 4 tanh."""
    builder = GraphBuilder((3,))
    first = builder.add("relu", (0,))
    second = builder.add("scale", (first,), {"scale": torch.tensor(2.0)})
    return builder.build(builder.add("tanh", (builder.add("add", (first, second)),)))


def test_last_use() -> None:
    assert residual().last_use() == (1, 3, 3, 4, 4)


def test_results_are_dropped_when_nothing_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    results: list[weakref.ref[Tensor]] = []
    original = run_operation

    def watched(operation: Operation, *inputs: Tensor) -> Tensor:
        alive.append(sum(reference() is not None for reference in results))
        output = original(operation, *inputs)
        results.append(weakref.ref(output))
        return output

    monkeypatch.setattr(graph_module, "run_operation", watched)
    graph = residual()
    x = torch.randn(2, 3)
    # The relu stays for the addition; after it only the sum is left. A dead branch leaves nothing behind.
    alive.clear()
    results.clear()
    run(graph, x)
    assert alive == [0, 1, 2, 1]
    dead = Graph((graph.operations[0], *(Operation("relu", (0,), (3,)) for _ in range(3))))
    alive.clear()
    results.clear()
    torch.testing.assert_close(run(dead, x), x.relu())
    assert alive == [0, 0, 0]


def test_graph_of_the_input_alone() -> None:
    graph = GraphBuilder((2, 3)).build(0)
    x = torch.randn(4, 2, 3)
    assert torch.equal(run(graph, x), x)
    assert graph.input_shape == graph.output_shape == (2, 3)


def test_build_keeps_what_the_output_needs() -> None:
    builder = GraphBuilder((3,), name="pixels")
    first = builder.add("relu", (0,))
    builder.add("sigmoid", (first,))
    output = builder.add("tanh", (first,), name="last")
    builder.add("tanh", (output,))
    graph = builder.build(output)
    assert [(operation.kind, operation.inputs, operation.name) for operation in graph.operations] == [
        ("input", (), "pixels"),
        ("relu", (0,), ""),
        ("tanh", (1,), "last"),
    ]


def test_constants_keep_their_values_without_gradients_and_move() -> None:
    builder = GraphBuilder((5,))
    weight = nn.Parameter(M.double() / 3)
    graph = builder.build(builder.add("linear", (0,), {"weight": weight, "bias": None}))
    assert set(graph.operations[1].tensors) == {"weight"}
    assert torch.equal(graph.operations[1].tensors["weight"], weight.detach())
    assert not graph.operations[1].tensors["weight"].requires_grad
    narrow = graph.to("cpu", torch.float32)
    assert run(narrow, torch.randn(2, 5)).dtype == torch.float32
    assert graph.operations[1].tensors["weight"].dtype == torch.float64


@pytest.mark.parametrize("constant", [torch.tensor(2**53 + 1), torch.tensor(1j)], ids=["whole number", "complex"])
def test_constants_that_float64_does_not_hold_are_refused(constant: Tensor) -> None:
    with pytest.raises(ModelError, match="constant"):
        GraphBuilder((5,)).add("scale", (0,), {"shift": constant})


@pytest.mark.parametrize(
    ("op", "inputs", "tensors", "attributes"),
    [
        ("linear", (0,), {"weight": torch.ones(3, 4)}, {}),
        ("conv", (0,), {"weight": torch.ones(4, 3, 3, 3)}, {**PAIRS, "groups": 1}),
        ("max_pool", (0,), {}, {"kernel": (9, 9), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}),
        ("reshape", (0,), {}, {"shape": (41,)}),
        ("add", (0, 1), {}, {}),
        ("concat", (0, 1), {}, {"dim": 0}),
        ("mean", (0,), {}, {"dims": (3,), "keepdim": False}),
        ("scale", (0,), {"shift": torch.ones(3)}, {}),
    ],
)
def test_wrong_shapes(op: str, inputs: tuple[int, ...], tensors: dict[str, Tensor], attributes: dict[str, Any]) -> None:
    builder = GraphBuilder((2, 4, 5))
    builder.add("reshape", (0,), shape=(5, 8))
    with pytest.raises(ModelError, match=r"operation culprit does not fit inputs of shape \(2, 4, 5\)") as caught:
        builder.add(op, inputs, tensors, name="culprit", **attributes)
    assert "\n" not in str(caught.value)
    assert len(builder.operations) == 2


@pytest.mark.parametrize("shape", [(4, 4, 4), (4, 1, 4), (4, 2, 4), (4, 3, 4)])
def test_broadcast_that_takes_the_batch_for_a_dimension(shape: tuple[int, int, int]) -> None:
    builder = GraphBuilder(shape)
    # [batch, 4] against [batch, 4, h, 4] puts the batch along the height: fine for one sample, wrong for two.
    means = builder.add("mean", (0,), dims=(1, 2), keepdim=False)
    with pytest.raises(ModelError, match="operation add"):
        builder.add("add", (0, means))


def test_mixing_samples() -> None:
    builder = GraphBuilder((3,))
    for shift in (torch.ones(2, 3), torch.ones(4, 1)):
        with pytest.raises(ModelError, match="operation scale"):
            builder.add("scale", (0,), {"shift": shift})
    with pytest.raises(ModelError, match="mixes the samples"):
        builder.add("mean", (0,), dims=(), keepdim=False)


def test_node_attributes() -> None:
    operation = Operation("conv", (0,), (1,), attributes={"stride": (1, 2), "groups": 3})
    assert operation.ints("stride") == (1, 2)
    assert operation.ints("groups") == (3,)
    assert operation.number("groups") == 3.0
    with pytest.raises(TypeError, match="stride"):
        operation.number("stride")


@settings(deadline=None)
@given(
    groups=st.sampled_from([1, 2]),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
)
def test_a_convolution_by_products(
    groups: int, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], bias: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, shift = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 4, 9, 8), (6, 4 // groups, 3, 2), (6,))
    )
    arguments = (weight, shift if bias else None, stride, padding, dilation, groups)
    torch.testing.assert_close(conv_by_products(x, *arguments), F.conv2d(x, *arguments))
    x.requires_grad_()
    (slopes,) = torch.autograd.grad(conv_by_products(x, *arguments).sin().sum(), x)
    (wanted,) = torch.autograd.grad(F.conv2d(x, *arguments).sin().sum(), x)
    torch.testing.assert_close(slopes, wanted)
