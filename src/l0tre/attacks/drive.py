"""Runs methods on a task, replays what they found, and says which method found it."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.attacks.auto import METHODS
from l0tre.attacks.chains import LEAST_CHAINS, MOST_RIVALS
from l0tre.attacks.meter import Meter
from l0tre.attacks.portfolio import portfolio
from l0tre.attacks.task import AttackTask, Worker
from l0tre.halting import Halted, felt
from l0tre.model.network import Network
from l0tre.objective import Specification

__all__ = ["Outcome", "Progress", "block_size", "carry_out", "replays"]

Progress = Callable[[str, float, float], None]

ARRAYS = 14  # arrays of a chain's size that a step of the local search holds
TOLD_EVERY = 0.2  # seconds between two calls of progress


@dataclass(frozen=True)
class Outcome:
    """What methods found, one row for each image.

    Attributes:
        best: float32 ``[images, values]`` on the network's device; the original where nothing was found.
        methods: The method behind each; empty where nothing was found.
    """

    best: Tensor
    methods: tuple[str, ...]


def block_size(network: Network, memory: int) -> int:
    """Images that are attacked together: what methods keep about them fits the memory.

    Args:
        network: What is attacked.
        memory: Bytes.
    """
    chains = min(MOST_RIVALS, network.classes - 1) + LEAST_CHAINS
    return max(1, memory // (4 * ARRAYS * chains * math.prod(network.input_shape)))


def carry_out(
    meter: Meter,
    task: AttackTask,
    names: Sequence[str],
    budget: int,
    seed: int,
    progress: Progress | None = None,
    known: Tensor | None = None,
) -> Outcome:
    """Run one method, or several as a portfolio; each begins with the best inputs so far.

    Args:
        meter: Network and counters, for the images of the task.
        task: What is attacked.
        names: Keys of :data:`METHODS`.
        budget: Forward and backward passes for each image, all methods together. What images that are finished leave
            is for the others.
        seed: Of all chance.
        progress: Told the method at work, the share of the budget that is spent, and the mean distance so far.
        known: float32 ``[images, values]``, adversarial inputs to begin with; the original where there is none.

    Returns:
        The smallest inputs that the network's source, on the CPU, agrees about.
    """
    generator = torch.Generator(device=task.images.device).manual_seed(seed)
    best = (task.images if known is None else known).clone()
    methods = [""] * len(best)
    workers: dict[str, Worker] = {}

    def turn(name: str, limit: Tensor) -> None:
        if name not in workers:
            workers[name] = METHODS[name].start(meter, task, generator)
        if progress is not None:
            meter.watch = _teller(meter, task, best, name, budget, progress)
        meter.clock.start()
        try:
            with felt(meter.clock.pulse):
                new = workers[name](best, limit)
        except Halted:
            new = meter.best
        smaller = (task.sizes(new) < task.sizes(best)).nonzero()[:, 0]
        for rows in smaller.split(meter.batcher.rows) if len(smaller) else ():
            scores = meter.network.source_scores(new[rows].reshape(-1, *meter.network.input_shape))
            right = rows[(task.specification.pick(rows).to(scores.device).margins(scores) < 0).to(rows.device)]
            best[right] = new[right]
            for row in right.tolist():
                methods[row] = name

    if len(names) == 1:
        if not meter.halted():
            turn(names[0], torch.full_like(meter.spent, budget))
    else:
        portfolio(meter, task, names, budget * len(best), lambda: task.sizes(best), turn, generator)
    return Outcome(best, tuple(methods))


def replays(network: Network, x: Tensor, specification: Specification) -> bool:
    """Whether by the network's source, on the CPU, an input ``[values]`` violates the claim about one image."""
    scores = network.replay(x.reshape(network.input_shape))
    return bool(specification.to(scores.device).margins(scores[None])[0] < 0)


def _teller(
    meter: Meter, task: AttackTask, best: Tensor, stage: str, budget: int, progress: Progress
) -> Callable[[], None]:
    """Tells of the work, now and then."""
    known = task.sizes(best)
    known = known[known <= task.domain.groups].double()
    mean = float(known.mean()) if len(known) else float("nan")
    last = 0.0

    def tell() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= TOLD_EVERY:
            last = now
            progress(stage, min(1.0, float(meter.spent.double().mean()) / max(1, budget)), mean)

    return tell
