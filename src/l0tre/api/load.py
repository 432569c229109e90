"""Load a network from a file, from Python, or from the zoo by its name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from l0tre import zoo
from l0tre.errors import ModelError
from l0tre.model.load import Numbers
from l0tre.model.load import load as load_source
from l0tre.model.network import Network
from l0tre.model.sources import Source

__all__ = ["load"]


def load(
    source: Source,
    *,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    input_shape: Sequence[int] | None = None,
    device: str = "auto",
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
        words: For classifiers fitted on a table with words: by position of a column the words that the whole numbers
            0, 1, ... in it stand for (``Dataset.names.words``).
        weights: For a module or a class of modules: a ``.safetensors`` file, or a ``.pth`` or ``.pt`` file of a
            ``state_dict``, of which nothing but tensors is read.

    Returns:
        The network. It was compared with its source on random inputs.

    Raises:
        ModelError: If it cannot be loaded, or gives other scores than its source, or scores that cannot be used.
    """
    return load_source(
        source,
        mean=mean,
        std=std,
        input_shape=input_shape,
        device=device,
        by_name=_from_zoo,
        words=words,
        weights=weights,
    )


def _from_zoo(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    if name in zoo.names():
        return zoo.load(name), zoo.NETWORKS[name].input_shape
    raise ModelError(
        f"cannot load a network from {name!r}: give an .onnx or .pt2 file, package.module:name, file.py:name, or "
        f"a network of the zoo: {', '.join(zoo.names())}"
    )
