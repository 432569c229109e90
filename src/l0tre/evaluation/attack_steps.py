"""The attacks as a part of an evaluation: closer adversarial inputs for images whose bounds do not meet yet."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from l0tre.attacks.auto import usable
from l0tre.attacks.drive import block_size, carry_out
from l0tre.attacks.meter import Meter, has_gradients
from l0tre.attacks.task import AttackTask
from l0tre.evaluation.ledger import Ledger

__all__ = ["strengthen", "strengthen_again"]


def strengthen(ledger: Ledger) -> Iterator[None]:
    """Attack every image whose bounds do not meet yet, once.

    For a grid's guarantee only the ends of ranges are tried: they lie on the grid, for which its lower bounds hold.

    Args:
        ledger: The evaluation.

    Yields:
        After every recorded step.
    """
    problem, budget = ledger.problem, ledger.problem.settings.attack_queries
    bounds = ledger.state.bounds
    todo = [i for i in ledger.places if not bounds[i].attacked and not bounds[i].converged]
    if not todo or not budget:
        return
    ends = bounds[0].guarantee == "grid"
    names = usable("auto", has_gradients(problem.network), ends_only=ends)
    most = block_size(problem.network, problem.settings.memory_bytes)
    size = min(problem.tuning.attack_images.on(problem.images.device), most)
    for start in range(0, len(todo), size):
        block = todo[start : start + size]
        began = time.monotonic()
        enough = torch.tensor([bounds[i].lower + 1 for i in block], device=problem.images.device)
        task = AttackTask(problem.images[block], problem.specification.pick(block), problem.domain, enough)
        meter = Meter(problem.network, len(block), problem.settings.memory_bytes, _patient(ledger), problem.tuning)
        outcome = carry_out(meter, task, names, budget, problem.settings.seed)
        for row, image in enumerate(block):
            if outcome.methods[row]:
                ledger.offer(image, outcome.best[row])
            bounds[image] = replace(bounds[image], attacked=True)
        ledger.spend(block, time.monotonic() - began, meter.spent.tolist())
        ledger.record(block)
        ledger.halted()  # asked once a step, so that the driver knows
        yield


def strengthen_again(ledger: Ledger, images: Sequence[int], seconds: float, turn: int) -> Iterator[None]:
    """Attack images once more, from their witnesses, for as long as their proofs have just taken.

    Nobody knows which bound is the wrong one while they do not meet. With the same time for both sides in turn, the gap
    closes after at most twice the time of the cheaper one.

    Args:
        ledger: The evaluation.
        images: Those whose proofs are not complete.
        seconds: For all of them together.
        turn: How often this was done before, for other chances and larger budgets.

    Yields:
        After every recorded step.
    """
    problem, budget = ledger.problem, ledger.problem.settings.attack_queries
    bounds = ledger.state.bounds
    todo = [i for i in images if not bounds[i].converged]
    if not todo or not budget:
        return
    names = usable("auto", has_gradients(problem.network))
    began = time.monotonic()
    most = block_size(problem.network, problem.settings.memory_bytes)
    size = min(problem.tuning.attack_images.on(problem.images.device), most)
    for start in range(0, len(todo), size):
        block, last = todo[start : start + size], time.monotonic()
        until = began + seconds * (start + len(block)) / len(todo)
        enough = torch.tensor([bounds[i].lower + 1 for i in block], device=problem.images.device)
        task = AttackTask(problem.images[block], problem.specification.pick(block), problem.domain, enough)
        known = problem.images[block].clone()
        for row, image in enumerate(block):
            if (witness := bounds[image].witness) is not None:
                known[row] = witness.apply(problem.images[image].cpu()).to(known)
        patient = _patient(ledger)

        def over(until: float = until, patient: Callable[[], bool] = patient) -> bool:
            return time.monotonic() > until or patient()

        meter = Meter(problem.network, len(block), problem.settings.memory_bytes, over, problem.tuning)
        outcome = carry_out(meter, task, names, budget * 2 ** (turn + 1), problem.settings.seed + turn + 1, known=known)
        for row, image in enumerate(block):
            if outcome.methods[row]:
                ledger.offer(image, outcome.best[row])
        ledger.spend(block, time.monotonic() - last, meter.spent.tolist())
        ledger.record(block)
        ledger.halted()
        yield


def _patient(ledger: Ledger) -> Callable[[], bool]:
    """Whether a step that begins now should stop: not at once, so that a run that is stopped often still gets on."""
    began, grace = time.monotonic(), ledger.problem.tuning.grace_seconds
    return lambda: time.monotonic() - began > grace and ledger.halted()
