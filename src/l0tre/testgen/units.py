"""Generation cut into units that do not wait for each other: done in this process or by workers, merged in order.

A unit is begun with the distances that are known then, and what it finds is merged where it would have been found by
one process. So a suite is the same whoever does the units.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, overload

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.halting import Halted, felt
from l0tre.model.network import Network
from l0tre.model.ship import moved, pack, unpack
from l0tre.scheduling.executor import Executor, InProcess, StopCondition
from l0tre.scheduling.spread import Failed, spread
from l0tre.testgen.baseline import Chance
from l0tre.testgen.bounds import NeuronProver, make_neuron_prover
from l0tre.testgen.found import Found, Tests
from l0tre.testgen.goals import Goals

__all__ = ["Bench", "Desk", "UnitRunner", "make_unit_runner", "ship"]


@dataclass(frozen=True)
class Bench:
    """What all units share, on the device that they are done on.

    Attributes:
        network: With a graph.
        goals: The neurons.
        domain: What may change.
        points: What single groups are changed to, see ``sweep.corner_points``.
        seeds: float32 ``[seeds, values]``.
        most: Changed groups of a test, at the most.
        memory: Bytes that a batch may take; results depend on it, so all have the same.
        seed: Of chance.
        pulse: Felt before every batch; may raise ``Halted``.
    """

    network: Network
    goals: Goals
    domain: Domain
    points: Tensor
    seeds: Tensor
    most: int
    memory: int
    seed: int
    pulse: Callable[[], None]

    @cached_property
    def prover(self) -> NeuronProver | str:
        """What proves neurons out of reach, or why there is none."""
        if self.network.exact is None:
            return self.network.note
        return make_neuron_prover(self.network.exact, self.goals, self.domain, self.pulse)

    @cached_property
    def chance(self) -> Chance:
        """Random inputs."""
        return Chance(self.goals, self.domain, self.seeds, self.most, self.seed, self.memory)


@dataclass(frozen=True)
class _Unit:
    """A function of a bench, an empty ``Found`` and its own arguments; and the distances that are known."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    distance: Tensor


@dataclass(frozen=True)
class _Outcome:
    """What a unit found and gave; ``left`` if somebody asked to stop in the middle of it."""

    tests: Tests
    value: Any
    left: bool


class UnitRunner:
    """Does units, see ``scheduling.Runner``."""

    def __init__(self, bench: Bench, *, remote: bool) -> None:
        self.bench = bench
        self.remote = remote

    def work(self, unit: _Unit) -> Iterator[_Outcome]:
        """Do a unit; one report, also if it is left early."""
        device = self.bench.goals.device
        known = unit.distance.to(device)
        found = Found(known.clone(), torch.full_like(known, -1))
        try:
            with felt(self.bench.pulse):
                value, left = unit.function(self.bench, found, *_at(unit.arguments, device)), False
        except Halted:
            value, left = None, True
        outcome = _Outcome(found.news(known), value, left)
        yield _packed(outcome) if self.remote else outcome


class Desk:
    """Has units done, and merges what they find.

    Attributes:
        found: The nearest tests so far; changed in place.
        notes: Told of units that failed.
    """

    def __init__(self, executor: Executor, ending: StopCondition, found: Found, notes: list[str]) -> None:
        self.executor = executor
        self.ending = ending
        self.found = found
        self.notes = notes
        self._remote = not isinstance(executor, InProcess)
        self._numbers = count(1)

    def values(self, what: str, units: int, make: Callable[[int], tuple[Any, ...]]) -> Iterator[Any]:
        """Have units done.

        Args:
            what: What they are, for users.
            units: How many.
            make: Gives a unit's function and its arguments, from 0 on.

        Yields:
            What their functions give, in order, when what they found is merged; ``None`` for one that failed.

        Raises:
            Halted: If somebody asked to stop.
        """
        tasks = _Lazy(units, lambda place: self._unit(*make(place)))
        waiting, place = dict[int, Any](), 0
        for number, report in spread(self.executor, tasks, self.ending, self._numbers):
            waiting[number] = report
            while place in waiting:
                outcome = waiting.pop(place)
                place += 1
                if self._merge(what, outcome):
                    raise Halted
                yield None if isinstance(outcome, Failed) else _at(outcome.value, self.found.distance.device)
        for number in sorted(waiting):
            self._merge(what, waiting[number])
        if place < units:
            raise Halted

    def _unit(self, function: Callable[..., Any], *arguments: Any) -> _Unit:
        unit = _Unit(function, arguments, self.found.distance)
        return _packed(unit) if self._remote else unit

    def _merge(self, what: str, outcome: _Outcome | Failed) -> bool:
        """Take over what a unit found; whether it was left early."""
        if isinstance(outcome, Failed):
            note = f"left out because workers failed several times: {what} ({outcome.reason})"
            if note not in self.notes:
                self.notes.append(note)
            return False
        self.found.merge(_at(outcome.tests, self.found.distance.device))
        return outcome.left


class _Lazy(Sequence[_Unit]):
    """Units that are made when they are handed out."""

    def __init__(self, length: int, make: Callable[[int], _Unit]) -> None:
        self.length = length
        self.make = make

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, place: int) -> _Unit: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[_Unit]: ...

    def __getitem__(self, place: int | slice) -> _Unit | Sequence[_Unit]:
        if isinstance(place, slice):
            return [self.make(number) for number in range(self.length)[place]]
        return self.make(place)


def ship(bench: Bench) -> bytes:
    """A bench for workers."""
    network = replace(bench.network, double=None)  # the import was checked with it
    return pack(_moved_bench(replace(bench, network=network), torch.device("cpu"), _never), network.name)


def make_unit_runner(shipped: bytes, device: str, over: Callable[[], bool]) -> UnitRunner:
    """A worker's runner, see ``scheduling.worker.Make``."""

    def pulse() -> None:
        if over():
            raise Halted

    return UnitRunner(_moved_bench(unpack(shipped), torch.device(device), pulse), remote=True)


def _moved_bench(bench: Bench, device: torch.device, pulse: Callable[[], None]) -> Bench:
    network = moved(bench.network, device)
    where = network.device
    return replace(
        bench,
        network=network,
        goals=bench.goals.to(where),
        domain=bench.domain.to(where),
        points=bench.points.to(where),
        seeds=bench.seeds.to(where),
        pulse=pulse,
    )


def _never() -> None:
    """Nobody asks a bench that is on its way."""


def _at(value: Any, device: torch.device) -> Any:
    """A value with its tensors on a device."""
    return _changed(value, lambda tensor: tensor.to(device))


def _packed(value: Any) -> Any:
    """A value whose tensors are on the CPU and nothing but themselves: what is sent of a view is all behind it."""
    return _changed(value, lambda tensor: tensor.cpu().clone())


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_changed(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: _changed(getattr(value, field.name), change) for field in fields(value)}
        return type(value)(**own)
    return value
