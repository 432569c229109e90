"""What engines give: findings about the images of one unit of work, which a driver merges into the ledger.

An engine knows a problem and nothing of the evaluation around it. A unit of its work is a level ``t`` for a block of
images: a :class:`LevelSearch`. Images are rows of the block; the driver knows which images they are.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from torch import Tensor

from l0tre.halting import Halted

__all__ = ["Findings", "Halted", "LevelSearch"]


@dataclass(frozen=True)
class Findings:
    """What one step of a search found.

    Attributes:
        queries: Forward passes made, or search nodes bounded, by row.
        candidates: Rows and changed inputs float32 ``[values]`` that seem to violate the specification, to be replayed.
        decided: Rows of which all sets of ``t`` groups were treated: ``True`` if they are all safe, ``False`` if a tie
            leaves it open.
        closed: What a certificate needs of rows that are safe, if the search keeps it, see ``certify.proof``.
    """

    queries: Mapping[int, int] = field(default_factory=dict)
    candidates: Sequence[tuple[int, Tensor]] = ()
    decided: Mapping[int, bool] = field(default_factory=dict)
    closed: Mapping[int, object] = field(default_factory=dict)


Progress = TypeVar("Progress", covariant=True)


class LevelSearch(Protocol[Progress]):
    """One level for a block of images, done in steps; what it needs to go on elsewhere is its progress."""

    @property
    def light(self) -> bool:
        """Whether progress is cheap to keep after every step; else it is kept when the search is left."""

    @property
    def handed(self) -> Set[int]:
        """Rows that this search has left to another one, which begins anew; their progress says so."""

    def rows(self) -> list[int]:
        """Rows with work left, in order."""

    def step(self) -> Findings:
        """Work for a moment; all or nothing if it is halted."""

    def drop(self, rows: Sequence[int]) -> None:
        """Leave some rows: nothing more can be gained for them."""

    def share(self, row: int) -> float:
        """How much of the level is done for a row, from 0 to 1."""

    def progress(self, row: int) -> Progress:
        """What a later search goes on from, for a row with work left or one that was handed on."""
