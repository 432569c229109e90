"""Proofs under rules: every combination of listed values is a changed input of its own, proved about the other groups.

A set of ``t`` groups splits into those with a list and those without. For each choice of vectors for the first, what
must be proved is that no change of the others, anywhere in their ranges, changes the decision for the input so changed.
The provers for ranges do that, so nothing is claimed about vectors that are not allowed. Whole numbers are proved over
all real numbers between them, which is more than needed.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.admission import allowed_vectors, ends
from l0tre.certify.proof import Proof
from l0tre.certify.proof_search import ProofSearch, begin_search
from l0tre.certify.prover import Prover, make_prover
from l0tre.certify.regions.nodes import root
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
    """A level for one image, see ``findings.LevelSearch``.

    The changed inputs have an order, so that a later search goes on after those that are decided. It begins with a
    single one: what is proved about that is kept even if no session lasts until its end.
    """

    light = True
    handed: frozenset[int] = frozenset()

    def __init__(
        self,
        problem: Problem,
        place: int,
        t: int,
        batcher: Batcher,
        kept: Proof | None = None,
        halted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Get ready.

        Args:
            problem: What is evaluated, under rules.
            place: Of the image.
            t: Number of groups that change.
            batcher: Runs the network.
            kept: What :meth:`progress` gave another search of this level.
            halted: Asked inside long steps.
        """
        assert isinstance(problem.domain.rules, Rules)
        self.problem, self.t, self.batcher, self.halted = problem, t, batcher, halted
        self.rules = problem.domain.rules
        self.image = problem.images[place : place + 1]
        self.claim: Specification = problem.specification.pick([place])
        self.index = problem.indices[place]
        self.domain = _without_lists(problem.domain, self.image)
        self.choices = self._choices()
        self.digest = self._digest()
        self.open = [0]
        self.safe = True
        self.done, self.total = 0, max(1, sum(self._count(chosen) for chosen in self._sets()))
        self.together = TOGETHER
        self.prover: Prover | None = None
        self.search: ProofSearch | None = None
        self.begun = self._go_back_to(kept)
        self.parts = self._parts(self.done)
        self.part: tuple[int, Tensor] | None = next(self.parts)  # there is one: no group with a list changes

    def rows(self) -> list[int]:
        """The image, until its level is decided."""
        return list(self.open)

    def drop(self, rows: Sequence[int]) -> None:
        """Leave the image."""
        self.open = [row for row in self.open if row not in rows]

    def share(self, row: int) -> float:  # noqa: ARG002  # there is one
        """How many of the changed inputs are decided."""
        alone = self.search is not None and len(self.search.proofs) == 1
        begun = self.search.share(0) if alone and self.search is not None else 0.0
        return min(math.nextafter(1.0, 0.0), (self.done + begun) / self.total)

    def progress(self, row: int) -> Proof:  # noqa: ARG002  # there is one
        """How many changed inputs are decided, and the proof about the next one if it is alone at work."""
        proof = Proof(1, Fraction(0), 1, (root(0, 1, torch.device("cpu")),))
        if self.search is not None and len(self.search.proofs) == 1 and self.search.rows():
            proof = self.search.progress(0)
        elif self.search is None and self.begun is not None:
            proof = self.begun
        return replace(proof, tree=f"{self.digest}:{self.done}:{'safe' if self.safe else 'open'}:{proof.tree}")

    def step(self) -> Findings:
        """Decide some changed inputs, or work on a proof about them."""
        assert self.part is not None
        free, inputs = self.part
        found = self._points(inputs) if free == 0 else self._prove(free, inputs)
        if self.search is None:
            self.done += len(inputs)
            self.part = next(self.parts, None)
        if self.part is None:
            self.open = []
            # A certificate needs no parts: a checker finds them all by itself.
            return replace(found, decided={0: self.safe}, closed={0: None} if self.safe else {})
        return found

    def _go_back_to(self, kept: Proof | None) -> Proof | None:
        """Take up what is kept, if it is of this level; the proof about the next changed input."""
        if kept is None:
            return None
        digest, *rest = kept.tree.split(":", 3)
        if digest != self.digest or len(rest) != 3 or not 0 <= int(rest[0]) < self.total:
            return None
        self.done, self.safe, self.together = int(rest[0]), rest[1] == "safe", 1
        return replace(kept, tree=rest[2]) if rest[2] else None

    def _digest(self) -> str:
        """Hash of what the order of the changed inputs depends on."""
        digest = hashlib.sha256(f"{self.t} {self.problem.domain.groups}".encode())
        rules, domain = self.rules, self.domain
        parts = (self.image, rules.counts, rules.vectors, rules.whole, domain.members, domain.low, domain.high)
        for part in (*parts, rules.direction, self.problem.domain.members):
            digest.update(part.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _choices(self) -> list[list[int]]:
        """For each group with a list the places of the vectors that it may change to."""
        listed = self.rules.listed
        allowed = allowed_vectors(self.problem.domain, self.rules, self.image)[0]
        members = self.problem.domain.members[listed]
        differs = (self.rules.vectors[listed] != self.image[0, members][:, None]).any(2)
        return [(allowed[place] & differs[place]).nonzero()[:, 0].tolist() for place in range(len(listed))]

    def _sets(self) -> Iterator[tuple[int, ...]]:
        for size in range(min(self.t, len(self.choices)) + 1):
            yield from itertools.combinations(range(len(self.choices)), size)

    def _count(self, chosen: Sequence[int]) -> int:
        return math.prod(len(self.choices[place]) for place in chosen)

    def _parts(self, done: int) -> Iterator[tuple[int, Tensor]]:
        """How many other groups change, and inputs with changed listed groups, float32 ``[inputs, values]``.

        Args:
            done: How many inputs are left out, the first ones.
        """
        listed, groups = self.rules.listed, self.problem.domain.groups
        members, vectors = self.problem.domain.members[listed], self.rules.vectors[listed]
        for chosen in self._sets():
            count = self._count(chosen)
            if done >= count:
                done -= count
                continue
            free = min(self.t - len(chosen), groups - len(listed))
            combinations = itertools.islice(itertools.product(*(self.choices[p] for p in chosen)), done, None)
            done = 0
            while batch := list(itertools.islice(combinations, self.together)):
                self.together = min(TOGETHER, 2 * self.together)
                inputs = self.image.expand(len(batch), -1).clone()
                for column, place in enumerate(chosen):
                    rows = torch.tensor([combination[column] for combination in batch], device=inputs.device)
                    inputs[:, members[place]] = vectors[place, rows]
                yield free, inputs

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
            count, prover = len(inputs), self._prover()
            begun = self.begun if self.begun is not None and prover.can_go_on(self.begun, free) else None
            self.search = begin_search(
                prover,
                free,
                inputs,
                self.claim.repeat(count),
                [begun, *[None] * (count - 1)],
                [self.index] * count,
                boxes=False,
                hands_over=False,
                halted=self.halted,
            )
            self.begun = None  # only now: a search that is halted while it is made leaves it to be kept
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
            self.prover = make_prover(self.problem.network, self.domain, self.batcher, memory, self.problem.tuning)
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
