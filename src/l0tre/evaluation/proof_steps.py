"""Proofs level by level for all images, in steps that can be stopped and resumed."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from torch import Tensor

from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.cells.cell_search import CellSearch, Step
from l0tre.certify.proof import Proof
from l0tre.certify.prover import Prover, make_prover
from l0tre.certify.regions.nodes import Nodes
from l0tre.certify.relax.instance import Halted
from l0tre.errors import InternalError
from l0tre.evaluation.ledger import Ledger

__all__ = ["OnProved", "prove"]

AnySearch = CellSearch | BoxSearch
# What is told of proved nodes: the level, the place of the image, the nodes, the bounds of their margins.
OnProved = Callable[[int, int, Nodes, Tensor], None]

STEP_SECONDS = 1.0  # between two recorded steps
HALT_SECONDS = 5.0  # that a step may take after it should stop; its work is then lost
SLICE_SECONDS = 20.0  # for an image before the next one has its turn; doubled for every further round
CELL_PATIENCE = 128  # nodes of cells for an image before clusters of pixels are tried
HOPELESS = -5.0  # so are they if the bound of all sets at once is below this many times the image's own margin
TRIAL = 4  # images by cells: if clusters had to take over all of them, the others go there at once


def prove(ledger: Ledger, on_proved: OnProved | None = None) -> Iterator[None]:
    """Prove that no ``t`` groups change the decision, for ``t`` = 1, 2, ...

    Args:
        ledger: The evaluation.
        on_proved: Told of every proved node.

    Yields:
        After every recorded step.
    """
    problem = ledger.problem
    prover = make_prover(problem.network, problem.domain, ledger.batcher, problem.settings.memory_bytes)
    lessons: dict[int, Tensor] = {}
    clustered: set[int] = set()  # images whose cells are too large to bound
    for t in range(1, problem.settings.max_t + 1):
        ledger.t = t
        # What is not proved for t - 1 is not for t: an image with a tie is out.
        todo = [image for image in ledger.pending() if ledger.state.bounds[image].lower == t - 1]
        for image in todo:
            proof = ledger.state.proofs.get(image)
            if proof is not None and not prover.can_go_on(proof, t):
                del ledger.state.proofs[image]  # the level begins anew: that costs time, a wrong proof would cost more
        level = _Level(ledger, prover, t, todo, lessons, clustered, on_proved)
        patience = SLICE_SECONDS
        while todo:
            by_boxes = [image for image in todo if level.by_boxes(image)]
            by_cells = [image for image in todo if image not in set(by_boxes)]
            for images, clusters in ((by_cells, False), (by_boxes, True)):
                for block in level.blocks(images, clusters=clusters):
                    yield from level.visit(block, patience * len(block), clusters=clusters)
            todo = [image for image in todo if image not in level.over]
            patience *= 2
        lessons = level.lessons


class _Level:
    """One level for all images."""

    def __init__(
        self,
        ledger: Ledger,
        prover: Prover,
        t: int,
        todo: Sequence[int],
        hints: dict[int, Tensor],
        clustered: set[int],
        on_proved: OnProved | None,
    ) -> None:
        self.ledger = ledger
        self.prover = prover
        self.t = t
        self.images = len(todo)
        self.hints = hints
        self.on_proved = on_proved
        # A certificate lists nodes that each stand on their own; what clusters prove by sums does not.
        self.can_use_boxes = on_proved is None and prover.can_use_boxes(t)
        self.clustered = clustered
        self.handed: set[int] = set()  # from cells to clusters at this level
        self.lessons: dict[int, Tensor] = {}
        self.over: set[int] = set()
        self.shares: dict[int, float] = {}  # of the images at work

    def by_boxes(self, image: int) -> bool:
        """Whether an image is proved by clusters."""
        proof, local = self.ledger.state.proofs.get(image), self.prover.local
        if not self.can_use_boxes or local is None:
            return False
        if proof is not None and proof.nodes:
            return proof.boxed
        # Single pixels are boxes at once, and cheap.
        return local.flat or self.t == 1 or image in self.clustered

    def blocks(self, images: list[int], *, clusters: bool) -> Iterator[list[int]]:
        """Images that are visited together."""
        size = self.prover.block(self.t, clusters=clusters)
        trial = self.can_use_boxes and not clusters and not self.handed and len(images) > TRIAL
        for part in (images[:TRIAL], images[TRIAL:]) if trial else (images,):
            for first in range(0, len(part), size):
                yield part[first : first + size]
            if trial and self.handed.issuperset(part):
                self.clustered.update(images)
                return

    def visit(self, block: list[int], patience: float, *, clusters: bool) -> Iterator[None]:
        """Work on some images until their proofs are complete or the time is up."""
        ledger, problem = self.ledger, self.ledger.problem
        began = last = time.monotonic()
        kept = [ledger.state.proofs.get(image) for image in block]
        hints = [self.hints.get(image) for image in block]
        images, labels = problem.images[block], problem.labels[block]
        step_began = began

        def pulse() -> None:
            if time.monotonic() - step_began > HALT_SECONDS and ledger.halted():
                raise Halted

        search: AnySearch
        if clusters:
            search = self.prover.search_boxes(self.t, images, labels, kept, pulse=pulse)
        else:
            sums = self.on_proved is None
            search = self.prover.search(self.t, images, labels, kept, hints, sums=sums, pulse=pulse)
        tree = self.prover.tree.digest
        proofs = [proof or Proof(self.t, Fraction(0), search.total, tree=tree) for proof in kept]
        while search.open():
            step_began = time.monotonic()
            step = search.step()
            changed = self._apply(search, block, proofs, step)
            if isinstance(search, CellSearch):
                self._hand_over(search, block, proofs)
            if not search.open():
                self._check_over(search, block, proofs)
            now = time.monotonic()
            open_ = [image for image in block if image not in self.over]
            out_of_time = now - began > patience
            if now - last >= STEP_SECONDS or changed or out_of_time or not search.open() or not step.nodes:
                ledger.spend((*open_, *changed), now - last, 0)
                last = now
                self._keep(search, block, proofs, light=not (out_of_time or ledger.halted()))
                ledger.record((*open_, *changed))
                yield
            if out_of_time:
                break
        if isinstance(search, CellSearch):
            for row, image in enumerate(block):
                lesson = search.lesson(row)
                if lesson is not None:
                    self.lessons[image] = lesson

    def _hand_over(self, search: CellSearch, block: list[int], proofs: list[Proof]) -> None:
        """Leave images to clusters whose cells prove too little: they begin anew, in the next round."""
        if not self.can_use_boxes:
            return
        rows = [
            row
            for row, (image, proof) in enumerate(zip(block, proofs, strict=True))
            if image not in self.over | self.handed
            and (proof.nodes >= CELL_PATIENCE or search.outlook.get(row, 0.0) < HOPELESS)
        ]
        if rows:
            search.drop(rows)
            for row in rows:
                self.clustered.add(block[row])
                self.handed.add(block[row])
                self.ledger.state.proofs.pop(block[row], None)

    def _apply(self, search: AnySearch, block: list[int], proofs: list[Proof], step: Step) -> list[int]:
        """Enter what a step found; returns the images whose level is over."""
        ledger = self.ledger
        for row, changed in step.candidates.items():
            ledger.offer(block[row], changed)
        over = []
        for row in step.nodes:
            image, before = block[row], proofs[row]
            proved = before.proved + step.shares.get(row, Fraction(0))
            proofs[row] = replace(before, proved=proved, fronts=(), nodes=before.nodes + step.nodes[row])
            tie = row in step.ties
            safe = self._is_proved(search, row, image, proofs[row], tie=tie)
            ledger.spend([image], 0.0, step.nodes[row])
            if ledger.state.bounds[image].upper <= self.t:
                over.append(row)
            elif tie or safe:
                ledger.level_done(image, safe)
                over.append(row)
        if self.on_proved is not None and len(step.proved):
            for row in step.proved.image.unique().tolist():
                own = step.proved.image == row
                self.on_proved(self.t, block[row], step.proved.pick(own), step.bounds[own])
        if over:
            search.drop(over)
            ledger.close([block[row] for row in over])
            self.over.update(block[row] for row in over)
        return [block[row] for row in over]

    def _is_proved(self, search: AnySearch, row: int, image: int, proof: Proof, *, tie: bool) -> bool:
        """Whether the level is proved: the count is complete, and nothing is open.

        The count alone is no proof: a node that was open twice would count twice, and hide one that is still open.
        """
        if proof.proved > proof.total:
            raise self._wrong(image, proof, "more than there are")
        if not proof.done:
            return False
        if tie or search.is_open(row):
            raise self._wrong(image, proof, "although some are a tie" if tie else "although some are open")
        return True

    def _check_over(self, search: AnySearch, block: list[int], proofs: list[Proof]) -> None:
        """Where nothing is open any more, no image may be left undecided."""
        for image, proof in zip(block, proofs, strict=True):
            if not self._has_left(search, image):
                raise self._wrong(image, proof, "although none is open")

    def _has_left(self, search: AnySearch, image: int) -> bool:
        """Whether an image is decided at this level, or left to another search."""
        return image in self.over or (isinstance(search, CellSearch) and image in self.handed)

    def _wrong(self, image: int, proof: Proof, what: str) -> InternalError:
        index = self.ledger.state.bounds[image].index
        return InternalError(
            f"the proof of image {index} at t = {proof.t} counts {proof.proved} of {proof.total} sets, {what}: nothing "
            "was concluded from it; this is a defect in l0tre, please report it"
        )

    def _keep(self, search: AnySearch, block: list[int], proofs: list[Proof], *, light: bool) -> None:
        """Keep the open proofs, and the share of the level that is done.

        A search by clusters can have a hundred thousand boxes open for an image. While it runs on (``light``) they are
        not kept: what is then lost if the process dies is the work of some seconds.
        """
        for row, image in enumerate(block):
            if self._has_left(search, image):
                continue
            self.shares[image] = proofs[row].share
            if light and isinstance(search, BoxSearch):
                continue
            fronts = search.left(row)
            if not fronts:
                raise self._wrong(image, proofs[row], "although none is open")
            self.ledger.state.proofs[image] = replace(proofs[row], fronts=fronts)
        shares = (share for image, share in self.shares.items() if image not in self.over)
        self.ledger.share = (len(self.over) + sum(shares)) / self.images
