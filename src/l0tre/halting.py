"""Leaving long work when its time is over or somebody asks to stop.

A batch of a large network, or what is made of it before a search, takes many seconds. So a pulse is not only handed to
the loops over batches: whoever begins a step makes it felt (:func:`felt`) in all that the step calls, and what runs the
operations of a network, one after the other, feels it before each (:func:`beat`).
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Clock", "Halted", "beat", "felt"]


class Halted(Exception):  # noqa: N818  # no error: somebody asked to stop
    """Raised by a pulse to leave a long computation; the step that it ends has found nothing."""


_PULSE: ContextVar[Callable[[], None] | None] = ContextVar("l0tre_pulse", default=None)


@contextmanager
def felt(pulse: Callable[[], None]) -> Iterator[None]:
    """While inside, every :func:`beat` of this thread calls a pulse, which may raise ``Halted``; not across a yield."""
    before = _PULSE.set(pulse)
    try:
        yield
    finally:
        _PULSE.reset(before)


def beat() -> None:
    """Leave the step at work if it should end; nothing where no step has made a pulse felt.

    Raises:
        Halted: If so.
    """
    pulse = _PULSE.get()
    if pulse is not None:
        pulse()


class Clock:
    """Ends steps that take too long after they should stop; its :meth:`pulse` is felt before every batch.

    Attributes:
        halted: Whether the work should stop.
        grace: Seconds that a step may take nevertheless.
    """

    def __init__(self, halted: Callable[[], bool], grace: float) -> None:
        self.halted = halted
        self.grace = grace
        self.began = time.monotonic()

    def start(self) -> None:
        """A step begins."""
        self.began = time.monotonic()

    def rest(self) -> None:
        """What comes now, until the next start, is not left before its end."""
        self.began = math.inf

    def over(self) -> bool:
        """Whether the step should end now."""
        return time.monotonic() - self.began > self.grace and self.halted()

    def pulse(self) -> None:
        """Leave the step if it should end.

        Raises:
            Halted: If so.
        """
        if self.over():
            raise Halted
