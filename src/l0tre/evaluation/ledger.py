"""Bookkeeping of the work on some images: bounds that only get better, work spent, and what is reported of both."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from l0tre.admission import admit
from l0tre.certify.proof import Proof
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.results import make_witness
from l0tre.evaluation.state import State
from l0tre.evaluation.tasks import Report, Task
from l0tre.exhaustive.accumulate import changed_groups
from l0tre.exhaustive.progress import GridProgress
from l0tre.halting import Clock, felt
from l0tre.memory import Batcher

__all__ = ["Ledger"]

logger = logging.getLogger("l0tre")


class Ledger:
    """The state of a worker's images and the only way to change their bounds; the writer learns of it by reports.

    Attributes:
        problem: What is evaluated.
        state: Bounds and positions; updated in place.
        places: Images that the task at work is about.
        boxed: Those whose cells are too large to bound.
        batcher: Runs the network within the memory budget.
        t: The level at work.
        share: How much of it is done, from 0 to 1.
        tell: Takes sentences for the user: what a long level will cost.
        clock: Ends steps that take too long after they should stop; the batcher asks it before every batch.
        ending: Whether :meth:`halted` has said yes: what a search keeps only when it is left is then kept.
        recorded: Whether this session has recorded a step.
        closed: What proofs closed since the last report, as ``(t, place, closed)``, see ``run_search.OnEvidence``.
    """

    def __init__(
        self,
        problem: Problem,
        state: State,
        stop: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.problem = problem
        self.state = state
        self.places: Sequence[int] = range(len(state.bounds))
        self.boxed: set[int] = set()
        self.t = 1
        self.share = 0.0
        self.tell: Callable[[str], None] = tell or logger.warning
        self.clock = Clock(self.halted, problem.tuning.grace_seconds)
        self.clock.rest()
        self.batcher = Batcher(problem.network, problem.settings.memory_bytes, problem.tuning, self.clock.pulse)
        self.ending = False
        self.recorded = False
        self.closed: list[tuple[int, int, object]] = []
        self._stop = stop
        self._told: int | None = None  # the level of the last record
        self._moved = False  # whether a bound has changed since then
        self._changed: dict[int, None] = {}  # images of the records since the last report, in order
        self._reported = 0.0  # seconds of work that were reported
        self._step = 0  # reports of the task

    def take(self, task: Task) -> None:
        """Go on with what a task gives, and with its images only."""
        state = self.state
        self.places, self.boxed = task.places, set(task.boxed)
        self._told, self.ending, self._step = task.told, False, 0
        self._changed, self.closed, self._reported = {}, [], state.seconds
        for place, bounds in zip(task.places, task.bounds, strict=True):
            state.bounds[place] = bounds
        state.partials, state.proofs = dict(task.partials), dict(task.proofs)

    def report(self, *, early: bool = False) -> Report:
        """What has changed since the last report.

        Args:
            early: Whether the task is left before its end.
        """
        state, places = self.state, tuple(self._changed)
        report = Report(
            self._step,
            places,
            tuple(state.bounds[place] for place in places),
            {place: state.partials[place] for place in places if place in state.partials},
            {place: state.proofs[place] for place in places if place in state.proofs},
            state.seconds - self._reported,
            self.t,
            self.share,
            tuple(self.closed),
            frozenset(self.boxed),
            early,
        )
        self._changed, self.closed, self._reported = {}, [], state.seconds
        self._step += 1
        return report

    def halted(self) -> bool:
        """Whether the work should stop, asked inside long steps and in every step before it is recorded."""
        self.ending = self.ending or self._stop()
        return self.ending

    @contextmanager
    def leaving(self, least: float | None = None) -> Iterator[Callable[[], None]]:
        """While something long is made: a pulse that leaves it when the work should stop, felt in all that it calls.

        Args:
            least: Seconds that it may take in any case; default those of any step.

        Raises:
            Halted: If so.
        """
        grace = self.clock.grace
        self.clock.grace = grace if least is None else least
        self.clock.start()
        try:
            with felt(self.clock.pulse):
                yield self.clock.pulse
        finally:
            self.clock.grace = grace
            self.clock.rest()

    @property
    def news(self) -> bool:
        """Whether a record made now may add to the history.

        Work is recorded now and then, but every change of the bounds when it happens: the history does not depend on
        the clock.
        """
        return self._moved or self._told != self.t

    def pending(self) -> list[int]:
        """Images whose level ``t`` is not complete and can still improve their bounds."""
        bounds = self.state.bounds
        return [i for i in self.places if bounds[i].level < self.t and bounds[i].upper > self.t]

    def close(self, images: Sequence[int]) -> None:
        """The level is over for these images."""
        for image in images:
            self.state.partials.pop(image, None)
            self.state.proofs.pop(image, None)
            self.state.bounds[image] = replace(self.state.bounds[image], level=self.t)

    def is_done(self, image: int) -> bool:
        """Whether level ``t`` can gain nothing more for an image: its bounds meet, or it is violated already."""
        bounds = self.state.bounds[image]
        return bounds.converged or bounds.upper <= self.t

    def keep(self, image: int, progress: GridProgress | Proof) -> None:
        """Keep how far the level has come for an image, so that another search goes on from there."""
        if isinstance(progress, Proof):
            self.state.proofs[image] = progress
        else:
            self.state.partials[image] = progress

    def forget(self, image: int) -> None:
        """A proof that is not gone on with: the level begins anew for an image."""
        self.state.proofs.pop(image, None)

    def level_done(self, image: int, safe: bool) -> None:
        """Every set of size ``t`` was treated without a witness of that size; ``safe``: all of them are."""
        bounds = self.state.bounds[image]
        if not safe:
            self.state.bounds[image] = replace(bounds, blocked=bounds.blocked or self.t)
        elif bounds.lower == self.t - 1:
            self.state.bounds[image] = replace(bounds, lower=self.t)
            self._moved = True

    def spend(self, block: Sequence[int], seconds: float, queries: int | Sequence[int]) -> None:
        """Ledger work: seconds shared by the block, queries for each of its images."""
        self.state.seconds += seconds
        each = [queries] * len(block) if isinstance(queries, int) else queries
        for image, count in zip(block, each, strict=True):
            bounds = self.state.bounds[image]
            self.state.bounds[image] = replace(
                bounds, seconds=bounds.seconds + seconds / len(block), queries=bounds.queries + count
            )

    def offer(self, image: int, changed: Tensor) -> None:
        """Replay an input that seems to change the decision; keep it if it does and is the closest so far.

        Args:
            image: Place of the image.
            changed: float32 ``[values]``.
        """
        problem, bounds = self.problem, self.state.bounds[image]
        original = problem.images[image]
        changed = admit(problem.domain, original[None], changed[None])[0]
        support = changed_groups(problem.domain, original[None], changed[None])[0]
        distance = int(support.sum())
        if distance >= bounds.upper:
            return
        scores = problem.network.replay(changed.reshape(problem.domain.shape))
        margin = float(problem.specification.pick([image]).to(scores.device).margins(scores[None])[0])
        if not margin < 0:
            return
        groups = tuple(problem.domain.ids[support].tolist())
        witness = make_witness(original, changed, groups, int(scores.argmax()), margin, self.t)
        # A witness inside a proved radius would show that round-off fooled the proof: believe the witness.
        lower = min(bounds.lower, distance - 1)
        self.state.bounds[image] = replace(bounds, upper=distance, lower=lower, witness=witness)
        self._moved = True

    def record(self, images: Sequence[int]) -> None:
        """A step is over that may have changed some images: the next report tells of them."""
        self._moved = False
        self.recorded = True
        self._told = self.t
        self._changed.update(dict.fromkeys(images))
