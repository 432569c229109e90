"""Seconds for whole data sets on many GPUs: seconds an image as measured on one, times images, over GPUs.

What was measured: seconds an image on one H200, documents in brackets; the share of the ideal that 64 workers reach
(``benchmarks.scaling overhead``). What is assumed: that the other images of a data set are like those that were
measured; that GPUs do not wait for each other; and what a row says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from l0tre import zoo

__all__ = ["GPUS", "NETWORKS", "Row", "as_text", "multiplications", "table"]

GPUS = (8, 64, 512)
EFFICIENCY = 0.9  # of workers, what ``benchmarks.scaling overhead`` asks for
BLOCK = 1024  # images that are attacked together on a GPU, see ``Tuning.attack_images``
# Seconds of an attack of 1,000 queries on an image of dnn-0: 0.096 with it, 0.061 without [case study one].
ATTACK = 0.035
START = 30.0  # seconds until workers of GPUs have imported torch and compiled their kernels, assumed


def _resnet18() -> nn.Module:
    """The convolutions of ResNet-18 in a row, as many multiplications; shortcuts cost next to nothing."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for step in (stride, 1, 1, 1):
            layers += [nn.Conv2d(before, width, 3, step, 1), nn.ReLU()]
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


Build = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Build, tuple[int, int, int]]] = {
    "cifar10-attack": (lambda: zoo.build("cifar10-attack", seed=0), (3, 32, 32)),
    "resnet18-like": (_resnet18, (3, 224, 224)),
}


def multiplications(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Of one forward pass, by convolutions and dense layers."""
    total = 0

    def count(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Conv2d | nn.Linear):
            total += output[0].numel() * layer.weight[0].numel()

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.inference_mode():
        module.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return total


@dataclass(frozen=True)
class Row:
    """A data set, a network and a level.

    Attributes:
        what: In words.
        images: How many.
        seconds: Of one image on one GPU, lower levels and the attack included.
        attack: Of these, seconds of the attack, which goes by blocks.
        slowest: Of the slowest image: no number of GPUs goes below it.
        source: Where the seconds come from.
        measured: Whether they were, on that network and level.
    """

    what: str
    images: int
    seconds: float
    attack: float
    slowest: float
    source: str
    measured: bool

    def on(self, gpus: int) -> float:
        """Seconds on so many GPUs."""
        attacks = math.ceil(math.ceil(self.images / BLOCK) / gpus) * BLOCK * self.attack
        return START + attacks + self.images * (self.seconds - self.attack) / gpus / EFFICIENCY + self.slowest


def table() -> list[Row]:
    """All rows."""
    pixels, corners = 224 * 224, 8
    cifar, imagenet = (multiplications(build(), shape) for build, shape in NETWORKS.values())
    passes = 8192 / 0.0319 * cifar / imagenet  # a second
    small = "CIFAR-10 ConvSmallPGD, t <= 3"
    return [
        Row("MNIST sdnn, t <= 2", 10_000, 0.03, 0.0, 7.6, "median of the images that need a proof", True),
        Row("MNIST sdnn, t <= 3", 10_000, 0.0737, 0.0, 7.6, "5,264 images", True),
        Row("MNIST dnn-0, t <= 2", 10_000, 0.347, ATTACK, 4.1, "2,385 images, the GPU shared at first", True),
        Row("MNIST 6x200_PGD, t <= 3", 10_000, 0.55, ATTACK, 1.33, "10 images", True),
        Row("MNIST ConvSmallPGD, t <= 5", 10_000, 1.85, ATTACK, 7.5, "10 images; t = 2 and 3 are less", True),
        Row("CIFAR-10 ConvSmallPGD, t <= 2", 10_000, 0.59, ATTACK, 3.2, "20 images", True),
        Row(
            small,
            10_000,
            0.59 * 15.0,
            ATTACK,
            3.2 * 15.0,
            "t = 2 times 15, as from t = 5 to 6 of MNIST ConvSmallPGD",
            False,
        ),
        Row(
            "ImageNet ResNet-18, t = 1, corners",
            50_000,
            pixels * corners / passes,
            0.0,
            pixels * corners / passes,
            f"{pixels * corners:,} passes, {passes:,.0f} a second: those of cifar10-attack by multiplications",
            False,
        ),
    ]


def as_text(rows: list[Row]) -> str:
    """Lines of a table of the documents."""
    lines = ["| | seconds an image | " + " | ".join(f"{gpus} GPUs" for gpus in GPUS) + " | from |"]
    lines.append("|---|---|" + "---|" * len(GPUS) + "---|")
    for row in rows:
        times = " | ".join(_words(row.on(gpus)) for gpus in GPUS)
        kind = "measured" if row.measured else "assumed"
        lines.append(f"| {row.what} | {row.seconds:.3g} | {times} | {kind}: {row.source} |")
    return "\n".join(lines)


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
