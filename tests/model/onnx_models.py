"""Small ONNX models, and their imports compared with onnxruntime and with onnx's reference evaluator."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from l0tre.errors import ModelError
from l0tre.model.graph import Graph, run
from l0tre.model.onnx_import import import_onnx, onnx_double_scores, onnx_scores
from l0tre.model.simplify import simplify

Array = NDArray[Any]
Weights = Mapping[str, Array]
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def integers(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def node(operator: str, inputs: str = "x", output: str = "y", **attributes: Any) -> Any:
    """An ONNX node; ``inputs`` are separated by blanks, ``_`` leaves one out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(operator, names, [output], name=f"{operator}_{output}", **attributes)


def save(
    path: Path,
    nodes: Sequence[Any],
    shape: Sequence[int | str],
    weights: Weights | None = None,
    opset: int = 17,
    batch: int | str | None = "n",
    kind: int = TensorProto.FLOAT,
    outputs: Mapping[str, int] | None = None,
) -> Path:
    """Write a model from ``x`` to ``y`` (or to ``outputs``, names with their ranks)."""
    ranks = outputs or {"y": 0}
    results = [helper.make_tensor_value_info(key, kind, [None] * rank if rank else None) for key, rank in ranks.items()]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", kind, [batch, *shape])],
        results,
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def compare(path: Path, tolerance: float = 1e-5) -> Graph:
    """Check the import of a file on batches of 1 and 3, before and after simplification."""
    graph, reference, exact = import_onnx(path), onnx_scores(path), onnx_double_scores(path)
    assert len(graph.output_shape) == 1
    simpler = simplify(graph)
    logits = not any(node.kind.endswith("softmax") for node in graph.operations)
    for count in (1, 3):
        x = normal(count, *graph.input_shape)
        expected, actual = reference(x), run(graph.to("cpu"), torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
        wide = x.astype(np.float64)
        np.testing.assert_allclose(run(graph, torch.from_numpy(wide)).numpy(), exact(wide), rtol=1e-12, atol=1e-12)
        simplified = run(simpler.to("cpu"), torch.from_numpy(x)).numpy()
        if logits:
            np.testing.assert_allclose(simplified, expected, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(simplified.argmax(1), expected.argmax(1))
    return graph


def check(nodes: Sequence[Any], shape: Sequence[int], weights: Weights | None = None, **settings: Any) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        return compare(save(Path(folder) / "model.onnx", nodes, shape, weights, **settings))


def refused(nodes: Sequence[Any], shape: Sequence[int], weights: Weights | None = None, **settings: Any) -> str:
    """The message with which a model is refused: one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder) / "model.onnx", nodes, shape, weights, **settings)
        with pytest.raises(ModelError) as caught:
            import_onnx(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def ops(graph: Graph) -> list[str]:
    return [node.kind for node in graph.operations[1:]]
