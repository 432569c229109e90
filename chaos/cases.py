"""The accidents that can happen to a run.

Each happens to a run of a small network. Afterwards the run must tell what it knew, or say that it is damaged, and end
with the bounds of a run to which nothing happened.
"""

import json
import os
import random
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import StoreError
from l0tre.evaluation.results import Snapshot
from l0tre.store import read_snapshot

__all__ = ["CASES", "Subject", "begin_subject", "checked", "make_subject", "run_case"]

SHAPE = (1, 4, 4)
OPTIONS: dict[str, Any] = {"max_t": 2, "epsilon": 0.25, "guarantee": "grid", "attack_queries": 0, "memory_bytes": 2**15}
ENDED, STOPPED, BROKEN = 0, 3, 4  # exit codes of a child: done; an error of one line; anything else
WAIT = 120.0  # seconds until a child counts as stuck


@dataclass(frozen=True)
class Subject:
    """A run in its middle, to copy from, and how it must end.

    Attributes:
        network: What it evaluates.
        images: float32 ``[images, *SHAPE]``.
        folder: The run.
        bounds: Lower and upper bound of each image at the end.
    """

    network: l0tre.Network
    images: Tensor
    folder: Path
    bounds: list[tuple[int, int]]


def make_subject(folder: Path) -> Subject:
    """Begin a run in a folder and leave it in its middle."""
    torch.manual_seed(5)
    module = nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    network = l0tre.load(module, input_shape=SHAPE, device="cpu")
    images = torch.rand(4, *SHAPE)
    return begin_subject(network, images, folder, steps=4, **OPTIONS)


def begin_subject(network: l0tre.Network, images: Tensor, folder: Path, *, steps: int, **options: Any) -> Subject:
    """Begin a run in a folder, and leave it after some steps."""
    whole = l0tre.evaluate(network, images, **options)
    for step, _ in enumerate(l0tre.anytime(network, images, out=folder / "subject", **options), start=1):
        if step == steps:
            break
    return Subject(network, images, folder / "subject", _bounds(whole))


def _bounds(result: Snapshot) -> list[tuple[int, int]]:
    return [(image.lower, image.upper) for image in result.images]


def run_case(kind: str, seed: int, subject: Subject, folder: Path) -> list[str]:
    """Let an accident happen.

    Args:
        kind: A key of :data:`CASES`.
        seed: Decides everything but the scheduler.
        subject: What it happens to.
        folder: Where to work; it is removed afterwards.

    Returns:
        What is wrong; nothing if all is well.
    """
    run = Path(shutil.copytree(subject.folder, folder / f"{kind}-{seed}"))
    try:
        return CASES[kind](subject, run, random.Random(seed))
    finally:
        shutil.rmtree(run, ignore_errors=True)


def _fork(work: Callable[[], object], log: Path) -> int:
    """Start a child; it ends with one of the three exit codes, and writes what broke to a file."""
    child = os.fork()
    if child:
        return child
    code = BROKEN
    try:
        work()
        code = ENDED
    except StoreError as error:
        code = STOPPED if "\n" not in str(error) else BROKEN
    except BaseException:
        log.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _resume(subject: Subject, run: Path, **options: Any) -> None:
    l0tre.resume(run, subject.network, **options)


def _wait(child: int, log: Path) -> list[str]:
    """Wait for a child; gives what is wrong with how it ended."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            said = log.read_text() if log.exists() else ""
            return [] if code in (ENDED, STOPPED, -signal.SIGKILL) else [f"a process ended with {code}: {said}"]
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return ["a process was stuck"]


def checked(subject: Subject, run: Path, before: Snapshot) -> list[str]:
    """The run tells at least what it knew before, its files are of one of its states, and it ends as it should."""
    wrong = []
    try:
        now = read_snapshot(run)
    except StoreError as error:
        return [f"the run cannot be read: {error}"]
    pairs = zip(_bounds(before), _bounds(now), strict=True)
    if not all(a[0] <= b[0] and b[1] <= a[1] for a, b in pairs):
        wrong.append("bounds were lost")
    wrong += _files_of(run, now)
    if _bounds(l0tre.resume(run, subject.network)) != subject.bounds:
        wrong.append("it ends with other bounds")
    return wrong + _files_of(run, read_snapshot(run), exactly=True)


def _files_of(run: Path, now: Snapshot, *, exactly: bool = False) -> list[str]:
    path = run / "result.json"
    if not path.exists():
        return []
    state = json.loads(path.read_text())["state"]
    older = int(state.partition("-")[0]) <= int(now.state.partition("-")[0])
    if state == now.state or (older and not exactly):
        return []
    return [f"result.json is of {state}, the run of {now.state}"]


def kill(subject: Subject, run: Path, chance: random.Random) -> list[str]:
    """``kill -9`` at any moment, several times."""
    before, wrong = read_snapshot(run), []
    for number in range(chance.randint(1, 4)):
        child = _fork(lambda: _resume(subject, run), run.with_suffix(f".{number}.log"))
        time.sleep(chance.uniform(0.0, 0.12))
        os.kill(child, signal.SIGKILL)
        wrong += _wait(child, run.with_suffix(f".{number}.log"))
    return wrong + checked(subject, run, before)


def flip(subject: Subject, run: Path, chance: random.Random) -> list[str]:
    """A bit flips, in the database or in the inputs: the same answers, or an error of one line."""
    path = run / chance.choice(["run.db", "run.db", "inputs.npz"])
    whole, wanted = path.read_bytes(), read_snapshot(run).to_dict()
    wrong = []
    for _ in range(20):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            if read_snapshot(run).to_dict() != wanted:
                wrong.append("a flipped bit changed what the run says")
        except StoreError as error:
            wrong += ["an error of several lines"] if "\n" in str(error) else []
    try:  # the last of them
        if _bounds(l0tre.resume(run, subject.network)) != subject.bounds:
            wrong.append("a flipped bit changed how the run ends")
    except StoreError as error:
        wrong += ["an error of several lines"] if "\n" in str(error) else []
    return wrong


def disk(subject: Subject, run: Path, chance: random.Random) -> list[str]:
    """No file can grow beyond some size, which is how a full disk looks; then there is room again."""
    before = read_snapshot(run)
    size = chance.randrange(0, 2 * (run / "run.db").stat().st_size)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        _resume(subject, run)

    log = run.with_suffix(".log")
    wrong = _wait(_fork(work, log), log)
    wrong += [f"{path.name} was left" for path in run.iterdir() if path.name.startswith(".")]
    return wrong + checked(subject, run, before)


def two(subject: Subject, run: Path, chance: random.Random) -> list[str]:
    """Two processes go on with one run, one of them stopped for a while."""
    before, wrong = read_snapshot(run), []
    logs = [run.with_suffix(f".{number}.log") for number in range(2)]
    first = _fork(lambda: _resume(subject, run), logs[0])
    time.sleep(chance.uniform(0.0, 0.08))
    os.kill(first, signal.SIGSTOP)
    second = _fork(lambda: _resume(subject, run), logs[1])
    # One that was stopped inside a transaction keeps the other one waiting.
    time.sleep(chance.uniform(0.0, 0.3))
    os.kill(first, signal.SIGCONT)
    for child, log in ((first, logs[0]), (second, logs[1])):
        wrong += _wait(child, log)
    return wrong + checked(subject, run, before)


CASES: dict[str, Callable[[Subject, Path, random.Random], list[str]]] = {
    "kill": kill,
    "flip": flip,
    "disk": disk,
    "two": two,
}
