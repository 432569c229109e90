"""Images with their labels, from arrays, and picking some of them."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from l0tre.data.layout import fit
from l0tre.errors import DataError
from l0tre.layout import noun
from l0tre.names import NO_NAMES, Names

__all__ = ["Dataset", "from_arrays", "select"]


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value to compare by
class Dataset:
    """Images, checked and in the shape of the network.

    Attributes:
        images: float32 [N, *shape] on the CPU; shape is (C, H, W) for images, (features,) for vectors, or what the
            network takes. In the units of the domain (pixels of 8 bits are divided by 255). All finite.
        labels: int64 [N], none negative, or None.
        indices: Position of each image in its source.
        name: How the user named the source.
        names: Of inputs, values and classes, where there are any.
        assumed_scale: What the values were divided by because of their kind, without anybody's saying so; 1 for
            nothing.
    """

    images: Tensor
    labels: Tensor | None
    indices: tuple[int, ...]
    name: str
    names: Names = NO_NAMES
    assumed_scale: float = 1.0

    def __len__(self) -> int:
        return len(self.images)

    @property
    def noun(self) -> str:
        """What an input is called: ``image``, ``row``, or ``input``."""
        return noun(tuple(self.images.shape[1:]), named=bool(self.names.features))

    def __repr__(self) -> str:
        labels = "without labels" if self.labels is None else "with labels"
        return f"Dataset({self.name}: {len(self)} {self.noun}s of shape {tuple(self.images.shape[1:])}, {labels})"


def _as_array(values: Tensor | npt.ArrayLike) -> npt.NDArray[Any]:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    # numpy has no bfloat16.
    array: npt.NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return array


def _as_images(array: npt.NDArray[Any], scale: float | None, name: str) -> tuple[Tensor, float]:
    """A float32 copy of an array, divided by ``scale`` (by default 255 for uint8, nothing for floats), and by what."""
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise DataError(f"{name}: scale is {scale}; expected a finite number above 0, such as 255")
    if array.dtype.kind not in "iuf":
        raise DataError(f"{name}: values are of type {array.dtype}; expected uint8 or a float type")
    if array.dtype == np.uint8:
        scale = 255.0 if scale is None else scale
    elif array.dtype.kind != "f" and scale is None:
        raise DataError(
            f"{name}: values are of type {array.dtype}, whose range is not known; "
            "give the `scale` to divide by (255 for pixels of 8 bits, 1 to keep the values), or floats"
        )
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # what overflows is reported as infinite
        pixels = np.array(array, dtype=np.float32, order="C")
        if scale is not None:
            pixels /= np.float32(scale)
    return torch.from_numpy(pixels), 1.0 if scale is None else scale


def _first(condition: npt.NDArray[np.bool_]) -> int | None:
    return int(condition.argmax()) if condition.any() else None


def _as_labels(
    array: npt.NDArray[Any], count: int, name: str, classes: Sequence[str]
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers, and the classes' names: those given, or the sorted words that the labels are."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{name}: labels have shape {array.shape}; expected one whole number for each input, ({count},)"
        )
    if len(array) != count:
        raise DataError(f"{name}: {len(array)} labels for {count} inputs; expected one label for each")
    if array.dtype.kind in "OUS" and all(isinstance(word, str) for word in array.tolist()):
        words = list(classes) or sorted(set(array.tolist()))
        unknown = next((word for word in array.tolist() if word not in words), None)
        if unknown is not None:
            raise DataError(f"{name}: the label {unknown!r} is no class; the classes are {', '.join(words)}")
        return torch.tensor([words.index(word) for word in array.tolist()]), tuple(words)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: labels are of type {array.dtype}; expected whole numbers or names of classes")
    if array.dtype.kind == "f":
        bad = _first(~np.isfinite(array) | (array != np.floor(array)))
        if bad is not None:
            raise DataError(f"{name}: the label of input {bad} is {array[bad]}; expected a whole number")
    negative = _first(array < 0)
    if negative is not None:
        raise DataError(f"{name}: the label of input {negative} is {array[negative]}; expected 0 or more")
    return torch.from_numpy(array.astype(np.int64)), tuple(classes)


def from_arrays(
    images: Tensor | npt.NDArray[Any],
    labels: Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[str] | None = None,
    *,
    input_shape: tuple[int, ...] | None = None,
    scale: float | None = None,
    name: str = "array",
    resize: bool = False,
    names: Names | None = None,
) -> Dataset:
    """Make a data set from arrays or tensors; the values are copied.

    Args:
        images: [N, features], [N, H, W], [N, C, H, W] or [N, H, W, C]. Floats are taken as they are, uint8 is
            divided by 255.
        labels: N whole numbers, or names of classes; numbered in the order of ``names.classes``, else sorted.
        input_shape: The network's, without the batch; images are brought into it. It also decides which axis
            holds the channels; without it a last axis of 1, 3 or 4 does, if the first one cannot.
        scale: Divide the values by this instead.
        name: For messages and reports.
        resize: Whether images of another height or width are resized by area averaging.
        names: Of inputs, values and classes.

    Returns:
        The data set; its indices are 0 to N - 1.

    Raises:
        DataError: If images or labels cannot be used.
    """
    names = names or Names()
    array = _as_array(images)
    pixels, divided = _as_images(array, scale, name)
    if pixels.numel() == 0:
        raise DataError(f"{name}: holds no inputs (an array of shape {tuple(pixels.shape)}); expected at least one")
    bad = _first(~torch.isfinite(pixels).flatten(1).all(1).numpy()) if pixels.ndim > 1 else None
    if bad is not None:
        raise DataError(f"{name}: input {bad} holds NaN or infinite values; expected finite numbers")
    fitted = fit(pixels, input_shape, resize=resize, name=name).contiguous()
    count = len(fitted)
    checked, classes = None, names.classes
    if labels is not None:
        checked, classes = _as_labels(_as_array(labels), count, name, classes)
    if len(names.features) != fitted[0].numel():
        names = replace(names, features=(), words={})
    assumed = divided if scale is None else 1.0
    return Dataset(fitted, checked, tuple(range(count)), name, replace(names, classes=classes), assumed)


def _permutation(count: int, seed: int) -> list[int]:
    if not 0 <= seed < 2**32:
        raise DataError(f"seed is {seed}; expected a whole number from 0 to {2**32 - 1}")
    # The stream of RandomState never changes, so a seed means the same images under every numpy release.
    return [int(position) for position in np.random.RandomState(seed).permutation(count)]


def select(
    data: Dataset,
    *,
    limit: int | None = None,
    indices: Sequence[int] | None = None,
    shuffle: bool = False,
    seed: int = 0,
) -> Dataset:
    """Pick images: first ``indices``, then ``shuffle``, then ``limit``.

    Args:
        data: Where to pick from.
        limit: At most so many images, from the start.
        indices: Positions in ``data``, from 0, in the order wanted, none twice.
        shuffle: Whether to put them in a random order first; a smaller limit then gives the start of a larger one.
        seed: Of the random order, 0 to 2**32 - 1.

    Returns:
        The images picked; their ``indices`` still refer to the source of ``data``.

    Raises:
        DataError: If an index is out of range or given twice, or nothing would be left.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; expected 1 or more")
    count = len(data.images)
    picked = list(range(count)) if indices is None else [operator.index(index) for index in indices]
    if not picked:
        raise DataError(f"{data.name}: no indices are given; expected at least one")
    seen: set[int] = set()
    for index in picked:
        if not 0 <= index < count:
            raise DataError(f"{data.name}: index {index} is out of range; expected 0 to {count - 1}")
        if index in seen:
            raise DataError(f"{data.name}: index {index} is given twice; give it once")
        seen.add(index)
    if shuffle:
        picked = [picked[position] for position in _permutation(len(picked), seed)]
    picked = picked[:limit]
    rows = torch.tensor(picked)
    labels = None if data.labels is None else data.labels[rows]
    inputs = tuple(data.names.inputs[index] for index in picked) if data.names.inputs else ()
    return replace(
        data,
        images=data.images[rows],
        labels=labels,
        indices=tuple(data.indices[index] for index in picked),
        names=replace(data.names, inputs=inputs),
    )
