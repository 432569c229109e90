"""The importer against onnxruntime, operator by operator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from l0tre.model.graph import run
from l0tre.model.onnx_import import import_onnx, onnx_scores
from tests.model.onnx_models import Weights, check, integers, node, normal, ops, refused, save

sizes = st.integers(5, 9)
small = st.integers(1, 3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.tuples(sizes, sizes), st.sampled_from([1, 2]), st.sampled_from([7, 11, 17, 22]))
def test_conv(data: st.DataObject, size: tuple[int, int], groups: int, opset: int) -> None:
    kernel, strides, dilations = (data.draw(st.tuples(small, small)) for _ in range(3))
    mode = data.draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    dilations = dilations if mode in ("NOTSET", "VALID") else (1, 1)  # the rest is refused
    settings_: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups, "auto_pad": mode}
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * 4)) if mode == "NOTSET" else (0,) * 4
    assume(mode.startswith("SAME") or all((kernel[i] - 1) * dilations[i] < size[i] + pads[i] for i in range(2)))
    weights = {"w": normal(2 * groups, 2, *kernel), "b": normal(2 * groups)}
    if mode == "NOTSET":
        settings_["pads"] = pads
    inputs = "x w b" if data.draw(st.booleans()) else "x w"
    graph = check([node("Conv", inputs, **settings_)], (2 * groups, *size), weights, opset=opset)
    assert mode != "NOTSET" or ("pad" in ops(graph)) == (pads[:2] != pads[2:])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.tuples(sizes, sizes), st.sampled_from([10, 12, 19, 22]))
def test_pools(data: st.DataObject, size: tuple[int, int], opset: int) -> None:
    operator = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel, strides = (data.draw(st.tuples(small, small)) for _ in range(2))
    settings_: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    mode = data.draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    dilations = (1, 1)
    if operator == "AveragePool":
        settings_["count_include_pad"] = data.draw(st.integers(0, 1))
    elif mode == "NOTSET":
        dilations = settings_["dilations"] = data.draw(st.tuples(small, small))
    if mode == "NOTSET":
        # A window of padding only has no maximum and no average.
        settings_["pads"] = [data.draw(st.integers(0, kernel[axis % 2] - 1)) for axis in range(4)]
    else:
        settings_["auto_pad"] = mode
        # onnxruntime refuses what SAME means where strides leave pixels out.
        assume(mode == "VALID" or all(strides[i] <= kernel[i] for i in range(2)))
    assume(all((kernel[i] - 1) * dilations[i] < size[i] for i in range(2)))
    check([node(operator, **settings_)], (2, *size), opset=opset)


def test_averages_with_holes_are_refused() -> None:
    assert "dilations" in refused([node("AveragePool", kernel_shape=(2, 2), dilations=(2, 2))], (2, 6, 5), opset=19)


def test_global_pools() -> None:
    assert ops(check([node("GlobalAveragePool")], (3, 4, 5)))[0] == "mean"
    assert ops(check([node("GlobalMaxPool")], (3, 4, 5)))[0] == "max_pool"


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("bias", [(), (1,), (4,), (1, 4), (1, 1), None])
def test_gemm(trans: int, bias: tuple[int, ...] | None) -> None:
    weights = {"w": normal(4, 6) if trans else normal(6, 4)} | ({} if bias is None else {"b": normal(*bias)})
    inputs = "x w" if bias is None else "x w b"
    graph = check([node("Gemm", inputs, alpha=0.5, beta=2.0, transB=trans)], (6,), weights)
    assert ops(graph) == ["linear"]


@pytest.mark.parametrize(("shape", "weight"), [((6,), (6, 4)), ((3, 6), (6, 4)), ((3, 6), (1, 6, 4)), ((3, 6), (6,))])
def test_matmul(shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    check([node("MatMul", "x w")], shape, {"w": normal(*weight)})


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 1, 1), (1, 2, 1, 1), (1, 1, 4, 5), (2, 4, 5)])
def test_arithmetic_with_constants(operator: str, shape: tuple[int, ...]) -> None:
    weights = {"c": normal(*shape) + 3}
    assert ops(check([node(operator, "x c")], (2, 4, 5), weights))[0] == "scale"
    if operator == "Div":
        assert "divides a constant" in refused([node(operator, "c x")], (2, 4, 5), weights)
    else:
        check([node(operator, "c x")], (2, 4, 5), weights)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
def test_arithmetic_of_two_variables(operator: str) -> None:
    check([node("Relu", "x", "r"), node(operator, "x r")], (2, 3))
    check([node(operator, "x x")], (2, 3))
    check([node("GlobalAveragePool", "x", "r"), node(operator, "r x")], (2, 3, 4))


ELEMENTWISE = [
    node("Neg"),
    node("Relu"),
    node("LeakyRelu"),
    node("LeakyRelu", alpha=0.3),
    node("Sigmoid"),
    node("Tanh"),
    node("Identity"),
    node("Dropout"),
    node("Cast", to=TensorProto.FLOAT),
    node("Flatten"),
    node("Flatten", axis=-2),
    node("Transpose", perm=(0, 2, 1)),
    node("ReduceMean", axes=(2,), keepdims=0),
    node("ReduceMean", axes=(-1, 1)),
    node("Squeeze", "u", axes=(1,)),
    node("Unsqueeze", axes=(1, -1)),
    node("Softmax", "u"),
    node("Softmax"),
    node("LogSoftmax", axis=2),
    node("LogSoftmax", "u", axis=2),
    node("Clip", min=-0.5, max=0.25),
    node("Clip", min=0.0),
    node("Pad", pads=(0, 1, 0, 0, 0, 2), value=0.5),
]


@pytest.mark.parametrize("last", ELEMENTWISE, ids=lambda last: last.op_type)
def test_old_operator_set(last: Any) -> None:
    nodes = [node("Unsqueeze", "x", "u", axes=(1,)), last] if "u" in last.input else [last]
    check(nodes, (3, 4), opset=10 if last.op_type in ("Clip", "Pad") else 11)


@pytest.mark.parametrize(
    ("last", "weights"),
    [
        (node("Clip", "x a"), {"a": np.float32(-0.5)}),
        (node("Clip", "x _ a"), {"a": np.float32(0.5)}),
        (node("ReduceMean", "x a", keepdims=0), {"a": integers(1)}),
        (node("ReduceMean", "x", noop_with_empty_axes=1), {}),
        (node("Unsqueeze", "x a"), {"a": integers(-1, 1)}),
        (node("Softmax"), {}),
        (node("LogSoftmax", axis=1), {}),
        (node("Pad", "x a"), {"a": integers(0, 1, 0, 0, 2, 3)}),
        (node("Pad", "x a b"), {"a": integers(0, 0, 1, 0, 0, 1), "b": np.float32(2)}),
        (node("Pad", "x a _ b"), {"a": integers(1, 2), "b": integers(-1)}),
        (node("Dropout", "x a b"), {"a": np.float32(0.5), "b": np.array(False)}),
        (node("Reshape", "x a"), {"a": integers(-1, 12)}),
        (node("Reshape", "x a"), {"a": integers(0, 0, 2, -1)}),
        (node("Reshape", "x a", allowzero=1), {"a": integers(-1, 4, 3)}),
    ],
    ids=lambda value: getattr(value, "op_type", ""),
)
def test_new_operator_set(last: Any, weights: Weights) -> None:
    check([last], (3, 4), {key: np.asarray(value) for key, value in weights.items()}, opset=18)


def test_clip_from_zero_is_relu() -> None:
    graph = check([node("Clip", "x a")], (3,), {"a": np.zeros((), np.float32)})
    assert ops(graph) == ["relu"]


@pytest.mark.parametrize("opset", [7, 9, 17])
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 4, 5)])
def test_batch_normalization(opset: int, shape: tuple[int, ...]) -> None:
    weights = {"g": normal(3), "b": normal(3), "m": normal(3), "v": np.abs(normal(3)) + 0.1}
    check([node("BatchNormalization", "x g b m v", epsilon=0.01)], shape, weights, opset=opset)


def test_concat() -> None:
    graph = check([node("Relu", "x", "r"), node("Concat", "x r x", axis=1)], (2, 3))
    assert graph.output_shape == (18,)
    check([node("Relu", "x", "r"), node("Concat", "x r", axis=-1)], (2, 3))


def flatten_chain(opset: int) -> list[Any]:
    """Reshape to (batch, -1) the way exporters write it; y = relu(x) flattened."""
    axes = {"axes": (0,)} if opset < 13 else {}
    return [
        node("Relu", "x", "r"),
        node("Shape", "r", "s"),
        node("Gather", "s zero", "b"),
        node("Unsqueeze", "b" if opset < 13 else "b axis", "b1", **axes),
        node("Constant", "", "rest", value=numpy_helper.from_array(integers(-1))),
        node("Concat", "b1 rest", "t", axis=0),
        node("Cast", "t", "t2", to=TensorProto.INT64),
        node("Reshape", "r t2"),
    ]


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 22])
@pytest.mark.parametrize("batch", ["n", 1, 4, 0, -1, None])
def test_shape_chain_and_every_batch(opset: int, batch: int | str | None) -> None:
    weights = {"zero": np.array(0), "axis": integers(0)}
    graph = check(flatten_chain(opset), (2, 3, 4), weights, opset=opset, batch=batch)
    assert ops(graph) == ["relu", "reshape"]
    assert graph.output_shape == (24,)


def test_constant_arithmetic() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s one end", "rest"),
        node("Slice", "s zero one", "first"),
        node("ReduceProd", "rest", "p"),
        node("Squeeze", "p zero", "p0"),
        node("Div", "p0 two", "q0"),
        node("Reshape", "q0 one", "q"),
        node("Concat", "first q two", "t", axis=0),
        node("Transpose", "w", "wt"),
        node("ConstantOfShape", "two", "ones", value=numpy_helper.from_array(np.ones(1, np.float32))),
        node("Reshape", "x t", "r"),
        node("Add", "r ones", "a"),
        node("MatMul", "a wt"),
    ]
    weights = {"zero": integers(0), "one": integers(1), "end": integers(9), "two": integers(2), "w": normal(5, 2)}
    check(nodes, (3, 4), weights)


@pytest.mark.parametrize("batch", [1, 4])
def test_written_batch_size(batch: int) -> None:
    check([node("Reshape", "x t")], (3, 4), {"t": integers(batch, 12)}, batch=batch)


def test_open_batch_with_reshape_to_one_sample() -> None:
    check([node("Reshape", "x t")], (3, 4), {"t": integers(1, 12)}, batch="n")


REFUSED: list[tuple[Any, tuple[int, ...], Weights, str]] = [
    (node("Conv", "x w"), (2, 5, 4, 3), {"w": normal(2, 2, 3, 2, 2)}, "only images"),
    (node("Conv", "x x"), (2, 5, 5), {}, "only a constant"),
    (node("Conv", "x w"), (2, 5, 5), {"w": normal(2, 3, 3, 3)}, "does not fit"),
    (
        node("Conv", "x w", auto_pad="SAME_UPPER", dilations=(2, 2)),
        (2, 5, 5),
        {"w": normal(2, 2, 3, 3)},
        "explicit pads",
    ),
    (node("MaxPool", kernel_shape=(9, 9)), (2, 5, 5), {}, "does not fit"),
    (node("Gemm", "x w", transA=1), (6,), {"w": normal(6, 4)}, "transA"),
    (node("Gemm", "w x"), (6,), {"w": normal(6, 4)}, "only a computed value"),
    (node("Gemm", "x w b"), (6,), {"w": normal(6, 4), "b": normal(2, 4)}, "(2, 4)"),
    (node("MatMul", "w x"), (6,), {"w": normal(6, 4)}, "only a c"),
    (node("MatMul", "x w"), (3, 6), {"w": normal(2, 6, 4)}, "only a matrix"),
    (node("MatMul", "x w"), (6,), {"w": np.full((6, 4), np.nan, np.float32)}, "not a number"),
    (node("Div", "x x"), (6,), {}, "divides by a value"),
    (node("Div", "x w"), (6,), {"w": np.zeros(1, np.float32)}, "infinite"),
    (node("Add", "x w"), (6,), {"w": normal(2, 6)}, "a constant of shape (2, 6)"),
    (node("Add", "x w"), (6,), {"w": normal(1, 1, 6)}, "a constant of shape (1, 1, 6)"),
    (node("Mul", "x w"), (1, 6), {"w": normal(3, 6)}, "a constant of shape (3, 6)"),
    (node("Softmax", axis=0), (6,), {}, "axis 0"),
    (node("Softmax", axis=3), (6,), {}, "axis 3"),
    (node("ReduceMean"), (6,), {}, "axis 0"),
    (node("ReduceMean", axes=(0,)), (6,), {}, "axis 0"),
    (node("Concat", "x x", axis=0), (6,), {}, "axis 0"),
    (node("Concat", "x w", axis=1), (6,), {"w": normal(1, 6)}, "constant as input 1"),
    (node("Transpose"), (2, 3), {}, "moves the batch"),
    (node("Reshape", "x w"), (2, 3), {"w": integers(-1)}, "first dimension"),
    (node("Reshape", "x w"), (2, 3), {"w": integers(-1, 3)}, "first dimension"),
    (node("Reshape", "x w"), (2, 3), {"w": integers(1, 7)}, "sizes must agree"),
    (node("Reshape", "x w"), (2, 3), {"w": integers(-1, 4)}, "sizes must agree"),
    (node("Squeeze"), (1, 3), {}, "no axes"),
    (node("Squeeze", "x w"), (1, 3), {"w": integers(2)}, "sizes must agree"),
    (node("Squeeze", "x w"), (1, 3), {"w": integers(0)}, "axis 0"),
    (node("Unsqueeze", "x w"), (1, 3), {"w": integers(0)}, "axis 0"),
    (node("Flatten", axis=2), (2, 3), {}, "first dimension"),
    (node("Pad", "x w", mode="reflect"), (2, 3), {"w": integers(0, 0, 1, 0, 0, 1)}, "only images"),
    (node("Pad", "x w"), (2, 3), {"w": integers(0, 0, -1, 0, 0, 0)}, "cropping"),
    (node("Pad", "x w"), (2, 3), {"w": integers(1, 0, 0, 0, 0, 0)}, "axis 0"),
    (node("Pad", "x w"), (2, 3), {"w": integers(1, 0, 0)}, "does not fit"),
    (node("Cast", to=TensorProto.INT64), (6,), {}, "other than floats"),
    (node("Dropout", "x w v"), (6,), {"w": np.array(0.5, np.float32), "v": np.array(True)}, "training"),
    (node("Slice", "x w v"), (6,), {"w": integers(0), "v": integers(1)}, "along the batch"),
    (
        node("Slice", "x w v a s"),
        (6,),
        {"w": integers(5), "v": integers(0), "a": integers(1), "s": integers(-1)},
        "steps",
    ),
    (node("Slice", "x w v a"), (6,), {"w": integers(3), "v": integers(3), "a": integers(1)}, "leaves nothing"),
    (node("Identity", "w"), (6,), {"w": normal(6)}, "does not depend"),
    (node("LayerNormalization", "x w"), (6,), {"w": normal(6)}, "node LayerNormalization_y) divides by a spread"),
    (node("Erf"), (6,), {}, "Erf (node Erf_y) is not supported; supported are Abs, "),
    (node("Relu", domain="com.example"), (6,), {}, "com.example.Relu"),
    (node("NoSuchThing"), (6,), {}, "NoSuchThing (node NoSuchThing_y)"),
    (node("Clip", "x _ x"), (6,), {}, "only a constant"),
]


@pytest.mark.parametrize(
    ("last", "shape", "weights", "reason"), REFUSED, ids=lambda value: getattr(value, "op_type", "")
)
def test_refused(last: Any, shape: tuple[int, ...], weights: Weights, reason: str) -> None:
    text = refused([last], shape, weights)
    assert reason in text
    assert last.op_type in text or reason == "does not depend"


def test_refuses_one_number_without_an_axis() -> None:
    assert "keep the axis" in refused([node("ReduceMean", axes=(1, 2), keepdims=0)], (3, 4))


def test_refuses_batch_mixing_of_variables() -> None:
    nodes = [node("ReduceMean", "x", "m", axes=(2,), keepdims=0), node("Add", "x m")]
    assert "equal ranks" in refused(nodes, (4, 4))


def test_refuses_a_batch_that_does_not_stay() -> None:
    # Four samples of 3 x 4 as one of 48: only a batch of one may be written as 1.
    assert "first dimension" in refused([node("Reshape", "x t")], (3, 4), {"t": integers(1, -1)}, batch=4)


def test_refuses_training_and_second_outputs() -> None:
    weights = {key: np.abs(normal(3)) for key in "gbmv"}
    training = helper.make_node("BatchNormalization", ["x", *"gbmv"], ["y", "p", "q"], training_mode=1)
    assert "evaluation mode" in refused([training], (3,), weights)
    pool = helper.make_node("MaxPool", ["x"], ["m", "i"], kernel_shape=(2, 2))
    assert "reads i" in refused([pool, node("Cast", "i", to=TensorProto.FLOAT)], (3, 4, 4))


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (node("Elu", alpha=0.75), "elu"),
        (node("Elu"), "elu"),
        (node("Selu"), "elu"),
        (node("Softplus"), "softplus"),
        (node("HardSigmoid", alpha=0.25, beta=0.5), "clip"),
    ],
    ids=str,
)
def test_curves(last: Any, kind: str) -> None:
    assert kind in ops(check([last], (3, 4), opset=20))


def test_slices_of_several_axes() -> None:
    weights = {"a": integers(1, 0), "b": integers(2**40, -1), "c": integers(3, 1), "d": integers(2, 1)}
    assert ops(check([node("Slice", "x a b c d")], (4, 5, 6), weights))[0] == "slice"
    whole = {"a": integers(0, 1), "b": integers(2**40, 3)}
    assert ops(check([node("Slice", "x a b")], (4, 5), whole))[0] == "slice"


def test_a_value_times_its_sigmoid_is_a_silu() -> None:
    assert ops(check([node("Sigmoid", "x", "s"), node("Mul", "x s")], (3, 4)))[0] == "silu"


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (node("Gelu"), "gelu"),
        (node("Gelu", approximate="tanh"), "gelu_tanh"),
        (node("HardSwish"), "hard_swish"),
    ],
    ids=["gelu", "gelu tanh", "hard swish"],
)
def test_curves_that_onnx_defines_by_constants_of_float32(last: Any, kind: str, tmp_path: Path) -> None:
    """In float64 ONNX's own definition keeps constants rounded to float32: such files are scanned, not certified."""
    path = save(tmp_path / "model.onnx", [last], (3, 4), None, opset=20)
    graph, reference = import_onnx(path), onnx_scores(path)
    assert kind in ops(graph)
    x = 4 * normal(5, 3, 4)
    actual = run(graph.to("cpu"), torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(actual, reference(x), rtol=1e-5, atol=1e-5)
