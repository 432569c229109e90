"""Several saliency maps, one after the other in this process or each by a worker of a cluster."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from l0tre.api.clusters import ClusterChoice, workers_for
from l0tre.api.drawings import Drawing, begin_map
from l0tre.errors import ModelError
from l0tre.maps.work import MapState, MapStep
from l0tre.memory import default_budget
from l0tre.model.network import Network
from l0tre.model.ship import moved, pack, unpack
from l0tre.scheduling.executor import StopCondition
from l0tre.scheduling.spread import Failed, spread

__all__ = ["draw_all"]

STATE_SECONDS = 10.0  # between two reports of all that a worker knows of a map


@dataclass(frozen=True)
class _Task:
    """A map to go on with: its place among the drawings, and what is known of it."""

    place: int
    state: MapState


@dataclass(frozen=True)
class _Report:
    """A step; now and then, and at the end, with all that is known."""

    step: MapStep
    state: MapState | None


@dataclass(frozen=True)
class _Shipped:
    """What all maps are made from: networks and arguments as bytes, images as arrays that a machine's workers share."""

    drawings: bytes
    images: tuple[np.ndarray, ...]


class _Runner:
    """Draws one map after the other."""

    def __init__(self, begin: Callable[[int], Drawing], over: Callable[[], bool], choices: dict[str, Any]) -> None:
        self.begin = begin
        self.over = over
        self.choices = choices

    def work(self, task: _Task) -> Iterator[_Report]:
        """Draw a map, with a report of every step; see ``scheduling.Runner``."""
        drawing, told = replace(self.begin(task.place), state=task.state), time.monotonic()
        for step in drawing.steps(**self.choices, stop=self.over):
            whole = step.stage == "done" or time.monotonic() - told >= STATE_SECONDS
            if whole:
                told = time.monotonic()
            yield _Report(step, task.state if whole else None)


def draw_all(
    drawings: Sequence[Drawing],
    where: ClusterChoice = None,
    *,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    **choices: Any,
) -> Iterator[tuple[int, MapStep]]:
    """Draw maps until all are drawn or the caller stops; the drawings are always consistent.

    Args:
        drawings: What :func:`begin_map` gave; their states are updated in place.
        where: The cluster; ``None`` for this process, which draws one after the other.
        time_budget: Seconds for each map; ``None`` for no limit.
        stop: Asked before every batch.
        choices: See :func:`l0tre.maps.draw.draw`.

    Yields:
        The place of a map, and how far it is; the last step of each has the stage ``done``.

    Raises:
        ModelError: If workers failed at a map several times; all others are drawn then.
    """
    choices = {**choices, "time_budget": time_budget}
    ending = StopCondition(stop)
    tasks = [_Task(place, drawing.state) for place, drawing in enumerate(drawings)]
    failures = []
    with workers_for(
        where,
        ending,
        _Runner(drawings.__getitem__, ending.should_stop, choices),
        _make_runner,
        lambda sharing: (_ship(drawings, sharing), choices),
    ) as executor:
        for place, report in spread(executor, tasks, ending):
            if isinstance(report, Failed):
                failures.append(f"map {place + 1}: {report.reason}")
                continue
            if report.state is not None and report.state is not drawings[place].state:
                for field in fields(MapState):
                    setattr(drawings[place].state, field.name, getattr(report.state, field.name))
            yield place, report.step
    if failures:
        raise ModelError(f"{len(failures)} of {len(drawings)} maps could not be drawn: {'; '.join(failures)}")


def _ship(drawings: Sequence[Drawing], sharing: int) -> _Shipped:
    """Drawings for workers, so many of which share the memory."""
    networks = {drawing.network.fingerprint: replace(drawing.network, double=None) for drawing in drawings}
    light = []
    for drawing in drawings:
        memory = (drawing.arguments["memory_bytes"] or default_budget(drawing.network.device)) // sharing
        light.append((drawing.network.fingerprint, {**drawing.arguments, "memory_bytes": max(1, memory)}))
    packed = pack((networks, light), drawings[0].network.name)
    return _Shipped(packed, tuple(np.ascontiguousarray(drawing.image.numpy()) for drawing in drawings))


def _make_runner(shipped: tuple[_Shipped, dict[str, Any]], device: str, over: Callable[[], bool]) -> _Runner:
    """A worker's runner, see ``scheduling.worker.Make``."""
    maps, choices = shipped
    networks, light = unpack(maps.drawings)
    there: dict[str, Network] = {name: moved(network, torch.device(device)) for name, network in networks.items()}

    def begin(place: int) -> Drawing:
        name, arguments = light[place]
        network, domain = there[name], arguments["domain"]
        own = {
            "domain": None if domain is None else domain.to(network.device),
            "memory_bytes": min(arguments["memory_bytes"], default_budget(network.device)),
        }
        return begin_map(network, torch.tensor(maps.images[place]), **{**arguments, **own})

    return _Runner(begin, over, choices)
