"""Many workers give what one gives, whatever happens to them: losses, late news, images that always fail."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import l0tre
from l0tre.evaluation.driver import drive
from l0tre.evaluation.problem import Problem, Settings, make_problem, start
from l0tre.evaluation.results import Snapshot
from l0tre.evaluation.runner import TaskRunner
from l0tre.evaluation.tasks import Task
from l0tre.scheduling.executor import Event, Executor, StopCondition
from l0tre.tuning import Tuning
from tests.tools import tiny_module

POISON = "cannot be done"
# Short turns and slices: tasks are left in their middle.
TUNING = Tuning(record_seconds=0.0, turn_seconds=0.005, slice_seconds=0.005, task_seconds=0.01)


class Simulated:
    """Several workers in one process, which fail as they are told to."""

    workers = 3
    device = "cpu"

    def __init__(
        self, problem: Problem, ending: StopCondition, evidence: bool, seed: int, poison: Sequence[int]
    ) -> None:
        self.random = random.Random(seed)
        self.ending = ending
        self.poison = set(poison)
        self.benches = [TaskRunner(problem, lambda: False, lambda _: None, evidence=evidence) for _ in range(3)]
        self.queues: list[list[tuple[int, Task]]] = [[], [], []]
        self.current: list[Iterator[Any] | None] = [None, None, None]
        self.late: list[Event] = []
        self.losses = 0 if seed == 0 else 12
        self.seen: set[tuple[int, ...]] = set()

    def free(self, seconds: float) -> int:  # noqa: ARG002  # of the protocol
        return sum(2 - len(queue) for queue in self.queues)

    def start(self, unit: int, task: Task) -> None:
        min(self.queues, key=len).append((unit, task))

    def wait(self) -> Sequence[Event]:
        self.ending.should_stop()
        events = []
        for number, queue in enumerate(self.queues):
            if queue:
                events += self._step(number, queue)
        self.late = [*self.late, *events][-20:]
        if self.losses and self.random.random() < 0.5:
            events.append(self.random.choice(self.late))  # news that come twice
        return events

    def _step(self, number: int, queue: list[tuple[int, Task]]) -> list[Event]:
        unit, task = queue[0]
        if self.losses and self.random.random() < 0.2:
            self.losses -= 1
            lost, self.queues[number], self.current[number] = list(queue), [], None
            return [Event(unit, "died", reason="lost"), *(Event(other, "returned") for other, _ in lost[1:])]
        reports = self.current[number]
        if reports is None:
            reports = self.current[number] = self.benches[number].work(task)
        if self.poison & set(task.places):
            event = Event(unit, "failed", reason=POISON)
        else:
            report = next(reports, None)
            event = Event(unit, "done") if report is None else Event(unit, "report", report)
        if event.ends:
            queue.pop(0)
            self.current[number] = None
        return [event]

    def leave(self) -> Sequence[Event]:
        return ()

    def close(self) -> None:
        self.queues = []


def _problem(guarantee: Any, *, tuning: Tuning = TUNING) -> Problem:
    module, shape = tiny_module("conv1", 11)
    for parameter in module.parameters():
        parameter.data *= 0.35  # distances of two and more
    torch.manual_seed(1)
    settings = Settings(max_t=2, guarantee=guarantee, epsilon=0.5, memory_bytes=2**20, attack_queries=60)
    return make_problem(
        l0tre.load(module, input_shape=shape, device="cpu"),
        torch.rand(11, *shape),
        None,
        settings=settings,
        tuning=tuning,
    )


def _essence(result: Snapshot, *, without: Sequence[int] = ()) -> list[object]:
    def witness(image: Any) -> Tensor | object:
        return None if image.witness is None else (image.witness.groups, image.witness.values.tolist())

    return [
        (image.index, image.lower, image.upper, image.level, witness(image))
        for image in result.images
        if image.index not in without
    ]


def _run(problem: Problem, seed: int, poison: Sequence[int] = ()) -> tuple[Snapshot, list[str]]:
    said: list[str] = []

    def make_executor(problem: Problem, ending: StopCondition, evidence: bool) -> Executor:
        return Simulated(problem, ending, evidence, seed, poison)

    lower, upper = [0] * 11, [99] * 11
    for snapshot in drive(problem, start(problem), make_executor=make_executor, tell=said.append):
        for place, image in enumerate(snapshot.images):
            assert lower[place] <= image.lower < image.upper <= upper[place]
            lower[place], upper[place] = image.lower, image.upper
    return snapshot, said


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("guarantee", ["grid", "certified"])
def test_several_workers_give_what_one_process_gives(guarantee: str, seed: int) -> None:
    *_, alone = drive(_problem(guarantee, tuning=Tuning()), start(_problem(guarantee)), tell=lambda _: None)
    together, said = _run(_problem(guarantee), seed)
    assert together.finished
    assert not said
    assert _essence(together) == _essence(alone)


def test_an_image_that_always_fails_is_set_aside_and_the_others_go_on() -> None:
    *_, alone = drive(_problem("certified"), start(_problem("certified")), tell=lambda _: None)
    together, said = _run(_problem("certified"), 0, poison=[4])
    assert not together.finished
    assert len(said) == 1
    assert "image 4 is set aside" in said[0]
    assert POISON in said[0]
    others = _essence(together, without=[4])
    expected = _essence(alone, without=[4])
    # Attacked apart from its block, an image may have another witness; what is proved is the same.
    assert [bounds[1] for bounds in others] == [bounds[1] for bounds in expected]  # type: ignore[index]


def test_work_of_a_lost_worker_is_counted_once() -> None:
    problem = _problem("grid")
    state = start(problem)

    def make_executor(problem: Problem, ending: StopCondition, evidence: bool) -> Executor:
        return Simulated(problem, ending, evidence, 5, ())

    *_, last = drive(problem, state, make_executor=make_executor)
    assert last.seconds == pytest.approx(sum(image.seconds for image in last.images), rel=1e-6)
