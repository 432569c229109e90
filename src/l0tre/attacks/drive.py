"""Runs a schedule of methods on a task, replays what it found, and says which method found it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.attacks.auto import METHODS, Stage
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import Task
from l0tre.halting import Halted
from l0tre.model.network import Network
from l0tre.objective import Specification

__all__ = ["Outcome", "Progress", "carry_out", "replays"]

Progress = Callable[[str, float, float], None]

TOLD_EVERY = 0.2  # seconds between two calls of progress


@dataclass(frozen=True)
class Outcome:
    """What a schedule found, one row for each image.

    Attributes:
        best: float32 ``[images, values]`` on the network's device; the original where nothing was found.
        methods: The method behind each; empty where nothing was found.
    """

    best: Tensor
    methods: tuple[str, ...]


def carry_out(
    meter: Meter, task: Task, stages: tuple[Stage, ...], budget: int, seed: int, progress: Progress | None = None
) -> Outcome:
    """Run stages one after the other; each begins with the best inputs so far.

    Args:
        meter: Network and counters, for the images of the task.
        task: What is attacked.
        stages: What to run.
        budget: Forward and backward passes for each image, all stages together.
        seed: Of all chance.
        progress: Told the stage's name, the share of the budget that is spent, and the mean distance so far.

    Returns:
        The smallest inputs that the network's source, on the CPU, agrees about.
    """
    generator = torch.Generator(device=task.images.device).manual_seed(seed)
    best = task.images.clone()
    methods = [""] * len(best)
    for stage in stages:
        sizes = task.sizes(best)
        if meter.halted() or not bool(((sizes > task.enough) & (meter.spent < budget)).any()):
            break
        allowed = (sizes <= stage.ceiling) | (stage.ceiling == 0)
        if not METHODS[stage.method].gradients:
            allowed |= sizes > task.domain.groups
        left = (budget - meter.spent).clamp(min=0)
        share = torch.maximum(stage.share * left, (left / 2).clamp(max=stage.least))
        limit = meter.spent + (share * allowed).long()
        if progress is not None:
            meter.watch = _teller(meter, task, best, stage.method, budget, progress)
        some = replace(task, enough=task.enough.clamp(min=stage.floor))
        meter.clock.start()
        try:
            new = METHODS[stage.method].run(meter, some, best, limit, generator)
        except Halted:
            new = meter.best
        for row in (task.sizes(new) < task.sizes(best)).nonzero()[:, 0].tolist():
            if replays(meter.network, new[row], task.specification.pick([row])):
                best[row] = new[row]
                methods[row] = stage.method
    return Outcome(best, tuple(methods))


def replays(network: Network, x: Tensor, specification: Specification) -> bool:
    """Whether by the network's source, on the CPU, an input ``[values]`` violates the claim about one image."""
    scores = network.replay(x.reshape(network.input_shape))
    return bool(specification.to(scores.device).margins(scores[None])[0] < 0)


def _teller(meter: Meter, task: Task, best: Tensor, stage: str, budget: int, progress: Progress) -> Callable[[], None]:
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
            progress(stage, min(1.0, float(meter.spent.double().mean()) / budget), mean)

    return tell
