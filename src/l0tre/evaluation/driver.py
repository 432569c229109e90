"""The anytime loop: bounds that hold whenever it is stopped, and only ever get better."""

import time
from collections.abc import Callable, Iterator

from l0tre.errors import ConfigError
from l0tre.evaluation.attack_steps import strengthen
from l0tre.evaluation.grid_steps import exhaust, is_cheap, look_for_witnesses, sample_all
from l0tre.evaluation.ledger import Ledger
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.proof_steps import prove
from l0tre.evaluation.results import Snapshot
from l0tre.evaluation.state import Recorder, State
from l0tre.evaluation.visit import OnEvidence

__all__ = ["drive"]


def drive(
    problem: Problem,
    state: State,
    *,
    recorder: Recorder | None = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    on_evidence: OnEvidence | None = None,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Snapshot]:
    """Improve the bounds until the search is complete, the time is spent, or the caller stops.

    Args:
        problem: Network, inputs, domain and settings.
        state: Bounds and positions to go on from; updated in place, always consistent between two snapshots.
        recorder: Told of every step before its snapshot is given out.
        time_budget: Seconds for this call; ``None`` for no limit. At least one step is made. A later step that has
            lasted for some time is then left between two of its batches.
        stop: Asked in every step, before each of its batches; once it says yes, that step is the last one.
        on_evidence: Told of every certified level, before it is recorded.
        tell: Takes sentences for the user, such as what a long level will cost; default a warning in the log.

    Yields:
        A snapshot after every step; the last one has ``finished`` set if the search is complete up to ``max_t``.
    """
    if time_budget is not None and not time_budget >= 0:
        raise ConfigError(f"the time budget is {time_budget} seconds: give 0 or more")
    began = time.monotonic()

    def over() -> bool:
        return stop() or (time_budget is not None and time.monotonic() - began >= time_budget)

    ledger = Ledger(problem, state, recorder, over, tell)
    for _ in _steps(ledger, on_evidence):
        yield ledger.snapshot()
        if ledger.ending:
            return
    state.finished = True
    ledger.record(())
    yield ledger.snapshot()


def _steps(ledger: Ledger, on_evidence: OnEvidence | None) -> Iterator[None]:
    """Work, one step at a time; between two steps everything is recorded."""
    settings = ledger.problem.settings
    if settings.sample_ms:
        yield from sample_all(ledger)
    elif settings.guarantee == "certified" and ledger.problem.network.thresholds is None:
        # Trying every single group is for upper bounds alone. Where it costs far more than the attacks it comes last.
        first = is_cheap(ledger)
        if first:
            yield from look_for_witnesses(ledger)
        yield from strengthen(ledger)
        yield from prove(ledger, on_evidence)
        if not first:
            yield from look_for_witnesses(ledger)
    else:
        yield from strengthen(ledger)
        yield from exhaust(ledger)
