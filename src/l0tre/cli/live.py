"""The live view: one panel that is redrawn, silent when nobody watches."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import Progress
from rich.progress_bar import ProgressBar
from rich.table import Table

from l0tre.evaluation.results import Snapshot

__all__ = ["follow", "live_page", "proof_bar"]

REFRESH = 0.2  # seconds between two redraws


def follow(snapshots: Iterator[Snapshot], console: Console, *, quiet: bool) -> Snapshot:
    """Go through all snapshots and show them as they come.

    Args:
        snapshots: From ``l0tre.anytime``.
        console: Where to draw (standard error).
        quiet: Draw nothing; also when the console is no terminal.

    Returns:
        The last snapshot.
    """
    if quiet or not console.is_terminal:
        for last in snapshots:
            result = last
        return result
    began, drawn, first = time.monotonic(), 0.0, None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for result in snapshots:
            first = first or result
            now = time.monotonic()
            if now - drawn >= REFRESH:
                rate = (result.queries - first.queries) / max(now - began, 1e-9)
                live.update(_panel(result, first, rate), refresh=True)
                drawn = now
    return result


@contextmanager
def proof_bar(console: Console, radius: int, *, quiet: bool) -> Iterator[Callable[[Snapshot], None]]:
    """A bar for one question: it appears with the first bounds.

    Args:
        console: Where to draw (standard error).
        radius: What is asked about.
        quiet: Draw nothing; also when the console is no terminal.

    Yields:
        What is given the snapshots.
    """
    bar = Progress(console=console, transient=True, disable=quiet or not console.is_terminal)
    line = bar.add_task("", total=1.0)

    def show(now: Snapshot) -> None:
        bounds = now.images[0]
        bar.start()
        known = "" if bounds.witness is None else f", an input with {bounds.upper}"
        text = f"t = {now.t} of {radius}: {bounds.lower} {now.unit}{'' if bounds.lower == 1 else 's'} proved{known}"
        bar.update(line, completed=now.level_share, description=text)

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def live_page(run: Path | None, tell: Callable[[str], None]) -> Iterator[None]:
    """While inside, a page shows a run.

    Args:
        run: The run folder; ``None`` for no page.
        tell: Is told the address.

    Raises:
        MissingExtraError: If the packages of the extra ``live`` are not installed.
    """
    if run is None:
        yield
        return
    from l0tre.serve import Runs, background

    runs = Runs(run)
    with background(runs) as address:
        later = f"l0tre serve {shlex.quote(str(run))} shows it later"
        tell(f"live: {address.page(runs.names()[0])} (until this ends; {later})")
        yield


def _panel(now: Snapshot, first: Snapshot, rate: float) -> Table:
    total = len(now.images)
    done = sum(image.level >= now.t or image.converged for image in now.images)
    gap = sum(image.upper - image.lower - 1 for image in now.images) / total
    table = Table.grid(padding=(0, 2))
    table.add_row("level", f"t = {now.t}", ProgressBar(total=1.0, completed=now.level_share, width=40))
    times = f"elapsed {_clock(now.seconds)}, ETA of this level {_eta(now, first)}"
    table.add_row(f"{now.noun}s", f"{done} of {total} done with it", times)
    table.add_row("bounds", f"{now.lower:.3f} to {now.upper:.3f} {now.unit}s", f"mean gap {gap:.2f}")
    table.add_row("converged", f"{now.converged} of {total} ({now.converged / total:.0%})", f"{rate:,.0f} queries/s")
    return table


def _eta(now: Snapshot, first: Snapshot) -> str:
    """Time left in this level at the pace since the start or the resumption."""
    start = first.level_share if first.t == now.t else 0.0
    begun = max((p.seconds for p in now.history if p.t < now.t), default=0.0)
    elapsed = now.seconds - max(begun, first.seconds)
    gained = now.level_share - start
    if gained <= 0 or elapsed <= 0:
        return "-"
    return _clock(elapsed * (1 - now.level_share) / gained)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
