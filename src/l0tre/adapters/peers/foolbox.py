"""Attacks of foolbox. They work on whole batches."""

import warnings
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.adapters.peers.peer import import_peer, seeded

__all__ = ["brendel_bethge", "compile_optimiser", "fmn", "load", "load_with_numba"]

START_DIRECTIONS = 50  # random noises tried as a starting point
START_STEPS = 50  # blends of an image with the noise
RADIUS = 0.03  # of the trust region, for each value of the input; a larger one gave the same where it was tried
SEARCH_STEPS = 10  # of the binary search for the boundary, foolbox's default


def load() -> ModuleType:
    """The package ``foolbox``."""
    return import_peer("foolbox")


def load_with_numba() -> ModuleType:
    """The same, if numba is there too."""
    import_peer("numba")
    return load()


def compile_optimiser() -> None:
    """Have numba compile Brendel and Bethge's optimiser, which takes longer than an attack."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        for value, parameter in zip((1.0, -2.0), linear.parameters(), strict=True):  # sum of x - 2, and 2 - sum of x
            sign = torch.tensor([1.0, -1.0]).reshape(2, *[1] * (parameter.ndim - 1))
            parameter.copy_((value * sign).expand_as(parameter))
    images = torch.zeros(1, 1, 2, 2)
    attack = load_with_numba().attacks.L0BrendelBethgeAttack(steps=2)
    with warnings.catch_warnings(action="ignore"):
        attack.run(_wrapped(linear, images), images, torch.tensor([1]), starting_points=torch.ones_like(images))


def _wrapped(model: nn.Module, images: Tensor) -> Any:
    return load().PyTorchModel(model.eval(), bounds=(0, 1), device=images.device)


@seeded
def fmn(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """Fast minimum norm, L0: one forward and one backward pass a step."""
    attack = load().attacks.L0FMNAttack(steps=max(1, budget // 2))
    found: Tensor = attack.run(_wrapped(model, images), images, labels)
    return found


@seeded
def brendel_bethge(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """Brendel and Bethge, L0: from blended noise along the boundary; images without a start are left as they are."""
    foolbox = load_with_numba()
    wrapped = _wrapped(model, images)
    noise = foolbox.attacks.LinearSearchBlendedUniformNoiseAttack(directions=START_DIRECTIONS, steps=START_STEPS)
    start = noise.run(wrapped, images, labels)
    with torch.no_grad():
        begun = model(start).argmax(1) != labels
    found = images.clone()
    if begun.any():
        spent = START_DIRECTIONS + START_STEPS + SEARCH_STEPS
        # Foolbox multiplies the radius by the number of images: for the same steps with one and with many, divide.
        rate = RADIUS / int(begun.sum())
        attack = foolbox.attacks.L0BrendelBethgeAttack(steps=max(1, (budget - spent) // 2), lr=rate)
        found[begun] = attack.run(wrapped, images[begun], labels[begun], starting_points=start[begun])
    return found
