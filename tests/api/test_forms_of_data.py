from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import l0tre
from l0tre.errors import ConfigError, DataError
from l0tre.testing import assert_robust
from tests.tools import NO_ATTACK

X = torch.tensor([[0.9, 0.2], [0.1, 0.2], [0.95, 0.3]])
Y = torch.tensor([1, 0, 1])


def network() -> nn.Module:
    module = nn.Linear(2, 2)
    module.weight.data, module.bias.data = torch.tensor([[-1.0, 0], [1, 0]]), torch.tensor([1.0, 0])
    return module.eval()


def test_pairs_data_sets_loaders_and_paths(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X.numpy(), y=Y.numpy())
    whole = TensorDataset(X, Y)
    forms: list[Any] = [(X, Y), (X.numpy(), [1, 0, 1]), whole, DataLoader(whole, batch_size=2), tmp_path / "d.npz"]
    expected = l0tre.evaluate(network(), X, Y, max_t=1, **NO_ATTACK)
    for form in [*forms, str(tmp_path / "d.npz")]:
        result = l0tre.evaluate(network(), form, max_t=1, **NO_ATTACK)
        assert [(i.label, i.lower, i.upper) for i in result] == [(i.label, i.lower, i.upper) for i in expected]
    only = l0tre.evaluate(network(), TensorDataset(X), max_t=1, **NO_ATTACK)
    assert only.config["data"]["labelled"] is False
    with pytest.raises(DataError, match="3 things"):
        l0tre.evaluate(network(), TensorDataset(X, Y, Y))
    with pytest.raises(DataError, match="its own labels"):
        l0tre.evaluate(network(), tmp_path / "d.npz", Y)


def test_a_witness_on_arrays() -> None:
    witness = l0tre.evaluate(network(), X, Y, max_t=1, **NO_ATTACK)[0].witness
    assert witness is not None
    changed = witness.apply(X[0].numpy())
    assert isinstance(changed, np.ndarray)
    assert changed.tolist() == witness.apply(X[0]).tolist()
    assert X[0].tolist() != changed.tolist()


def test_a_run_goes_further_than_it_began_with(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.rand(4, 5)
    first = l0tre.evaluate(module, x, max_t=1, out=tmp_path / "run", **NO_ATTACK)
    assert first.finished
    with pytest.raises(ConfigError, match="began with 1"):
        l0tre.resume(tmp_path / "run", module, max_t=0)
    further = l0tre.resume(tmp_path / "run", module, max_t=2)
    whole = l0tre.evaluate(module, x, max_t=2, **NO_ATTACK)
    assert further.finished
    assert [image.lower for image in further] == [image.lower for image in whole]
    stored = l0tre.load_run(tmp_path / "run")
    assert stored.config["settings"]["max_t"] == 2
    assert stored.lower == further.lower


def test_robustness_as_an_assertion() -> None:
    fixed = l0tre.make_domain((2,), mask=torch.tensor([False, True]))
    assert assert_robust(network(), X, Y, radius=1, domain=fixed).lower == 1
    with pytest.raises(AssertionError, match=r"3 of 3 inputs do not keep .* when 1 features change: 0 \(0 proved"):
        assert_robust(network(), X, Y, radius=1)
    with pytest.raises(AssertionError, match="labelled 0"):
        assert_robust(network(), X[:2], [0, 0], radius=1, domain=fixed)


@pytest.fixture
def of_bytes(tmp_path: Path) -> str:
    """A network of whole numbers: class 1 where the first of four is above 100."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> test (uint8[n, 4] x) => (float[n, 2] y) '
        "<float[4, 2] w = {0, 1, 0, 0, 0, 0, 0, 0}, float[2] b = {100.5, 0}> { f = Cast<to = 1>(x) y = Gemm(f, w, b) }"
    )
    path = tmp_path / "bytes.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return str(path)


def test_a_network_of_bytes_gets_them_as_they_are(of_bytes: str) -> None:
    dark, domain = np.array([[50, 0, 1, 1]]), l0tre.make_domain((4,), high=255.0)
    for images in (dark.astype(np.uint8), dark.astype(np.float32)):
        result = l0tre.evaluate(of_bytes, images, [0], domain=domain, max_t=1, points=3, attack_queries=0)
        assert (result[0].upper, result[0].guarantee) == (1, "grid")
    dimmer = l0tre.make_domain((4,), high=100.0)
    kept = l0tre.evaluate(of_bytes, dark.astype(np.uint8), [0], domain=dimmer, max_t=1, points=3, attack_queries=0)
    assert kept[0].lower == 1
    scaled = l0tre.load(of_bytes, mean=0, std=1 / 255)
    assert l0tre.evaluate(scaled, dark / 255, [0], max_t=1, attack_queries=0)[0].upper == 1


@pytest.mark.parametrize("images", [np.full((1, 4), 0.5), np.array([[1.0, 0, 1, 0]]), np.full((1, 4), 256.0)])
def test_a_network_of_bytes_refuses_other_values(of_bytes: str, images: np.ndarray) -> None:
    with pytest.raises(DataError, match="takes whole numbers of 0 to 255, array holds values such as"):
        l0tre.evaluate(of_bytes, images.astype(np.float32), [0], domain=l0tre.make_domain((4,), high=256.0))


def test_a_network_of_bytes_needs_a_domain(of_bytes: str) -> None:
    with pytest.raises(ConfigError, match=r"give a domain, such as l0tre.make_domain\(\(4,\), high=255\)"):
        l0tre.evaluate(of_bytes, np.zeros((1, 4), dtype=np.uint8), [0])
