"""What does units of work: the interface, and the executor of this process."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

__all__ = ["Event", "Executor", "InProcess", "Runner", "ShouldStop", "StopCondition"]

ShouldStop = Callable[[], bool]


class Runner(Protocol):
    """What a worker does units with: made once, it keeps what they share, such as a network."""

    def work(self, task: Any) -> Iterator[Any]:
        """Do a unit of work; everything that is yielded is reported."""


class StopCondition:
    """Whether the work should stop; a yes is kept.

    Attributes:
        stopped: Whether the answer was yes once.
        until: When the time is over, by ``time.monotonic``.
    """

    def __init__(self, stop: ShouldStop, seconds: float | None = None) -> None:
        self.stop = stop
        self.stopped = False
        self.until = math.inf if seconds is None else time.monotonic() + seconds

    def should_stop(self) -> bool:
        """Ask."""
        self.stopped = self.stopped or self.stop() or time.monotonic() >= self.until
        return self.stopped

    def left(self) -> float:
        """Seconds until the time is over, for others, who have clocks of their own."""
        return max(0.0, self.until - time.monotonic())


@dataclass(frozen=True)
class Event:
    """News of a unit.

    Attributes:
        unit: Its number.
        kind: ``report`` (more may follow), ``done``, ``failed`` (its work raised an error), ``died`` (its worker was
            lost in the middle of it), ``returned`` (its worker was lost before it was begun).
        report: What it reported.
        reason: Why it failed, in one line.
    """

    unit: int
    kind: Literal["report", "done", "failed", "died", "returned"]
    report: Any = None
    reason: str = ""

    @property
    def ends(self) -> bool:
        """Whether nothing more comes of the unit."""
        return self.kind != "report"


class Executor(Protocol):
    """Does units of work. Numbers of units are never used twice."""

    @property
    def workers(self) -> int:
        """How many units are done at a time."""

    @property
    def device(self) -> str:
        """Where they are done, ``cpu`` or ``cuda``; empty for wherever the caller has them."""

    def free(self, seconds: float) -> int:
        """How many units it wants now.

        Args:
            seconds: That the next unit is expected to take: short ones are handed out before workers are idle.
        """

    def start(self, unit: int, task: Any) -> None:
        """Take a unit."""

    def wait(self) -> Sequence[Event]:
        """The next news of units, in order for each of them; none now and then, so that the caller can look around."""

    def leave(self) -> Sequence[Event]:
        """Leave all units, and give the last reports."""

    def close(self) -> None:
        """Give back all workers."""


class InProcess:
    """One unit at a time in this process, one report after the other; errors of its work are raised."""

    workers = 1
    device = ""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.unit: tuple[int, Iterator[Any]] | None = None

    def free(self, seconds: float) -> int:  # noqa: ARG002  # no unit waits here
        """One, unless a unit is being done."""
        return int(self.unit is None)

    def start(self, unit: int, task: Any) -> None:
        """Take a unit; it is done while the caller waits."""
        self.unit = unit, self.runner.work(task)

    def wait(self) -> Sequence[Event]:
        """The next report, or the end."""
        if self.unit is None:
            return ()
        number, reports = self.unit
        for report in reports:
            return (Event(number, "report", report),)
        self.unit = None
        return (Event(number, "done"),)

    def leave(self) -> Sequence[Event]:
        """Nothing: every report was given when it came."""
        self.unit = None
        return ()

    def close(self) -> None:
        """Nothing is to be given back."""
