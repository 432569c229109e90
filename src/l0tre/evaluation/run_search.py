"""One unit of work: a search of a level for a block of images, whose findings are merged into the ledger."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from l0tre.evaluation.ledger import Ledger
from l0tre.exhaustive.grid_search import GridSearch
from l0tre.exhaustive.sampled import SampleSearch
from l0tre.findings import Findings, LevelSearch
from l0tre.halting import Halted

__all__ = ["LevelProgress", "OnEvidence", "run_search"]

MOMENT = 1.0  # seconds that the smallest first step of a session may take when it should stop already

# What is told of a proved level: ``t``, the place of the image, what its proof closed (``certify.proof``), ``None`` if
# that was too much to be kept.
OnEvidence = Callable[[int, int, object], None]


@dataclass
class LevelProgress:
    """One level for all its images.

    Attributes:
        t: Number of groups that change.
        images: Places of the images that the level is about.
        over: Those that it is over for.
        shares: How much is done of those at work, from 0 to 1.
    """

    t: int
    images: Sequence[int]
    over: set[int] = field(default_factory=set)
    shares: dict[int, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """How much of it is done for all images together, from 0 to 1."""
        at_work = sum(share for image, share in self.shares.items() if image not in self.over)
        return (len(self.over) + at_work) / max(1, len(self.images))


def run_search(
    ledger: Ledger,
    level: LevelProgress,
    search: LevelSearch[Any],
    block: Sequence[int],
    *,
    patience: float = float("inf"),
    closes: bool = True,
) -> Iterator[None]:
    """Let a search work on a block of images until it is done, its time is up, or the evaluation stops.

    Args:
        ledger: The evaluation.
        level: The level that the unit belongs to.
        search: What works, one row for each image of the block.
        block: Places of the images.
        patience: Seconds.
        closes: Whether the level is over for images that the search is done with.

    Yields:
        After every recorded step; what is left is then kept.
    """
    began = last = time.monotonic()
    gained = False  # whether anything was done since the session came here
    while rows := search.rows():
        if isinstance(search, GridSearch | SampleSearch):
            found = _step_in_batches(ledger, search, first=not (gained or ledger.recorded))
        else:  # a proof's step feels a clock of its own
            found = _step_of_proof(search)
        gained = True
        for row, changed in found.candidates:
            ledger.offer(block[row], changed)
        for row, safe in found.decided.items():
            ledger.level_done(block[row], safe)
        # Reported with the level: what is recorded has its certificate.
        ledger.closed += [(level.t, block[row], closed) for row, closed in found.closed.items()]
        for row, queries in found.queries.items():
            ledger.spend([block[row]], 0.0, queries)
        settled = [row for row in search.rows() if ledger.is_done(block[row])]
        search.drop(settled)
        left = search.rows()
        for row in search.handed:
            ledger.keep(block[row], search.progress(row))
        if closes:
            ended = [
                row for row in rows if row not in left and (row not in search.handed or ledger.is_done(block[row]))
            ]
        else:
            ended = settled
            for row in rows:
                if row not in left and row not in settled:
                    ledger.keep(block[row], search.progress(row))
        over = [block[row] for row in ended]
        ledger.close(over)
        level.over.update(over)
        now = time.monotonic()
        out_of_time = now - began > patience
        leaving = ledger.halted() or out_of_time
        due = leaving or now - last >= ledger.problem.tuning.record_seconds
        if due or ledger.news or len(left) < len(rows) or not found.queries:
            ledger.spend([block[row] for row in rows], now - last, 0)
            last = now
            for row in left:
                level.shares[block[row]] = search.share(row)
                if search.light or leaving:
                    ledger.keep(block[row], search.progress(row))
            ledger.share = level.share
            ledger.record([block[row] for row in rows])
            yield
        if out_of_time:
            return


def _step_of_proof(search: LevelSearch[Any]) -> Findings:
    """A step of a proof, which halts by itself; what it is made from may be halted before."""
    try:
        return search.step()
    except Halted:
        return Findings()


def _step_in_batches(ledger: Ledger, search: GridSearch | SampleSearch, *, first: bool) -> Findings:
    """A step that is left between two batches when it should stop; the first one of a session is made nevertheless.

    So a run that is stopped again and again still gets on, unless a single set of groups takes longer than a moment.
    """
    try:
        with ledger.leaving():
            return search.step()
    except Halted:
        if not first:
            return Findings()
    if isinstance(search, GridSearch):
        search.narrow()
    try:
        with ledger.leaving(MOMENT):
            return search.step()
    except Halted:
        unit = f"{ledger.problem.domain.unit}{'' if ledger.t == 1 else 's'}"
        ledger.tell(f"the time was over before a single set of {ledger.t} {unit} was searched: give more time")
        return Findings()
