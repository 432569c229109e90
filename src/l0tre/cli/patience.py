"""A limit on the time that loading a model takes: its own code, or a runtime, may never come back."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from l0tre.cli.plain import plain
from l0tre.cli.terminal import literal, screen
from l0tre.errors import ConfigError

__all__ = ["loads_within"]

ERROR = 2  # exit code
LONG = 5.0  # seconds of loading after which it is said that no time limit counts them


@contextmanager
def loads_within(seconds: float, name: str, *, quiet: bool = True) -> Iterator[None]:
    """End the process with one line if what is inside takes longer.

    Nothing else ends code that never returns, and nothing of ours is half written while a model is loaded.

    Args:
        seconds: How long.
        name: Of the model, for the line.
        quiet: Do not show on a terminal that it takes its time, nor say how long it took.

    Raises:
        ConfigError: If the time is none.
    """
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"--load-timeout {seconds} is no time: give seconds above 0, for example 600")

    def give_up() -> None:
        line = f"{name} is not loaded after {seconds:g} s: it loops, or needs more time (--load-timeout)"
        sys.stderr.write(f"error: {' '.join(plain(line).split())}\n")
        sys.stderr.flush()
        os._exit(ERROR)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    console = screen(stderr=True)
    waiting: AbstractContextManager[object]
    waiting = nullcontext() if quiet or not console.is_terminal else console.status(f"loading {literal(name)}")
    began = time.monotonic()
    try:
        with waiting:
            yield
    finally:
        timer.cancel()
    if not quiet and (took := time.monotonic() - began) > LONG:
        console.print(f"loaded in {took:.0f} s; time limits count from here", soft_wrap=True)
