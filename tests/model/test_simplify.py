"""Simplification: the same scores from fewer nodes, whatever the graph."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l0tre.model.graph import Graph, GraphBuilder, run
from l0tre.model.simplify import simplify

ONE, NONE = (1, 1), (0, 0)


def ops(graph: Graph) -> list[str]:
    return [operation.kind for operation in graph.operations[1:]]


def same(graph: Graph, tolerance: float = 1e-5) -> Graph:
    """Simplify, check that the numbers stay, and that a second time changes nothing."""
    simpler = simplify(graph)
    x = torch.randn(3, *graph.input_shape, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(run(simpler, x), run(graph, x), rtol=tolerance, atol=tolerance)
    assert simpler.output_shape == graph.output_shape
    assert [operation.shape for operation in simpler.operations] == [
        tuple(value.shape[1:]) for value in values(simpler, x)
    ]
    assert ops(simplify(simpler)) == ops(simpler)
    return simpler


def values(graph: Graph, x: Tensor) -> list[Tensor]:
    return [run(Graph(graph.operations[: position + 1]), x) for position in range(len(graph.operations))]


def conv(builder: GraphBuilder, source: int, out: int, padding: int = 1, bias: bool = True, groups: int = 1) -> int:
    tensors = {"weight": torch.randn(out, builder.shape(source)[0] // groups, 3, 3), "bias": torch.randn(out)}
    if not bias:
        del tensors["bias"]
    pair = (padding, padding)
    return builder.add("conv", (source,), tensors, stride=ONE, padding=pair, dilation=ONE, groups=groups)


def scale(builder: GraphBuilder, source: int, factor: Tensor | None, shift: Tensor | None) -> int:
    return builder.add("scale", (source,), {"scale": factor, "shift": shift})


def flat(builder: GraphBuilder, source: int) -> int:
    return builder.add("reshape", (source,), shape=(torch.Size(builder.shape(source)).numel(),))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("parts", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("groups", [1, 2])
def test_scale_after_conv_is_folded(bias: bool, shape: tuple[int, ...], parts: tuple[bool, bool], groups: int) -> None:
    builder = GraphBuilder((2, 5, 5))
    factor, shift = (torch.randn(shape) if part else None for part in parts)
    output = scale(builder, conv(builder, 0, 4, bias=bias, groups=groups), factor, shift)
    assert ops(same(builder.build(output))) == ["conv"]


@pytest.mark.parametrize("shape", [(5,), (1, 5, 5), (4, 5, 1), (4, 5, 5), (5, 1)])
def test_scale_that_varies_over_pixels_stays(shape: tuple[int, ...]) -> None:
    builder = GraphBuilder((2, 5, 5))
    channels, pixels = torch.randn(4, 1, 1), torch.randn(shape)
    for factor, shift in ((channels, pixels), (pixels, channels), (pixels, None), (None, pixels)):
        output = scale(builder, conv(builder, 0, 4), factor, shift)
        assert ops(same(builder.build(output))) == ["conv", "scale"]


def test_scale_that_enlarges_stays() -> None:
    builder = GraphBuilder((2, 5, 5))
    output = scale(builder, conv(builder, 0, 1), torch.randn(3, 1, 1), None)
    assert ops(same(builder.build(output))) == ["conv", "scale"]


def test_scale_before_conv_stays() -> None:
    builder = GraphBuilder((2, 5, 5))
    output = conv(builder, scale(builder, 0, torch.randn(2, 1, 1), torch.randn(2, 1, 1)), 4)
    assert ops(same(builder.build(output))) == ["scale", "conv"]


@pytest.mark.parametrize("bias", [None, torch.arange(4.0)])
@pytest.mark.parametrize(
    ("inputs", "shape", "folded"),
    [
        ((6,), (4,), True),
        ((6,), (), True),
        ((3, 6), (4,), True),
        ((3, 6), (1, 4), True),
        ((3, 6), (3, 1), False),
        ((4, 6), (4, 4), False),
    ],
)
def test_scale_after_linear(bias: Tensor | None, inputs: tuple[int, ...], shape: tuple[int, ...], folded: bool) -> None:
    builder = GraphBuilder(inputs)
    linear = builder.add("linear", (0,), {"weight": torch.randn(4, 6), "bias": bias})
    output = scale(builder, linear, torch.randn(shape), torch.randn(shape))
    assert ops(same(builder.build(output))) == (["linear"] if folded else ["linear", "scale"])


def test_shared_conv_is_not_folded() -> None:
    builder = GraphBuilder((2, 5, 5))
    shared = conv(builder, 0, 4)
    scaled = scale(builder, shared, torch.randn(4, 1, 1), torch.randn(4, 1, 1))
    output = builder.add("add", (shared, scaled))
    assert ops(same(builder.build(output))) == ["conv", "scale", "add"]


def test_scale_read_twice_is_folded() -> None:
    builder = GraphBuilder((2, 5, 5))
    scaled = scale(builder, conv(builder, 0, 4), torch.randn(4, 1, 1), None)
    output = builder.add("mul", (scaled, scaled))
    assert ops(same(builder.build(output))) == ["conv", "mul"]


def test_conv_read_by_an_unused_node_is_folded() -> None:
    builder = GraphBuilder((2, 5, 5))
    shared = conv(builder, 0, 4)
    builder.add("relu", (shared,))
    scale(builder, shared, torch.randn(4, 1, 1), None)
    assert ops(same(Graph(tuple(builder.operations)))) == ["conv"]


def test_scales_are_merged() -> None:
    builder = GraphBuilder((2, 3))
    for factor, shift in ((None, (2, 1)), ((3,), None), ((), (1, 3)), (None, (2, 3)), ((2, 1), (3,))):
        source = len(builder.operations) - 1
        scale(builder, source, *(None if shape is None else torch.randn(shape) for shape in (factor, shift)))
    assert ops(same(builder.build(5))) == ["scale"]


def test_folding_is_computed_in_double_precision() -> None:
    builder = GraphBuilder((1,))
    linear = builder.add("linear", (0,), {"weight": torch.ones(1, 1), "bias": torch.tensor([1e8])})
    output = scale(builder, linear, torch.tensor(1 + 2**-20), torch.tensor(-1e8))
    bias = simplify(builder.build(output)).operations[-1].tensors["bias"]
    assert bias.dtype == torch.float64
    assert bias.item() == pytest.approx(1e8 * 2**-20, rel=1e-6)


def test_what_a_bias_was_summed_from_is_kept() -> None:
    builder = GraphBuilder((2,))
    tensors = {"weight": torch.eye(2), "bias": torch.tensor([1e8, -3.0])}
    linear = builder.add("linear", (0,), tensors)
    once = scale(builder, linear, torch.tensor(-2.0), torch.tensor(2e8))
    graph = builder.build(scale(builder, once, None, torch.tensor([5.0, 7.0])))
    folded = simplify(graph).operations[-1]
    assert folded.tensors["bias"].tolist() == [5.0, 2e8 + 13.0]
    assert folded.tensors["bias_terms"].tolist() == [4e8 + 5.0, 2e8 + 13.0]


def test_precision_is_kept() -> None:
    builder = GraphBuilder((2, 5, 5))
    graph = builder.build(scale(builder, conv(builder, 0, 4), torch.randn(4, 1, 1), None)).to("cpu", torch.float64)
    simpler = simplify(graph)
    assert simpler.operations[1].tensors["weight"].dtype == torch.float64
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(run(simpler, x), run(graph, x), rtol=1e-12, atol=1e-12)


def test_reshapes_are_merged() -> None:
    builder = GraphBuilder((2, 3, 4))
    first = builder.add("reshape", (0,), shape=(6, 4))
    second = builder.add("reshape", (first,), shape=(24,))
    third = builder.add("reshape", (second,), shape=(24,))
    assert ops(same(builder.build(third))) == ["reshape"]
    back = builder.add("reshape", (third,), shape=(2, 3, 4))
    assert ops(same(builder.build(back))) == []
    assert ops(same(builder.build(builder.add("add", (0, back))))) == ["add"]
    both = builder.add("add", (third, builder.add("relu", (second,))))
    assert ops(same(builder.build(both))) == ["reshape", "relu", "add"]
    branch = builder.add("concat", (flat(builder, builder.add("relu", (first,))), third), dim=0)
    assert sorted(ops(same(builder.build(branch)))) == ["concat", "relu", "reshape", "reshape", "reshape"]


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(5,), (5, 1, 1)])
def test_final_softmax_is_dropped(op: str, shape: tuple[int, ...]) -> None:
    builder = GraphBuilder((3,))
    linear = builder.add("linear", (0,), {"weight": torch.randn(5, 3)})
    source = builder.add("reshape", (linear,), shape=shape)
    output = flat(builder, builder.add(op, (source,), dim=0))
    graph = builder.build(output)
    simpler = simplify(graph)
    assert ops(simpler) == ["linear"]
    x = torch.randn(50, 3).double()
    assert torch.equal(run(simpler, x).argmax(1), run(graph, x).argmax(1))
    assert ops(simplify(builder.build(builder.add(op, (output,), dim=0)))) == ["linear"]


def test_other_softmax_stays() -> None:
    builder = GraphBuilder((3, 4))
    inner = builder.add("softmax", (0,), dim=1)
    # Over one of two dimensions: the order of all twelve scores would change.
    assert ops(same(builder.build(flat(builder, inner)))) == ["softmax", "reshape"]
    assert ops(same(builder.build(builder.add("relu", (inner,))))) == ["softmax", "relu"]


def test_input_graph_is_not_changed() -> None:
    builder = GraphBuilder((2, 5, 5))
    graph = builder.build(flat(builder, scale(builder, conv(builder, 0, 4), torch.randn(4, 1, 1), None)))
    nodes = graph.operations
    copies = tuple(
        replace(operation, tensors={k: v.clone() for k, v in operation.tensors.items()}) for operation in nodes
    )
    simplify(graph)
    assert graph.operations is nodes
    for operation, copy in zip(graph.operations, copies, strict=True):
        assert (operation.kind, operation.inputs) == (copy.kind, copy.inputs)
        assert all(torch.equal(operation.tensors[key], copy.tensors[key]) for key in copy.tensors)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    """Nodes that read any earlier node: shared sources, dead branches, chains of scales and reshapes."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    builder = GraphBuilder((2, 4, 4))
    for _ in range(data.draw(st.integers(1, 12))):
        # Nearby nodes more often, so that chains come up.
        source = max(0, len(builder.operations) - 1 - data.draw(st.sampled_from([0, 0, 0, 1, 2, 3])))
        shape = builder.shape(source)
        kind = data.draw(st.sampled_from(["scale", "scale", "reshape", "conv", "linear", "relu", "binary"]))
        if kind == "scale":
            sizes = [data.draw(st.sampled_from([1, size])) for size in shape]
            parts = data.draw(st.sampled_from([(1, 1), (0, 1), (1, 0)]))
            scale(builder, source, *(torch.randn(sizes) if part else None for part in parts))
        elif kind == "reshape":
            builder.add("reshape", (source,), shape=data.draw(st.sampled_from([(2, 4, 4), (32,), (8, 4), shape])))
        elif kind == "conv" and len(shape) == 3:
            conv(builder, source, 2, bias=data.draw(st.booleans()))
        elif kind == "linear":
            builder.add("linear", (source,), {"weight": torch.randn(shape[-1], shape[-1]) / 4})
        elif kind == "relu":
            builder.add("relu", (source,))
        elif kind == "binary":
            others = [position for position in range(len(builder.operations)) if builder.shape(position) == shape]
            builder.add(data.draw(st.sampled_from(["add", "sub"])), (source, data.draw(st.sampled_from(others))))
    graph = Graph(tuple(builder.operations))
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    wide = graph.to("cpu", torch.float64)
    simpler = simplify(wide)
    expected = run(wide, x)
    torch.testing.assert_close(run(simpler, x), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max() + 1))
    assert len(simpler.operations) <= len(graph.operations)
    readers = [source for operation in simpler.operations for source in operation.inputs]
    for operation in simpler.operations:
        if operation.kind in ("scale", "reshape"):
            source = operation.inputs[0]
            assert simpler.operations[source].kind != operation.kind or (
                operation.kind == "scale" and readers.count(source) > 1
            )
