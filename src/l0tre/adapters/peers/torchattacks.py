"""Attacks of torchattacks. They go through a batch one image at a time, and take images ``[n, channels, H, W]``.

They change images value by value, and index numpy arrays by labels: images and labels stay on the CPU, only the network
computes where it is.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.adapters.peers.peer import count_classes, import_peer, keep_best, seeded
from l0tre.errors import ConfigError

__all__ = ["load", "one_pixel", "pixle", "sparsefool"]

PIXEL_COUNTS = (1, 2, 4, 8, 16, 32)  # the one-pixel attack is for a given number of pixels
POPULATION = 20  # of the differential evolution
PIXLE_ITERATIONS = 10  # of a restart, torchattacks' default; each costs two forward passes
OVERSHOOTS = (1, 2, 3)  # SparseFool's lambda: smaller changes fewer values, larger succeeds more often
DEEPFOOL_STEPS = 8  # that one step of SparseFool usually takes, each with a backward pass for every class


def load() -> ModuleType:
    """The package ``torchattacks``."""
    return import_peer("torchattacks")


class _Remote(nn.Module):
    """A network elsewhere, for inputs and scores on the CPU."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.model = (model,)  # not a part, so that it is not moved
        self.device = device
        self.here = nn.Parameter(torch.empty(0), requires_grad=False)  # where torchattacks computes

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model[0](x.to(self.device))
        return scores.cpu()


def _run(make: Callable[[nn.Module], Any], model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    if images.ndim != 4:
        raise ConfigError(f"torchattacks takes images (channels, H, W), these have shape {tuple(images.shape[1:])}")
    found: Tensor = make(_Remote(model, images.device).eval())(images.cpu(), labels.cpu())
    return found.detach().to(images)


def _open(images: Tensor, best: Tensor) -> Tensor:
    """Numbers of the images for which nothing was found yet."""
    return (best == images).flatten(1).all(1).nonzero()[:, 0]


@seeded
def sparsefool(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """SparseFool: sparse steps towards the boundary that DeepFool linearises, overshot by 1, then 2, then 3."""
    classes = count_classes(model, images)
    steps = max(1, budget // (len(OVERSHOOTS) * DEEPFOOL_STEPS * (classes + 1)))
    best = images.clone()
    for overshoot in OVERSHOOTS:
        rows = _open(images, best)
        if len(rows):
            part, make = images[rows], partial(load().SparseFool, steps=steps, lam=overshoot)
            best[rows] = keep_best(model, part, labels[rows], part, _run(make, model, part, labels[rows]))
    return best


@seeded
def pixle(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """Pixle with patches of one pixel, which change the fewest: a restart moves the best of its pixels."""
    restarts = max(1, budget // (2 * PIXLE_ITERATIONS))
    options = {"x_dimensions": 1, "y_dimensions": 1, "restarts": restarts, "max_iterations": PIXLE_ITERATIONS}
    return _run(partial(load().Pixle, **options), model, images, labels)


@seeded
def one_pixel(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """The one-pixel attack (differential evolution) for 1, 2, 4, ... pixels until the decision changes."""
    counts = [count for count in PIXEL_COUNTS if count <= images[0, 0].numel()]
    best = images.clone()
    for count in counts:
        rows = _open(images, best)
        if not len(rows):
            break
        numbers = count * (2 + images.shape[1])  # of one member of the population: place and colour of each pixel
        members = max(1, POPULATION // numbers) * numbers
        generations = budget // (len(counts) * (members + 1)) - 1  # beside the first one
        if generations < 1:
            break
        options = {"pixels": count, "steps": generations, "popsize": POPULATION, "inf_batch": members}
        part, make = images[rows], partial(load().OnePixel, **options)
        best[rows] = keep_best(model, part, labels[rows], part, _run(make, model, part, labels[rows]))
    return best
