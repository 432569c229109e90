"""ONNX files that would take all memory or never end are refused before anything of them runs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import l0tre
from l0tre.errors import ModelError
from l0tre.model.onnx_import import onnx_scores
from l0tre.model.onnx_limits import refuse_large_fold

FLAT = helper.make_node("Flatten", ["x"], ["flat"])


def written(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "hostile",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 4, 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 16])],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=9, functions=functions or [])
    path.write_bytes(model.SerializeToString())
    return path


def endless() -> onnx.GraphProto:
    """The body of a loop that goes on as long as it is asked to."""
    step = [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Identity", ["value"], ["next"])]
    inputs = [
        helper.make_tensor_value_info("number", TensorProto.INT64, []),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("value", TensorProto.FLOAT, None),
    ]
    outputs = [
        helper.make_tensor_value_info("still", TensorProto.BOOL, []),
        helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
    ]
    return helper.make_graph(step, "body", inputs, outputs)


LOOP = helper.make_node("Loop", ["times", "yes", "flat"], ["scores"], name="forever", body=endless())
TIMES = {"times": np.array(2**62), "yes": np.array(True)}


def test_a_loop_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", [FLAT, LOOP], TIMES)
    for use in (l0tre.load, onnx_scores):
        with pytest.raises(ModelError, match=r"forever \(Loop\).*can loop"):
            use(path)


def test_a_loop_inside_a_branch_or_a_function_is_refused(tmp_path: Path) -> None:
    branch = helper.make_graph([LOOP], "branch", [], [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)])
    choice = helper.make_node("If", ["yes"], ["scores"], then_branch=branch, else_branch=branch)
    with pytest.raises(ModelError, match="can loop"):
        l0tre.load(written(tmp_path / "branch.onnx", [FLAT, choice], TIMES))
    inner = helper.make_function(
        "own", "spin", ["times", "yes", "flat"], ["scores"], [LOOP], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("spin", ["times", "yes", "flat"], ["scores"], domain="own")
    with pytest.raises(ModelError, match="can loop"):
        l0tre.load(written(tmp_path / "function.onnx", [FLAT, call], TIMES, [inner]))


def doubling(depth: int, *, closed: bool = False) -> list[onnx.FunctionProto]:
    """Functions each of which calls the next one twice; the last one may call the first."""
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for number in range(depth):
        last = number == depth - 1
        name, domain = ("f0", "own") if closed else ("Relu", "")
        kind, home = (name, domain) if last else (f"f{number + 1}", "own")
        nodes = [helper.make_node(kind, ["a"], ["b"], domain=home), helper.make_node(kind, ["b"], ["c"], domain=home)]
        functions.append(helper.make_function("own", f"f{number}", ["a"], ["c"], nodes, sets))
    return functions


def test_functions_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    call = helper.make_node("f0", ["flat"], ["scores"], domain="own")
    with pytest.raises(ModelError, match="nodes with its functions expanded"):
        l0tre.load(written(tmp_path / "many.onnx", [FLAT, call], functions=doubling(60)))
    with pytest.raises(ModelError, match="calls itself"):
        l0tre.load(written(tmp_path / "itself.onnx", [FLAT, call], functions=doubling(3, closed=True)))
    assert l0tre.load(written(tmp_path / "few.onnx", [FLAT, call], functions=doubling(3))).classes == 16


HUGE = 2**40
GROWING = {
    "ConstantOfShape": ([("ConstantOfShape", ["size"])], {"size": np.array([HUGE])}),
    "Expand": ([("Expand", ["one", "size"])], {"one": np.ones(1, np.float32), "size": np.array([HUGE])}),
    "Tile": ([("Tile", ["one", "size"])], {"one": np.ones(1, np.float32), "size": np.array([HUGE])}),
    "Range": (
        [("Range", ["start", "end", "step"])],
        {"start": np.array(0.0, np.float32), "end": np.array(1e15, np.float32), "step": np.array(1.0, np.float32)},
    ),
    "Mul": (
        [("Mul", ["row", "column"])],
        {"row": np.ones((1, 500_000), np.float32), "column": np.ones((500_000, 1), np.float32)},
    ),
    "MatMul": (
        [("MatMul", ["column", "row"])],
        {"row": np.ones((1, 500_000), np.float32), "column": np.ones((500_000, 1), np.float32)},
    ),
    "of a computed size": (
        [("Mul", ["half", "half"]), ("ConstantOfShape", ["c0"])],
        {"half": np.array([2**21])},
    ),
}


@pytest.mark.parametrize("kind", GROWING)
def test_constants_that_no_memory_holds_are_refused(kind: str, tmp_path: Path) -> None:
    steps, constants = GROWING[kind]
    nodes = [helper.make_node(name, inputs, [f"c{place}"]) for place, (name, inputs) in enumerate(steps)]
    end = [helper.make_node("ReduceMax", [f"c{len(steps) - 1}"], ["top"], keepdims=0)]
    path = written(
        tmp_path / "m.onnx", [FLAT, *nodes, *end, helper.make_node("Add", ["flat", "top"], ["scores"])], constants
    )
    with pytest.raises(ModelError, match="GiB"):
        l0tre.load(path)


def test_a_constant_that_claims_more_than_it_holds(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.onnx", [FLAT, helper.make_node("Add", ["flat", "w"], ["scores"])], {"w": np.ones(16, np.float32)}
    )
    model = onnx.load(path)
    model.graph.initializer[0].dims[:] = [HUGE, HUGE]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="its constant w"):
        l0tre.load(path)


def test_values_on_the_way_that_no_memory_holds(tmp_path: Path) -> None:
    pads = [0, 0, 0, 0, 0, 0, 2**20, 2**20]
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["wide"]),
        helper.make_node("GlobalMaxPool", ["wide"], ["top"]),
        helper.make_node("Flatten", ["top"], ["scores"]),
    ]
    with pytest.raises(ModelError, match="its value wide"):
        l0tre.load(written(tmp_path / "m.onnx", nodes, {"pads": np.array(pads)}))


def test_inputs_that_no_memory_holds() -> None:
    with pytest.raises(ModelError, match="GiB"):
        l0tre.load(lambda x: x.flatten(1)[:, :2], input_shape=(3, 10**6, 10**6))


def test_small_constants_are_computed_as_ever() -> None:
    refuse_large_fold("Expand", [np.ones((1, 3)), np.array([4, 3])])
    refuse_large_fold("Gather", [np.arange(10), np.array([[1, 2]])])
    refuse_large_fold("Slice", [np.ones((5, 4)), np.array([0]), np.array([3])])
    refuse_large_fold("Range", [np.array(0.0), np.array(5.0), np.array(0.0)])
