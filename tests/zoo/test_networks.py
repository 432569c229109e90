import hashlib
import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from l0tre import zoo
from l0tre.errors import ModelError
from l0tre.zoo.normalise import Normalise


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


# The rows of the paper's tables without the softmax: channels and size after each convolution, sizes of dense layers,
# shares of dropout. N: batch norm, R: ReLU, P: max pooling.
TABLES: dict[str, list[tuple[int, int] | int | float | str]] = {
    "sdnn": [(8, 15), "N", "R", (16, 16), "N", "R", (32, 17), "N", "R", 10],
    "sdnn-unpadded": [(8, 13), "N", "R", (16, 12), "N", "R", (32, 11), "N", "R", 10],
    "dnn-0": [(32, 26), "R", (64, 24), "R", "P", 0.25, 128, "R", 0.5, 10],
    "dnn-1": [(32, 26), "R", 10],
    "dnn-2": [(32, 26), "R", (64, 24), "R", 10],
    "dnn-3": [(32, 26), "R", (64, 24), "N", "R", 10],
    "dnn-4": [(32, 26), "R", (64, 24), "N", "R", 128, "R", 10],
    "dnn-5": [(32, 26), "R", (64, 24), "N", "R", 0.5, 128, "R", 10],
    "dnn-6": [(32, 26), "R", (64, 24), "R", (128, 22), "N", "R", 0.5, 128, "R", 10],
    "dnn-7": [(16, 26), "R", (32, 24), "N", "R", (64, 22), "N", "R", (128, 20), "N", "R", 0.5, 256, "R", 0.5, 10],
    "mnist-attack": [(32, 26), "R", (32, 24), "R", "P", (64, 10), "R", (64, 8), "R", "P", 200, "R", 0.5, 200, "R", 10],
    "cifar10-attack": [
        *((64, 30), "R", (64, 28), "R", "P", (128, 12), "R", (128, 10), "R", "P"),
        *(256, "R", 0.5, 256, "R", 10),
    ],
}

PAPERS = tuple(TABLES)


def row(layer: nn.Module, x: Tensor) -> tuple[int, int] | int | float | str | None:
    """A layer as a row of the table, from its output."""
    if isinstance(layer, nn.Conv2d):
        return x.shape[1], x.shape[2]
    if isinstance(layer, nn.Linear):
        return x.shape[1]
    if isinstance(layer, nn.Dropout):
        return layer.p
    return {nn.BatchNorm2d: "N", nn.ReLU: "R", nn.MaxPool2d: "P"}.get(type(layer))


@pytest.mark.parametrize("name", PAPERS)
def test_layers_are_those_of_the_paper(name: str) -> None:
    x = torch.rand(2, *zoo.entry(name).input_shape)
    rows = []
    for layer in layers(zoo.build(name).eval()):
        x = layer(x)
        rows.append(row(layer, x))
    assert [row for row in rows if row is not None] == TABLES[name]


def count(name: str) -> int:
    """Weights, biases, and two numbers for each channel that is normalised, from the paper's table."""
    kernel = 4 if name.startswith("sdnn") else 9
    channels, size, total = zoo.entry(name).input_shape[0], zoo.entry(name).input_shape[1], 0
    features = 0
    for entry in TABLES[name]:
        if isinstance(entry, tuple):
            total += kernel * channels * entry[0] + entry[0]
            channels, size = entry
        elif entry == "N":
            total += 2 * channels
        elif entry == "P":
            size //= 2
        elif isinstance(entry, int):
            total += (features or channels * size * size) * entry + entry
            features = entry
    return total


def test_robust_twins_have_the_layers_of_the_attack_network() -> None:
    shapes = {name: [value.shape for value in zoo.build(name).parameters()] for name in zoo.names()}
    assert shapes["mnist-attack-l2"] == shapes["mnist-attack-trades"] == shapes["mnist-attack"]


@pytest.mark.parametrize("name", PAPERS)
def test_number_of_parameters(name: str) -> None:
    assert zoo.parameters(name) == sum(p.numel() for p in zoo.build(name).parameters()) == count(name)


# Published or by hand: 0.27 million of the residual network; each dense layer and convolution of the other.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10-resnet20", 269_722),
        ("mnist-convbig", 10 * 32 + 513 * 32 + 289 * 64 + 1025 * 64 + 3137 * 512 + 513 * 512 + 513 * 10),
    ],
)
def test_number_of_parameters_of_other_networks(name: str, expected: int) -> None:
    assert zoo.parameters(name) == expected


def test_shortcuts_have_no_weights() -> None:
    """With inner branches of zero the residual network is its first layer, every fourth place of it, and the last."""
    network = zoo.build("cifar10-resnet20", seed=0).eval()
    parts = layers(network)
    for part in parts:
        if isinstance(norm := getattr(part, "norm2", None), nn.BatchNorm2d):
            norm.weight.data.zero_()
    x = torch.rand(2, 3, 32, 32)
    first = torch.relu(nn.Sequential(*parts[:3])(x))[:, :, ::4, ::4]
    features = torch.zeros(2, 64)
    features[:, 24:40] = first.mean(dim=(2, 3))
    torch.testing.assert_close(network(x), parts[-1](features))


def test_paper_settings() -> None:
    known = {name: zoo.entry(name).paper_accuracy for name in zoo.names()}
    accuracies = {name: round(100 * share, 2) for name, share in known.items() if share is not None}
    digits = [99.16, 97.75, 97.95, 98.38, 99.06, 99.16, 99.13, 99.41]
    assert accuracies == {
        "sdnn": 98.73,
        "sdnn-unpadded": 98.73,
        **{f"dnn-{number}": accuracy for number, accuracy in enumerate(digits)},
        "mnist-attack": 99.36,
        "cifar10-attack": 78.3,
    }
    for name in PAPERS:
        entry, recipe = zoo.entry(name), zoo.entry(name).recipe
        attack = name.endswith("attack")
        assert recipe.epochs == (20 if name.startswith("sdnn") else 50 if attack else 30)
        assert (recipe.batch_size, recipe.momentum, recipe.nesterov) == (128, 0.9, attack)
        assert recipe.first == (50_000 if "-" in name and not attack else None)
        assert entry.data == ("cifar10" if name.startswith("cifar10") else "mnist")


def test_seeded_build_leaves_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (zoo.build("dnn-1", seed).state_dict()["1.weight"] for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


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
    assert record["accuracy_test"] >= 0.985
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
