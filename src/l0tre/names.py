"""What people call inputs, values and classes; engines know numbers only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NO_NAMES", "Names", "names_of"]


@dataclass(frozen=True)
class Names:
    """Names of a data set; what has none is an empty tuple.

    Attributes:
        inputs: Of each input: a picture's file, a row's name.
        features: Of each value of an input, in the order of the flattened input: a table's columns.
        classes: Of each class.
        words: For columns whose values are words: by position the words that the whole numbers 0, 1, ... stand for.
    """

    inputs: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    words: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def label(self, number: int) -> str:
        """A class in words, its number where it has no name."""
        return self.classes[number] if 0 <= number < len(self.classes) else str(number)

    def feature(self, position: int) -> str:
        """A value in words, its position where it has no name."""
        return self.features[position] if 0 <= position < len(self.features) else str(position)

    def value(self, position: int, number: float) -> str:
        """What a value is, in words where it stands for one."""
        words = self.words.get(position, ())
        whole = round(number)
        return words[whole] if whole == number and 0 <= whole < len(words) else f"{number:.6g}"

    def to_config(self, indices: Sequence[int]) -> dict[str, Any]:
        """For a stored configuration: only what there is.

        Args:
            indices: Position of each input in the user's data, by which inputs are looked up.
        """
        inputs = {str(index): name for index, name in zip(indices, self.inputs, strict=False)}
        words = {str(position): list(words) for position, words in self.words.items()}
        found = {"inputs": inputs, "features": list(self.features), "classes": list(self.classes), "words": words}
        return {key: value for key, value in found.items() if value}


NO_NAMES = Names()


def names_of(config: Mapping[str, Any]) -> tuple[Names, Mapping[int, str]]:
    """The names in a stored configuration, and those of inputs by their position in the user's data."""
    stored = config.get("names", {})
    words = {int(position): tuple(words) for position, words in stored.get("words", {}).items()}
    names = Names((), tuple(stored.get("features", ())), tuple(stored.get("classes", ())), words)
    return names, {int(index): name for index, name in stored.get("inputs", {}).items()}
