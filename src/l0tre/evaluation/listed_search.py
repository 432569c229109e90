"""Proofs under rules: every combination of listed values is a changed input of its own, proved about the other groups.

A set of ``t`` groups splits into those with a list and those without. For each choice of vectors for the first, what
must be proved is that no change of the others, anywhere in their ranges, changes the decision for the input so changed.
The provers for ranges do that, so nothing is claimed about vectors that are not allowed. Whole numbers are proved over
all real numbers between them, which is more than needed.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.admission import allowed_vectors, ends
from l0tre.certify.proof import Proof
from l0tre.certify.proof_search import ProofSearch, begin_search
from l0tre.certify.prover import Prover, make_prover
from l0tre.certify.relax.instance import make_instance
from l0tre.domain import Domain
from l0tre.evaluation.problem import Problem
from l0tre.findings import Findings
from l0tre.memory import Batcher
from l0tre.objective import Specification
from l0tre.rules import FREE, Rules

__all__ = ["ListedSearch"]

TOGETHER = 256  # changed inputs that are proved together, at the most
STUCK = 2000  # nodes for a changed input after which it counts as open: a value between whole numbers may be a tie


class ListedSearch:
    """A level for one image, see ``findings.LevelSearch``; what is done of a level is not kept when it is left."""

    light = False
    handed: frozenset[int] = frozenset()

    def __init__(
        self, problem: Problem, place: int, t: int, batcher: Batcher, halted: Callable[[], bool] = lambda: False
    ) -> None:
        """Get ready.

        Args:
            problem: What is evaluated, under rules.
            place: Of the image.
            t: Number of groups that change.
            batcher: Runs the network.
            halted: Asked inside long steps.
        """
        assert isinstance(problem.domain.rules, Rules)
        self.problem, self.t, self.batcher, self.halted = problem, t, batcher, halted
        self.rules = problem.domain.rules
        self.image = problem.images[place : place + 1]
        self.claim: Specification = problem.specification.pick([place])
        self.index = problem.indices[place]
        self.domain = _without_lists(problem.domain, self.image)
        self.open = [0]
        self.safe = True
        self.done, self.total = 0, max(1, sum(1 for _ in self._sets()))
        self.parts = self._parts()
        self.part: tuple[int, Tensor] | None = next(self.parts, None)
        self.search: ProofSearch | None = None
        self.prover: Prover | None = None

    def rows(self) -> list[int]:
        """The image, until its level is decided."""
        return list(self.open)

    def drop(self, rows: Sequence[int]) -> None:
        """Leave the image."""
        self.open = [row for row in self.open if row not in rows]

    def share(self, row: int) -> float:  # noqa: ARG002  # there is one
        """How many of the sets of listed groups are done."""
        return min(1.0, self.done / self.total)

    def progress(self, row: int) -> Proof:  # noqa: ARG002  # there is one
        """Nothing that a later search goes on from."""
        return Proof(self.t, Fraction(0), 1)

    def step(self) -> Findings:
        """Decide some changed inputs, or work on a proof about them."""
        if self.part is None:
            self.open = []
            return Findings({0: 0}, decided={0: self.safe})
        free, inputs = self.part
        found = self._points(inputs) if free == 0 else self._prove(free, inputs)
        if self.search is None:
            self.part = next(self.parts, None)
        return found

    def _sets(self) -> Iterator[tuple[int, ...]]:
        listed = self.rules.listed.tolist()
        for size in range(min(self.t, len(listed)) + 1):
            yield from itertools.combinations(range(len(listed)), size)

    def _parts(self) -> Iterator[tuple[int, Tensor]]:
        """How many other groups change, and inputs with changed listed groups, float32 ``[inputs, values]``."""
        listed, groups = self.rules.listed, self.problem.domain.groups
        allowed = allowed_vectors(self.problem.domain, self.rules, self.image)[0]
        members = self.problem.domain.members[listed]
        vectors = self.rules.vectors[listed]
        differs = (vectors != self.image[0, members][:, None]).any(2)
        choices = [(allowed[place] & differs[place]).nonzero()[:, 0].tolist() for place in range(len(listed))]
        for chosen in self._sets():
            free = min(self.t - len(chosen), groups - len(listed))
            combinations = itertools.product(*(choices[place] for place in chosen))
            while batch := list(itertools.islice(combinations, TOGETHER)):
                inputs = self.image.expand(len(batch), -1).clone()
                for column, place in enumerate(chosen):
                    rows = torch.tensor([combination[column] for combination in batch], device=inputs.device)
                    inputs[:, members[place]] = vectors[place, rows]
                yield free, inputs
            self.done += 1

    def _points(self, inputs: Tensor) -> Findings:
        """Inputs in which only listed groups change: their margins in float64, less what rounding can do."""
        prover = self._prover()
        claims = self.claim.repeat(len(inputs))
        instance = make_instance(prover.plan, prover.tree, self.domain, inputs, claims, 1, 0)
        room = (instance.margins - instance.slack).amin(1)
        self.safe &= bool((room > 0).all())
        worst = instance.margins.amin(1)
        candidates = [(0, inputs[int(worst.argmin())])] if bool((worst < 0).any()) else []
        return Findings({0: len(inputs)}, candidates)

    def _prove(self, free: int, inputs: Tensor) -> Findings:
        if self.search is None:
            count = len(inputs)
            self.search = begin_search(
                self._prover(),
                free,
                inputs,
                self.claim.repeat(count),
                [None] * count,
                [self.index] * count,
                boxes=False,
                hands_over=False,
                halted=self.halted,
            )
        found = self.search.step()
        self.safe &= all(found.decided.values())
        stuck = [row for row in self.search.rows() if self.search.proofs[row].nodes > STUCK and self._may_be_stuck]
        if stuck:
            self.safe = False
            self.search.drop(stuck)
        if not self.search.rows():
            self.search = None
        return Findings({0: sum(found.queries.values())}, [(0, changed) for _, changed in found.candidates])

    @property
    def _may_be_stuck(self) -> bool:
        """Whether a violation between allowed values may keep a proof from ending."""
        return bool(self.rules.whole.any())

    def _prover(self) -> Prover:
        if self.prover is None:
            memory = self.problem.settings.memory_bytes
            self.prover = make_prover(self.problem.network, self.domain, self.batcher, memory)
        return self.prover


def _without_lists(domain: Domain, image: Tensor) -> Domain:
    """The groups without a list, free in the ranges that their directions leave them for one image ``[1, values]``."""
    assert isinstance(domain.rules, Rules)
    rest = (domain.rules.counts == 0).nonzero()[:, 0]
    low, high = (side[0] for side in ends(domain, image))
    if not len(rest):  # a prover needs a group, whose range is one point here
        rest = torch.zeros(1, dtype=torch.int64, device=domain.members.device)
        low = high = image[0]
    return replace(
        domain,
        members=domain.members[rest],
        sizes=domain.sizes[rest],
        ids=domain.ids[rest],
        low=low,
        high=high,
        rules=FREE,
    )
