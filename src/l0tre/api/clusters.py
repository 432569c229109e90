"""Evaluations on the workers of a cluster, or in this process: the one place where the functions of the user choose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from l0tre.evaluation.driver import MakeExecutor
from l0tre.evaluation.remote import ray_executors
from l0tre.scheduling.executor import Executor, InProcess, Runner, StopCondition
from l0tre.scheduling.ray_executor import RayExecutor
from l0tre.scheduling.session import Cluster, cluster_of, session, sharing
from l0tre.scheduling.worker import Make

__all__ = ["ClusterChoice", "on_cluster", "shared_session", "workers_for"]

ClusterChoice = str | Cluster | None  # ``local``, ``ray://host:port``, more about the workers, or this process

_T = TypeVar("_T")


@contextmanager
def shared_session(where: ClusterChoice) -> Iterator[None]:
    """Inside, one session of a cluster serves several evaluations; nothing for this process.

    Raises:
        ConfigError: If the cluster cannot be used.
    """
    if where is None:
        yield
        return
    with session(cluster_of(where)):
        yield


def on_cluster(where: ClusterChoice, make: Callable[[MakeExecutor | None], Iterator[_T]]) -> Iterator[_T]:
    """Steps of an evaluation, with the workers that they are to be made by.

    The cluster is reached before anything else is done, and left when the last step was made.

    Args:
        where: The cluster, ``None`` for this process.
        make: Sets an evaluation up and gives its steps, from what makes its workers; ``None`` for this process.

    Raises:
        ConfigError: If the cluster cannot be used.
    """
    if where is None:
        return make(None)
    cluster, stack = cluster_of(where), ExitStack()
    try:
        steps = make(ray_executors(stack.enter_context(session(cluster)), cluster))
    except BaseException:
        stack.close()
        raise
    return _left(steps, stack)


@contextmanager
def workers_for(
    where: ClusterChoice, ending: StopCondition, runner: Runner, make: Make, ship: Callable[[int], Any]
) -> Iterator[Executor]:
    """Who does tasks that do not depend on each other, see ``scheduling.spread``; given back at the end.

    Args:
        where: The cluster, ``None`` for this process.
        ending: When workers should leave what they are at.
        runner: What does the tasks in this process.
        make: Makes the same in a worker, from what is shipped.
        ship: What is sent, from how many workers share the memory of a machine or GPU.

    Raises:
        ConfigError: If the cluster cannot be used.
    """
    if where is None:
        yield InProcess(runner)
        return
    cluster = cluster_of(where)
    with session(cluster) as ray:
        executor = RayExecutor(ray, cluster, make, ship(sharing(ray, cluster)), ending)
        try:
            yield executor
        finally:
            executor.close()


def _left(steps: Iterator[_T], stack: ExitStack) -> Iterator[_T]:
    with stack:
        try:
            yield from steps
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()
