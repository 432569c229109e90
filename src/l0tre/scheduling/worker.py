"""A worker of a cluster: does units one after the other, and tells what became of them whenever it is asked."""

import hashlib
import os
import platform
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from l0tre.errors import L0treError
from l0tre.scheduling.executor import Event, Runner, ShouldStop

__all__ = ["Identity", "Make", "Worker", "identity"]

# Makes what a worker does units with from what was shipped to it; told where to compute, and whom to ask whether to
# stop.
Make = Callable[[Any, str, ShouldStop], Runner]

REASON = 300  # characters of an error that are told


@dataclass(frozen=True)
class Identity:
    """Which l0tre a process runs.

    Attributes:
        version: Of the package.
        digest: Of its source files.
        torch: Version of torch, which proofs are computed with.
        place: Machine and process.
    """

    version: str
    digest: str
    torch: str
    place: str

    def differs(self, other: "Identity") -> str:
        """In what another process is not the same, in words; empty if it is."""
        if (self.version, self.digest) != (other.version, other.digest):
            own, its = (f"{one.version} ({one.digest[:8]})" for one in (self, other))
            return f"l0tre {its} instead of {own}"
        return "" if self.torch == other.torch else f"torch {other.torch} instead of {self.torch}"


@cache
def identity() -> Identity:
    """Which l0tre this process runs."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    try:
        number = version("l0tre")
    except PackageNotFoundError:
        number = "unknown"
    place = f"{platform.node() or socket.gethostname()}:{os.getpid()}"
    return Identity(number, digest.hexdigest(), version("torch"), place)


class Worker:
    """Runs in a process of the cluster; one thread works, another one can ask it to stop."""

    def __init__(self) -> None:
        self.runner: Runner | None = None
        self.queue: deque[tuple[int, Any]] = deque()
        self.current: tuple[int, Iterator[Any]] | None = None
        self.leaving = threading.Event()
        self.deadline = float("inf")

    def identify(self) -> Identity:
        """Who it is."""
        return identity()

    def set_up(self, make: Make, shipped: Any, device: str, threads: int) -> str:
        """Get ready; says what went wrong, in one line, or nothing."""
        torch = sys.modules.get("torch")  # with what it makes its runner from, if that computes with it
        if torch is not None:
            torch.set_num_threads(threads)
        try:
            self.runner = make(shipped, device, self._over)
        except Exception as error:
            return _line(error)
        return ""

    def advance(self, units: Sequence[tuple[int, Any]], seconds: float, left: float) -> list[Event]:
        """Take more units, and work for some time.

        Args:
            units: Numbers and tasks; they come after those that are here.
            seconds: After which it says what there is, at the next report.
            left: Seconds until all work should end by itself.

        Returns:
            What became of units, in order.
        """
        began = time.monotonic()
        self.deadline = began + left
        self.queue.extend(units)
        events: list[Event] = []
        while (self.current or self.queue) and time.monotonic() - began < seconds:
            event = self._step()
            events.append(event)
            if self._over() and event.kind == "report":
                break
        return events

    def stop(self) -> None:
        """Leave the unit at work after its current step; called while another thread works."""
        self.leaving.set()

    def _step(self) -> Event:
        """The next report, or the end of a unit."""
        if self.current is None:
            number, task = self.queue.popleft()
            assert self.runner is not None
            self.current = number, self.runner.work(task)
        number, reports = self.current
        try:
            for report in reports:
                return Event(number, "report", report)
        except (Exception, SystemExit) as error:
            self.current = None
            return Event(number, "failed", reason=_line(error))
        self.current = None
        return Event(number, "done")

    def _over(self) -> bool:
        return self.leaving.is_set() or time.monotonic() >= self.deadline


def _line(error: BaseException) -> str:
    """An error in one line, with the place that it comes from unless it is meant for users."""
    text = " ".join(str(error).split())[:REASON] or "no message"
    if isinstance(error, L0treError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {text}{where}"
