"""Training of the zoo's networks, and the command that makes the bundled weights again.

Usage: ``python -m l0tre.zoo.train sdnn --data DIR --out DIR``, with ``mnist.npz`` in the data folder.
"""

import argparse
import copy
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0tre import zoo
from l0tre.data import Dataset, from_arrays, load_data
from l0tre.errors import ConfigError, DataError, L0treError, require

__all__ = ["Recipe", "accuracy", "main", "train", "unseen"]


@dataclass(frozen=True)
class Recipe:
    """How the bundled networks are trained: SGD with momentum on the cross entropy, one-cycle learning rate.

    Learning rate and weight decay were chosen on 5,000 of sdnn's training images held back from training, not on
    the test images.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images per step.
        learning_rate: Highest learning rate, reached after 30 % of the steps.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty on all parameters.
        seed: Seed of the first weights and of the order of the images.
    """

    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-3
    seed: int = 0


def train(
    module: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    seed: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int, float, float], None] | None = None,
) -> nn.Module:
    """Train a copy of a network; the given module and torch's random numbers on the CPU stay as they are.

    Args:
        module: Maps ``[batch, *shape]`` to ``[batch, classes]`` scores.
        images: ``[images, *shape]``, float32 in [0, 1].
        labels: ``[images]``, int64.
        epochs: Passes over the images.
        batch_size: Images per step; the last batch of an epoch may be smaller.
        learning_rate: Highest learning rate of the one-cycle schedule.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty on all parameters.
        seed: Seed of the order of the images and of layers such as dropout.
        device: Where to train.
        progress: Called after every epoch with its number from 1, the mean loss and the share of correct
            answers, both over the epoch's own steps.

    Returns:
        The trained copy, in evaluation mode on ``device``.

    Raises:
        ConfigError: If ``epochs`` or ``batch_size`` is below 1.
        DataError: If there are no images or not one label for each.
    """
    if epochs < 1 or batch_size < 1:
        raise ConfigError(f"epochs and batch_size must be at least 1, got {epochs} and {batch_size}")
    _check(images, labels)
    module = copy.deepcopy(module).to(device).train()
    images, labels = images.to(device), labels.to(device)
    optimiser = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
    steps = epochs * -(-len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=steps, cycle_momentum=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for epoch in range(1, epochs + 1):
            loss_sum, correct = torch.zeros((), device=device), torch.zeros((), device=device)
            for batch in torch.randperm(len(images)).to(device).split(batch_size):
                scores = module(images[batch])
                loss = F.cross_entropy(scores, labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                loss_sum += loss.detach() * len(batch)
                correct += (scores.argmax(1) == labels[batch]).sum()
            if progress is not None:
                progress(epoch, loss_sum.item() / len(images), correct.item() / len(images))
    return module.eval()


def accuracy(module: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 1000) -> float:
    """Share of images whose highest score is that of their label, from 0 to 1.

    Args:
        module: In evaluation mode; maps ``[batch, *shape]`` to ``[batch, classes]`` scores.
        images: ``[images, *shape]``, on the module's device.
        labels: ``[images]``, int64, on the same device.
        batch_size: Images per forward pass.

    Raises:
        DataError: If there are no images or not one label for each.
    """
    _check(images, labels)
    with torch.no_grad():
        hits = [
            int((module(some).argmax(1) == truth).sum())
            for some, truth in zip(images.split(batch_size), labels.split(batch_size), strict=True)
        ]
    return sum(hits) / len(images)


def unseen(images: Tensor, kept_back: Tensor) -> Tensor:
    """Which images are not among others, compared as 8-bit pixels.

    Args:
        images: ``[images, *shape]`` in [0, 1], of 8-bit origin.
        kept_back: ``[others, *shape]`` in [0, 1], of 8-bit origin.

    Returns:
        ``[images]``, bool: true where the image occurs nowhere in ``kept_back``.
    """
    known = set(_pixel_bytes(kept_back))
    return torch.tensor([image not in known for image in _pixel_bytes(images)])


def _check(images: Tensor, labels: Tensor) -> None:
    if len(images) == 0 or labels.shape != images.shape[:1]:
        raise DataError(
            f"got images of shape {tuple(images.shape)} and labels of shape {tuple(labels.shape)}; "
            "give at least one image and one label for each"
        )


def _pixel_bytes(images: Tensor) -> list[bytes]:
    return [image.tobytes() for image in (images * 255).round().to(torch.uint8).numpy()]


def _make(name: str, data: Path, out: Path, recipe: Recipe, device: str) -> None:
    """Train on MNIST without the digits of ``mnist5k`` and write ``NAME.safetensors`` and ``NAME.json``."""
    save = require("safetensors.torch", "zoo").save
    shape = zoo.entry(name).input_shape
    learn, test = (load_data("mnist", split=split, data_dir=data) for split in ("train", "test"))
    demo = load_data("mnist5k")
    # Resized images could coincide, so the digits of the demo are looked for at full size.
    fresh = unseen(learn.images, demo.images)
    images, labels = (values[fresh] for values in _resized(learn, shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        module = zoo.build(name)
    module = train(module, images, labels, **asdict(recipe), device=device, progress=_say).cpu()
    out.mkdir(parents=True, exist_ok=True)
    weights = save({key: value.contiguous() for key, value in module.state_dict().items()})
    (out / f"{name}.safetensors").write_bytes(weights)
    record = {
        "network": name,
        "training_images": len(images),
        "training_data": "MNIST training images without the 5,000 of mnist5k (matched by their bytes)",
        "resize": "area average",
        "optimiser": "SGD",
        "schedule": "one-cycle learning rate, constant momentum",
        "loss": "cross entropy",
        **asdict(recipe),
        "torch": torch.__version__,
        "device": device,
        "threads": torch.get_num_threads(),
        "accuracy_mnist_test": accuracy(module, *_resized(test, shape)),
        "accuracy_mnist5k": accuracy(module, *_resized(demo, shape)),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    text = json.dumps(record, indent=2) + "\n"
    (out / f"{name}.json").write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def _resized(data: Dataset, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Images ``[images, *shape]`` and their labels ``[images]``."""
    if data.labels is None:
        raise DataError(f"{data.name} has no labels; training and testing need one for each image")
    return from_arrays(data.images, input_shape=shape, name=data.name, resize=True).images, data.labels


def _say(epoch: int, loss: float, correct: float) -> None:
    sys.stdout.write(f"epoch {epoch}: loss {loss:.4f}, {correct:.2%} of the training images correct\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the weights of a network again.

    Args:
        arguments: Command-line arguments; those of the process if not given.

    Returns:
        Exit status: 0, or 1 after an error that the user can act on.
    """
    recipe = Recipe()
    parser = argparse.ArgumentParser(prog="python -m l0tre.zoo.train", description="Train a network of the zoo.")
    parser.add_argument("name", choices=zoo.names())
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with mnist.npz")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for weights and record")
    parser.add_argument("--epochs", type=int, default=recipe.epochs, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=recipe.seed, help="default: %(default)s")
    parser.add_argument("--device", default="cpu", help="torch device, default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        recipe = replace(recipe, epochs=options.epochs, seed=options.seed)
        _make(options.name, options.data, options.out, recipe, options.device)
    except L0treError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
