"""The one place where the bounds of an evaluation change: merges reports into the state, and records them in order."""

from collections.abc import Iterable

from l0tre.evaluation.problem import Problem
from l0tre.evaluation.results import HistoryPoint, Snapshot
from l0tre.evaluation.run_search import OnEvidence
from l0tre.evaluation.state import Recorder, State
from l0tre.evaluation.tasks import Report

__all__ = ["Writer"]


class Writer:
    """The state of an evaluation, what is recorded of it, and snapshots.

    Attributes:
        problem: What is evaluated.
        state: Updated in place; always consistent between two merges.
        t: The level at work.
        share: How much of it is done, from 0 to 1.
    """

    def __init__(
        self, problem: Problem, state: State, recorder: Recorder | None, on_evidence: OnEvidence | None
    ) -> None:
        self.problem = problem
        self.state = state
        self.recorder = recorder
        self.on_evidence = on_evidence
        self.t = 1
        self.share = 0.0

    def merge(self, reports: Iterable[Report]) -> None:
        """Make what was reported part of the state, and record it as one step."""
        state, places = self.state, dict[int, None]()
        for report in reports:
            for closed in report.closed:  # before the level is recorded: what is recorded has its certificate
                if self.on_evidence is not None:
                    self.on_evidence(*closed)
            for place, bounds in zip(report.places, report.bounds, strict=True):
                state.bounds[place] = bounds
                state.partials.pop(place, None)
                state.proofs.pop(place, None)
            state.partials.update(report.partials)
            state.proofs.update(report.proofs)
            state.seconds += report.seconds
            places.update(dict.fromkeys(report.places))
        self.record(list(places))

    def record(self, images: list[int]) -> None:
        """Tell the recorder of a step that may have changed some images."""
        state = self.state
        lower, upper = (sum(getattr(b, name) for b in state.bounds) / len(state.bounds) for name in ("lower", "upper"))
        last = state.history[-1] if state.history else None
        point = None
        if last is None or (last.lower, last.upper, last.t) != (lower, upper, self.t):
            point = HistoryPoint(state.seconds, self.t, lower, upper)
            state.history.append(point)
        if self.recorder is not None:
            self.recorder.record(state, images, point)

    def snapshot(self) -> Snapshot:
        """The state as users see it."""
        state = self.state
        return Snapshot(
            tuple(state.bounds),
            self.problem.excluded,
            state.seconds,
            self.t,
            self.problem.domain.unit,
            state.finished,
            self.share,
            tuple(state.history),
            self.problem.config,
        )
