"""A memory budget in bytes, and batches that fit it."""

import copy
import re
import time
from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.errors import ConfigError, ModelError
from l0tre.halting import Halted
from l0tre.limits import free_host_bytes
from l0tre.model.network import Network
from l0tre.model.rounding import Peaks
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["Batcher", "Portions", "default_budget", "parse_size"]

SHARE = 0.25  # of the memory that is free at the start
PART = 0.2  # of a time limit that a batch may take
SLOW = 1.0  # seconds of a batch, after which the next ones are smaller
LARGE = 2**24  # activations of a sample, in bytes, of a network whose batches may take seconds
TOO_LITTLE = "the device has too little memory for one input: use `device='cpu'`"
QUICK = 0.2  # seconds of a batch, below which the next ones may be larger: twice as many rows stay far from slow
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Bytes from a size such as ``512M``, ``2GiB`` or ``1500000``.

    Raises:
        ConfigError: If it is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    size = 0.0 if match is None else float(match[1]) * UNITS[match[2].upper()]
    if not 1 <= size < 2**63:
        raise ConfigError(f"{text!r} is not a memory size: give bytes or a number with K, M or G, such as 2G")
    return int(size)


def default_budget(device: torch.device) -> int:
    """A share of the memory that is free on a device now, in bytes."""
    if device.type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(device)[0])
    return int(SHARE * free_host_bytes())


class Portions:
    """Rows of work in batches that fit a memory budget, whatever a row takes; smaller ones after running out on a GPU.

    Attributes:
        budget: Bytes that a batch may take.
        tuning: How large batches should be.
        device: Where the work is done.
        share: Of what should fit, that does.
    """

    def __init__(self, budget: int, tuning: Tuning, device: torch.device) -> None:
        self.budget, self.tuning, self.device, self.share = budget, tuning, device, 1.0

    def rows(self, each: int) -> int:
        """How many rows a batch has, of so many bytes each."""
        useful = self.tuning.batch_bytes.on(self.device) // each
        return max(1, int(self.share * min(max(useful, self.tuning.least_rows), self.budget // each)))

    def work_off(self, count: int, each: int, do: Callable[[int, int, int], None]) -> None:
        """Do rows in batches.

        Args:
            count: Number of rows.
            each: Bytes that one row takes.
            do: Does the rows from its first argument up to its second; the third is how many a batch may have.

        Raises:
            ModelError: If there is too little memory for one row.
        """
        start = 0
        while start < count:
            step = self.rows(each)
            try:
                do(start, min(start + step, count), step)
            except torch.OutOfMemoryError as error:
                if step == 1:
                    raise ModelError(TOO_LITTLE) from error
                torch.cuda.empty_cache()
                self.share /= 2
                continue
            start += step


class Batcher:
    """Runs a network on any number of rows within a memory budget.

    The number of rows of a batch follows from the network's footprint and the budget; running out of memory on a GPU
    halves it and goes on.

    Attributes:
        network: What is run.
        pulse: Called before every batch; may raise ``Halted``.
        most: Rows of a batch, at the most.
        rows: Likewise now: of a large network without a graph few, until it is known how long they take.
        row_seconds: What each row of the latest batch took; 0 before the first one.
    """

    def __init__(
        self,
        network: Network,
        budget: int,
        tuning: Tuning = DEFAULT_TUNING,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        """Get ready.

        Args:
            network: What is run.
            budget: Bytes that a batch may take.
            tuning: How large batches are.
            pulse: Called before every batch; may raise ``Halted``.
        """
        self.network = network
        self.pulse = pulse
        self.row_seconds = 0.0
        useful = tuning.batch_bytes.on(network.device) // network.sample_bytes
        self.most = max(1, min(max(useful, tuning.least_rows), budget // network.sample_bytes))
        # The operations of a graph feel the pulse themselves; nothing else ends a batch of a large function.
        unfelt = network.graph is None and network.sample_bytes >= LARGE
        self.rows = max(1, min(useful, self.most)) if unfelt else self.most

    def within(self, seconds: float) -> "Batcher":
        """The same for that long: batches of a fraction of it, and a pulse that halts when it is over.

        Args:
            seconds: From now on.
        """
        other, began = copy.copy(self), time.monotonic()
        fitting = int(PART * seconds / self.row_seconds) if self.row_seconds else 1  # one row measures
        other.rows = other.most = max(1, min(self.rows, fitting))

        def pulse() -> None:
            self.pulse()
            if time.monotonic() - began >= seconds:
                raise Halted

        other.pulse = pulse
        return other

    def run(self, count: int, make: Callable[[int, int], Tensor], peaks: Peaks | None = None) -> Tensor:
        """Scores of rows that are made as they are needed.

        Args:
            count: Number of rows.
            make: Gives the inputs of rows ``start`` to ``stop`` as ``[stop - start, *input_shape]``.
            peaks: Receives the largest values on the way, see ``Network.watched_scores``.

        Returns:
            float32 ``[count, classes]`` on the network's device.

        Raises:
            Halted: If the pulse does.
        """
        # In one piece: small results that stay between the large blocks of batches keep an allocator from using these
        # again, so that memory grows with every batch.
        scores = torch.empty(count, self.network.classes, device=self.network.device)
        start = 0
        while start < count:
            self.pulse()
            stop = min(start + self.rows, count)
            began = time.monotonic()
            try:
                x = make(start, stop)
                scores[start:stop] = self.network.scores(x) if peaks is None else self.network.watched_scores(x, peaks)
            except torch.OutOfMemoryError as error:
                if self.rows == 1:
                    raise ModelError(TOO_LITTLE) from error
                torch.cuda.empty_cache()
                self.rows = self.most = self.rows // 2
                continue
            full = stop - start == self.rows
            start = stop
            elapsed = time.monotonic() - began
            self.row_seconds = elapsed / len(x)
            self.adapt(elapsed, full=full)
        return scores

    def adapt(self, seconds: float, *, full: bool) -> None:
        """Smaller or larger batches from now on: only between two of them can the work be left.

        Args:
            seconds: What a batch took.
            full: Whether it had as many rows as it may.
        """
        if seconds > SLOW and self.rows > 1:
            self.rows //= 2
        elif seconds < QUICK and full:
            self.rows = min(2 * self.rows, self.most)
