"""A network and its inputs, from whatever the user gives: the one place where they agree on a shape."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from l0tre.api.load import load
from l0tre.data import Dataset, from_arrays, load_data
from l0tre.data.layout import fit
from l0tre.data.tables import TableColumns, as_described, is_frame, raw_of_frame
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError, DataError, OpenShapeError
from l0tre.model.estimator import is_estimator
from l0tre.model.load import Numbers
from l0tre.model.network import Network
from l0tre.model.sources import Source, knows_its_shape
from l0tre.names import NO_NAMES
from l0tre.threads import choose_threads, spinning

__all__ = [
    "Image",
    "Images",
    "Labels",
    "agree",
    "check_scale",
    "describe_data",
    "fitting_threads",
    "load_inputs",
    "load_one",
    "reader",
    "usual_domain",
]

PROBE_ROWS = 16  # of the batch that tells whether threads are of use
PROBE_BYTES = 2**25  # activations of that batch: of a large network one row is work enough

Images = np.ndarray | Tensor | Dataset | Any  # Any: a DataFrame of pandas, which need not be installed
Image = np.ndarray | Tensor | Dataset
Labels = np.ndarray | Tensor | Sequence[int] | Sequence[str] | None
Shape = tuple[int, ...]
Reader = Callable[[Shape | None], Dataset]  # gives data in a shape, or in its own one


def agree(
    source: Source,
    read: Reader,
    *,
    device: str,
    input_shape: Shape | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    weights: Path | None = None,
) -> tuple[Network, Dataset]:
    """Load a network and data of one shape: the network's if it says one, else the data's.

    Args:
        source: What :func:`l0tre.load` takes.
        read: Gives the data in the shape that it is asked for.
        device: Where to compute, if the network is not loaded yet.
        input_shape: Shape of one input, if the user gave one.
        mean: As for :func:`l0tre.load`.
        std: As for :func:`l0tre.load`.
        weights: As for :func:`l0tre.load`.

    Returns:
        The network and the data.

    Raises:
        L0treError: If either cannot be used, or they do not fit.
    """
    if (input_shape is not None or knows_its_shape(source)) and not is_estimator(source):
        try:
            network = load(source, mean=mean, std=std, input_shape=input_shape, device=device, weights=weights)
            return network, _aligned(network, read(network.input_shape))
        except OpenShapeError:
            if input_shape is not None:
                raise
    data = read(None)
    shape = tuple(data.images.shape[1:]) if input_shape is None else input_shape
    words = data.names.words
    network = load(source, mean=mean, std=std, input_shape=shape, device=device, words=words, weights=weights)
    return network, _aligned(network, data)


def _aligned(network: Network, data: Dataset) -> Dataset:
    """Columns and classes in the network's order, where both sides name them."""
    data = _in_bytes(network, data) if network.takes_bytes else data
    names = network.names
    if len(data.names.classes) != network.classes and data.names.classes and not names.classes:
        known = data.names.classes
        some = f"{', '.join(known[:5])}{', ...' if len(known) > 5 else ''}"
        raise DataError(
            f"{data.name} names {len(known)} classes ({some}), {network.name} has {network.classes}: give all of "
            "them in the network's order (`classes`), since no label can be numbered without the others"
        )
    wanted, given = _without_spaces(names.features), _without_spaces(data.names.features)
    if wanted and given and wanted != given:
        missing = [name for name, plain in zip(names.features, wanted, strict=True) if plain not in given]
        if missing:
            raise DataError(f"{data.name} has no column {missing[0]!r}, which {network.name} was fitted on")
        raise DataError(
            f"{data.name} has its columns in another order than {network.name} was fitted on: give them as "
            f"{', '.join(names.features[:6])}, ..."
        )
    labels, classes = data.labels, data.names.classes
    if names.classes and labels is not None:
        own = classes or tuple(str(number) for number in range(int(labels.max()) + 1))
        place = {name: number for number, name in enumerate(names.classes)}
        if classes and not set(classes) & set(place) and all(name.isdecimal() for name in place):
            # The network numbers the classes that the data names.
            own = tuple(str(number) for number in range(len(classes)))
            numbers = [int(name) for name in names.classes]
            classes = tuple(classes[number] if number < len(classes) else str(number) for number in numbers)
            names = replace(names, classes=classes)
        used = [own[number] for number in labels.unique().tolist()]
        unknown = [name for name in used if name not in place]
        if unknown and not classes and int(labels.max()) < len(names.classes):
            used, unknown, own = [], [], names.classes  # numbers of classes that have names
        if unknown:
            raise DataError(
                f"{data.name} has the label {unknown[0]!r}, {network.name} the classes {', '.join(names.classes)}"
            )
        labels = torch.tensor([place[own[number]] for number in labels.tolist()])
    both = replace(data.names, classes=names.classes or classes, features=data.names.features or names.features)
    return replace(data, labels=labels, names=both)


def _in_bytes(network: Network, data: Dataset) -> Dataset:
    """Data for a network of whole numbers of 0 to 255: what was divided because it had 8 bits is multiplied again."""
    images = (data.images * data.assumed_scale).round() if data.assumed_scale != 1 else data.images
    odd = (images != images.round()) | (images < 0) | (images > 255)
    if bool(odd.any()) or 0 < float(images.max()) <= 1:
        example = float(images[odd][0]) if bool(odd.any()) else 1.0
        raise DataError(
            f"{network.name} takes whole numbers of 0 to 255, {data.name} holds values such as {example:.6g}: give "
            "them as they are stored (`scale=1`), or, for values of 0 to 1, `mean=0` and `std=0.00392157` with the "
            "network"
        )
    return replace(data, images=images, assumed_scale=1.0)


def _without_spaces(features: Sequence[str]) -> tuple[str, ...]:
    """Names of columns as LightGBM keeps them."""
    return tuple(name.replace(" ", "_") for name in features)


def load_inputs(
    source: Source, images: Images, labels: Labels, device: str, domain: Domain | None = None
) -> tuple[Network, Dataset]:
    """Load a network, and bring images into its shape.

    Args:
        source: What :func:`l0tre.load` takes.
        images: Arrays, or a data set with its own labels.
        labels: One for each image, only with arrays.
        device: Where to compute, if the network is not loaded yet.
        domain: What may change: a table's columns of words are numbered as there.

    Returns:
        The network and the data.

    Raises:
        L0treError: If either cannot be used.
    """
    return agree(source, reader(images, labels, domain=domain), device=device)


def load_one(
    source: Source, image: Image, label: int | None, device: str, domain: Domain | None = None
) -> tuple[Network, Dataset]:
    """Load a network, and bring one image into its shape.

    Args:
        source: What :func:`l0tre.load` takes.
        image: One input, a batch of one, or a data set of one.
        label: Its label, only with arrays.
        device: Where to compute, if the network is not loaded yet.
        domain: As for :func:`load_inputs`.

    Returns:
        The network and a data set of one.

    Raises:
        L0treError: If either cannot be used, or there are several images.
    """
    labels = None if label is None else [label]
    if hasattr(image, "to_frame") and hasattr(image, "index"):  # a row of a DataFrame
        image = image.to_frame().T
    if isinstance(image, Dataset) or is_frame(image):
        count = len(image.images) if isinstance(image, Dataset) else len(image)
        if count != 1:
            one = "select(data, indices=[0])" if isinstance(image, Dataset) else "table.iloc[:1]"
            raise DataError(f"{count} inputs were given: give one, for example {one}")
        return load_inputs(source, image, labels, device, domain)
    array = image if isinstance(image, Tensor) else np.asarray(image)
    return agree(source, lambda shape: reader(_batch_of_one(array, shape), labels)(shape), device=device)


def reader(images: Images, labels: Labels = None, *, resize: bool = False, domain: Domain | None = None) -> Reader:
    """From images and labels to a function that gives them in a network's shape.

    Args:
        images: Arrays, or a data set with its own labels.
        labels: One for each image, only with arrays.
        resize: Whether images of another height or width are resized by area averaging.
        domain: What may change: a table's columns of words are numbered as there.

    Raises:
        DataError: If labels come with a data set.
    """
    if isinstance(images, str | Path):
        if labels is not None:
            raise DataError(f"{images} has its own labels: give labels only with arrays")
        path = images
        return lambda shape: load_data(path, input_shape=shape, resize=resize and shape is not None)
    if labels is None:
        images, labels = unpacked(images)
    if is_frame(images):
        raw = raw_of_frame(images, TableColumns("none"))
        rows, names = raw.images, raw.names
        described = NO_NAMES if domain is None else domain.names

        def described_table(shape: Shape | None) -> Dataset:
            table = from_arrays(rows, labels, input_shape=shape, name="table", names=names)
            return as_described(table, described)

        return described_table
    if not isinstance(images, Dataset):
        return lambda shape: from_arrays(images, labels, input_shape=shape, resize=resize and shape is not None)
    if labels is not None:
        raise DataError("the data set has its own labels: give labels only with arrays")

    given = images if domain is None else as_described(images, domain.names)

    def fitted(shape: Shape | None) -> Dataset:
        if shape is None:
            return given
        return replace(given, images=fit(given.images, shape, resize=resize, name=given.name).contiguous())

    return fitted


def usual_domain(network: Network, data: Dataset) -> Domain:
    """What may change where nobody said it: everything in [0, 1], which is no range for most tables.

    Args:
        network: The classifier.
        data: The inputs.

    Raises:
        DataError: If they are a table that needs ranges of its own.
        ConfigError: If the network takes whole numbers of 0 to 255.
    """
    if network.takes_bytes:
        raise ConfigError(
            f"{network.name} takes whole numbers of 0 to 255, and nobody said what may change: give a domain, such as "
            f"l0tre.make_domain({network.input_shape}, high=255)"
        )
    flat, names = data.images.flatten(1), data.names
    outside = ((flat < 0) | (flat > 1)).any(0).nonzero()[:, 0].tolist() if names.features else []
    if names.words or outside:
        place = min(names.words, default=None)
        place = outside[0] if place is None else place
        holds = "words" if place in names.words else f"values such as {flat[:, place].max():.6g}"
        raise DataError(
            f"{data.name}: column {names.feature(place)!r} holds {holds}, and nobody said what may change: give "
            "a domain, such as l0tre.table_domain(table), which has the ranges and the words of a table"
        )
    return make_domain(network.input_shape)


def check_scale(data: Dataset, domain: Domain) -> None:
    """Refuse a domain in other units than the data, where nobody said what the data were to be divided by.

    Raises:
        DataError: If values were divided because of their kind, and the domain goes beyond 1.
    """
    highest = float(domain.high.max())
    if data.assumed_scale != 1 and highest > 1:
        raise DataError(
            f"{data.name} holds values of 8 bits, which are divided by {data.assumed_scale:g}, but values up to "
            f"{highest:g} are allowed (`high`): give `scale=1` to keep the values as they are, or "
            f"`scale={data.assumed_scale:g}` to divide them"
        )


def fitting_threads(network: Network) -> int:
    """Threads for work on a network's small batches, on the CPU; measured where that is in doubt."""
    most = torch.get_num_threads()
    if network.device.type != "cpu" or most == 1:
        return most
    rows = max(1, min(PROBE_ROWS, PROBE_BYTES // network.sample_bytes))
    batch = torch.zeros(rows, *network.input_shape)
    return choose_threads(lambda: network.scores(batch), most, spinning())


def describe_data(data: Dataset) -> dict[str, Any]:
    """A data set in words, for a stored configuration."""
    found: dict[str, Any] = {"data": {"name": data.name, "labelled": data.labels is not None}}
    names = data.names.to_config(data.indices)
    return {**found, "names": names} if names else found


def unpacked(images: Any) -> tuple[Any, Any]:
    """Inputs and labels from pairs: ``(x, y)``, a torch data set of such pairs, or a loader of batches of them.

    Anything else is given back with no labels.
    """
    if isinstance(images, tuple) and len(images) == 2:
        return images
    if isinstance(images, DataLoader):
        batches = [batch if isinstance(batch, list | tuple) else (batch,) for batch in images]
    elif isinstance(images, TorchDataset):
        batches = [item if isinstance(item, list | tuple) else (item,) for item in cast(Any, images)]
        batches = [tuple(torch.as_tensor(part)[None] for part in item) for item in batches]
    else:
        return images, None
    if not batches:
        raise DataError("the data set holds nothing: give at least one input")
    columns = [torch.cat([torch.as_tensor(part) for part in column]) for column in zip(*batches, strict=True)]
    if len(columns) > 2:
        raise DataError(f"the data set gives {len(columns)} things for each input: expected an input and its label")
    return columns[0], columns[1] if len(columns) == 2 else None


def _batch_of_one(image: np.ndarray | Tensor, shape: Shape | None) -> np.ndarray | Tensor:
    """``[1, *shape]`` from one input with or without the first axis of a batch.

    Three axes without a network that says its shape are an image, not a batch: ``[1, 28, 28]`` has one channel.
    """
    given, axes = tuple(image.shape), image.ndim
    whole = 2 if shape is None else len(shape) + 1  # axes of a batch
    if given != shape and (axes == 4 or axes == whole):
        if given[0] == 1:
            return image
        if axes == 4 or given[1:] == shape:
            raise DataError(f"{given[0]} inputs were given, an array of shape {given}: give one, such as images[0]")
    return torch.unsqueeze(image, 0) if isinstance(image, Tensor) else image[np.newaxis]
