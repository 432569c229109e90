"""Forms that networks come in beyond the usual ones."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file
from torch import nn

import l0tre
from l0tre.errors import ModelError

CODE = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(12, 3))
"""


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_for_a_class(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "net.py").write_text(CODE)
    state = {"1.weight": torch.rand(3, 12), "1.bias": torch.rand(3)}
    path = tmp_path / f"w{suffix}"
    if suffix == ".pth":
        torch.save(state, path)
    else:
        save_file(state, str(path))
    network = l0tre.load(f"{tmp_path / 'net.py'}:Net", input_shape=(12,), weights=path)
    x = torch.rand(4, 12)
    torch.testing.assert_close(network.scores(x), x @ state["1.weight"].T + state["1.bias"])
    assert network.origin["weights"] == str(path.resolve())
    torch.save({"other": torch.rand(1)}, path.with_suffix(".pt"))
    with pytest.raises(ModelError, match="does not hold weights"):
        l0tre.load(f"{tmp_path / 'net.py'}:Net", input_shape=(12,), weights=path.with_suffix(".pt"))
    torch.save(nn.Linear(1, 1), path.with_suffix(".pt"))  # a pickled module could run code
    with pytest.raises(ModelError, match=r"holds more than tensors, .* save its weights alone") as refused:
        l0tre.load(f"{tmp_path / 'net.py'}:Net", input_shape=(12,), weights=path.with_suffix(".pt"))
    assert "\x1b" not in str(refused.value)
    with pytest.raises(ModelError, match="there is no file none"):
        l0tre.load(f"{tmp_path / 'net.py'}:Net", input_shape=(12,), weights="none.pth")


def test_open_sizes_are_those_of_the_data(tmp_path: Path) -> None:
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["m"]), helper.make_node("Flatten", ["m"], ["y"])]
    path = save(tmp_path / "n.onnx", nodes, source, ["y"], ml=False)
    images = torch.rand(2, 3, 4, 5)
    result = l0tre.evaluate(path, images, max_t=1, guarantee="grid", attack_queries=0)
    assert result.config["model"]["input_shape"] == [3, 4, 5]
    with pytest.raises(ModelError, match="give `input_shape`"):
        l0tre.load(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_of_weights_are_named_in_one_line(dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=r"weights of type float(64|16), inputs are float32: give it as module.float"):
        l0tre.load(nn.Linear(3, 2).to(dtype), input_shape=(3,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_that_cannot_be_looked_into() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    script = torch.jit.script(module)
    network = l0tre.load(script, input_shape=(4,))
    x = torch.rand(6, 4)
    assert torch.equal(network.scores(x), script(x))
    assert "run as they are" in network.note
    result = l0tre.evaluate(network, x, max_t=1, attack_queries=50)
    assert {image.guarantee for image in result} == {"grid"}
    # The scale of what it rounds to depends on the batch: no function of one input.
    quantised = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ModelError, match="dynamic quantisation"):
        l0tre.load(quantised, input_shape=(4,))


def save(path: Path, nodes: list[onnx.NodeProto], source: onnx.ValueInfoProto, outputs: list[str], ml: bool) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs]
    graph = helper.make_graph(nodes, "g", [source], values)
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("ai.onnx.ml", 3)] if ml else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_open_height_and_width(tmp_path: Path) -> None:
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["m"]),
        helper.make_node("Flatten", ["m"], ["y"]),
    ]
    path = save(tmp_path / "n.onnx", nodes, source, ["y"], ml=False)
    with pytest.raises(ModelError, match="`input_shape`"):
        l0tre.load(path)
    network = l0tre.load(path, input_shape=(3, 5, 4))
    x = torch.rand(2, 3, 5, 4)
    torch.testing.assert_close(network.scores(x), x.mean((2, 3)))
    with pytest.raises(ModelError):
        l0tre.load(path, input_shape=(1, 5, 4))


@pytest.mark.parametrize("zipped", [True, False])
def test_classifiers_of_converters_from_scikit_learn(tmp_path: Path, zipped: bool) -> None:
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])
    weights = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    linear = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "probabilities"],
        domain="ai.onnx.ml",
        coefficients=weights.flatten().tolist(),
        intercepts=[0.5, -0.5],
        classlabels_ints=[0, 1],
        post_transform="SOFTMAX",
    )
    zipmap = helper.make_node("ZipMap", ["probabilities"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    label = helper.make_tensor_value_info("label", TensorProto.INT64, [None])
    if zipped:
        of_maps = helper.make_sequence_type_proto(
            helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        )
        scores = helper.make_value_info("maps", of_maps)
    else:
        scores = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])
    graph = helper.make_graph([linear, *([zipmap] if zipped else [])], "g", [source], [label, scores])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "n.onnx")
    network = l0tre.load(tmp_path / "n.onnx")
    x = torch.rand(6, 3)
    expected = torch.softmax(x @ torch.from_numpy(weights).T + torch.tensor([0.5, -0.5]), 1)
    torch.testing.assert_close(network.scores(x), expected, rtol=1e-4, atol=1e-5)
    assert "onnxruntime" in network.note


def test_whole_numbers_as_inputs(tmp_path: Path) -> None:
    source = helper.make_tensor_value_info("x", TensorProto.UINT8, [None, 2])
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    network = l0tre.load(save(tmp_path / "n.onnx", nodes, source, ["y"], ml=False))
    assert network.scores(torch.tensor([[3.4, 254.6]])).tolist() == [[3.0, 255.0]]
    assert network.graph is None
    result = l0tre.evaluate(
        network, torch.tensor([[10.0, 200.0]]), domain=l0tre.make_domain((2,), high=255), max_t=1, attack_queries=0
    )
    assert (result[0].guarantee, result.upper) == ("grid", 1)
