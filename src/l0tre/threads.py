"""How many threads torch uses for small work: what the machine has to give, and what really is faster.

torch's threads wait for each other by spinning unless ``OMP_WAIT_POLICY`` says otherwise before torch is loaded, which
importing this package first does. Where torch came first, a machine with other work makes small operations tens of
times slower with several threads than with one, and so does a container with less CPU time than it sees cores.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

import torch

from l0tre.openmp import TORCH_SPINS

__all__ = ["choose_threads", "cpu_quota", "spinning", "usable_cpus", "using_threads", "with_threads"]

PROBE_SECONDS = 0.15  # for each of the two ways
PROBE_RUNS = 3  # at the least
FASTER = 0.8  # several threads must take at most this share of one thread's time

_T = TypeVar("_T")


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs' worth of time that this process may use, by its control groups; ``None`` where nothing limits it.

    In a container its group is the root of what it sees; elsewhere ``own`` names it, and the groups above limit it too.
    """
    found = []
    for folder in _groups(root, own):
        try:
            if (folder / "cpu.max").is_file():
                quota, period = (folder / "cpu.max").read_text().split()[:2]
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            found.append(float(quota) / float(period))
        except (OSError, ValueError, ZeroDivisionError):  # no such file; "max"
            continue
    return min((share for share in found if share > 0), default=None)


def _groups(root: Path, own: Path) -> list[Path]:
    """Folders of the control groups that this process is in, of either version of the interface."""
    folders = [root, root / "cpu"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            top = root / "cpu" if controllers else root
            inner = PurePosixPath(path.strip("/"))
            folders += [top / part for part in (inner, *inner.parents)]
    return folders


def usable_cpus(root: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process may use, at least 1: those it is bound to, and no more than its quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return max(1, bound if quota is None else min(bound, math.floor(quota)))


def choose_threads(work: Callable[[], object], most: int, spins: bool) -> int:
    """How many threads some work is best done with.

    Args:
        work: A typical small piece of it.
        most: Threads that torch would use.
        spins: Whether threads wait by spinning.

    Returns:
        1, or as many as are usable.
    """
    many = min(most, usable_cpus())
    if many <= 1 or not spins:
        return many
    with using_threads(1):
        alone = _mean_seconds(work)
    with using_threads(many):
        together = _mean_seconds(work)
    return many if together < FASTER * alone else 1


def spinning() -> bool:
    """Whether torch's threads wait by spinning: unless the environment said otherwise when torch was loaded."""
    return TORCH_SPINS or os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE"


def _mean_seconds(work: Callable[[], object]) -> float:
    work()  # what is made only once
    began, runs = time.monotonic(), 0
    while runs < PROBE_RUNS or time.monotonic() - began < PROBE_SECONDS:
        work()
        runs += 1
        if time.monotonic() - began > 4 * PROBE_SECONDS:
            break
    return (time.monotonic() - began) / runs


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """So many threads inside; as many as before afterwards."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_threads(items: Iterator[_T], count: int) -> Iterator[_T]:
    """The items of an iterator, made with so many threads; whoever takes them keeps his own number."""
    try:
        while True:
            with using_threads(count):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
