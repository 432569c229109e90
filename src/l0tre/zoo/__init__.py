"""Networks that come with the package: ``load("sdnn")`` gives a trained one."""

import hashlib
import json
from importlib.resources import files
from importlib.resources.abc import Traversable

import torch
from torch import nn

from l0tre.errors import ModelError, require
from l0tre.zoo.networks import NETWORKS, Entry

__all__ = ["NETWORKS", "Entry", "build", "entry", "load", "names"]


def names() -> tuple[str, ...]:
    """The names of all networks of the zoo."""
    return tuple(NETWORKS)


def entry(name: str) -> Entry:
    """What is known about a network: its input shape, its classes, where it comes from.

    Args:
        name: One of :func:`names`.

    Raises:
        ModelError: If there is no such network.
    """
    if name not in NETWORKS:
        raise ModelError(f"the zoo has no network {name!r}; choose one of: {', '.join(names())}")
    return NETWORKS[name]


def build(name: str) -> nn.Module:
    """A network with fresh random weights, in training mode.

    Args:
        name: One of :func:`names`.

    Returns:
        A module from ``[batch, *input_shape]`` in [0, 1] to ``[batch, classes]`` scores.

    Raises:
        ModelError: If there is no such network.
    """
    return entry(name).build()


def load(name: str, folder: Traversable | None = None) -> nn.Module:
    """A trained network, in evaluation mode on the CPU.

    Args:
        name: One of :func:`names`.
        folder: Where ``NAME.safetensors`` and ``NAME.json`` are; the bundled ones if not given.

    Returns:
        A module from ``[batch, *input_shape]`` in [0, 1] to ``[batch, classes]`` scores.

    Raises:
        ModelError: If there is no such network, or its weights are missing, damaged or of another network.
        MissingExtraError: If safetensors is not installed.
    """
    with torch.random.fork_rng(devices=[]):  # loading must not move the caller's random numbers
        module = build(name)
    folder = files("l0tre.zoo").joinpath("weights") if folder is None else folder
    retrain = f"python -m l0tre.zoo.train {name} --data DIR --out DIR"
    try:
        weights = folder.joinpath(f"{name}.safetensors").read_bytes()
        recorded = json.loads(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"the weights of {name} cannot be read from {folder} ({error!r}); reinstall l0tre or run: {retrain}"
        ) from error
    found = hashlib.sha256(weights).hexdigest()
    if found != recorded:
        raise ModelError(
            f"{name}.safetensors in {folder} is damaged: its sha256 is {found}, {name}.json says {recorded}; "
            f"reinstall l0tre or run: {retrain}"
        )
    parse, unparsable = require("safetensors.torch", "zoo").load, require("safetensors", "zoo").SafetensorError
    try:
        module.load_state_dict(parse(weights))
    except (RuntimeError, unparsable) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{name}.safetensors in {folder} does not fit {name}: {reason}; run: {retrain}") from error
    return module.eval()
