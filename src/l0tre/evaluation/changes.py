"""What a witness changes, in words: which column or pixel, from what to what."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.evaluation.results import Witness
from l0tre.layout import channel_axis
from l0tre.names import Names

__all__ = ["Change", "changes", "place_of"]


@dataclass(frozen=True)
class Change:
    """One changed value.

    Attributes:
        place: A column's name, ``row 3, column 4, channel 1``, or a position.
        before: The original value, a number or a word.
        after: The new one.
    """

    place: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.place}: {self.before} -> {self.after}"


def changes(witness: Witness, original: Tensor, names: Names) -> list[Change]:
    """What a witness changes.

    Args:
        witness: The adversarial input.
        original: The input that it belongs to, of any shape.
        names: Of its values.

    Returns:
        A change for each value that differs, in the order of the flattened input.
    """
    before = original.flatten()
    return [
        Change(
            place_of(position, tuple(original.shape), names),
            names.value(position, float(before[position])),
            names.value(position, value),
        )
        for position, value in zip(witness.positions.tolist(), witness.values.tolist(), strict=True)
    ]


def place_of(position: int, shape: tuple[int, ...], names: Names) -> str:
    """A position of the flattened input in words; rows, columns and channels count from 0."""
    if position < len(names.features):
        return names.features[position]
    if len(shape) == 1:
        return f"value {position}"
    place = [int(axis) for axis in torch.unravel_index(torch.tensor(position), shape)]
    axis = channel_axis(shape)
    if len(shape) == 2 or axis is not None:
        channel = "" if axis is None or shape[axis] == 1 else f", channel {place[axis]}"
        row, column = [number for dim, number in enumerate(place) if dim != axis]
        return f"row {row}, column {column}{channel}"
    return f"value ({', '.join(map(str, place))})"
