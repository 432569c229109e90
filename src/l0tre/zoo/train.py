"""From data to stored weights: training a network of the zoo by its recipe.

Usage without the command line's packages: ``python -m l0tre.zoo.train NAME [NAME ...] --data-dir DIR --out DIR``.
"""

import argparse
import copy
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from l0tre import zoo
from l0tre.data import Dataset, from_arrays, load_data
from l0tre.errors import DataError, L0treError, require
from l0tre.model.network import pick_device
from l0tre.zoo.fit import Progress, accuracy, train
from l0tre.zoo.networks import beside_paper
from l0tre.zoo.recipes import Recipe
from l0tre.zoo.weights_store import pack, user_folder, write

__all__ = ["adjusted", "main", "make", "unseen"]

# Rounding weights to float16 may change the decisions of so many test images in 10,000; with more they stay float32.
_HALF_LOSS = 5


@dataclass(frozen=True)
class _Data:
    """Images ``[images, *shape]`` and labels ``[images]`` to learn from, to test with, and those kept back."""

    learn: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    demo: tuple[Tensor, Tensor] | None
    resized: bool


def adjusted(
    recipe: Recipe,
    *,
    epochs: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    seed: int | None = None,
) -> Recipe:
    """A recipe with some of its settings replaced; ``None`` keeps a setting."""
    wishes = {"epochs": epochs, "learning_rate": learning_rate, "weight_decay": weight_decay, "seed": seed}
    return replace(recipe, **{key: value for key, value in wishes.items() if value is not None})  # type: ignore[arg-type]


def make(
    name: str,
    *,
    out: Path,
    recipe: Recipe | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a network and store its weights and their record.

    Args:
        name: One of :func:`l0tre.zoo.names`.
        out: Folder for ``NAME.safetensors`` and ``NAME.json``; made if need be, files in it are replaced.
        recipe: How to train; the network's own if not given.
        data: What :func:`l0tre.load_data` takes, with a train and a test split; the network's own if not given.
        data_dir: Where data sets known by name are looked for first.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:0``.
        progress: As for :func:`l0tre.zoo.fit.train`.

    Returns:
        The record, as stored. Accuracies are shares from 0 to 1, measured with the weights as stored.

    Raises:
        L0treError: If the data cannot be used, the recipe makes no sense, or the weights cannot be stored.
    """
    entry = zoo.entry(name)
    recipe = entry.recipe if recipe is None else recipe
    data = entry.data if data is None else data
    target = pick_device(device)
    require("safetensors.torch", "zoo")  # before the work, not after it
    sets = _read(data, data_dir, entry, recipe)
    began = time.monotonic()
    module = train(zoo.build(name, recipe.seed), *sets.learn, recipe, device=target, progress=progress)
    seconds = time.monotonic() - began
    exact = accuracy(module, *sets.test)
    half = False
    if recipe.half:
        rounded = copy.deepcopy(module)
        rounded.load_state_dict(pack(module, half=True))
        half = abs(accuracy(rounded, *sets.test) - exact) * 10_000 <= _HALF_LOSS + 1e-6
        module = rounded if half else module
    record = {
        "network": name,
        "data": data,
        "training_images": len(sets.learn[0]),
        "training_data": _which(recipe),
        "resize": "area average" if sets.resized else "none",
        "optimiser": "SGD",
        "schedule": _schedule_words(recipe),
        **asdict(recipe),
        "loss": str(recipe.loss),
        "parameters": sum(value.numel() for value in module.parameters()),
        "weights": "float16" if half else "float32",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(target) if target.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "cudnn_deterministic": True,
        "tf32": False,
        "seconds": round(seconds, 1),
        "test_images": len(sets.test[0]),
        "accuracy_train": accuracy(module, *sets.learn),
        "accuracy_test": accuracy(module, *sets.test),
        "accuracy_test_before_rounding": exact,
    }
    if sets.demo is not None:
        record["accuracy_mnist5k"] = accuracy(module, *sets.demo)
    return write(name, pack(module, half=half), record, out)


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


def _pixel_bytes(images: Tensor) -> list[bytes]:
    return [image.tobytes() for image in (images * 255).round().to(torch.uint8).numpy()]


def _read(source: str, data_dir: Path | None, entry: zoo.Entry, recipe: Recipe) -> _Data:
    shape = entry.input_shape
    learn, test = (load_data(source, split=split, data_dir=data_dir) for split in ("train", "test"))
    if torch.equal(learn.images, test.images):
        raise DataError(f"{source} has no splits: training needs other images than testing; give train_x and test_x")
    images, labels = _fitted(learn, entry)
    demo = None
    if recipe.keep_back_mnist5k:
        # Resized images could coincide, so the digits of the demo are looked for at full size.
        kept_back = load_data("mnist5k")
        fresh = unseen(learn.images, kept_back.images)
        images, labels, demo = images[fresh], labels[fresh], _fitted(kept_back, entry)
    resized = tuple(learn.images.shape[1:]) != shape
    return _Data((images[: recipe.first], labels[: recipe.first]), _fitted(test, entry), demo, resized)


def _fitted(data: Dataset, entry: zoo.Entry) -> tuple[Tensor, Tensor]:
    """Images ``[images, *input_shape]`` and their labels ``[images]``."""
    if data.labels is None:
        raise DataError(f"{data.name} has no labels; training and testing need one for each image")
    if int(data.labels.max()) >= entry.classes:
        raise DataError(
            f"{data.name} has the label {int(data.labels.max())}; {entry.name} knows the classes 0 to "
            f"{entry.classes - 1}, give it data with no more"
        )
    fitted = from_arrays(data.images, input_shape=entry.input_shape, name=data.name, resize=True)
    return fitted.images, data.labels


def _which(recipe: Recipe) -> str:
    which = "all training images" if recipe.first is None else f"the first {recipe.first:,} training images"
    return f"{which}, without the 5,000 of mnist5k (matched by their bytes)" if recipe.keep_back_mnist5k else which


def _schedule_words(recipe: Recipe) -> str:
    if recipe.one_cycle:
        return "one-cycle learning rate, constant momentum"
    return "learning rate / (1 + decay * step)" if recipe.decay else "constant learning rate"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train networks of the zoo, one after another.

    Args:
        arguments: Command-line arguments; those of the process if not given.

    Returns:
        Exit status: 0, or 1 after an error that the user can act on.
    """
    parser = argparse.ArgumentParser(
        prog="python -m l0tre.zoo.train",
        description="Train networks of the zoo, as l0tre zoo train does, without its packages.",
    )
    own = "default: the network's own"
    parser.add_argument("names", nargs="+", choices=zoo.names(), metavar="NAME", help=", ".join(zoo.names()))
    parser.add_argument("--data", help=f"what l0tre takes as data, with train and test split; {own}")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with the files of mnist or cifar10")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for the weights, default: {user_folder()}")
    parser.add_argument("--epochs", type=int, help=own)
    parser.add_argument("--learning-rate", type=float, metavar="X", help=own)
    parser.add_argument("--weight-decay", type=float, metavar="X", help=own)
    parser.add_argument("--seed", type=int, help=own)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:0; default: %(default)s")
    options = parser.parse_args(arguments)
    settings = {key: getattr(options, key) for key in ("epochs", "learning_rate", "weight_decay", "seed")}
    for name in options.names:
        try:
            record = make(
                name,
                out=options.out or user_folder(),
                recipe=adjusted(zoo.entry(name).recipe, **settings),
                data=options.data,
                data_dir=options.data_dir,
                device=options.device,
                progress=partial(_say, name),
            )
        except L0treError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        sys.stdout.write(
            f"{name}: {record['accuracy_test']:.2%} of {record['test_images']} test images correct"
            f"{beside_paper(zoo.entry(name))}, {record['weights']}, {record['seconds']} s\n"
        )
    return 0


def _say(name: str, epoch: int, loss: float, correct: float) -> None:
    sys.stdout.write(f"{name} epoch {epoch}: loss {loss:.4f}, {correct:.2%} of the training images correct\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
