"""Does the tasks of an evaluation: stages for some images, reported step by step."""

import time
from collections.abc import Callable, Iterator
from functools import cached_property

from l0tre.certify.prover import Prover, make_prover
from l0tre.evaluation.attack_steps import strengthen
from l0tre.evaluation.grid_steps import SafeSets, exhaust, look_for_witnesses, sample_all
from l0tre.evaluation.ledger import Ledger
from l0tre.evaluation.lipschitz_decision import lipschitz_decision
from l0tre.evaluation.problem import Problem, start
from l0tre.evaluation.proof_steps import prove, prove_under_rules
from l0tre.evaluation.tasks import Report, Task
from l0tre.halting import Halted

__all__ = ["TaskRunner"]


class TaskRunner:
    """A worker's own ledger, and what the tasks that it does have in common."""

    def __init__(
        self,
        problem: Problem,
        stop: Callable[[], bool],
        tell: Callable[[str], None] | None,
        *,
        evidence: bool,
    ) -> None:
        """Get ready.

        Args:
            problem: What is evaluated.
            stop: Asked in every step; a yes ends the task after that step.
            tell: Takes sentences for the user, such as what a long level will cost.
            evidence: Whether proofs keep what a certificate needs.
        """
        self.problem = problem
        self.stop = stop
        self.until = float("inf")
        self.evidence = evidence
        self.ledger = Ledger(problem, start(problem), self._over, tell)
        self._prover: Prover | None = None

    @cached_property
    def safe_sets(self) -> SafeSets | None:
        """What is safe for the Lipschitz guarantee."""
        lipschitz = self.problem.settings.guarantee == "lipschitz"
        return lipschitz_decision(self.problem, self.ledger.batcher) if lipschitz else None

    def work(self, task: Task) -> Iterator[Report]:
        """Do a task, until it is done or should be left; see ``scheduling.Runner``."""
        ledger = self.ledger
        self.until = time.monotonic() + task.seconds
        ledger.take(task)
        for _ in self._steps(task):
            yield ledger.report(early=ledger.ending)
            if ledger.ending:
                return
        if task.turns:  # what is left of a proof's turns
            yield ledger.report(early=True)

    def _over(self) -> bool:
        return self.stop() or time.monotonic() >= self.until

    def _steps(self, task: Task) -> Iterator[None]:
        ledger, stage = self.ledger, task.stage
        if stage.kind == "sample":
            yield from sample_all(ledger)
        elif stage.kind == "look":
            yield from look_for_witnesses(ledger)
        elif stage.kind == "attack":
            yield from strengthen(ledger)
        elif stage.kind == "exhaust":
            try:
                with ledger.leaving():
                    safe_sets = self.safe_sets
            except Halted:
                ledger.record(())
                yield
                return
            yield from exhaust(ledger, stage.t, safe_sets)
        elif stage.kind == "list":
            yield from prove_under_rules(ledger, stage.t)
        else:
            prover = self._make_prover()
            if prover is None:
                ledger.record(())
                yield
            else:
                yield from prove(ledger, prover, task, evidence=self.evidence)

    def _make_prover(self) -> Prover | None:
        """What all proofs share; none if the time is over before it is made."""
        if self._prover is None:
            problem, batcher = self.problem, self.ledger.batcher
            memory = problem.settings.memory_bytes
            try:
                with self.ledger.leaving() as pulse:
                    self._prover = make_prover(problem.network, problem.domain, batcher, memory, problem.tuning, pulse)
            except Halted:
                return None
        return self._prover
