"""The command line in processes of their own, forked from one that has loaded torch: a fresh start takes seconds.

What depends on the start itself (imports, the environment, how Python ends) is for processes started from nothing.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

PATIENCE = 240  # seconds until a process counts as stuck
FORKS = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here"
)


@dataclass(frozen=True)
class Ended:
    """What a process left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Started:
    """A process at work, and where its output goes."""

    process: ForkServerProcess
    folder: Path

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> Ended:
        """Wait for its end; kill it if there is none."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        assert code is not None, "the process is stuck"
        return Ended(code, *((self.folder / name).read_text() for name in ("stdout", "stderr")))

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def start_l0tre(folder: Path, *words: str | Path, before: Callable[[], None] | None = None) -> Started:
    """Start ``l0tre WORDS``.

    Args:
        folder: For its output; made here.
        words: As typed.
        before: Called in the process, before the command; a function of a module.
    """
    folder.mkdir()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "onnxruntime", "l0tre.cli.evaluate", "l0tre.cli.verify"])
    process = context.Process(target=_run, args=(str(folder), [str(word) for word in words], before))
    process.start()
    return Started(process, folder)


def run_l0tre(folder: Path, *words: str | Path, before: Callable[[], None] | None = None) -> Ended:
    """Run ``l0tre WORDS`` to its end; arguments as in :func:`start_l0tre`."""
    return start_l0tre(folder, *words, before=before).end()


def _run(folder: str, words: list[str], before: Callable[[], None] | None) -> None:
    import torch

    from l0tre.cli import main

    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    # Python's own streams still belong to the process that this one comes from.
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w") for number in (1, 2))
    torch.set_num_threads(1)
    if before is not None:
        before()
    sys.argv = ["l0tre", *words]
    main()
