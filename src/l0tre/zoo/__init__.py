"""The paper's networks: ``load("sdnn")`` gives one that comes trained, ``l0tre zoo train NAME`` trains the others."""

from importlib.resources.abc import Traversable

import torch
from torch import nn

from l0tre.errors import ModelError
from l0tre.zoo import weights_store as store
from l0tre.zoo.networks import NETWORKS, Entry
from l0tre.zoo.recipes import Recipe

__all__ = ["NETWORKS", "Entry", "Recipe", "build", "entry", "load", "names", "parameters"]


def names() -> tuple[str, ...]:
    """The names of all networks of the zoo."""
    return tuple(NETWORKS)


def entry(name: str) -> Entry:
    """What is known about a network: its input shape, its classes, how it is trained, where it comes from.

    Args:
        name: One of :func:`names`.

    Raises:
        ModelError: If there is no such network.
    """
    if name not in NETWORKS:
        raise ModelError(f"the zoo has no network {name!r}; choose one of: {', '.join(names())}")
    return NETWORKS[name]


def build(name: str, seed: int | None = None) -> nn.Module:
    """A network with fresh random weights, in training mode.

    Args:
        name: One of :func:`names`.
        seed: Of the weights; torch's global random numbers then stay as they are. Without it they are used.

    Returns:
        A module from ``[batch, *input_shape]`` in [0, 1] to ``[batch, classes]`` scores.

    Raises:
        ModelError: If there is no such network.
    """
    if seed is None:
        return entry(name).build()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return entry(name).build()


def parameters(name: str) -> int:
    """How many numbers training a network adjusts.

    Raises:
        ModelError: If there is no such network.
    """
    with torch.device("meta"):  # shapes without memory
        return sum(value.numel() for value in build(name).parameters())


def load(name: str, folder: Traversable | None = None) -> nn.Module:
    """A trained network, in evaluation mode on the CPU.

    Args:
        name: One of :func:`names`.
        folder: Where ``NAME.safetensors`` and ``NAME.json`` are; if not given, the bundled ones, else those in the
            user's folder (:func:`l0tre.zoo.weights_store.user_folder`).

    Returns:
        A module from ``[batch, *input_shape]`` in [0, 1] to ``[batch, classes]`` scores, in float32.

    Raises:
        ModelError: If there is no such network, it is not trained yet, or its weights are damaged or of another
            network.
        MissingExtraError: If safetensors is not installed.
    """
    module = build(name, seed=0)
    place = store.find(name) if folder is None else folder
    if place is None:
        raise ModelError(
            f"{name} is not trained yet: it is not bundled, and there is no {name}.safetensors in "
            f"{store.user_folder()} (L0TRE_ZOO names another folder); run: l0tre zoo train {name}"
        )
    store.read_weights(name, module, place)
    return module.eval()
