"""What an evaluation gives: witnesses, bounds for each image, snapshots of a whole set.

All bounds count groups (pixels, features, or the user's own groups; ``Snapshot.unit`` says which).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from l0tre.errors import DataError
from l0tre.layout import noun
from l0tre.names import Names
from l0tre.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Excluded", "Guarantee", "HistoryPoint", "ImageBounds", "Result", "Snapshot", "Witness"]

Guarantee = Literal["certified", "grid", "lipschitz", "sampled"]


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value to compare by
class Witness:
    """An input with another decision, stored as the values that differ from the original.

    Attributes:
        positions: int64 ``[changed values]``, positions in the flattened input.
        values: float32 ``[changed values]``, the new values.
        groups: Numbers of the changed groups (see ``Domain.ids``).
        label: The decision for the changed input.
        margin: Score of the original label minus the best other score; below zero. As replayed.
        level: The level ``t`` of the search that found it.
    """

    positions: Tensor
    values: Tensor
    groups: tuple[int, ...]
    label: int
    margin: float
    level: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Witness):
            return NotImplemented
        own, others = ((w.groups, w.label, w.margin, w.level) for w in (self, other))
        return own == others and torch.equal(self.positions, other.positions) and torch.equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash((self.groups, self.label, self.margin, self.level))

    def __repr__(self) -> str:
        return f"Witness({self.distance} changed, becomes {self.label}, margin {self.margin:.4g})"

    @property
    def distance(self) -> int:
        """Number of groups that differ from the original."""
        return len(self.groups)

    @overload
    def apply(self, image: Tensor) -> Tensor: ...

    @overload
    def apply(self, image: np.ndarray) -> np.ndarray: ...

    def apply(self, image: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """The adversarial input, from the original one of any shape, as a tensor or an array as that is.

        A row of a table of pandas (``table.iloc[3]`` or ``table.iloc[3:4]``) is given back as an array.
        """
        if hasattr(image, "to_numpy"):
            image = image.to_numpy()
        if isinstance(image, np.ndarray):
            try:
                array = image.astype(np.float32).reshape(-1)
            except (TypeError, ValueError) as error:
                raise DataError(
                    "a witness changes numbers, and this row holds words: give the input as a data set has it "
                    "(l0tre.load_data(table).images)"
                ) from error
            array[self.positions.numpy()] = self.values.numpy()
            return array.reshape(image.shape)
        changed = image.flatten().clone()
        changed[self.positions.to(image.device)] = self.values.to(image.device)
        return changed.reshape(image.shape)


@dataclass(frozen=True)
class ImageBounds:
    """The bounds of one input.

    Attributes:
        index: Position in the user's data.
        label: Its label, which is also the network's decision.
        groups: Number of groups that may change.
        lower: Every change of at most this many groups keeps the decision, in the sense of ``guarantee``.
        upper: Changing this many groups changes the decision, as the witness shows. Without a witness it is
            ``groups + 1``, the distance of an input whose decision nothing changes.
        guarantee: What the lower bound holds for.
        witness: The input behind ``upper``.
        level: Largest ``t`` whose search is complete.
        blocked: The level at which a tie (or a difference too small to trust) was met, 0 for none: the lower bound
            stays below it.
        seconds: Time spent on it.
        queries: Forward passes spent on it.
        attacked: Whether the attacks beyond the levels' own search are over.
        checked: Whether ``l0tre check`` has proved the lower bound again, by other code; of stored runs only.
    """

    index: int
    label: int
    groups: int
    lower: int
    upper: int
    guarantee: Guarantee
    witness: Witness | None = None
    level: int = 0
    blocked: int = 0
    seconds: float = 0.0
    queries: int = 0
    attacked: bool = False
    checked: bool = False

    @property
    def converged(self) -> bool:
        """Whether the safe radius is known: it is ``lower``, and the distance is ``upper``."""
        return self.upper == self.lower + 1

    @property
    def estimate(self) -> float:
        """The paper's ``U_c``: centre of ``[lower, upper]``."""
        return (self.lower + self.upper) / 2

    @property
    def uncertainty(self) -> float:
        """The paper's ``U_r``: half the width of ``[lower, upper]``."""
        return (self.upper - self.lower) / 2

    def to_dict(self) -> dict[str, Any]:
        """The image's entry in the exported JSON."""
        return {
            "index": self.index,
            "label": self.label,
            "lower": self.lower,
            "upper": self.upper,
            "converged": self.converged,
            "guarantee": self.guarantee,
            "checked": self.checked,
            "seconds": round(self.seconds, 6),
            "queries": self.queries,
            "level": self.level,
            "blocked": self.blocked,
            "witness": None
            if self.witness is None
            else {
                "groups": list(self.witness.groups),
                "positions": self.witness.positions.tolist(),
                "values": self.witness.values.tolist(),
                "label": self.witness.label,
                "margin": self.witness.margin,
                "level": self.witness.level,
            },
        }


@dataclass(frozen=True)
class Excluded:
    """An input that has no radius because the network decides it wrongly (or by a tie) unchanged."""

    index: int
    label: int
    predicted: int

    @property
    def reason(self) -> str:
        """Why it is left out, in words."""
        return self.reason_in(Names())

    def reason_in(self, names: Names) -> str:
        """The same with the classes' names."""
        if self.predicted == self.label:
            return f"tie between class {names.label(self.label)} and another class"
        return f"classified as {names.label(self.predicted)}, labelled {names.label(self.label)}"


@dataclass(frozen=True)
class HistoryPoint:
    """Global bounds at one moment: seconds of work so far, level ``t``, mean lower and upper bound."""

    seconds: float
    t: int
    lower: float
    upper: float


@dataclass(frozen=True, repr=False)
class Snapshot(Shown):
    """The state of an evaluation at one moment; the last one is the result.

    Iterating gives the bounds of every evaluated input, ``len`` their number, and ``result[3]`` the bounds of the input
    at position 3 of the user's data.

    Attributes:
        images: Bounds of every evaluated input.
        excluded: Inputs left out of the means.
        seconds: Work so far.
        t: The level at work.
        unit: What a group is called.
        finished: Whether the search is complete up to ``max_t``.
        level_share: How much of level ``t`` is done, from 0 to 1.
        history: Global bounds whenever they changed.
        config: How the evaluation was set up.
        state: Which recorded state of a run folder this is: the number of its step and a digest; empty without one.
    """

    images: tuple[ImageBounds, ...]
    excluded: tuple[Excluded, ...]
    seconds: float
    t: int
    unit: str
    finished: bool = False
    level_share: float = 0.0
    history: tuple[HistoryPoint, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    state: str = ""

    @property
    def lower(self) -> float:
        """Mean lower bound, in groups."""
        return sum(image.lower for image in self.images) / len(self.images)

    @property
    def noun(self) -> str:
        """What an input is called: ``image``, ``row``, or ``input``."""
        shape = self.config.get("model", {}).get("input_shape", ())
        return noun(tuple(shape), named=bool(self.config.get("names", {}).get("features")))

    @property
    def upper(self) -> float:
        """Mean upper bound, in groups."""
        return sum(image.upper for image in self.images) / len(self.images)

    @property
    def estimate(self) -> float:
        """The paper's ``U_c`` of the global bounds."""
        return (self.lower + self.upper) / 2

    @property
    def uncertainty(self) -> float:
        """The paper's ``U_r`` of the global bounds."""
        return (self.upper - self.lower) / 2

    @property
    def converged(self) -> int:
        """Number of inputs whose safe radius is known."""
        return sum(image.converged for image in self.images)

    @property
    def queries(self) -> int:
        """Forward passes so far."""
        return sum(image.queries for image in self.images)

    @property
    def without_witness(self) -> int:
        """Number of inputs whose upper bound is still the trivial one."""
        return sum(image.witness is None for image in self.images)

    def __iter__(self) -> Iterator[ImageBounds]:
        return iter(self.images)

    def __len__(self) -> int:
        return len(self.images)

    def __bool__(self) -> bool:
        return True  # a result, however many images it has

    def __contains__(self, item: object) -> bool:
        """Whether some bounds, or the input at a position of the user's data, are part of this."""
        return item in self.images or item in [image.index for image in self.images]

    def __repr__(self) -> str:
        images = f"{len(self.images)} {self.noun}{'' if len(self.images) == 1 else 's'}"
        kinds = ", ".join(sorted({image.guarantee for image in self.images}))
        bounds = f"lower {self.lower:.3f}, upper {self.upper:.3f} {self.unit}s" if self.images else "no bounds"
        state = "finished" if self.finished else f"at t = {self.t}"
        left_out = f", {len(self.excluded)} left out" if self.excluded else ""
        return f"Snapshot({images}{left_out}: {bounds}, {kinds}; {self.converged} converged, {state})"

    def _plain_html(self) -> str:
        from l0tre.evaluation.exports import to_html

        return to_html(self)

    def __getitem__(self, index: int) -> ImageBounds:
        """Bounds of the input at one position of the user's data.

        Raises:
            KeyError: If it was left out, or is not part of the evaluation.
        """
        for image in self.images:
            if image.index == index:
                return image
        for left_out in self.excluded:
            if left_out.index == index:
                raise KeyError(f"{self.noun} {index} was left out: {left_out.reason}")
        raise KeyError(f"{self.noun} {index} is not part of this evaluation")

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for each evaluated input: bounds, guarantee, time, and the decision of its witness.

        Returns:
            The table, indexed by position in the user's data.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        from l0tre.evaluation.exports import to_dataframe

        return to_dataframe(self)

    def save(
        self,
        path: str | Path,
        images: np.ndarray | Tensor | None = None,
        indices: Sequence[int] | None = None,
    ) -> tuple[Path, ...]:
        """Write the files that a run folder has.

        Args:
            path: A folder for ``result.json``, ``bounds.csv`` and, if ``images`` are given, ``witnesses.npz``; or one
                file that ends with ``.json``, ``.csv`` or ``.npz``.
            images: The inputs as evaluated, float ``[images, *shape]``: a result holds only what witnesses change.
            indices: Their positions in the user's data; default 0, 1, 2, ...

        Returns:
            The files written. Each appears whole or not at all.

        Raises:
            L0treError: If the kind of file is not known, or ``images`` are missing or not those of this result.
        """
        from l0tre.evaluation.exports import save

        return save(self, path, images, indices)

    def to_dict(self) -> dict[str, Any]:
        """The exported JSON: global bounds, images, configuration, history."""
        return {
            "global": {
                "lower": self.lower,
                "upper": self.upper,
                "estimate": self.estimate,
                "uncertainty": self.uncertainty,
                "images": len(self.images),
                "converged": self.converged,
                "excluded": len(self.excluded),
                "without_witness": self.without_witness,
                "checked": sum(image.checked for image in self.images),
                "unit": self.unit,
                "finished": self.finished,
                "seconds": round(self.seconds, 6),
                "queries": self.queries,
            },
            "images": [image.to_dict() for image in self.images],
            "excluded": [
                {"index": e.index, "label": e.label, "predicted": e.predicted, "reason": e.reason}
                for e in self.excluded
            ],
            "config": dict(self.config),
            "state": self.state or None,
            "history": [
                {"seconds": round(p.seconds, 6), "t": p.t, "lower": p.lower, "upper": p.upper} for p in self.history
            ],
        }


Result = Snapshot  # what an evaluation ends with


def make_witness(
    image: Tensor, changed: Tensor, groups: tuple[int, ...], label: int, margin: float, level: int
) -> Witness:
    """Store an adversarial input as its differences.

    Args:
        image: The original, any shape.
        changed: The adversarial input, same shape.
        groups: Numbers of the groups that differ.
        label: The new decision.
        margin: The original label's margin there, as replayed.
        level: The level that found it.

    Returns:
        The witness, on the CPU.
    """
    before, after = image.flatten().cpu(), changed.flatten().cpu()
    positions = (before != after).nonzero()[:, 0]
    return Witness(positions, after[positions].to(torch.float32), groups, label, margin, level)
