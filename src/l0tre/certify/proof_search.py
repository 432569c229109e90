"""The certified search of one level: a search by cells or boxes, and the exact count of the sets that it proved."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.cells.cell_search import CellSearch, Step
from l0tre.certify.proof import Proof
from l0tre.certify.prover import Prover
from l0tre.certify.regions.leaves import MOST_LEAVES, Closed, ClosedNodes, ClosedSets
from l0tre.certify.regions.nodes import root
from l0tre.errors import InternalError
from l0tre.findings import Findings
from l0tre.halting import Clock, felt
from l0tre.objective import Specification
from l0tre.tuning import Tuning

__all__ = ["ProofSearch", "begin_search"]

FEW = 2**16  # proved parts that are stored again after every second of a search by cells


class ProofSearch:
    """A level for a block of images, see ``findings.LevelSearch``.

    A row is decided if its count is complete and nothing of it is open, or if a tie was met.

    Attributes:
        handed: Rows that the cells prove too little of: they begin anew, by boxes.
    """

    def __init__(
        self,
        search: CellSearch | BoxSearch,
        proofs: Sequence[Proof],
        indices: Sequence[int],
        clock: Clock,
        tuning: Tuning,
        *,
        hands_over: bool,
        evidence: bool,
    ) -> None:
        """See :func:`begin_search`.

        Args:
            search: Begun or gone on with for all rows.
            proofs: What is known of each row so far.
            indices: Positions of the images in the user's data, for messages.
            clock: Whose pulse the search feels.
            tuning: When cells give up.
            hands_over: Whether rows that cells prove too little of are given up, for boxes to take over.
            evidence: Whether proofs keep what they have proved, part by part.
        """
        self.search = search
        self.proofs = list(proofs)
        self.indices = indices
        self.clock = clock
        self.tuning = tuning
        self.hands_over = hands_over and isinstance(search, CellSearch)
        self.evidence = evidence
        self.handed: set[int] = set()
        self.open = list(range(len(proofs)))

    @property
    def light(self) -> bool:
        """Whether progress is cheap to keep: a search by boxes can have a hundred thousand open for an image."""
        kept = sum(0 if proof.closed is None else len(proof.closed) for proof in self.proofs)
        return isinstance(self.search, CellSearch) and kept <= FEW

    def rows(self) -> list[int]:
        """Rows with work left, in order."""
        return list(self.open)

    def step(self) -> Findings:
        """Bound some nodes."""
        self.clock.start()
        with felt(self.clock.pulse):
            step = self.search.step()
        decided = {row: safe for row in step.nodes if (safe := self._count(row, step)) is not None}
        self.drop(list(decided))
        if self.hands_over:
            self._hand_over()
        if not self.search.open() and self.open:
            raise self._wrong(self.open[0], "although none is open")
        closed = {row: self.proofs[row].closed for row, safe in decided.items() if safe and self.evidence}
        return Findings(step.nodes, list(step.candidates.items()), decided, closed)

    def drop(self, rows: Sequence[int]) -> None:
        """Leave some rows: nothing more can be gained for them."""
        if rows:
            self.search.drop(rows)
            gone = set(rows)
            self.open = [row for row in self.open if row not in gone]

    def share(self, row: int) -> float:
        """Proved part of all sets of a row."""
        return self.proofs[row].share

    def progress(self, row: int) -> Proof:
        """What a later search goes on from: all sets for a row that was handed on."""
        if row in self.handed:
            proof = self.proofs[row]
            return replace(proof, proved=Fraction(0), fronts=(root(0, proof.t, torch.device("cpu")),), closed=None)
        fronts = self.search.left(row)
        if not fronts:
            raise self._wrong(row, "although none is open")
        return replace(self.proofs[row], fronts=fronts)

    def _count(self, row: int, step: Step) -> bool | None:
        """Count what a step proved of a row; whether its level is proved or a tie, or neither.

        The count alone is no proof: a node that was open twice would count twice, and hide one that is still open.
        """
        before = self.proofs[row]
        proved = before.proved + step.shares.get(row, Fraction(0))
        nodes = before.nodes + step.nodes[row]
        proof = replace(before, proved=proved, fronts=(), nodes=nodes, closed=_extended(before.closed, row, step))
        self.proofs[row] = proof
        tie = row in step.ties
        if proof.proved > proof.total:
            raise self._wrong(row, "more than there are")
        if proof.done and (tie or self.search.is_open(row)):
            raise self._wrong(row, "although some are a tie" if tie else "although some are open")
        return True if proof.done else False if tie else None

    def _hand_over(self) -> None:
        assert isinstance(self.search, CellSearch)
        outlook, tuning = self.search.outlook, self.tuning
        rows = [
            row
            for row in self.open
            if self.proofs[row].nodes >= tuning.cell_patience or outlook.get(row, 0.0) < tuning.hopeless
        ]
        self.drop(rows)
        self.handed.update(rows)

    def _wrong(self, row: int, what: str) -> InternalError:
        proof = self.proofs[row]
        return InternalError(
            f"the proof of input {self.indices[row]} at t = {proof.t} counts {proof.proved} of {proof.total} sets, "
            f"{what}: nothing was concluded from it; this is a defect in l0tre, please report it"
        )


def _extended(closed: Closed | None, row: int, step: Step) -> Closed | None:
    """What is proved of a row, with what a step proved; ``None`` once it is too much to be kept."""
    if isinstance(closed, ClosedSets):
        leaves = step.leaves.get(row)
        closed = closed if leaves is None else ClosedSets((*closed.leaves, leaves))
    elif isinstance(closed, ClosedNodes):
        own = step.proved.image == row
        if bool(own.any()):
            nodes = step.proved.pick(own).of_image(0).to(torch.device("cpu"))
            closed = ClosedNodes((*closed.parts, (nodes, step.bounds[own].cpu())))
    return None if closed is None or len(closed) > MOST_LEAVES else closed


def begin_search(
    prover: Prover,
    t: int,
    images: Tensor,
    specification: Specification,
    proofs: Sequence[Proof | None],
    indices: Sequence[int],
    *,
    boxes: bool,
    hands_over: bool,
    evidence: bool = False,
    halted: Callable[[], bool] = lambda: False,
) -> ProofSearch:
    """Begin a level for a block of images, or go on with it.

    Args:
        prover: What all proofs share.
        t: Number of groups that change.
        images: float32 ``[images, values]``.
        specification: What must hold of each image.
        proofs: What is kept of each image's proof at this level, none if it begins.
        indices: Positions of the images in the user's data, for messages.
        boxes: Whether to search by boxes of values, see ``Prover.can_use_boxes``; else by cells of groups.
        hands_over: Whether a search by cells gives up rows that it proves too little of, for boxes to take over.
        evidence: Whether proofs keep what they have proved, part by part; those given must have, or have proved
            nothing yet.
        halted: Asked inside long steps, which then end without a result.

    Returns:
        The search.

    Raises:
        Halted: If the work should stop before the search is made.
    """
    clock = Clock(halted, prover.tuning.grace_seconds)
    search: CellSearch | BoxSearch
    with felt(clock.pulse):
        if boxes:
            search = prover.search_boxes(t, images, specification, proofs, pulse=clock.pulse, keeps=evidence)
        else:
            search = prover.search_cells(t, images, specification, proofs, pulse=clock.pulse)
    tree = prover.tree.digest
    known = [proof or Proof(t, Fraction(0), search.total, tree=tree) for proof in proofs]
    if evidence:
        nothing: Closed = ClosedSets() if boxes else ClosedNodes()
        known = [replace(proof, closed=nothing) if not proof.proved else proof for proof in known]
    return ProofSearch(search, known, indices, clock, prover.tuning, hands_over=hands_over, evidence=evidence)
