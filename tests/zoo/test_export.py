import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from l0tre import zoo
from l0tre.errors import ConfigError, MissingExtraError, ModelError
from l0tre.zoo import weights_store as store
from l0tre.zoo.export import export

pytestmark = pytest.mark.usefixtures("only_sdnn")


@pytest.fixture
def trained(user_folder: Path) -> str:
    """A network in the user's folder, with pooling and dropout."""
    store.write("mnist-attack", store.pack(zoo.build("mnist-attack", 0), half=True), {}, user_folder)
    return "mnist-attack"


def test_onnx_gives_the_scores_of_the_network_for_any_batch(tmp_path: Path, trained: str) -> None:
    file = tmp_path / "model.onnx"
    assert export(trained, file) < 1e-4
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    module = zoo.load(trained)
    for count in (1, 5):
        x = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            wanted = module(x).numpy()
        np.testing.assert_allclose(session.run(["scores"], {"input": x.numpy()})[0], wanted, rtol=1e-4, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["model.onnx"]


def test_pt2_gives_the_scores_of_the_network_for_any_batch(tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    assert export("sdnn", str(file)) < 1e-4
    program = torch.export.load(file).module()
    for count in (1, 5):
        x = torch.rand(count, 1, 14, 14, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            torch.testing.assert_close(program(x), zoo.load("sdnn")(x), rtol=1e-4, atol=1e-5)


def test_a_file_with_other_scores_is_not_left(tmp_path: Path, trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = zoo.build(trained, 1).eval()
    write = torch.export.export
    monkeypatch.setattr("torch.export.export", lambda _, *args, **options: write(other, *args, **options))
    (tmp_path / "model.pt2").write_bytes(b"before")
    with pytest.raises(ModelError, match="other scores"):
        export(trained, tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["model.pt2"]


def test_what_export_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"ends with \.onnx or \.pt2"):
        export("sdnn", tmp_path / "model.h5")
    with pytest.raises(ConfigError, match="make it first"):
        export("sdnn", tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(ModelError, match="l0tre zoo train dnn-0"):
        export("dnn-0", tmp_path / "model.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"onnxscript.*l0tre\[onnx\]"):
        export("sdnn", tmp_path / "model.onnx")
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
