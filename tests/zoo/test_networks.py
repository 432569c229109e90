import hashlib
import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from l0tre import zoo
from l0tre.errors import ModelError
from l0tre.zoo.networks import Normalise


def layers(module: nn.Module) -> list[nn.Module]:
    assert isinstance(module, nn.Sequential)
    return list(module)


def copy_bundled(folder: Path) -> Path:
    for suffix in ("safetensors", "json"):
        source = files("l0tre.zoo").joinpath("weights", f"sdnn.{suffix}")
        (folder / f"sdnn.{suffix}").write_bytes(source.read_bytes())
    return folder


def test_sdnn_has_the_layers_of_the_paper() -> None:
    x = torch.rand(3, *zoo.entry("sdnn").input_shape)
    seen = []
    for layer in layers(zoo.build("sdnn").eval()):
        x = layer(x)
        seen.append((type(layer), tuple(x.shape[1:])))
    expected: list[tuple[type[nn.Module], tuple[int, ...]]] = [(Normalise, (1, 14, 14))]
    for channels, size in ((8, 15), (16, 16), (32, 17)):
        expected += [(kind, (channels, size, size)) for kind in (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)]
    expected += [(nn.Flatten, (9248,)), (nn.Linear, (10,))]
    assert seen == expected


def test_sdnn_number_of_parameters() -> None:
    convolutions = (1 * 8 * 4 + 8) + (8 * 16 * 4 + 16) + (16 * 32 * 4 + 32)
    batch_norms = 2 * (8 + 16 + 32)
    dense = 9248 * 10 + 10
    assert sum(p.numel() for p in zoo.build("sdnn").parameters()) == convolutions + batch_norms + dense


@pytest.mark.parametrize("name", zoo.names())
def test_entry_agrees_with_its_network(name: str) -> None:
    entry = zoo.entry(name)
    assert entry.name == name
    assert "\n" not in entry.description
    module = zoo.build(name)
    assert module.training
    assert module(torch.rand(2, *entry.input_shape)).shape == (2, entry.classes)


def test_normalise_works_per_channel() -> None:
    normalise = Normalise([0.5, 0.25], [0.5, 0.125])
    x = torch.tensor([1.0, 0.0]).reshape(1, 2, 1, 1).expand(1, 2, 3, 4)
    expected = torch.tensor([1.0, -2.0]).reshape(1, 2, 1, 1).expand(1, 2, 3, 4)
    assert torch.equal(normalise(x), expected)
    assert not list(normalise.parameters()), "training must not move the normalisation"


def test_normalisation_is_that_of_the_digits(digits: tuple[Tensor, Tensor]) -> None:
    normalised = layers(zoo.load("sdnn"))[0](digits[0])
    assert abs(normalised.mean().item()) < 0.02
    assert abs(normalised.std().item() - 1) < 0.02


def test_loaded_network_is_in_evaluation_mode_and_reproducible(digits: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(1)
    first = zoo.load("sdnn")
    torch.manual_seed(2)
    second = zoo.load("sdnn")
    assert not any(part.training for part in first.modules())
    with torch.no_grad():
        one, other = first(digits[0][:50]), second(digits[0][:50])
        again = first(digits[0][:50])
        alone = torch.cat([first(digits[0][i : i + 1]) for i in range(50)])
    assert torch.equal(one, other)
    assert torch.equal(one, again)
    torch.testing.assert_close(one, alone, rtol=1e-4, atol=1e-4)


def test_loading_leaves_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    zoo.load("sdnn")
    assert torch.equal(before, torch.get_rng_state())


def test_bundled_network_recognises_unseen_digits(digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    with torch.no_grad():
        correct = (zoo.load("sdnn")(images).argmax(1) == labels).double().mean().item()
    recorded = json.loads(files("l0tre.zoo").joinpath("weights", "sdnn.json").read_text(encoding="utf-8"))
    assert correct == pytest.approx(recorded["accuracy_mnist5k"], abs=1e-3)
    every_tenth = slice(None, None, 10)
    with torch.no_grad():
        fixed = zoo.load("sdnn")(images[every_tenth]).argmax(1) == labels[every_tenth]
    assert len(fixed) == 500
    assert fixed.double().mean().item() >= 0.975


def test_record_says_how_the_weights_were_made() -> None:
    record = json.loads(files("l0tre.zoo").joinpath("weights", "sdnn.json").read_text(encoding="utf-8"))
    weights = files("l0tre.zoo").joinpath("weights", "sdnn.safetensors").read_bytes()
    assert record["sha256"] == hashlib.sha256(weights).hexdigest()
    assert record["training_images"] == 55_000
    assert record["accuracy_mnist_test"] >= 0.985
    assert (record["epochs"], record["batch_size"], record["momentum"]) == (20, 128, 0.9)


def test_unknown_name_lists_the_names() -> None:
    for function in (zoo.build, zoo.load, zoo.entry):
        with pytest.raises(ModelError, match=r"'resnet'.*sdnn"):
            function("resnet")


def test_weights_from_a_folder(tmp_path: Path) -> None:
    ours, bundled = zoo.load("sdnn", copy_bundled(tmp_path)).state_dict(), zoo.load("sdnn").state_dict()
    assert all(torch.equal(ours[key], bundled[key]) for key in bundled)


@pytest.mark.parametrize("position", [0, 1000, -1])
def test_damaged_weights_are_refused(tmp_path: Path, position: int) -> None:
    path = copy_bundled(tmp_path) / "sdnn.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match="damaged"):
        zoo.load("sdnn", tmp_path)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    path = copy_bundled(tmp_path) / "sdnn.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match="damaged"):
        zoo.load("sdnn", tmp_path)


@pytest.mark.parametrize("suffix", ["safetensors", "json"])
def test_missing_files_are_reported(tmp_path: Path, suffix: str) -> None:
    (copy_bundled(tmp_path) / f"sdnn.{suffix}").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        zoo.load("sdnn", tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3"])
def test_broken_record_is_reported(tmp_path: Path, text: str) -> None:
    (copy_bundled(tmp_path) / "sdnn.json").write_text(text)
    with pytest.raises(ModelError, match="cannot be read"):
        zoo.load("sdnn", tmp_path)


@pytest.mark.parametrize("foreign", [True, False])
def test_weights_of_another_network_are_refused(tmp_path: Path, foreign: bool) -> None:
    from safetensors.torch import save

    weights = save({"0.mean": torch.zeros(1)}) if foreign else b"not safetensors"
    (tmp_path / "sdnn.safetensors").write_bytes(weights)
    (tmp_path / "sdnn.json").write_text(json.dumps({"sha256": hashlib.sha256(weights).hexdigest()}))
    with pytest.raises(ModelError, match="does not fit") as caught:
        zoo.load("sdnn", tmp_path)
    assert "\n" not in str(caught.value)
