"""What every evaluation goes through, new or resumed: its time, its record, its last snapshot."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from l0tre.errors import ConfigError, StoreError
from l0tre.evaluation.exports import export_writes
from l0tre.evaluation.results import Snapshot
from l0tre.halting import Clock, Halted, felt
from l0tre.model.network import Network
from l0tre.store import Inputs, Run, score_writes, stop_asked
from l0tre.tuning import DEFAULT_TUNING, Tuning

STOP_SECONDS = 0.25  # between two looks for a wish to stop

__all__ = ["before_the_first_step", "check_budget", "last", "recorded", "stoppable"]


@contextmanager
def before_the_first_step(
    time_budget: float | None, stop: Callable[[], bool], tuning: Tuning = DEFAULT_TUNING
) -> Iterator[Callable[[], None]]:
    """While model and inputs are looked at, before all bounds: a pulse that feels the time and the wish to stop.

    Raises:
        ConfigError: If the time is over before the model is compared with its graph and all inputs are classified.
        KeyboardInterrupt: If somebody stops it.
    """
    began = time.monotonic()

    def over() -> bool:
        return stop() or (time_budget is not None and time.monotonic() - began >= time_budget)

    try:
        pulse = Clock(over, tuning.grace_seconds).pulse
        with felt(pulse):
            yield pulse
    except Halted as error:
        if stop():
            raise KeyboardInterrupt from error
        raise ConfigError(
            f"the time (`time_budget` {time_budget:g} s) was over before the network was confirmed and had classified "
            "all inputs: give more time or fewer inputs (`limit`); the guarantee `grid` needs no confirmation"
        ) from error


def recorded(snapshots: Iterator[Snapshot], run: Run, inputs: Inputs, network: Network) -> Iterator[Snapshot]:
    """Pass snapshots on; however the caller ends, write the exports of the last one and close the database."""
    latest: Snapshot | None = None

    def export(*, ask: bool = False) -> None:
        if latest is None:
            return
        writes = export_writes(run.folder, latest, inputs.images, inputs.indices)
        if ask:
            originals = dict(zip(inputs.indices, inputs.images, strict=True))
            writes |= score_writes(run.folder, latest, originals, network.scores)
        run.export(writes)

    with closing(run):
        try:
            for snapshot in snapshots:
                latest = replace(snapshot, state=run.state.name)
                yield latest
        except StoreError:  # the run belongs to another process by now, or cannot be written
            raise
        except BaseException:
            export()
            raise
        export(ask=True)


def stoppable(stop: Callable[[], bool], folder: Path) -> Callable[[], bool]:
    """Asks ``stop``, and whether another process asked the run to end (``store.ask_stop``)."""
    looked, asked = -math.inf, False

    def either() -> bool:
        nonlocal looked, asked
        now = time.monotonic()
        if not asked and now - looked >= STOP_SECONDS:
            looked, asked = now, stop_asked(folder)
        return asked or stop()

    return either


def check_budget(seconds: float | None) -> None:
    """Refuse a time that is none before any work, and before a folder is made for it."""
    if seconds is not None and not seconds >= 0:
        raise ConfigError(f"`time_budget` is {seconds} seconds: give 0 or more")


def last(snapshots: Iterator[Snapshot]) -> Snapshot:
    """Run an evaluation to its end."""
    return deque(snapshots, maxlen=1)[0]
