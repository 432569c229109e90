"""Proofs level by level for all images, in units that can be stopped and resumed."""

import math
import time
from collections.abc import Iterator

from l0tre.certify.proof_search import begin_search
from l0tre.certify.prover import Prover, make_prover
from l0tre.certify.regions.leaves import ClosedNodes
from l0tre.evaluation.attack_steps import strengthen_again
from l0tre.evaluation.forecast import Forecast
from l0tre.evaluation.ledger import Ledger
from l0tre.evaluation.listed_search import ListedSearch
from l0tre.evaluation.visit import Level, OnEvidence, visit
from l0tre.halting import Halted
from l0tre.rules import Rules

__all__ = ["prove"]


def prove(ledger: Ledger, on_evidence: OnEvidence | None = None) -> Iterator[None]:
    """Prove that no ``t`` groups change the decision, for ``t`` = 1, 2, ...

    Args:
        ledger: The evaluation.
        on_evidence: Told of every proved level, for a certificate.

    Yields:
        After every recorded step.
    """
    problem = ledger.problem
    if isinstance(problem.domain.rules, Rules):
        yield from _prove_under_rules(ledger, on_evidence)
        return
    memory = problem.settings.memory_bytes
    try:
        with ledger.leaving() as pulse:
            prover = make_prover(problem.network, problem.domain, ledger.batcher, memory, problem.tuning, pulse)
    except Halted:
        ledger.record(())
        yield
        return
    boxed: set[int] = set()  # images whose cells are too large to bound
    for t in range(1, problem.settings.max_t + 1):
        ledger.t = t
        # What is not proved for t - 1 is not for t: an image with a tie is out.
        todo = [image for image in ledger.pending() if ledger.state.bounds[image].lower == t - 1]
        for image in todo:
            proof = ledger.state.proofs.get(image)
            lost = proof is not None and on_evidence is not None and proof.closed is None
            if proof is not None and (lost or not prover.can_go_on(proof, t)):
                ledger.forget(image)  # the level begins anew: that costs time, a wrong proof would cost more
        schedule = _Schedule(ledger, prover, Level(t, todo), boxed, on_evidence)
        kept = sum(ledger.state.proofs[image].share for image in todo if image in ledger.state.proofs)
        forecast = _forecast(ledger, t, len(todo), kept / max(1, len(todo)))
        patience = problem.tuning.turn_seconds
        turn = 0
        while todo:
            began = time.monotonic()
            by_boxes = [image for image in todo if schedule.takes_boxes(image)]
            by_cells = [image for image in todo if image not in set(by_boxes)]
            for images, boxes in ((by_cells, False), (by_boxes, True)):
                for block in schedule.blocks(images, boxes=boxes):
                    for _ in schedule.work(block, patience * len(block), boxes=boxes):
                        if not forecast.said and (sentence := forecast.sentence(schedule.level.share)):
                            ledger.tell(sentence)
                        yield
            todo = [image for image in todo if image not in schedule.level.over]
            yield from strengthen_again(ledger, todo, time.monotonic() - began, turn)
            settled = [image for image in todo if ledger.is_done(image)]
            if settled:
                ledger.close(settled)
                schedule.level.over.update(settled)
                ledger.record(settled)
                yield
            todo = [image for image in todo if image not in set(settled)]
            patience *= 2
            turn += 1


def _forecast(ledger: Ledger, t: int, images: int, share: float) -> Forecast:
    domain = ledger.problem.domain
    sets = images * math.comb(domain.groups, t)
    return Forecast(t, images, sets, domain.unit, proof=True, at=share)


def _prove_under_rules(ledger: Ledger, on_evidence: OnEvidence | None) -> Iterator[None]:
    for t in range(1, ledger.problem.settings.max_t + 1):
        ledger.t = t
        level = Level(t, [image for image in ledger.pending() if ledger.state.bounds[image].lower == t - 1])
        for image in level.images:
            kept = ledger.state.proofs.get(image)
            search = ListedSearch(ledger.problem, image, t, ledger.batcher, kept, ledger.halted)
            forecast = _forecast(ledger, t, 1, search.share(0))
            for _ in visit(ledger, level, search, [image], on_evidence=on_evidence):
                if not forecast.said and (sentence := forecast.sentence(search.share(0))):
                    ledger.tell(sentence)
                yield


class _Schedule:
    """Which images of a level are proved by cells and which by boxes, and which of them together."""

    def __init__(
        self, ledger: Ledger, prover: Prover, level: Level, boxed: set[int], on_evidence: OnEvidence | None
    ) -> None:
        self.ledger = ledger
        self.prover = prover
        self.level = level
        self.on_evidence = on_evidence
        self.can_use_boxes = prover.can_use_boxes(level.t)
        self.boxed = boxed
        self.handed: set[int] = set()  # from cells to boxes at this level

    def takes_boxes(self, image: int) -> bool:
        """Whether an image is proved by boxes."""
        proof, local = self.ledger.state.proofs.get(image), self.prover.local
        if not self.can_use_boxes:
            return False
        if proof is not None and isinstance(proof.closed, ClosedNodes) and proof.proved:
            return False  # a certificate is of nodes or of sets
        if proof is not None and proof.nodes:
            return proof.boxed  # cells split the root at once: where it is open behind them, they gave up
        # Single groups are boxes at once, and cheap.
        return (local is not None and local.flat) or self.level.t == 1 or image in self.boxed

    def blocks(self, images: list[int], *, boxes: bool) -> Iterator[list[int]]:
        """Images that are visited together."""
        size = self.prover.block(self.level.t, boxes=boxes)
        few = self.prover.tuning.trial_images
        trial = self.can_use_boxes and not boxes and not self.handed and len(images) > few
        for part in (images[:few], images[few:]) if trial else (images,):
            for first in range(0, len(part), size):
                yield part[first : first + size]
            if trial and self.handed.issuperset(part):
                self.boxed.update(images)
                return

    def work(self, block: list[int], patience: float, *, boxes: bool) -> Iterator[None]:
        """Work on some images until their proofs are complete or the time is up."""
        ledger, problem = self.ledger, self.ledger.problem
        search = begin_search(
            self.prover,
            self.level.t,
            problem.images[block],
            problem.specification.pick(block),
            [ledger.state.proofs.get(image) for image in block],
            [ledger.state.bounds[image].index for image in block],
            boxes=boxes,
            hands_over=self.can_use_boxes,
            evidence=self.on_evidence is not None,
            halted=ledger.halted,
        )
        yield from visit(
            ledger, self.level, search, block, patience=patience, closes=True, on_evidence=self.on_evidence
        )
        handed = {block[row] for row in search.handed}
        self.handed |= handed
        self.boxed |= handed
