import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from l0tre import zoo
from l0tre.errors import ConfigError, DataError
from l0tre.zoo.train import accuracy, main, train, unseen

Pixels = npt.NDArray[np.uint8]

SETTINGS: dict[str, Any] = {
    "epochs": 6,
    "batch_size": 16,
    "learning_rate": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "seed": 3,
}


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
    trained = train(network, images, labels, **SETTINGS, progress=lambda *report: reports.append(report))
    assert [epoch for epoch, _, _ in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[-1][1] < 0.5 * reports[0][1]
    assert reports[-1][2] > reports[0][2]
    assert accuracy(trained, images, labels) > 0.95 > accuracy(network.eval(), images, labels)
    assert not trained.training


def test_first_report_is_the_loss_before_the_only_step() -> None:
    images, labels = stripes()
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    reports: list[tuple[int, float, float]] = []
    one_step = SETTINGS | {"epochs": 1, "batch_size": 100}
    train(network, images, labels, **one_step, progress=lambda *report: reports.append(report))
    with torch.no_grad():
        expected = nn.functional.cross_entropy(network(images), labels).item()
    ((epoch, loss, correct),) = reports
    assert epoch == 1
    assert loss == pytest.approx(expected, rel=1e-5)
    assert correct == pytest.approx(accuracy(network, images, labels))


def test_training_depends_on_the_seed_only() -> None:
    images, labels = stripes()
    torch.manual_seed(1)
    first = train(small_network(), images, labels, **SETTINGS)
    torch.manual_seed(2)
    again = train(small_network(), images, labels, **SETTINGS)
    other = train(small_network(), images, labels, **(SETTINGS | {"seed": 4}))
    assert same(first, again)
    assert not same(first, other)


def test_training_has_no_side_effects() -> None:
    images, labels = stripes()
    network = small_network()
    before = torch.get_rng_state()
    trained = train(network, images, labels, **SETTINGS)
    assert torch.equal(before, torch.get_rng_state())
    assert same(network, small_network())
    assert not same(network, trained)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch_size": 0}])
def test_settings_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        train(small_network(), *stripes(), **(SETTINGS | wrong))


def test_images_and_labels_must_match() -> None:
    images, labels = stripes()
    for wrong in ((images, labels[1:]), (images[:0], labels[:0]), (images, labels[:, None])):
        with pytest.raises(DataError, match="one label for each"):
            train(small_network(), *wrong, **SETTINGS)
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
    assert main(["sdnn", "--data", str(tmp_path), "--out", str(out), "--epochs", "1", "--seed", "7"]) == 0
    record = json.loads((out / "sdnn.json").read_text())
    assert (record["training_images"], record["epochs"], record["seed"]) == (300, 1, 7)
    assert "epoch 1:" in capsys.readouterr().out
    module = zoo.load("sdnn", out)
    assert record["accuracy_mnist5k"] == accuracy(module, *digits)
    images, answers = digits[0][::10][:100], digits[1][::10][:100]
    assert record["accuracy_mnist_test"] == accuracy(module, images, answers)


def test_command_reports_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sdnn", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "out").exists()
