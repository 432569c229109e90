"""Ctrl-C and requests to end: asked for between steps where there are steps, silent everywhere."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from l0tre.errors import Interrupted

__all__ = ["STOPPED", "end_on_signal", "stop_on_signal"]

STOPPED = 130  # exit code
# A closed terminal is a request to end like any other; Windows has no such signal.
NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    # Started with nohup, a process is to outlive its terminal.
    hung_up = getattr(signal, "SIGHUP", None)
    numbers = [n for n in NUMBERS if n != hung_up or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _end(_: int, frame: FrameType | None) -> None:
    """End at once: nothing is half written at any time, see ``l0tre.files``."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # Modules that are being imported catch what is raised in them, or report it as a fault of their own.
            os._exit(STOPPED)
        frame = frame.f_back
    raise Interrupted


@contextmanager
def end_on_signal() -> Iterator[None]:
    """While inside, Ctrl-C (or SIGTERM, SIGHUP) raises :class:`Interrupted`; inside an import it ends the process."""
    with _handled(_end):
        yield


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """While inside, the first Ctrl-C (or SIGTERM, SIGHUP) asks to stop after the current step, the second one ends.

    Yields:
        A function that tells whether to stop.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            _end(number, frame)
        asked.append(number)

    with _handled(ask):
        yield lambda: bool(asked)
