"""Which images go through which stage when: plans tasks for workers, and learns from what they report."""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from l0tre.attacks.drive import block_size
from l0tre.evaluation.grid_steps import end_of_look, is_cheap
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.state import State
from l0tre.evaluation.tasks import Report, Stage, Task, stages_of
from l0tre.scheduling.executor import Event

__all__ = ["Schedule"]

LEARNT = 0.5  # weight of the latest task in what a task costs
GROWTH = 4  # a task has at most so many times the images of the one before: several are faster together
PARTS = 2  # tasks for each worker that what is left is cut into at the least, so that all end together
STRIKES = 6  # of an image since it last came on, before it is set aside
WEIGHTS = {"failed": 2, "died": 1}  # strikes that an end gives: a worker may be lost through no fault of its work

Key = tuple[int, int]  # number of a stage, turn in it


@dataclass
class _Way:
    """Where an image is.

    Attributes:
        key: The stage that it is in or waits for, and how many turns it had there.
        strikes: For failures of tasks that it was in, since it last came on.
        aside: Why it is not gone on with, empty otherwise.
    """

    key: Key = (0, 0)
    strikes: int = 0
    aside: str = ""


@dataclass
class _Work:
    """A task that a worker has: what it reported so far.

    Attributes:
        key: Stage and turn.
        task: What was handed out.
        seconds: Work of all reports.
        steps: How many there were.
        share: How much of the level was done at the last one.
        early: Whether the last one said that the task ends with work left.
        closed: Whether nothing more is expected.
    """

    key: Key
    task: Task
    seconds: float = 0.0
    steps: int = 0
    share: float = 0.0
    early: bool = False
    closed: bool = False


@dataclass
class _Pace:
    """What images cost at a stage and turn: seconds for each, and how many the latest task had."""

    seconds: float
    images: int


class Schedule:
    """The images of an evaluation on their way through its stages.

    With ``whole``, a stage is one task for all images. Else tasks are for a few images, about ``Tuning.task_seconds``
    by what those before took: first those of the lowest stage and turn, of these the ones whose bounds nearly meet. An
    image is in one task at a time, so that nothing is done or counted twice.

    Attributes:
        stages: What every image goes through.
        at_work: Tasks that were handed out, by number.
        boxed: Images whose cells are too large to bound.
    """

    def __init__(self, problem: Problem, state: State, *, workers: int, device: torch.device, whole: bool) -> None:
        """Begin, or go on with a state.

        Args:
            problem: What is evaluated.
            state: Where the writer keeps the bounds; read only.
            workers: How many tasks are at work at a time.
            device: Where the work is done.
            whole: Whether a stage is one task.
        """
        self.problem = problem
        self.state = state
        self.workers = workers
        self.device = device
        self.whole = whole
        certified = problem.settings.guarantee == "certified" and problem.network.thresholds is None
        self.stages = stages_of(problem, cheap=certified and not problem.settings.sample_ms and is_cheap(problem))
        self.at_work: dict[int, _Work] = {}
        self.boxed: set[int] = set()
        self.number = 0
        self.latest = 0.0  # seconds of the task that ended last
        self._ways = [_Way() for _ in state.bounds]
        self._waiting: dict[Key, list[tuple[int, int, int]]] = {}  # heaps of strikes, gap and place
        self._inside: Counter[int] = Counter()  # images by stage, waiting or at work
        self._paces: dict[Key, _Pace] = {}
        self._blocks: list[tuple[int, list[int]]] = []  # images that are treated together, with their stage
        self._taken: Counter[int] = Counter()  # images that have had work at a stage
        for place in range(len(state.bounds)):
            self._enter(place, (0, 0))

    def next(self) -> tuple[int, Task] | None:
        """The next task and its number; none if there is none to hand out now."""
        picked = self._pick()
        if picked is None:
            return None
        key, places = picked
        state, tuning, stage = self.state, self.problem.tuning, self.stages[key[0]]
        task = Task(
            stage,
            tuple(places),
            tuple(state.bounds[place] for place in places),
            {place: state.partials[place] for place in places if place in state.partials},
            {place: state.proofs[place] for place in places if place in state.proofs},
            frozenset(self.boxed.intersection(places)),
            state.history[-1].t if state.history else None,
            key[1],
            int(stage.kind == "prove" and not self.whole),
            float("inf") if self.whole or stage.kind == "prove" else tuning.slice_seconds,
        )
        self.number += 1
        self.at_work[self.number] = _Work(key, task)
        return self.number, task

    def expects(self, event: Event) -> bool:
        """Whether news are of a task that is at work, and the next ones of it."""
        work = self.at_work.get(event.unit)
        if work is None or work.closed:
            return False
        return event.kind != "report" or event.report.step == work.steps

    def close(self, unit: int) -> None:
        """Expect nothing more of a task."""
        self.at_work[unit].closed = True

    def merged(self, unit: int, report: Report) -> None:
        """A report of a task is merged."""
        work = self.at_work[unit]
        work.steps += 1
        work.seconds += report.seconds
        work.share, work.early = report.share, report.early
        self.boxed |= report.boxed

    def ended(self, unit: int) -> None:
        """A task came to its end: its images go on."""
        work = self.at_work.pop(unit)
        stage, turn = work.key
        count = len(work.task.places)
        cost, known = work.seconds / count, self._paces.get(work.key)
        self._paces[work.key] = _Pace(cost if known is None else LEARNT * (cost + known.seconds), count)
        self.latest = work.seconds
        for place in work.task.places:
            self._ways[place].strikes = 0
            again = work.early and self._has_work(place, self.stages[stage])
            self._inside[stage] -= 1
            self._enter(place, (stage, turn + bool(work.task.turns)) if again else (stage + 1, 0))

    def returned(self, unit: int) -> None:
        """A task was not begun."""
        self._wait_again(self.at_work.pop(unit))

    def failed(self, event: Event) -> list[int]:
        """A task failed: its images are tried again, alone after a while; what was merged of them is kept.

        Args:
            event: How it ended.

        Returns:
            Images that are set aside because of it, by place.
        """
        work = self.at_work.pop(event.unit)
        for place in work.task.places:
            self._ways[place].strikes += WEIGHTS[event.kind]
        gone = [p for p in work.task.places if len(work.task.places) == 1 and self._ways[p].strikes >= STRIKES]
        for place in gone:
            self._ways[place].aside = event.reason
            self._inside[work.key[0]] -= 1
        self._wait_again(work)
        return gone

    @property
    def over(self) -> bool:
        """Whether no image is at work or waits."""
        return not any(self._inside.values())

    @property
    def aside(self) -> dict[int, str]:
        """Images that are set aside, by place, and why."""
        return {place: way.aside for place, way in enumerate(self._ways) if way.aside}

    def standing(self, share: float) -> tuple[int, float]:
        """The level at work, and how much of it is done.

        Args:
            share: What was said last.
        """
        open_ = [stage for stage, count in self._inside.items() if count]
        at = min(open_, default=len(self.stages) - 1)
        works = [work for work in self.at_work.values() if work.key[0] == at]
        if not open_ or not works:
            return self.stages[at].t, share
        if self.whole:
            return self.stages[at].t, works[0].share
        begun = sum(work.share * len(work.task.places) for work in works)
        over = self._taken[at] - self._inside[at]
        return self.stages[at].t, min(1.0, (over + begun) / max(1, self._taken[at]))

    def _enter(self, place: int, key: Key) -> None:
        """An image comes to a stage, or to the first one after it that has work for it."""
        stage, turn = key
        while stage < len(self.stages) and not self._has_work(place, self.stages[stage]):
            stage, turn = stage + 1, 0
        self._ways[place].key = stage, turn
        if stage < len(self.stages):
            self._inside[stage] += 1
            self._taken[stage] += int(turn == 0)
            self._wait(place)

    def _wait(self, place: int) -> None:
        way, bounds = self._ways[place], self.state.bounds[place]
        heapq.heappush(self._waiting.setdefault(way.key, []), (way.strikes, bounds.upper - bounds.lower, place))

    def _wait_again(self, work: _Work) -> None:
        left = [place for place in work.task.places if not self._ways[place].aside]
        if self.stages[work.key[0]].together and len(left) > 1 and self._ways[left[0]].strikes < STRIKES:
            self._blocks.insert(0, (work.key[0], left))  # what depends on its images is tried as it was
            return
        for place in left:
            self._wait(place)

    def _has_work(self, place: int, stage: Stage) -> bool:
        partial = self.state.partials.get(place)
        looked = stage.kind == "look" and partial is not None and partial.position >= self._end_of_look
        return stage.has_work(self.state.bounds[place]) and not looked

    @cached_property
    def _end_of_look(self) -> int:
        return end_of_look(self.problem)

    def _pick(self) -> tuple[Key, Sequence[int]] | None:
        """Images for the next task."""
        for key in sorted(key for key, heap in self._waiting.items() if heap):
            heap = self._waiting[key]
            if self.whole:
                self._waiting[key] = []
                return key, sorted(place for *_, place in heap)
            if self.stages[key[0]].together and not heap[0][0]:
                if any(count for stage, count in self._inside.items() if stage < key[0]):
                    continue  # not all have come
                self._waiting[key] = []
                places, size = sorted(place for *_, place in heap), self._together
                self._blocks += [(key[0], places[first : first + size]) for first in range(0, len(places), size)]
            if self._blocks and self._blocks[0][0] <= key[0]:
                break
            if heap[0][0]:
                return key, [heapq.heappop(heap)[2]]  # one that failed is tried alone
            count = self._size(key, len(heap))
            found = [heapq.heappop(heap)[2]]
            while heap and len(found) < count and not heap[0][0]:
                found.append(heapq.heappop(heap)[2])
            return key, found
        if self._blocks:
            stage, block = self._blocks.pop(0)
            return (stage, 0), block
        return None

    @property
    def _together(self) -> int:
        """Images that are attacked together: as in one process, on which results depend."""
        problem = self.problem
        most = block_size(problem.network, problem.settings.memory_bytes)
        return min(problem.tuning.attack_images.on(self.device), most)

    def _size(self, key: Key, waiting: int) -> int:
        """How many images the next task has."""
        tuning, pace = self.problem.tuning, self._paces.get(key)
        count = tuning.cell_images.on(self.device)
        if pace is not None:
            count = min(GROWTH * pace.images, int(tuning.task_seconds / max(pace.seconds, 1e-6)))
        return max(1, min(count, math.ceil(waiting / (PARTS * self.workers))))
