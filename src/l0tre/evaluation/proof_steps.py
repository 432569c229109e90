"""Proofs of one level, in turns that can be stopped and resumed."""

import itertools
import math
import time
from collections.abc import Iterator

from l0tre.certify.proof_search import begin_search
from l0tre.certify.prover import Prover
from l0tre.certify.regions.leaves import ClosedNodes
from l0tre.evaluation.attack_steps import strengthen_again
from l0tre.evaluation.forecast import Forecast
from l0tre.evaluation.ledger import Ledger
from l0tre.evaluation.listed_search import ListedSearch
from l0tre.evaluation.run_search import LevelProgress, run_search
from l0tre.evaluation.tasks import Task
from l0tre.halting import Halted

__all__ = ["prove", "prove_under_rules"]


def prove(ledger: Ledger, prover: Prover, task: Task, *, evidence: bool) -> Iterator[None]:
    """Prove that no ``t`` groups change the decision.

    Args:
        ledger: The evaluation.
        prover: What all proofs share.
        task: Which level, and how many turns; what is not proved after these is left to another task.
        evidence: Whether proofs keep what a certificate needs.

    Yields:
        After every recorded step.
    """
    tuning, t = ledger.problem.tuning, task.stage.t
    ledger.t = t
    # What is not proved for t - 1 is not for t: an image with a tie is out.
    todo = [image for image in ledger.pending() if ledger.state.bounds[image].lower == t - 1]
    for image in todo:
        proof = ledger.state.proofs.get(image)
        lost = proof is not None and evidence and proof.closed is None
        if proof is not None and (lost or not prover.can_go_on(proof, t)):
            ledger.forget(image)  # the level begins anew: that costs time, a wrong proof would cost more
    schedule = _Schedule(ledger, prover, LevelProgress(t, todo), evidence=evidence)
    kept = sum(ledger.state.proofs[image].share for image in todo if image in ledger.state.proofs)
    forecast = _forecast(ledger, t, len(todo), kept / max(1, len(todo)))
    for turn in itertools.count(task.turn):
        if not todo or (task.turns and turn == task.turn + task.turns):
            return
        patience = tuning.turn_seconds * 2**turn
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


def prove_under_rules(ledger: Ledger, t: int) -> Iterator[None]:
    """Prove that no ``t`` groups change the decision, where only some values are allowed.

    Args:
        ledger: The evaluation.
        t: The level.

    Yields:
        After every recorded step.
    """
    ledger.t = t
    level = LevelProgress(t, [image for image in ledger.pending() if ledger.state.bounds[image].lower == t - 1])
    for image in level.images:
        kept = ledger.state.proofs.get(image)
        search = ListedSearch(ledger.problem, image, t, ledger.batcher, kept, ledger.halted)
        forecast = _forecast(ledger, t, 1, search.share(0))
        for _ in run_search(ledger, level, search, [image]):
            if not forecast.said and (sentence := forecast.sentence(search.share(0))):
                ledger.tell(sentence)
            yield


def _forecast(ledger: Ledger, t: int, images: int, share: float) -> Forecast:
    domain = ledger.problem.domain
    sets = images * math.comb(domain.groups, t)
    return Forecast(t, images, sets, domain.unit, ledger.problem.noun, proof=True, at=share)


class _Schedule:
    """Which images of a level are proved by cells and which by boxes, and which of them together."""

    def __init__(self, ledger: Ledger, prover: Prover, level: LevelProgress, *, evidence: bool) -> None:
        self.ledger = ledger
        self.prover = prover
        self.level = level
        self.evidence = evidence
        self.can_use_boxes = prover.can_use_boxes(level.t)
        self.handed: set[int] = set()  # from cells to boxes at this level

    def takes_boxes(self, image: int) -> bool:
        """Whether an image is proved by boxes."""
        proof, local = self.ledger.state.proofs.get(image), self.prover.local
        if not self.can_use_boxes:
            return False
        if proof is not None and isinstance(proof.closed, ClosedNodes) and proof.proved:
            return False  # a certificate is of nodes or of sets
        if proof is not None and proof.nodes:
            return proof.boxed  # cells split the root at once: where it is open after them, they gave up
        # Single groups are boxes at once, and cheap.
        return (local is not None and local.flat) or self.level.t == 1 or image in self.ledger.boxed

    def blocks(self, images: list[int], *, boxes: bool) -> Iterator[list[int]]:
        """Images that are visited together."""
        size = self.prover.block(self.level.t, boxes=boxes)
        few = self.prover.tuning.trial_images
        trial = self.can_use_boxes and not boxes and not self.handed and len(images) > few
        for part in (images[:few], images[few:]) if trial else (images,):
            for first in range(0, len(part), size):
                yield part[first : first + size]
            if trial and self.handed.issuperset(part):
                self.ledger.boxed.update(images)
                return

    def work(self, block: list[int], patience: float, *, boxes: bool) -> Iterator[None]:
        """Work on some images until their proofs are complete or the time is up."""
        ledger, problem = self.ledger, self.ledger.problem
        try:
            search = begin_search(
                self.prover,
                self.level.t,
                problem.images[block],
                problem.specification.pick(block),
                [ledger.state.proofs.get(image) for image in block],
                [ledger.state.bounds[image].index for image in block],
                boxes=boxes,
                hands_over=self.can_use_boxes,
                evidence=self.evidence,
                halted=ledger.halted,
            )
        except Halted:
            ledger.record(block)
            yield
            return
        yield from run_search(ledger, self.level, search, block, patience=patience)
        handed = {block[row] for row in search.handed}
        self.handed |= handed
        self.ledger.boxed |= handed
