"""Import of whole files: exported networks, batch sizes, external data, broken files; and the reference scores."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from l0tre.errors import ModelError
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.graph import Graph, run
from l0tre.model.onnx_import import import_onnx, onnx_double_scores, onnx_scores
from l0tre.model.simplify import simplify

RANDOM = np.random.default_rng(0)


def parsed(
    path: Path, body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, c] y", opset: int = 17
) -> Path:
    """Write a model in ONNX's text form; ``w`` is a 3 x 2 matrix."""
    weight = "float[3, 2] w = {1, -2, 3, -4, 5, -6}"
    header = f'<ir_version: 8, opset_import: ["": {opset}]>'
    model = onnx.parser.parse_model(f"{header} test ({inputs}) => ({outputs}) <{weight}> {{ {body} }}")
    path.write_bytes(model.SerializeToString())
    return path


def images(graph: Graph, count: int) -> NDArray[np.float32]:
    return RANDOM.random((count, *graph.input_shape)).astype(np.float32)


def compare(path: Path, tolerance: float = 1e-5) -> Graph:
    """Check a file on batches of 1 and 3, before and after simplification; gives the imported graph."""
    graph, reference, exact = import_onnx(path), onnx_scores(path), onnx_double_scores(path)
    for count in (1, 3):
        x = images(graph, count)
        wide = x.astype(np.float64)
        for version in (graph, simplify(graph)):
            scores = run(version.to("cpu"), torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(scores, reference(x), rtol=tolerance, atol=tolerance)
            scores = run(version, torch.from_numpy(wide)).numpy()
            np.testing.assert_allclose(scores, exact(wide), rtol=1e-12, atol=1e-12)
    return graph


class Residual(nn.Module):
    """Convolutions with batch norm around a shortcut, poolings, and a flatten that asks for the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.other = nn.BatchNorm2d(8)
        self.last = nn.Linear(8 * 3 * 3, 5)
        with torch.no_grad():
            for norm in (self.norm, self.other):
                for values in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
                    assert values is not None
                    values.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        x = (x + self.other(self.second(x))).relu()
        x = nn.functional.avg_pool2d(x, 2)
        return self.last(x.view(x.size(0), -1))  # type: ignore[no-any-return]


class Mixed(nn.Module):
    """Elementwise operations, concatenation, global pooling and a normalised input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (3, 2), stride=2, dilation=(1, 2))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv((x - 0.25) / 0.5)
        x = torch.cat([nn.functional.leaky_relu(x, 0.1), torch.sigmoid(x) * torch.tanh(x)], 1)
        x = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return 1 - self.last(x.clamp(-0.5, 0.5))  # type: ignore[no-any-return]


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU6(), nn.Linear(6, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "shape", "dynamic", "simple"),
    [
        (Residual, (3, 12, 12), True, "conv relu max_pool conv add relu avg_pool reshape linear"),
        (Residual, (3, 12, 12), False, "conv relu max_pool conv add relu avg_pool reshape linear"),
        (Mixed, (1, 9, 10), True, None),
        (dense, (3, 2, 2), False, "reshape linear clip linear"),
    ],
)
def test_torch_export(tmp_path: Path, network: Any, shape: tuple[int, ...], dynamic: bool, simple: str | None) -> None:
    torch.manual_seed(0)
    module = network().eval()
    path = tmp_path / "model.onnx"
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    torch.onnx.export(module, (torch.randn(2 if dynamic else 1, *shape),), path, dynamic_shapes=shapes, verbose=False)
    graph = compare(path)
    x = torch.from_numpy(images(graph, 4))
    with torch.no_grad():
        torch.testing.assert_close(run(graph.to("cpu"), x), module(x), rtol=1e-5, atol=1e-5)
    if simple is not None:
        assert [node.kind for node in simplify(graph).operations] == ["input", *simple.split()]


@pytest.mark.parametrize("batch", ["n", "1", "4", "0", "-1", "?"])
def test_scores_for_every_batch(tmp_path: Path, batch: str) -> None:
    path = parsed(tmp_path / "model.onnx", "y = MatMul(x, w)", "float[n, 3] x")
    expected = onnx_scores(path)
    model = onnx.load(path)
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    if batch.lstrip("-").isdigit():
        dim.dim_value = int(batch)
    path.write_bytes(model.SerializeToString())
    actual = onnx_scores(path)
    weight = np.array([[1, -2], [3, -4], [5, -6]], dtype=np.float32)
    for count in (0, 1, 3, 4, 9):
        x = RANDOM.random((count, 3)).astype(np.float32)
        assert actual(x).shape == (count, 2)
        assert actual(x).dtype == np.float32
        np.testing.assert_allclose(actual(x), x @ weight, rtol=1e-5)
        np.testing.assert_allclose(actual(x), expected(x), rtol=1e-6)


def test_scores_are_flat(tmp_path: Path) -> None:
    body = "a = Constant<value_ints = [-1, 3, 1, 1]>() y = Reshape(x, a)"
    path = parsed(tmp_path / "model.onnx", body, outputs="float[n, 3, 1, 1] y")
    assert onnx_scores(path)(np.ones((2, 3), dtype=np.float32)).shape == (2, 3)
    assert compare(path).output_shape == (3,)


def test_scores_of_a_wrong_shape(tmp_path: Path) -> None:
    scores = onnx_scores(parsed(tmp_path / "model.onnx", "y = MatMul(x, w)"))
    with pytest.raises(ModelError, match="does not run in onnxruntime"):
        scores(np.ones((2, 4), dtype=np.float32))


@pytest.mark.parametrize(("kind", "tolerance"), [("double", 1e-5), ("float16", 1e-2)])
def test_other_precisions(tmp_path: Path, kind: str, tolerance: float) -> None:
    path = tmp_path / "model.onnx"
    code = {"double": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}[kind]
    weight = RANDOM.random((3, 2)).astype(kind)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "test",
        [helper.make_tensor_value_info("x", code, ["n", 3])],
        [helper.make_tensor_value_info("y", code, ["n", 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    if kind == "float16":
        with pytest.raises(UnsupportedOperationError, match="FLOAT16"):
            import_onnx(path)
        return
    found = compare(path, tolerance).operations[1].tensors["weight"]
    assert torch.equal(found, torch.from_numpy(weight.T.astype(np.float64)))


CASTS = {
    "h = Cast<to = 10>(x) f = Cast<to = 1>(h) y = MatMul(f, w)": "FLOAT16",
    "h = Cast<to = 16>(x) f = Cast<to = 1>(h) y = MatMul(f, w)": "BFLOAT16",
    "d = Cast<to = 11>(x) r = Relu(d) f = Cast<to = 1>(r) y = MatMul(f, w)": "DOUBLE into FLOAT",
}


@pytest.mark.parametrize("body", CASTS)
def test_casts_that_round_are_refused(tmp_path: Path, body: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=CASTS[body]):
        import_onnx(parsed(tmp_path / "model.onnx", body))


def test_casts_that_do_not_round_are_none(tmp_path: Path) -> None:
    body = "f = Cast<to = 1>(x) d = Cast<to = 11>(f) r = Relu(d) v = Cast<to = 11>(w) y = MatMul(r, v)"
    assert [
        node.kind for node in compare(parsed(tmp_path / "model.onnx", body, outputs="double[n, 2] y")).operations
    ] == [
        "input",
        "relu",
        "linear",
    ]


def test_one_matrix_among_outputs_and_unused_operators(tmp_path: Path) -> None:
    body = "a = Constant<value_ints = [-1, 3, 1]>() maps = Reshape(x, a) e = Erf(x) y = MatMul(x, w)"
    path = parsed(tmp_path / "model.onnx", body, outputs="float[n, 3, 1] maps, float[n, 2] y")
    assert [node.kind for node in compare(path).operations] == ["input", "linear"]


def test_initialisers_listed_as_inputs(tmp_path: Path) -> None:
    compare(parsed(tmp_path / "model.onnx", "y = MatMul(x, w)", "float[3, 2] w, float[n, 3] x"))


def test_local_functions(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "own": 1]> main (float[n, 3] x) => (float[n, 3] y) {y = own.twice(x)}'
        '<domain: "own", opset_import: ["": 17]> twice (a) => (b) {b = Add(a, a)}'
    )
    path.write_bytes(model.SerializeToString())
    assert [node.kind for node in compare(path).operations] == ["input", "add"]


def external(folder: Path, location: str) -> Path:
    """A model whose weights lie in another file, and that file beside the model."""
    path = parsed(folder / "model.onnx", "y = MatMul(x, w)")
    model = onnx.load(path)
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), "w"))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    assert (tmp_path / "weights.bin").exists()
    compare(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="not a readable ONNX model"):
        import_onnx(path)


def test_external_data_elsewhere(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    outside = tmp_path / "weights.bin"
    for location in ("../weights.bin", str(outside), "link.bin"):
        path = external(inner, location)
        outside.write_bytes((inner / "weights.bin").read_bytes())
        if location == "link.bin":
            (inner / "link.bin").symlink_to(outside)
        for use in (import_onnx, onnx_double_scores, onnx_scores):
            with pytest.raises(ModelError, match="outside its own folder"):
                use(path)


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x08\x07" * 40])
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for use in (import_onnx, onnx_double_scores, onnx_scores):
        with pytest.raises(ModelError):
            use(path)


def test_damaged_files_give_model_errors_only(tmp_path: Path) -> None:
    whole = parsed(tmp_path / "whole.onnx", "a = MatMul(x, w) y = Softmax(a)").read_bytes()
    path = tmp_path / "model.onnx"
    damaged = [whole[:length] for length in range(0, len(whole), 5)]
    for _ in range(200):
        copy = bytearray(whole)
        copy[RANDOM.integers(len(copy))] = RANDOM.integers(256)
        damaged.append(bytes(copy))
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            import_onnx(path)
        except ModelError:
            refused += 1
    assert refused >= len(whole) // 5


def test_missing_file(tmp_path: Path) -> None:
    for use in (import_onnx, onnx_double_scores, onnx_scores):
        with pytest.raises(ModelError, match="is not a file"):
            use(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ({"inputs": "float[n, 3] x, float[n, 3] z"}, "2 inputs \\(x, z\\)"),
        ({"inputs": "float[n, k] x"}, "fixed height and width"),
        ({"inputs": "float[3] x"}, "fixed height and width"),
        ({"inputs": "int64[n, 3] x"}, "not a float tensor"),
        ({"outputs": "float[n, 2] y, float[n, 2] z"}, "2 outputs \\(y, z\\)"),
        ({"opset": 6}, "operator set"),
        ({"body": "y = MatMul(x, missing)"}, "not a readable ONNX model"),
        ({"body": "z = MatMul(x, w)"}, "not a readable ONNX model|does not depend"),
        ({"body": "y = If(x) <then_branch = a () => (float[1] b) {b = Relu(x)}>"}, "operator If"),
    ],
)
def test_refused(tmp_path: Path, text: dict[str, Any], reason: str) -> None:
    path = parsed(tmp_path / "model.onnx", **{"body": "y = MatMul(x, w)", **text})
    with pytest.raises(ModelError, match=reason):
        import_onnx(path)
