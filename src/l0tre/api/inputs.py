"""A network and its inputs, from whatever the user gives."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from l0tre.api.load import load
from l0tre.data import Dataset, from_arrays
from l0tre.errors import DataError
from l0tre.model.load import Source, knows_its_shape
from l0tre.model.network import Network

__all__ = ["Images", "Labels", "load_inputs"]

Images = np.ndarray | Tensor | Dataset
Labels = np.ndarray | Tensor | Sequence[int] | None


def load_inputs(source: Source, images: Images, labels: Labels, device: str) -> tuple[Network, Dataset]:
    """Load a network, and bring images into its shape.

    Args:
        source: What :func:`l0tre.load` takes.
        images: Arrays, or a data set with its own labels.
        labels: One for each image, only with arrays.
        device: Where to compute, if the network is not loaded yet.

    Returns:
        The network and the data.

    Raises:
        L0treError: If either cannot be used.
    """
    if isinstance(images, Dataset):
        if labels is not None:
            raise DataError("the data set has its own labels: give labels only with arrays")
        return load(source, input_shape=tuple(images.images.shape[1:]), device=device), images
    if knows_its_shape(source):
        net = load(source, device=device)
        return net, from_arrays(images, labels, input_shape=net.input_shape)
    data = from_arrays(images, labels)
    return load(source, input_shape=tuple(data.images.shape[1:]), device=device), data
