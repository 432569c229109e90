"""Tasks that do not depend on each other: each result once, whatever happens to the workers."""

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from l0tre.scheduling.executor import Executor, StopCondition

__all__ = ["Failed", "spread"]

TRIES = 3  # of a task, before it is left out


@dataclass(frozen=True)
class Failed:
    """In place of a task's last report: it was tried several times.

    Attributes:
        reason: Of the last failure, in one line.
    """

    reason: str


def spread(
    executor: Executor, tasks: Sequence[Any], ending: StopCondition, numbers: Iterator[int] | None = None
) -> Iterator[tuple[int, Any]]:
    """Have tasks done by whoever is free.

    A task whose worker is lost is begun anew, so its reports can come again: a later one takes the place of all
    earlier ones of its task.

    Args:
        executor: Does the tasks.
        tasks: What its runner takes; any order of ends.
        ending: When to leave what is not done; the last reports of tasks at work still come.
        numbers: Of units, none of which the executor was given before; for one that does more than these tasks.

    Yields:
        The place of a task and a report of it, or :class:`Failed`.
    """
    waiting, at_work, tries = deque(range(len(tasks))), dict[int, int](), Counter[int]()
    numbers, began, done = count(1) if numbers is None else numbers, time.monotonic(), 0
    while waiting or at_work:
        pace = executor.workers * (time.monotonic() - began) / done if done else 0.0  # seconds of a task, about
        for _ in range(min(executor.free(pace), len(waiting))):
            number = next(numbers)
            at_work[number] = waiting.popleft()
            executor.start(number, tasks[at_work[number]])
        events = [*executor.wait()]
        if ending.stopped:
            events += executor.leave()
        for event in events:
            place = at_work.get(event.unit)
            if place is None:
                continue
            if event.kind == "report":
                yield place, event.report
                continue
            del at_work[event.unit]
            done += event.kind == "done"
            if event.kind == "returned":
                waiting.appendleft(place)
            elif event.kind != "done":
                tries[place] += 1
                if tries[place] < TRIES:
                    waiting.append(place)
                else:
                    yield place, Failed(event.reason)
        if ending.stopped:
            return
