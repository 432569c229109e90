import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as parse
from torch import nn

from l0tre import load as load_network
from l0tre import zoo
from l0tre.errors import ModelError
from l0tre.zoo import weights_store as store

pytestmark = pytest.mark.usefixtures("only_sdnn")


def keep(name: str, folder: Path, seed: int, *, half: bool = True) -> nn.Module:
    """Store a network with random weights, as if it had been trained."""
    module = zoo.build(name, seed).eval()
    store.write(name, store.pack(module, half=half), {"accuracy_test": 0.5}, folder)
    return module


def test_float16_round_trip(tmp_path: Path) -> None:
    module = keep("dnn-3", tmp_path, 1)
    state = module.state_dict()
    stored = parse((tmp_path / "dnn-3.safetensors").read_bytes())
    loaded = zoo.load("dnn-3", tmp_path).state_dict()
    assert loaded.keys() == state.keys() == stored.keys()
    rounded = {key for key, value in stored.items() if value.dtype == torch.float16}
    assert rounded == {f"{layer}.{part}" for layer in (1, 3, 7) for part in ("weight", "bias")}
    for key, value in state.items():
        assert loaded[key].dtype == value.dtype
        assert torch.equal(loaded[key], value.half().float() if key in rounded else value)
    assert (tmp_path / "dnn-3.safetensors").stat().st_size < 2.1 * zoo.parameters("dnn-3")


def test_without_float16_nothing_is_rounded(tmp_path: Path) -> None:
    module = keep("dnn-1", tmp_path, 1, half=False)
    loaded = zoo.load("dnn-1", tmp_path).state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in module.state_dict().items())


def test_packing_leaves_the_module_alone() -> None:
    module = zoo.build("dnn-1", 0)
    store.pack(module, half=True)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), zoo.build("dnn-1", 0).parameters(), strict=True))
    assert all(value.dtype == torch.float32 for value in module.parameters())


def test_bundled_weights_come_before_those_of_the_user(user_folder: Path) -> None:
    before = zoo.load("sdnn").state_dict()
    keep("sdnn", user_folder, 1)
    keep("dnn-1", user_folder, 2)
    after = zoo.load("sdnn").state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(zoo.load("dnn-1").state_dict()["1.weight"], zoo.build("dnn-1", 2)[1].weight.half().float())  # type: ignore[index]
    assert store.status("sdnn").state == "bundled"
    assert store.status("sdnn").accuracy == 0.9919
    assert store.status("dnn-1") == store.Status("trained", user_folder, 0.5)


def test_a_network_that_is_not_trained_names_the_command(user_folder: Path) -> None:
    for load in (zoo.load, load_network):
        with pytest.raises(ModelError, match=r"run: l0tre zoo train dnn-0$") as caught:
            load("dnn-0")
        assert str(user_folder) in str(caught.value)
    assert store.status("dnn-0") == store.Status("missing")


def test_a_trained_network_is_loaded_by_its_name(user_folder: Path) -> None:
    keep("dnn-1", user_folder, 0)
    network = load_network("dnn-1")
    assert network.input_shape == (1, 28, 28)
    assert network.graph is not None
    x = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network.scores(x), zoo.load("dnn-1")(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"sha256": 3})])
def test_a_broken_record_is_damage(user_folder: Path, text: str) -> None:
    keep("dnn-1", user_folder, 0)
    (user_folder / "dnn-1.json").write_text(text)
    assert store.status("dnn-1") == store.Status("damaged", user_folder)
    with pytest.raises(ModelError, match="cannot be read"):
        zoo.load("dnn-1")


def test_user_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("L0TRE_ZOO", "~/nets")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.user_folder() == tmp_path / "nets"
    monkeypatch.delenv("L0TRE_ZOO")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert store.user_folder() == tmp_path / "share" / "l0tre" / "zoo"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert store.user_folder() == tmp_path / ".local" / "share" / "l0tre" / "zoo"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"another folder \(`out`\)"):
        keep("dnn-1", tmp_path / "file" / "zoo", 0)
