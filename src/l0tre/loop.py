"""The anytime loop: bounds that hold whenever it is stopped, and only ever get better."""

import time
from collections.abc import Callable, Iterator

from l0tre.attacks.route import strengthen
from l0tre.book import Book
from l0tre.certify.judge import lipschitz_judge
from l0tre.certify.route import OnProved, prove
from l0tre.errors import ConfigError
from l0tre.exhaustive.route import attack, exhaust, sample_all
from l0tre.problem import Problem
from l0tre.results import Snapshot
from l0tre.state import Recorder, State

__all__ = ["drive"]


def drive(
    problem: Problem,
    state: State,
    *,
    recorder: Recorder | None = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    on_proved: OnProved | None = None,
) -> Iterator[Snapshot]:
    """Improve the bounds until the search is complete, the time is spent, or the caller stops.

    Args:
        problem: Network, inputs, domain and settings.
        state: Bounds and positions to go on from; updated in place, always consistent between two snapshots.
        recorder: Told of every step before its snapshot is given out.
        time_budget: Seconds for this call; ``None`` for no limit. At least one step is made.
        stop: Asked between two steps.
        on_proved: Told of every node of a certified proof.

    Yields:
        A snapshot after every step; the last one has ``finished`` set if the search is complete up to ``max_t``.
    """
    if time_budget is not None and not time_budget >= 0:
        raise ConfigError(f"the time budget is {time_budget} seconds: give 0 or more")
    book = Book(problem, state, recorder)
    began = time.monotonic()
    book.halted = lambda: stop() or (time_budget is not None and time.monotonic() - began >= time_budget)
    for _ in _steps(book, on_proved):
        yield book.snapshot()
        if book.halted():
            return
    state.finished = True
    book.record(())
    yield book.snapshot()


def _steps(book: Book, on_proved: OnProved | None) -> Iterator[None]:
    """Work, one step at a time; between two steps everything is recorded."""
    settings = book.problem.settings
    if settings.sample:
        yield from sample_all(book)
    elif settings.guarantee == "certified":
        yield from attack(book)
        yield from strengthen(book)
        yield from prove(book, on_proved)
    else:
        yield from strengthen(book)
        yield from exhaust(book, lipschitz_judge(book) if settings.guarantee == "lipschitz" else None)
