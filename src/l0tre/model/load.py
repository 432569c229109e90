"""Load a network from whatever the user has, and check it before anything is claimed about it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from l0tre.errors import ModelError
from l0tre.limits import refuse_large
from l0tre.model.finish import finish
from l0tre.model.network import Network, pick_device
from l0tre.model.normalise import make_normalisation
from l0tre.model.sources import ByName, Source, name_of, read_source, unknown_name, with_weights

__all__ = ["Numbers", "load"]

Numbers = Sequence[float] | float

POINT_BYTES = 128  # for each value of an input, when a network is compared with its source on some of them


def load(
    source: Source,
    *,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    input_shape: Sequence[int] | None = None,
    device: str = "auto",
    by_name: ByName = unknown_name,
    words: Mapping[int, Sequence[str]] | None = None,
    weights: str | Path | None = None,
) -> Network:
    """Load a classifier.

    Args:
        source: An ``.onnx`` or ``.pt2`` file, the name of a network of the zoo (``sdnn``), a reference
            ``package.module:name`` or ``file.py:name``, an ``nn.Module``, a fitted classifier or pipeline with
            scikit-learn's interface, or any function from a batch (torch or numpy) to scores.
        mean: Subtracted from the input inside the model: one number, or one for each channel.
        std: Divides the input inside the model, likewise.
        input_shape: Shape of one input; needed for modules and functions, checked for the others.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:0``.
        by_name: Gives the module and the input shape of a network that is known by name.
        words: For classifiers with scikit-learn's interface that were fitted on a table: by position of a column the
            words that the whole numbers 0, 1, ... in it stand for.
        weights: For a module or a class of modules: a ``.safetensors`` file, or a ``.pth`` or ``.pt`` file of a
            ``state_dict``, of which nothing but tensors is read.

    Returns:
        The network. It was compared with its source on random inputs.

    Raises:
        ModelError: If it cannot be loaded, or gives other scores than its source, or scores that cannot be used.
    """
    if isinstance(source, Network):
        if mean is not None or std is not None:
            raise ModelError("this network is loaded already: give mean and std when you load it")
        return source
    wish = None if input_shape is None else tuple(input_shape)
    if wish is not None and min(wish, default=0) < 1:
        raise ModelError(f"the input shape is {wish}: give the size of every dimension, such as (1, 28, 28)")
    target = pick_device(device)
    if target.type not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is not supported: give auto, cpu, cuda or cuda:0")
    if wish is not None:
        _refuse_large_input(wish, name_of(source))
    given = source if weights is None else with_weights(source, Path(weights))
    loaded = read_source(given, wish, by_name, words or {})
    _refuse_large_input(loaded.input_shape, name_of(source))
    if wish is not None and wish != loaded.input_shape and len(wish) == len(loaded.input_shape) == 1:
        raise ModelError(
            f"{name_of(source)} takes {loaded.input_shape[0]} values for each input, not {wish[0]}: leave out columns "
            "that are no inputs (`drop`, `row_name`, `label_column`), or give those that are missing"
        )
    if wish is not None and wish != loaded.input_shape:
        raise ModelError(f"{name_of(source)} takes inputs of shape {loaded.input_shape}, not {wish}")
    network = finish(loaded, make_normalisation(mean, std, loaded.input_shape), target, name_of(source))
    if not isinstance(source, str | Path):
        return network
    origin = {"path": _place(str(source)), "mean": _plain(mean), "std": _plain(std)}
    return replace(network, origin=origin if weights is None else {**origin, "weights": str(Path(weights).resolve())})


def _refuse_large_input(shape: tuple[int, ...], name: str) -> None:
    try:
        refuse_large(POINT_BYTES * math.prod(shape), f"looking at inputs of shape {shape}")
    except ValueError as error:
        raise ModelError(f"{name} cannot be loaded: {error}") from error


def _place(name: str) -> str:
    """A file's absolute path, so that a run can be resumed from any folder; other names as they are."""
    file, colon, member = name.rpartition(":")
    if file.endswith(".py"):
        return f"{Path(file).resolve()}{colon}{member}"
    return str(Path(name).resolve()) if Path(name).is_file() else name


def _plain(numbers: Numbers | None) -> list[float] | None:
    return None if numbers is None else torch.as_tensor(numbers, dtype=torch.float64).reshape(-1).tolist()
