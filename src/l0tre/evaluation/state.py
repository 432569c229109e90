"""The mutable state of an evaluation: bounds, positions inside a level, history."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from l0tre.certify.proof import Proof
from l0tre.evaluation.results import HistoryPoint, ImageBounds
from l0tre.exhaustive.progress import GridProgress

__all__ = ["Recorder", "State"]


@dataclass
class State:
    """Everything that changes while an evaluation runs.

    Attributes:
        bounds: Bounds of every evaluated input, in the order of ``Problem.images``.
        partials: Position inside the current level, by place in ``bounds``, for inputs that are in the middle of one.
        proofs: Likewise how far a proof at the current level has come.
        seconds: Work so far, interruptions left out.
        history: Global bounds whenever they changed.
        finished: Whether the search is complete up to ``max_t``.
    """

    bounds: list[ImageBounds]
    partials: dict[int, GridProgress] = field(default_factory=dict)
    proofs: dict[int, Proof] = field(default_factory=dict)
    seconds: float = 0.0
    history: list[HistoryPoint] = field(default_factory=list)
    finished: bool = False


class Recorder(Protocol):
    """Keeps the state safe; see ``l0tre.store``."""

    def record(self, state: State, images: Sequence[int], point: HistoryPoint | None) -> None:
        """Store a step.

        Args:
            state: The whole state after the step.
            images: Places in ``state.bounds`` that the step may have changed.
            point: New global bounds, if the step changed them.
        """
