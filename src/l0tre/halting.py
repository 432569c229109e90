"""Leaving long work when its time is over or somebody asks to stop."""

import math
import time
from collections.abc import Callable

__all__ = ["Clock", "Halted"]


class Halted(Exception):  # noqa: N818  # no error: somebody asked to stop
    """Raised by a pulse to leave a long computation; the step that it ends has found nothing."""


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
