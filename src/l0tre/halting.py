"""Leaving long work when its time is over or somebody asks to stop."""

import time
from collections.abc import Callable

__all__ = ["GRACE", "Clock", "Halted"]

GRACE = 1.0  # seconds that a step may take after it should stop: one that is stopped again and again still gets on


class Halted(Exception):  # noqa: N818  # no error: somebody asked to stop
    """Raised by a pulse to leave a long computation; the step that it ends has found nothing."""


class Clock:
    """Ends steps that take too long after they should stop; its :meth:`pulse` is felt before every batch.

    Attributes:
        halted: Whether the work should stop.
    """

    def __init__(self, halted: Callable[[], bool] = lambda: False) -> None:
        self.halted = halted
        self.began = time.monotonic()

    def start(self) -> None:
        """A step begins."""
        self.began = time.monotonic()

    def over(self) -> bool:
        """Whether the step should end now."""
        return time.monotonic() - self.began > GRACE and self.halted()

    def pulse(self) -> None:
        """Leave the step if it should end.

        Raises:
            Halted: If so.
        """
        if self.over():
            raise Halted
