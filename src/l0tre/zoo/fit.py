"""The training loop of the zoo, and accuracy."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from l0tre.errors import ConfigError, DataError
from l0tre.model.network import exact_float32
from l0tre.zoo.augment import shifted_and_mirrored
from l0tre.zoo.losses import loss_and_scores
from l0tre.zoo.recipes import Recipe

__all__ = ["Progress", "accuracy", "repeatable", "train"]

Progress = Callable[[int, float, float], None]


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Inside, the same steps on the same machine give the same bits; no TF32."""
    enabled = torch.backends.cudnn.enabled
    with (
        exact_float32(device),
        torch.backends.cudnn.flags(enabled=enabled, benchmark=False, deterministic=True, allow_tf32=False),
    ):
        yield


def train(
    module: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> nn.Module:
    """Train a copy of a network; the given module and torch's random numbers stay as they are.

    Args:
        module: Maps ``[batch, *shape]`` to ``[batch, classes]`` scores.
        images: ``[images, *shape]``, float32 in [0, 1]; all are used, whatever ``recipe.first`` says.
        labels: ``[images]``, int64.
        recipe: How to train; the last batch of an epoch may be smaller than its ``batch_size``.
        device: Where to train.
        progress: Called after every epoch with its number from 1, the mean loss and the share of correct
            answers, both over the epoch's own steps.

    Returns:
        The trained copy, in evaluation mode on ``device``.

    Raises:
        ConfigError: If the recipe makes no sense.
        DataError: If there are no images or not one label for each.
    """
    _check_recipe(recipe)
    _check(images, labels)
    device = torch.device(device)
    module = copy.deepcopy(module).to(device).train()
    images, labels = images.to(device), labels.to(device)
    optimiser = torch.optim.SGD(
        module.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )
    steps = recipe.epochs * -(-len(images) // recipe.batch_size)
    schedule, step = _schedule(optimiser, recipe, steps), 0
    with repeatable(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(recipe.seed)
        for epoch in range(1, recipe.epochs + 1):
            # Nothing in an epoch waits for the device: sums stay there, and the order is sent once.
            loss_sum, correct = torch.zeros((), device=device), torch.zeros((), device=device)
            for batch in torch.randperm(len(images)).to(device).split(recipe.batch_size):
                shown, truth = images[batch], labels[batch]
                if recipe.augment:
                    shown = shifted_and_mirrored(shown)
                loss, scores = loss_and_scores(recipe.loss, module, shown, truth, step / steps)
                step += 1
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                loss_sum += loss.detach() * len(batch)
                correct += (scores.argmax(1) == truth).sum()
            if progress is not None:
                progress(epoch, loss_sum.item() / len(images), correct.item() / len(images))
    return module.eval()


def accuracy(module: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 1000) -> float:
    """Share of images whose highest score is that of their label, from 0 to 1.

    Args:
        module: In evaluation mode; maps ``[batch, *shape]`` to ``[batch, classes]`` scores.
        images: ``[images, *shape]``; batches go to the module's device.
        labels: ``[images]``, int64.
        batch_size: Images per forward pass.

    Raises:
        DataError: If there are no images or not one label for each.
    """
    _check(images, labels)
    device = next((value.device for value in module.parameters()), images.device)
    with torch.no_grad(), repeatable(device):
        hits = [
            int((module(some.to(device)).argmax(1) == truth.to(device)).sum())
            for some, truth in zip(images.split(batch_size), labels.split(batch_size), strict=True)
        ]
    return sum(hits) / len(images)


def _schedule(optimiser: torch.optim.Optimizer, recipe: Recipe, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    if recipe.one_cycle:
        return torch.optim.lr_scheduler.OneCycleLR(
            optimiser, recipe.learning_rate, total_steps=steps, cycle_momentum=False
        )
    return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 / (1 + recipe.decay * step))


def _check_recipe(recipe: Recipe) -> None:
    if recipe.epochs < 1 or recipe.batch_size < 1:
        raise ConfigError(
            f"epochs and batch_size must be at least 1, got {recipe.epochs} and {recipe.batch_size}: give more"
        )
    if not (0 < recipe.learning_rate < float("inf") and 0 <= recipe.weight_decay < float("inf")):
        raise ConfigError(
            f"the learning rate is {recipe.learning_rate}, the weight decay {recipe.weight_decay}: give a learning "
            "rate above 0, such as 0.01, and a weight decay of at least 0, such as 0.0001"
        )


def _check(images: Tensor, labels: Tensor) -> None:
    if len(images) == 0 or labels.shape != images.shape[:1]:
        raise DataError(
            f"got images of shape {tuple(images.shape)} and labels of shape {tuple(labels.shape)}; "
            "give at least one image and one label for each"
        )
