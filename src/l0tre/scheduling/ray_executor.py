"""Units done by workers of Ray: handed out, watched, and given to another worker when one is lost."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from l0tre.errors import ConfigError
from l0tre.scheduling.executor import Event, StopCondition
from l0tre.scheduling.session import Cluster, count_workers
from l0tre.scheduling.worker import Make, Worker, identity

__all__ = ["RayExecutor"]

LOOK = 0.2  # seconds between two looks for a wish to stop
TICK = 1.0  # seconds of work between two reports of a worker, with few workers
CALLS = 64.0  # reports a second of all workers together
SHORT = 2.0  # seconds: of units that take less, workers have so many, for the end of one is told with the next report
SEVERAL = 3
AHEAD = 2  # calls that a worker has before it, so that it need not wait for the next one
READY = 180.0  # seconds until the first worker must be ready
LEAVE = 6.0  # seconds until workers that were asked to leave are left alone
LOSSES = 5  # workers lost one after the other, with no report of any, after which the cluster counts as broken


@dataclass(eq=False)
class _Place:
    """A worker and what it has to do.

    Attributes:
        actor: The worker.
        pending_setup: What says that it is ready, while it is not.
        calls: Of its method ``advance``, in order.
        units: Numbers of its units, in order.
    """

    actor: Any
    pending_setup: Any
    calls: deque[Any] = field(default_factory=deque)
    units: deque[int] = field(default_factory=deque)


class RayExecutor:
    """Workers of a cluster as an ``Executor``.

    Attributes:
        workers: How many there are.
        device: Where they compute.
    """

    def __init__(self, ray: Any, cluster: Cluster, make: Make, shipped: Any, ending: StopCondition) -> None:
        """Start the workers; they get ready while the caller goes on.

        Args:
            ray: The module, connected.
            cluster: How many workers, and what each gets.
            make: Makes what they do units with.
            shipped: What it is made from; kept once on every machine.
            ending: Whether to stop, asked while waiting.
        """
        self.ray = ray
        self.ending = ending
        self.workers, gpus = count_workers(ray, cluster)
        self.device = "cuda" if gpus else "cpu"
        self.tick = max(TICK, self.workers / CALLS)
        self._shipped = ray.put(shipped)
        self._make = make
        self._threads = max(1, int(cluster.cpus))
        self._kind = ray.remote(
            num_cpus=cluster.cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={"control": 1},
        )(Worker)
        self._places: list[_Place] = []
        self._until = time.monotonic() + READY
        self._losses = 0
        self._lost_events: list[Event] = []
        for _ in range(self.workers):
            self._add_worker()

    def free(self, seconds: float) -> int:
        """How many units it wants: one for each idle worker, more for each if they are short."""
        most = SEVERAL if 0 < seconds <= SHORT else 1
        return sum(max(0, most - len(place.units)) for place in self._places if place.pending_setup is None)

    def start(self, unit: int, task: Any) -> None:
        """Hand out a unit, to a worker with as few as any."""
        place = min((p for p in self._places if p.pending_setup is None), key=lambda p: len(p.units))
        place.units.append(unit)
        self._call(place, [(unit, task)])

    def wait(self) -> Sequence[Event]:
        """News of units, after a moment at the latest."""
        events, self._lost_events = self._lost_events, []
        if events or self.ending.should_stop():
            return events
        refs = {}
        for place in self._places:
            if place.pending_setup is not None:
                refs[place.pending_setup] = place
            elif place.calls:
                refs[place.calls[0]] = place
        if not refs:
            time.sleep(LOOK)
            return ()
        ready, _ = self.ray.wait(list(refs), num_returns=1, timeout=LOOK)
        if ready:
            ready, _ = self.ray.wait(list(refs), num_returns=len(refs), timeout=0)
        for ref in ready:
            place = refs[ref]
            events += self._after_setup(place) if place.pending_setup is not None else self._answered(place)
        if time.monotonic() > self._until and all(place.pending_setup is not None for place in self._places):
            raise ConfigError(
                f"none of {self.workers} workers was ready within {READY:.0f} s: the cluster has too few free CPUs or "
                "GPUs, or its machines cannot be reached"
            )
        return events

    def leave(self) -> Sequence[Event]:
        """Ask all workers to leave their units, and wait a little for what they have."""
        # Those that are still being set up have begun nothing.
        busy = [place for place in self._places if place.pending_setup is None and place.calls]
        for place in busy:
            place.actor.stop.options(concurrency_group="control").remote()
        events, until = list(self._lost_events), time.monotonic() + LEAVE
        while busy and time.monotonic() < until:
            refs = {place.calls[0]: place for place in busy}
            ready, _ = self.ray.wait(list(refs), num_returns=1, timeout=LOOK)
            for ref in ready:
                place = refs[ref]
                place.calls.popleft()
                try:
                    events += self.ray.get(ref)
                except self.ray.exceptions.RayError:
                    place.calls.clear()  # what it had is planned again by whoever resumes
            busy = [place for place in busy if place.calls]
        return events

    def close(self) -> None:
        """Give back all workers."""
        if self.ray.is_initialized():
            for place in self._places:
                self.ray.kill(place.actor)
        self._places = []

    def _add_worker(self) -> None:
        actor = self._kind.remote()
        identity = actor.identify.remote()
        ready = actor.set_up.remote(self._make, self._shipped, self.device, self._threads)
        self._places.append(_Place(actor, ready, deque([identity])))

    def _after_setup(self, place: _Place) -> list[Event]:
        """A worker is ready, or not fit."""
        call = place.calls.popleft()
        try:
            other = self.ray.get(call)
            if difference := identity().differs(other):
                raise ConfigError(
                    f"the worker {other.place} has {difference}: install the same on all machines, proofs of several "
                    "versions are not put together"
                )
            problem = self.ray.get(place.pending_setup)
        except self.ray.exceptions.RayError as error:
            return self._lose(place, error)
        if problem:
            raise ConfigError(f"the worker {other.place} cannot get ready: {problem}")
        place.pending_setup = None
        return []

    def _answered(self, place: _Place) -> list[Event]:
        """A call came back."""
        call = place.calls.popleft()
        try:
            events: list[Event] = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            return self._lose(place, error)
        if events:
            self._losses = 0
        for event in events:
            if event.ends:
                place.units.remove(event.unit)
        if place.units and len(place.calls) < (AHEAD if len(place.units) > 1 else 1):
            self._call(place, [])
        return events

    def _call(self, place: _Place, units: list[tuple[int, Any]]) -> None:
        place.calls.append(place.actor.advance.remote(units, self.tick, self.ending.left()))

    def _lose(self, place: _Place, error: BaseException) -> list[Event]:
        """A worker is gone: the unit that it was at has failed, the others were not begun; another worker comes."""
        self._losses += 1
        self._places.remove(place)
        self.ray.kill(place.actor)
        reason = f"its worker was lost: {_reason(error)}"
        if self._losses > LOSSES + self.workers:
            raise ConfigError(f"workers are lost one after the other, nothing more was done: {reason}")
        events = [Event(unit, "died", reason=reason) for unit in [*place.units][:1]]
        events += [Event(unit, "returned") for unit in [*place.units][1:]]
        self._add_worker()
        return events


def _reason(error: BaseException) -> str:
    """What Ray says of a lost worker, shortly."""
    text = " ".join(str(error).split())
    if "memory" in text and "OutOfMemory" in type(error).__name__:
        return "it took more memory than its machine has"
    cause = text.partition("The actor died because")[2] or text
    return cause.strip()[:200] or type(error).__name__
