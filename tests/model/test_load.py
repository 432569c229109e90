"""Loading networks from Python: every source gives the scores of its source, and bad ones are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import L0treError, ModelError
from l0tre.model.sources import knows_its_shape
from tests.cli.running import save_classifier, scores

SHAPE = (1, 4, 4)


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def batch(count: int = 5) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(3))


def test_a_module_gives_its_scores_and_is_left_alone() -> None:
    module = make_module().train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    network = l0tre.load(module, input_shape=SHAPE, device="cpu")
    assert (network.input_shape, network.classes, network.name) == (SHAPE, 3, "Sequential")
    assert network.graph is not None
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])
    with torch.inference_mode():
        wanted = make_module().eval()(batch())
    assert torch.allclose(network.scores(batch()), wanted, atol=1e-5)
    assert torch.allclose(network.replay(batch()[0]), wanted[0], atol=1e-6)


def test_a_later_change_of_the_module_does_not_reach_the_network() -> None:
    module = make_module()
    network = l0tre.load(module, input_shape=SHAPE, device="cpu")
    before = network.scores(batch()), network.replay(batch()[0])
    for parameter in module.parameters():
        parameter.data.zero_()
    assert torch.equal(network.scores(batch()), before[0])
    assert torch.equal(network.replay(batch()[0]), before[1])


def test_an_onnx_file_gives_the_scores_of_onnxruntime(tmp_path: Path) -> None:
    save_classifier(tmp_path / "net.onnx")
    wanted = torch.from_numpy(scores(tmp_path / "net.onnx", batch().numpy()))
    for source in (tmp_path / "net.onnx", str(tmp_path / "net.onnx")):
        network = l0tre.load(source, device="cpu")
        assert torch.allclose(network.scores(batch()), wanted, atol=1e-5)
        assert network.origin == {"path": str((tmp_path / "net.onnx").resolve()), "mean": None, "std": None}


def test_a_function_is_given_what_it_takes() -> None:
    matrix = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    seen: list[type] = []

    def with_numpy(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            raise TypeError("arrays only")
        seen.append(type(x))
        return x.reshape(len(x), -1) @ matrix

    def with_torch(x: Tensor) -> Tensor:
        return x.flatten(1) @ torch.from_numpy(matrix)

    wanted = batch().flatten(1) @ torch.from_numpy(matrix)
    for function in (with_numpy, with_torch):
        network = l0tre.load(function, input_shape=SHAPE)
        assert torch.allclose(network.scores(batch()), wanted, atol=1e-5)
        assert network.graph is None
        assert network.note
        assert network.fingerprint == ""
    assert set(seen) == {np.ndarray}


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_normalisation_happens_inside(device: str) -> None:
    module = make_module().eval()
    with torch.inference_mode():
        wanted = module((batch() - 0.3) / 0.2)

    def function(x: Tensor) -> Tensor:
        return module(x)  # type: ignore[no-any-return]

    for source in (module, function):
        network = l0tre.load(source, input_shape=SHAPE, mean=0.3, std=[0.2], device=device)
        assert torch.allclose(network.scores(batch()).cpu(), wanted, atol=1e-4)
        assert torch.allclose(network.replay(batch()[0]), wanted[0], atol=1e-4)


def test_the_fingerprint_tells_weights_shapes_and_normalisation_apart() -> None:
    def fingerprint(module: nn.Module, **options: Any) -> str:
        return l0tre.load(module, input_shape=SHAPE, device="cpu", **options).fingerprint

    other = make_module()
    next(other.parameters()).data[0, 0, 0, 0] += 1e-3
    same = fingerprint(make_module())
    assert same == fingerprint(make_module())
    assert len({same, fingerprint(other), fingerprint(make_module(), mean=0.5)}) == 3


def test_a_module_that_changes_its_input_in_place_leaves_the_callers_alone() -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x[x < 0.5] = 0  # no operation of the graph, so this stays a black box
            return x.flatten(1)[:, :3]

    network = l0tre.load(Careless(), input_shape=SHAPE, device="cpu")
    x = batch()
    network.scores(x)
    network.replay(x[0])
    assert torch.equal(x, batch())


def test_a_network_is_passed_through() -> None:
    network = l0tre.load(make_module(), input_shape=SHAPE)
    assert l0tre.load(network) is network
    with pytest.raises(ModelError, match="loaded already"):
        l0tre.load(network, mean=0.5)


def test_a_bundled_network_wins_over_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sdnn").mkdir()
    monkeypatch.chdir(tmp_path)
    assert l0tre.load("sdnn", device="cpu").origin["path"] == "sdnn"


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("net.onnx", True),
        ("sdnn", True),
        (Path("net.pt2"), True),
        ("net.py:make", False),
        ("package.nets:make", False),
        (make_module, False),
        (make_module(), False),
    ],
)
def test_which_sources_say_the_shape_of_their_input(source: Any, known: bool) -> None:
    assert knows_its_shape(source) is known


@pytest.mark.parametrize("shape", [(), (0,), (1, -4, 4), (1, 0, 4)])
def test_impossible_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="input shape is"):
        l0tre.load(make_module(), input_shape=shape)


def test_a_module_needs_a_shape_that_fits() -> None:
    with pytest.raises(ModelError, match="give `input_shape`"):
        l0tre.load(make_module())
    with pytest.raises(ModelError, match=r".+") as caught:
        l0tre.load(make_module(), input_shape=(3, 4, 4))
    assert isinstance(caught.value, L0treError)


def test_a_file_is_checked_against_a_wanted_shape(tmp_path: Path) -> None:
    save_classifier(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"takes inputs of shape \(1, 4, 4\), not \(1, 5, 5\)"):
        l0tre.load(tmp_path / "net.onnx", input_shape=(1, 5, 5))


@pytest.mark.parametrize("source", [3, None, [1, 2], np.zeros(3)])
def test_what_is_no_network(source: Any) -> None:
    with pytest.raises(ModelError, match="give a file, a module or a function"):
        l0tre.load(source, input_shape=SHAPE)


def test_a_function_that_fails_later_is_named_with_its_error() -> None:
    def fragile(x: Tensor) -> Tensor:
        if bool((x > 2).any()):
            raise ValueError("too bright")
        return x.flatten(1)[:, :3]

    network = l0tre.load(fragile, input_shape=SHAPE)
    with pytest.raises(ModelError, match=r"fragile fails on a batch of shape .*too bright"):
        network.scores(batch() + 3)


def test_running_out_of_memory_is_left_to_the_batcher() -> None:
    def greedy(x: Tensor) -> Tensor:
        if len(x) > 8:
            raise torch.OutOfMemoryError("out of memory")
        return x.flatten(1)[:, :3]

    network = l0tre.load(greedy, input_shape=SHAPE)
    with pytest.raises(torch.OutOfMemoryError):
        network.scores(batch(9))
    result = l0tre.evaluate(network, batch(20), max_t=1, epsilon=1.0)
    assert len(result.images) == 20


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_softmax_at_the_end_is_dropped_and_decisions_stay(end: nn.Module) -> None:
    module = nn.Sequential(make_module(), end)
    network = l0tre.load(module, input_shape=SHAPE, device="cpu")
    assert torch.allclose(network.scores(batch()), make_module().eval()(batch()), atol=1e-5)
    assert torch.allclose(network.replay(batch()[0]), module.eval()(batch())[0], atol=1e-6)
    plain = l0tre.evaluate(make_module(), batch(), max_t=2, epsilon=1.0)
    with_end = l0tre.evaluate(network, batch(), max_t=2, epsilon=1.0)
    assert [(i.lower, i.upper) for i in with_end.images] == [(i.lower, i.upper) for i in plain.images]


def test_weights_kept_beside_an_onnx_file_count_in_its_fingerprint(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    save_classifier(tmp_path / "whole.onnx")
    onnx.save_model(
        onnx.load(tmp_path / "whole.onnx"),
        tmp_path / "net.onnx",
        save_as_external_data=True,
        location="net.data",
        size_threshold=0,
    )
    before = l0tre.load(tmp_path / "net.onnx", device="cpu").fingerprint
    weights = tmp_path / "net.data"
    weights.write_bytes((2 * np.frombuffer(weights.read_bytes(), np.float32)).tobytes())
    assert l0tre.load(tmp_path / "net.onnx", device="cpu").fingerprint != before
