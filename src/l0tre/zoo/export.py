"""Trained networks of the zoo as files that other programs read: ``.onnx`` and ``.pt2``."""

import logging
import tempfile
import warnings
from importlib.resources.abc import Traversable
from pathlib import Path

import torch
from torch import nn

from l0tre import zoo
from l0tre.errors import ConfigError, ModelError, require
from l0tre.model.load import load

__all__ = ["export"]

_CHECKS = 16  # random inputs on which the file is compared with the network
_TOLERANCE = 1e-4  # largest difference of scores allowed there, relative to the largest score


def export(name: str, path: str | Path, folder: Traversable | None = None) -> float:
    """Write a trained network to a file, with a batch of any size, normalisation included.

    The file is loaded again and compared with the network before it gets its name.

    Args:
        name: One of :func:`l0tre.zoo.names`.
        path: Ends with ``.onnx`` or ``.pt2``; a file that is there is replaced.
        folder: Where the weights are, as for :func:`l0tre.zoo.load`.

    Returns:
        The largest difference of a score between the file and the network, on random inputs.

    Raises:
        ConfigError: If the path has another ending, or its folder is missing.
        ModelError: If the network is not trained yet, or the file gives other scores than the network.
        MissingExtraError: If a package that writing or checking ONNX needs is not installed.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".onnx", ".pt2"):
        raise ConfigError(f"{path} does not say the format: give a file that ends with .onnx or .pt2")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for {path.name}: make it first")
    if suffix == ".onnx":
        for package in ("onnxscript", "onnx", "onnxruntime"):
            require(package, "onnx")
    module = zoo.load(name, folder).requires_grad_(False)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".l0tre-") as place:
        file = Path(place) / f"network{suffix}"
        _write(module, zoo.entry(name).input_shape, file)
        gap = _compare(module, file)
        file.replace(path)
    return gap


def _write(module: nn.Module, shape: tuple[int, ...], file: Path) -> None:
    sample = (torch.zeros(2, *shape),)
    sizes = ({0: torch.export.Dim("batch")},)
    if file.suffix == ".pt2":
        torch.export.save(torch.export.export(module, sample, dynamic_shapes=sizes), file)
        return
    # What it says is about the exporter's own parts, nothing that a user can act on.
    talk = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = talk.level
    talk.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                sample,
                file,
                dynamo=True,
                dynamic_shapes=sizes,
                input_names=["input"],
                output_names=["scores"],
                external_data=False,
                verbose=False,
            )
    finally:
        talk.setLevel(level)


def _compare(module: nn.Module, file: Path) -> float:
    network = load(file, device="cpu")
    shape = network.input_shape
    x = torch.rand(_CHECKS, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = module(x)
    gap = 0.0
    for batch in (x, x[:1]):  # a batch of any size must go
        gap = max(gap, float((network.reference(batch) - wanted[: len(batch)]).abs().max()))
    if not gap <= _TOLERANCE * (1 + float(wanted.abs().max())):
        raise ModelError(
            f"the {file.suffix} file gives other scores than the network (largest difference {gap:.3g}): try another "
            "version of torch, or the other format"
        )
    return gap
