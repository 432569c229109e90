"""The anytime loop: bounds that hold whenever it is stopped, and only ever get better."""

import logging
from collections.abc import Callable, Iterator, Sequence

import torch

from l0tre.errors import ConfigError
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.results import Snapshot
from l0tre.evaluation.run_search import OnEvidence
from l0tre.evaluation.runner import TaskRunner
from l0tre.evaluation.schedule import Schedule
from l0tre.evaluation.state import Recorder, State
from l0tre.evaluation.writer import Writer
from l0tre.scheduling.executor import Event, Executor, InProcess, StopCondition

__all__ = ["MakeExecutor", "drive"]

logger = logging.getLogger("l0tre")

# Makes an executor whose workers do tasks of a problem, see ``evaluation.runner``; told when to stop, and whether
# proofs keep what a certificate needs.
MakeExecutor = Callable[[Problem, StopCondition, bool], Executor]


def drive(
    problem: Problem,
    state: State,
    *,
    recorder: Recorder | None = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    on_evidence: OnEvidence | None = None,
    tell: Callable[[str], None] | None = None,
    make_executor: MakeExecutor | None = None,
) -> Iterator[Snapshot]:
    """Improve the bounds until the search is complete, the time is spent, or the caller stops.

    Args:
        problem: Network, inputs, domain and settings.
        state: Bounds and positions to go on from; updated in place, always consistent between two snapshots.
        recorder: Told of every step before its snapshot is given out.
        time_budget: Seconds for this call; ``None`` for no limit. This process makes one step at least, hired workers
            may make none. A later step that has lasted for some time is then left between two of its batches.
        stop: Asked in every step, before each of its batches; once it says yes, that step is the last one.
        on_evidence: Told of every certified level, before it is recorded.
        tell: Takes sentences for the user, such as what a long level will cost; default a warning in the log.
        make_executor: Makes the workers; default this process.

    Yields:
        A snapshot after every step; the last one has ``finished`` set if the search is complete up to ``max_t``.
    """
    if time_budget is not None and not time_budget >= 0:
        raise ConfigError(f"the time budget is {time_budget} seconds: give 0 or more")
    ending, keeps = StopCondition(stop, time_budget), on_evidence is not None
    writer = Writer(problem, state, recorder, on_evidence)
    executor: Executor
    if make_executor is None:
        executor = InProcess(TaskRunner(problem, ending.should_stop, tell, evidence=keeps))
    else:
        executor = make_executor(problem, ending, keeps)
    try:
        yield from _rounds(executor, writer, ending, tell or logger.warning)
    finally:
        executor.close()


def _rounds(
    executor: Executor, writer: Writer, ending: StopCondition, tell: Callable[[str], None]
) -> Iterator[Snapshot]:
    """Hand out tasks and merge what comes back, one snapshot for each step."""
    in_process = isinstance(executor, InProcess)
    device = torch.device(executor.device) if executor.device else writer.problem.images.device
    schedule = Schedule(writer.problem, writer.state, workers=executor.workers, device=device, whole=in_process)
    while not schedule.over:
        for _ in range(executor.free(schedule.latest)):
            planned = schedule.next()
            if planned is None:
                break
            executor.start(*planned)
        events = executor.wait()
        if ending.stopped and not in_process:
            events = [*events, *executor.leave()]
        for sentence in _merge(events, schedule, writer):
            tell(sentence)
        if ending.stopped or any(event.kind == "report" for event in events):
            yield writer.snapshot()
        if ending.stopped:
            return
    writer.t = schedule.stages[-1].t
    writer.state.finished = not schedule.aside
    writer.record([])
    yield writer.snapshot()


def _merge(events: Sequence[Event], schedule: Schedule, writer: Writer) -> Iterator[str]:
    """Merge news of tasks that are at work, each once and in order; yields what the user should be told."""
    known, reports = [], []
    for event in events:
        if not schedule.expects(event):
            continue  # of a task that was given to another worker, or news that came before
        known.append(event)
        if event.kind == "report":
            schedule.merged(event.unit, event.report)
            reports.append(event.report)
        else:
            schedule.close(event.unit)
    if reports:
        writer.t, writer.share = schedule.standing(writer.share)
        writer.merge(reports)
    for event in known:
        if event.kind == "done":
            schedule.ended(event.unit)
        elif event.kind == "returned":
            schedule.returned(event.unit)
        elif event.ends:
            for place in schedule.failed(event):
                index = writer.problem.indices[place]
                noun = writer.problem.noun
                yield f"{noun} {index} is set aside after several tries ({event.reason}): the others go on"
