"""What a peer is: an attack of another library behind one signature."""

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from l0tre.errors import MissingExtraError

__all__ = ["Peer", "Run", "changed_values", "count_classes", "import_peer", "keep_best", "seeded"]

Run = Callable[[nn.Module, Tensor, Tensor, int, int], Tensor]
Unseeded = Callable[[nn.Module, Tensor, Tensor, int], Tensor]
INSTALL = "pip install 'l0tre[peers]' && pip install --no-deps adv-lib torchattacks"


@dataclass(frozen=True)
class Peer:
    """An attack to compare with.

    Attributes:
        package: Where it comes from.
        unit: What it keeps few: ``pixel`` or ``feature`` (channel values).
        gradients: Whether it needs them.
        budget: How the budget of queries is spent, in words.
        about: The attack in one line.
        run: From a differentiable module (logits), images in [0, 1] ``[n, *shape]``, labels int64 ``[n]``, a budget
            (forwards + backwards for each image) and a seed to ``[n, *shape]``: adversarial inputs, and anything
            where none was found.
        load: Imports the library; raises :class:`MissingExtraError` if it is missing.
        warm: Whatever takes long at the first use only, such as compiling.
    """

    package: str
    unit: Literal["pixel", "feature"]
    gradients: bool
    budget: str
    about: str
    run: Run
    load: Callable[[], object]
    warm: Callable[[], object] = lambda: None


def import_peer(module: str) -> ModuleType:
    """Import a module of a peer's library.

    Raises:
        MissingExtraError: If it cannot be imported; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{package} is needed for this attack and cannot be imported ({error}); install the extra peers: {INSTALL}"
        ) from error


def seeded(attack: Unseeded) -> Run:
    """Give an attack that draws from the global generators of torch and numpy a seed; their state is put back.

    What its library warns of (old functions that it still calls, mostly) is not for the user.
    """

    @wraps(attack)
    def run(model: nn.Module, images: Tensor, labels: Tensor, budget: int, seed: int) -> Tensor:
        with _seeds(seed, images.device), warnings.catch_warnings(action="ignore"):
            return attack(model, images, labels, budget)

    return run


@contextmanager
def _seeds(seed: int, device: torch.device) -> Iterator[None]:
    before = np.random.get_state()
    np.random.seed(seed)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)


@torch.no_grad()
def count_classes(model: nn.Module, images: Tensor) -> int:
    """Number of classes, by one query."""
    return int(model(images[:1]).shape[1])


def changed_values(images: Tensor, changed: Tensor) -> Tensor:
    """Number of changed values of each image, int64 ``[n]``."""
    return (images != changed).flatten(1).sum(1)


@torch.no_grad()
def keep_best(model: nn.Module, images: Tensor, labels: Tensor, best: Tensor, tried: Tensor) -> Tensor:
    """The better of two results for each image: adversarial, and with fewer changed values.

    Args:
        model: The network, queried once for each image.
        images: The originals ``[n, *shape]``.
        labels: int64 ``[n]``.
        best: The best adversarial inputs so far; the original where there is none.
        tried: New inputs, adversarial or not.

    Returns:
        ``[n, *shape]``.
    """
    before, after = changed_values(images, best), changed_values(images, tried)
    better = (model(tried).argmax(1) != labels) & ((before == 0) | (after < before))
    return torch.where(better.reshape(-1, *[1] * (images.ndim - 1)), tried, best)
