"""What a proof will cost: the levels that a short trial gets through for one random input."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from l0tre.domain import Domain
from l0tre.evaluation.driver import drive
from l0tre.evaluation.problem import Settings, make_problem, start
from l0tre.model.network import Network

__all__ = ["TRIAL_SECONDS", "ProofCost", "estimate_proof_costs"]

TRIAL_SECONDS = 3.0
TRIAL_LEVELS = 3
CANDIDATES = 16


@dataclass(frozen=True)
class ProofCost:
    """A level of the trial.

    Attributes:
        t: Number of groups that change.
        share: Proved part of its sets.
        seconds: What the level took so far.
        over: Whether it was decided, by a proof or by a witness.
    """

    t: int
    share: float
    seconds: float
    over: bool

    @property
    def estimate(self) -> float:
        """Seconds for all of the level at the pace so far; infinite if nothing is proved."""
        return self.seconds if self.over else self.seconds / self.share if self.share else float("inf")


def estimate_proof_costs(network: Network, domain: Domain, seconds: float = TRIAL_SECONDS) -> Sequence[ProofCost]:
    """Prove for some seconds about one input of random values, level by level.

    Args:
        network: One that can be certified.
        domain: What may change.
        seconds: For all levels together.

    Returns:
        The levels that were begun.
    """
    low, high = domain.box
    noise = torch.rand(CANDIDATES, *network.input_shape, generator=torch.Generator().manual_seed(0))
    inputs = low + (high - low) * noise
    scores = torch.cat([network.scores(one[None].to(network.device)) for one in inputs]).topk(2).values
    x = inputs[int((scores[:, 0] - scores[:, 1]).argmax())]  # real inputs have larger margins than random ones
    settings = Settings(max_t=min(TRIAL_LEVELS, domain.groups), attack_queries=0, guarantee="certified")
    problem = make_problem(network, x[None], None, domain=domain, settings=settings)
    began, found = time.monotonic(), dict[int, ProofCost]()
    for snapshot in drive(problem, start(problem), time_budget=seconds):
        now, bounds = time.monotonic(), snapshot.images[0]
        before = sum(cost.seconds for t, cost in found.items() if t < snapshot.t)
        over = snapshot.finished or bounds.converged or bounds.level >= snapshot.t
        found[snapshot.t] = ProofCost(snapshot.t, snapshot.level_share, now - began - before, over)
        if bounds.converged:
            break
    return [found[t] for t in sorted(found)]
