"""What a level will cost, from its first step."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.halting import Halted
from l0tre.memory import Batcher
from l0tre.model.network import Network

__all__ = ["Forecast", "duration", "level_costs", "pass_seconds"]

WORTH_SAYING = 30.0  # seconds that a level must be expected to take
LEAST_SHARE = 1e-9  # of a level that must be done before the rest can be told
SLOW_ROW = 0.005  # seconds of a forward pass that other rows of a batch hardly make faster
PROBED = 64  # rows of a batch that tells what a fast forward pass takes
MEASURED = 8  # inputs of the batch that is measured
PATIENT = 10.0  # seconds until it is said of a proof that nothing is proved yet
SETTLED = 2.0  # seconds of work behind an estimate: the first batches are slower than the rest


@dataclass
class Forecast:
    """Watches a level of an exhaustive search or of a proof and says once what all of it will take.

    Attributes:
        t: The level.
        images: How many images go through it.
        passes: Grid points of all of them; each stands for a forward pass, or less where windows do.
        unit: What a group is called.
        noun: What an input is called.
        proof: Whether it is a proof, whose ``passes`` are sets of groups, many of which fall at once.
        said: Whether it was said.
    """

    t: int
    images: int
    passes: int
    unit: str
    noun: str = "image"
    proof: bool = False
    began: float = field(default_factory=time.monotonic)
    at: float = 0.0
    said: bool = False

    def beforehand(self, row_seconds: float) -> str:
        """What to say before a level that goes by whole forward passes; empty if it is short.

        Args:
            row_seconds: What a forward pass takes, measured.
        """
        left = self.passes * (1 - self.at) * row_seconds
        if self.said or left < WORTH_SAYING:
            return ""
        self.said = True
        return self._told(f"about {self.passes:,} forward passes for {self._count()}, {duration(left)} here")

    def _count(self) -> str:
        return f"{self.images} {self.noun}{'' if self.images == 1 else 's'}"

    def _told(self, what: str) -> str:
        return (
            f"level t = {self.t}: {what}; it can be stopped and resumed any time, and l0tre attack looks for few "
            f"changed {self.unit}s within minutes"
        )

    def sentence(self, share: float) -> str:
        """What to say after a step; empty if there is nothing (more) to say.

        Args:
            share: Part of the level that is done, from 0 to 1; the first call sets where the estimate begins.
        """
        elapsed = time.monotonic() - self.began
        done = share - self.at
        hopeless = done < LEAST_SHARE
        if self.said or elapsed < (PATIENT if hopeless else SETTLED) or (hopeless and not self.proof):
            return ""
        self.said = True
        left = math.inf if hopeless else elapsed * (1 - share) / done
        if left < WORTH_SAYING:
            return ""
        count = self._count()
        time_left = f"nothing proved after {duration(elapsed)}" if hopeless else f"{duration(left)} here"
        if self.proof:
            what = f"{self.passes:,} sets of {self.unit}s to prove for {count}, {time_left}"
            what += "" if hopeless else " at the pace so far"
        else:
            what = f"about {self.passes:,} grid points for {count}, {time_left}"
        return self._told(what)


def pass_seconds(batcher: Batcher, x: Tensor) -> float:
    """What a forward pass takes for each row of a batch; 0 if the time is over.

    Args:
        batcher: The network.
        x: An input ``[1, *shape]`` to measure with, where nothing was measured before.
    """
    try:
        for rows in (1, PROBED):
            if batcher.row_seconds > SLOW_ROW or (rows > 1 and batcher.rows < rows):
                break  # on its own it is as fast as among others
            batcher.run(rows, lambda start, stop: x.expand(stop - start, *x.shape[1:]))
    except Halted:
        return 0.0
    return batcher.row_seconds


def level_costs(
    network: Network, domain: Domain, points: int, saving: float, saved: Sequence[int] = (1, 2, 3)
) -> list[dict[str, float]]:
    """What an exhaustive search of one input costs at levels 1, 2 and 3, from a measured batch.

    Args:
        network: The classifier.
        domain: What may change.
        points: Grid points of one group.
        saving: How many times less windows compute than whole forward passes.
        saved: At which levels they do.

    Returns:
        For each level ``t``, ``sets`` of groups, ``points`` of all sets, and estimated ``seconds``.
    """
    batch = torch.zeros(MEASURED, *network.input_shape)
    network.scores(batch)  # what is made only once
    began = time.monotonic()
    network.scores(batch)
    each = (time.monotonic() - began) / MEASURED
    levels = range(1, min(3, domain.groups) + 1)
    found = [(t, math.comb(domain.groups, t)) for t in levels]
    seconds = {t: each / saving if t in saved else each for t in levels}
    return [{"t": t, "sets": n, "points": n * points**t, "seconds": n * points**t * seconds[t]} for t, n in found]


def duration(seconds: float) -> str:
    """A time in words, to two figures at most: ``40 s``, ``12 min``, ``3 h``, ``5 days``, ``2,000 years``."""
    steps = (("s", 60.0), ("min", 60.0), ("h", 48.0), ("days", 730.0), ("years", float("inf")))
    sizes = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0, "years": 86400.0 * 365}
    for name, most in steps:
        value = seconds / sizes[name]
        if value < most:
            return f"{value:,.1f} {name}" if value < 1 else f"{value:,.0f} {name}"
    raise AssertionError("the last step has no end")
