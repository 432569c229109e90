import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from l0tre import zoo
from l0tre.errors import ConfigError, DataError
from l0tre.zoo import Recipe
from l0tre.zoo import weights_store as store
from l0tre.zoo.fit import accuracy, train
from l0tre.zoo.train import adjusted, main, make, unseen

pytestmark = pytest.mark.usefixtures("only_sdnn")

Pixels = npt.NDArray[np.uint8]

RECIPE = Recipe(epochs=6, batch_size=16, learning_rate=0.1, weight_decay=1e-4, one_cycle=True, seed=3)


def stripes(count: int = 100) -> tuple[Tensor, Tensor]:
    """A problem that is easy to learn: the bright one of four columns is the label; plus noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.rand(count, 1, 4, 4, generator=generator) * 0.4
    images[torch.arange(count), 0, :, labels] += 0.5
    return images, labels


def small_network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(36, 4)
        )


def same(first: nn.Module, second: nn.Module) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_training_learns_and_reports() -> None:
    images, labels = stripes()
    reports: list[tuple[int, float, float]] = []
    network = small_network()
    trained = train(network, images, labels, RECIPE, progress=lambda *report: reports.append(report))
    assert [epoch for epoch, _, _ in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[-1][1] < 0.5 * reports[0][1]
    assert reports[-1][2] > reports[0][2]
    assert accuracy(trained, images, labels) > 0.95 > accuracy(network.eval(), images, labels)
    assert not trained.training


def test_first_report_is_the_loss_before_the_only_step() -> None:
    images, labels = stripes()
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    reports: list[tuple[int, float, float]] = []
    one_step = replace(RECIPE, epochs=1, batch_size=100)
    train(network, images, labels, one_step, progress=lambda *report: reports.append(report))
    with torch.no_grad():
        expected = nn.functional.cross_entropy(network(images), labels).item()
    ((epoch, loss, correct),) = reports
    assert epoch == 1
    assert loss == pytest.approx(expected, rel=1e-5)
    assert correct == pytest.approx(accuracy(network, images, labels))


def test_training_depends_on_the_seed_only() -> None:
    images, labels = stripes()
    torch.manual_seed(1)
    first = train(small_network(), images, labels, RECIPE)
    torch.manual_seed(2)
    again = train(small_network(), images, labels, RECIPE)
    other = train(small_network(), images, labels, replace(RECIPE, seed=4))
    assert same(first, again)
    assert not same(first, other)


def test_training_has_no_side_effects() -> None:
    images, labels = stripes()
    network = small_network()
    before = torch.get_rng_state()
    trained = train(network, images, labels, RECIPE)
    assert torch.equal(before, torch.get_rng_state())
    assert same(network, small_network())
    assert not same(network, trained)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch_size": 0}])
def test_settings_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        train(small_network(), *stripes(), replace(RECIPE, **wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"learning_rate": 0.0}, {"learning_rate": float("nan")}, {"weight_decay": -1.0}])
def test_rates_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="give a learning rate above 0"):
        train(small_network(), *stripes(), replace(RECIPE, **wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("nesterov", [False, True])
def test_decay_is_that_of_keras(nesterov: bool) -> None:
    """Against the update rule by hand: velocity, then the step, with learning_rate / (1 + decay * step)."""
    images, labels = stripes(20)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()
    recipe = Recipe(epochs=5, batch_size=20, learning_rate=0.2, weight_decay=0.0, decay=0.5, nesterov=nesterov)
    trained = train(network, images.double(), labels, recipe)
    weights = [value.detach().clone().requires_grad_() for value in network.parameters()]
    velocities = [torch.zeros_like(value) for value in weights]
    for step in range(5):
        scores = images.double().flatten(1) @ weights[0].T + weights[1]
        gradients = torch.autograd.grad(nn.functional.cross_entropy(scores, labels), weights)
        # Keras scales the gradient inside the velocity, torch outside; for one step after another both are written out.
        velocities = [0.9 * v + g for v, g in zip(velocities, gradients, strict=True)]
        moves = [0.9 * v + g if nesterov else v for v, g in zip(velocities, gradients, strict=True)]
        rate = 0.2 / (1 + 0.5 * step)
        weights = [(w - rate * m).detach().requires_grad_() for w, m in zip(weights, moves, strict=True)]
    for ours, expected in zip(trained.parameters(), weights, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_adjusted_replaces_what_is_given() -> None:
    assert adjusted(RECIPE) == RECIPE
    assert adjusted(RECIPE, weight_decay=0.0, seed=0) == replace(RECIPE, weight_decay=0.0, seed=0)


def test_images_and_labels_must_match() -> None:
    images, labels = stripes()
    for wrong in ((images, labels[1:]), (images[:0], labels[:0]), (images, labels[:, None])):
        with pytest.raises(DataError, match="one label for each"):
            train(small_network(), *wrong, RECIPE)
        with pytest.raises(DataError, match="one label for each"):
            accuracy(small_network(), *wrong)


def test_accuracy_counts_over_all_batches() -> None:
    scores = torch.eye(3)[torch.tensor([0, 1, 2, 0, 1, 2, 0])]
    labels = torch.tensor([0, 1, 2, 1, 1, 0, 0])
    for batch_size in (1, 2, 3, 7, 100):
        assert accuracy(nn.Identity(), scores, labels, batch_size=batch_size) == 5 / 7


def test_unseen_compares_whole_images_as_bytes() -> None:
    pixels = torch.randint(256, (20, 1, 5, 5), generator=torch.Generator().manual_seed(0))
    almost = pixels[4:5].clone()
    almost[0, 0, 2, 2] ^= 1
    # Another way to divide differs in the last bit; the bytes do not.
    kept_back = torch.cat([pixels[[3, 17]], almost]) * (1 / 255)
    expected = [position not in (3, 17) for position in range(20)]
    assert unseen(pixels / 255, kept_back).tolist() == expected


def test_command_trains_without_the_digits_of_the_demo(
    tmp_path: Path,
    pixels: tuple[Pixels, Pixels],
    digits: tuple[Tensor, Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo, truth = (values[::10] for values in pixels)
    mirrored = demo[:, :, ::-1][:300]  # not among the 5,000
    np.savez(
        tmp_path / "mnist.npz",
        train_x=np.concatenate([demo, mirrored]),
        train_y=np.concatenate([truth, truth[:300]]),
        test_x=demo[:100],
        test_y=truth[:100],
    )
    out = tmp_path / "new" / "weights"
    assert main(["sdnn", "--data-dir", str(tmp_path), "--out", str(out), "--epochs", "1", "--seed", "7"]) == 0
    record = json.loads((out / "sdnn.json").read_text())
    assert (record["training_images"], record["epochs"], record["seed"]) == (300, 1, 7)
    assert (record["weights"], record["resize"]) == ("float32", "area average")
    assert "epoch 1:" in capsys.readouterr().out
    module = zoo.load("sdnn", out)
    assert record["accuracy_mnist5k"] == accuracy(module, *digits)
    images, answers = digits[0][::10][:100], digits[1][::10][:100]
    assert record["accuracy_test"] == accuracy(module, images, answers)


def test_command_reports_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sdnn", "--data-dir", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "out").exists()


def small_mnist(folder: Path, pixels: tuple[Pixels, Pixels], *, train_images: int = 300) -> Path:
    """Some of the 5,000 digits as mnist.npz: a training set and 100 others to test with."""
    some = np.random.RandomState(0).permutation(5000)  # they come sorted by label
    images, labels = (values[some] for values in pixels)
    np.savez(
        folder / "mnist.npz",
        train_x=images[:train_images],
        train_y=labels[:train_images],
        test_x=images[-100:],
        test_y=labels[-100:],
    )
    return folder


def test_several_networks_are_made_and_found_by_their_names(
    tmp_path: Path, user_folder: Path, pixels: tuple[Pixels, Pixels], capsys: pytest.CaptureFixture[str]
) -> None:
    small_mnist(tmp_path, pixels)
    words = ["--data-dir", str(tmp_path), "--epochs", "2", "--device", "cpu", "--learning-rate", "0.02", "--seed", "5"]
    assert main(["sdnn-unpadded", "dnn-1", *words]) == 0
    printed = capsys.readouterr().out
    assert printed.count("epoch 2:") == 2
    for name in ("sdnn-unpadded", "dnn-1"):
        record = json.loads((user_folder / f"{name}.json").read_text())
        assert f"{name}: {record['accuracy_test']:.2%} of 100 test images correct" in printed
        assert (record["epochs"], record["learning_rate"], record["seed"]) == (2, 0.02, 5)
        assert (record["weights"], record["training_images"], record["device"]) == ("float16", 300, "cpu")
        assert record["torch"] == torch.__version__
        assert record["parameters"] == zoo.parameters(name)
        module = zoo.load(name)
        assert all(value.dtype == torch.float32 for value in module.parameters())
        # The accuracies are those of what was stored.
        data = np.load(tmp_path / "mnist.npz")
        for split in ("train", "test"):
            images = torch.from_numpy(data[f"{split}_x"])[:, None] / 255
            images = nn.functional.avg_pool2d(images, 2) if name == "sdnn-unpadded" else images
            labels = torch.from_numpy(data[f"{split}_y"]).long()
            assert record[f"accuracy_{split}"] == accuracy(module, images, labels)


def test_making_a_network_twice_gives_the_same_bytes(tmp_path: Path, pixels: tuple[Pixels, Pixels]) -> None:
    small_mnist(tmp_path, pixels, train_images=60)
    recipe = replace(zoo.entry("dnn-1").recipe, epochs=1, batch_size=20)
    made = [
        make("dnn-1", out=tmp_path / str(seed) / str(time), recipe=replace(recipe, seed=seed), data_dir=tmp_path)
        for seed, time in ((0, 0), (0, 1), (1, 0))
    ]
    assert made[0]["sha256"] == made[1]["sha256"] != made[2]["sha256"]


def test_only_the_first_images_of_the_recipe_are_used(tmp_path: Path, pixels: tuple[Pixels, Pixels]) -> None:
    small_mnist(tmp_path, pixels)
    recipe = replace(zoo.entry("dnn-1").recipe, epochs=1, first=50)
    whole = make("dnn-1", out=tmp_path / "whole", recipe=recipe, data_dir=tmp_path)
    small_mnist(tmp_path, pixels, train_images=50)
    part = make("dnn-1", out=tmp_path / "part", recipe=replace(recipe, first=None), data_dir=tmp_path)
    assert whole["training_images"] == part["training_images"] == 50
    assert whole["sha256"] == part["sha256"]


def test_float16_is_not_used_where_it_changes_decisions(
    tmp_path: Path, pixels: tuple[Pixels, Pixels], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(module: nn.Module, *, half: bool) -> dict[str, Tensor]:
        state = pack(module, half=half)
        return {key: -value if half and key.endswith("weight") else value for key, value in state.items()}

    pack = store.pack
    monkeypatch.setattr("l0tre.zoo.train.pack", spoil)
    small_mnist(tmp_path, pixels)
    recipe = replace(zoo.entry("dnn-1").recipe, epochs=2)
    record = make("dnn-1", out=tmp_path, recipe=recipe, data_dir=tmp_path)
    assert record["weights"] == "float32"
    assert record["accuracy_test"] == record["accuracy_test_before_rounding"] > 0.3


def test_data_that_cannot_be_trained_with(tmp_path: Path, pixels: tuple[Pixels, Pixels]) -> None:
    images, labels = (values[:20] for values in pixels)
    flawed: dict[str, tuple[dict[str, Any], str]] = {
        "one.npz": ({"x": images, "y": labels}, "has no splits"),
        "bare.npz": ({"train_x": images, "test_x": images[:9]}, "has no labels"),
        "many.npz": (
            {"train_x": images, "train_y": labels + 11, "test_x": images[:9], "test_y": labels[:9]},
            "has the label 11",
        ),
    }
    for file, (arrays, message) in flawed.items():
        np.savez(tmp_path / file, **arrays)
        with pytest.raises(DataError, match=message):
            make("dnn-1", out=tmp_path / "out", data=str(tmp_path / file), device="cpu")
    assert not (tmp_path / "out").exists()
