"""Small networks to choose an attack's constants on: none is in a table of results, none has seen the images used here.

They are trained when they are first asked for (a minute each on one core) and kept in a folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import l0tre
from l0tre.data import Dataset, select
from l0tre.zoo.losses import loss_and_scores
from l0tre.zoo.recipes import Adversarial, CrossEntropy, Loss, Trades
from l0tre.zoo.residual import resnet

__all__ = ["TUNING", "drawn_rows", "load_tuning"]

BATCH, RATE = 128, 3e-3
TRAINED_ON = 20_000  # MNIST training images from the start; constants are chosen on those behind them
COLOUR = (2_000, 8_000)  # CIFAR-10 test images trained on; constants are chosen on those behind them


def _strided() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(800, 100), nn.ReLU(), nn.Linear(100, 10)),
    )


def _pooled(channels: int, size: int, widths: tuple[int, int]) -> nn.Module:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(), nn.MaxPool2d(2)]
        channels, size = width, (size - 4) // 2
    return nn.Sequential(*layers, *(nn.Flatten(), nn.Linear(channels * size**2, 64), nn.ReLU(), nn.Linear(64, 10)))


class _Steep(nn.Module):
    """A step for each pixel, as training against large L-infinity perturbations teaches: blind to small changes."""

    def forward(self, x: Tensor) -> Tensor:
        """From 0.0025 at 0 to 0.9975 at 1, half of it between 0.41 and 0.59."""
        return torch.sigmoid(12 * (x - 0.5))


def _dense(inputs: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


@dataclass(frozen=True)
class _Recipe:
    """A network, its data (``mnist``, ``cifar10`` or ``table``), its loss and how many images are trained on."""

    build: Callable[[], nn.Module]
    data: str
    loss: Loss
    first: int
    epochs: int = 3


TUNING = {
    "tune-strided-l2": _Recipe(_strided, "mnist", Adversarial("l2", 1.5, 0.5, 5), TRAINED_ON),
    "tune-strided-linf": _Recipe(_strided, "mnist", Adversarial("linf", 0.2, 0.06, 5), TRAINED_ON),
    "tune-pooled-l2": _Recipe(
        lambda: _pooled(1, 28, (8, 16)), "mnist", Adversarial("l2", 2.0, 0.7, 5), TRAINED_ON // 2
    ),
    "tune-pooled-trades": _Recipe(lambda: _pooled(1, 28, (8, 16)), "mnist", Trades(0.3, 0.1, 5, 3.0), TRAINED_ON // 2),
    "tune-pooled": _Recipe(lambda: _pooled(1, 28, (8, 16)), "mnist", CrossEntropy(), TRAINED_ON),
    "tune-blind": _Recipe(
        lambda: nn.Sequential(_Steep(), _pooled(1, 28, (8, 16))), "mnist", CrossEntropy(), TRAINED_ON
    ),
    "tune-dense-linf": _Recipe(
        lambda: _dense(784, (100, 100, 100), 10), "mnist", Adversarial("linf", 0.1, 0.03, 5), TRAINED_ON
    ),
    "tune-table": _Recipe(lambda: _dense(30, (48, 48), 4), "table", CrossEntropy(), 4_000, 60),
    "tune-residual": _Recipe(lambda: resnet(8, 2), "cifar10", CrossEntropy(), COLOUR[1] - COLOUR[0], 12),
    "tune-colour": _Recipe(lambda: _pooled(3, 32, (16, 32)), "cifar10", CrossEntropy(), COLOUR[1] - COLOUR[0], 8),
}


def drawn_rows(columns: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """6,000 rows of a drawn table in [0, 1], four clusters for each class, and their classes."""
    draw = np.random.default_rng(seed)
    centres = draw.random((classes, 4, columns))
    label, cluster = draw.integers(0, classes, 6000), draw.integers(0, 4, 6000)
    rows = np.clip(centres[label, cluster] + draw.normal(0, 0.25, (6000, columns)), 0, 1)
    return torch.from_numpy(rows).float(), torch.from_numpy(label)


def load_tuning(
    name: str, images: int, data_dir: Path | None, keep: Path, device: str
) -> tuple[l0tre.Network, Dataset]:
    """A network of :data:`TUNING`, and the first images behind those that it was trained on."""
    recipe = TUNING[name]
    if recipe.data == "table":
        rows, labels = drawn_rows(30, 4, 7)
        data = Dataset(rows, labels, tuple(range(len(rows))), "table")
        held = recipe.first
    else:
        shape = (1, 28, 28) if recipe.data == "mnist" else (3, 32, 32)
        split = "train" if recipe.data == "mnist" else "test"
        data = l0tre.load_data(recipe.data, input_shape=shape, data_dir=data_dir, split=split)
        held = TRAINED_ON if recipe.data == "mnist" else COLOUR[1]
    module = recipe.build()
    file = keep / f"{name}.npz"
    if file.exists():
        with np.load(file) as weights:
            module.load_state_dict({key: torch.from_numpy(weights[key]) for key in weights.files})
    else:
        start = COLOUR[0] if recipe.data == "cifar10" else 0
        assert data.labels is not None
        module = _train(recipe, data.images[start : start + recipe.first], data.labels[start : start + recipe.first])
        keep.mkdir(parents=True, exist_ok=True)
        np.savez(file, **{key: value.numpy() for key, value in module.state_dict().items()})
    network = l0tre.load(module.eval().requires_grad_(False), input_shape=data.images.shape[1:], device=device)
    return network, select(data, indices=range(held, held + images))


def _train(recipe: _Recipe, images: Tensor, labels: Tensor) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = recipe.build()
        optimiser = torch.optim.Adam(module.parameters(), RATE)
        steps = recipe.epochs * (len(images) // BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps + 1)
        for step in range(steps):
            rows = torch.randint(0, len(images), (BATCH,))
            loss, _ = loss_and_scores(recipe.loss, module.train(), images[rows], labels[rows], step / steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return module
