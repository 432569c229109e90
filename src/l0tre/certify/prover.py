"""Proofs for the images of a problem, level by level: what is shared, what is kept between steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from l0tre.certify.boxes.bounders import Bounder, FormBounder, WindowBounder
from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.boxes.form_bounds import make_form_instance
from l0tre.certify.boxes.forward_forms import Forward, make_forward
from l0tre.certify.boxes.window_forms import LocalNetwork, make_local, make_prefix
from l0tre.certify.boxes.windowed import make_windowed
from l0tre.certify.cells.cell_search import CellSearch
from l0tre.certify.proof import Proof
from l0tre.certify.regions.nodes import CellNodes, shares
from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.certify.relax.instance import make_instance, one_pixel_each, table_size
from l0tre.certify.relax.plan import Plan, make_plan
from l0tre.certify.relax.supported import pools_first
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.memory import Batcher
from l0tre.model.network import Network
from l0tre.objective import Specification
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["Prover", "make_prover"]


@dataclass(frozen=True)
class Prover:
    """What the proofs of all images share.

    Attributes:
        network: What is proved about.
        domain: What may change.
        plan: The network's operations.
        box_plan: The same as boxes go through them, max pools first.
        tree: The cells.
        batcher: Runs the network on candidate witnesses.
        memory: Bytes for tables, nodes and rows together.
        local: The part of the network where changes stay in windows, if groups are pixels and there is one.
        forward: The network as forward forms need it.
        prefix: Its first layers, where a pixel reaches small windows, if groups are pixels.
        tuning: How much is proved at a time, and when boxes take over.
    """

    network: Network
    domain: Domain
    plan: Plan
    box_plan: Plan
    tree: Tree
    batcher: Batcher
    memory: int
    local: LocalNetwork | None
    forward: Forward
    prefix: LocalNetwork | None
    tuning: Tuning = DEFAULT_TUNING

    def can_use_boxes(self, t: int) -> bool:
        """Whether a level can be proved by boxes: all sets can be listed, and few enough values change in each."""
        values = t * self.domain.members.shape[1]
        return math.comb(self.domain.groups, t) <= self.tuning.box_sets and values <= self.tuning.box_values

    def by_windows(self, t: int) -> bool:
        """Whether boxes of a level are bounded in windows, rather than by forms of whole layers."""
        local = self.local
        return local is not None and local.meeting <= self.tuning.meeting_share and t <= (3 if local.flat else 2)

    def block(self, t: int, *, boxes: bool = False) -> int:
        """How many images go through a level together."""
        tuning, device = self.tuning, self.plan.device
        if boxes:
            most = min(tuning.block_sets, self.memory // tuning.set_bytes) // math.comb(self.domain.groups, t)
            return max(1, min(tuning.box_images.on(device), most))
        one = sum(table_size(self.plan, self.tree, position, 1, t) for position in self.plan.borders)
        return max(1, min(tuning.cell_images.on(device), self.memory // tuning.table_part // max(1, one)))

    def can_go_on(self, proof: Proof, t: int) -> bool:
        """Whether a proof that was kept, by another process maybe, can be gone on with at a level.

        Its cells must be those of this tree: where singular values coincide, another machine or another number of
        threads orders features differently, and then some would be in no open node. And it must add up: the proved and
        the open sets together are all sets, none of them twice.
        """
        sets = math.comb(self.domain.groups, t)
        if not proof.partial or (proof.t, proof.total, proof.tree) != (t, sets, self.tree.digest):
            return False
        for part in proof.fronts:
            least, most = (
                (1, 2 * self.tree.slots) if isinstance(part, CellNodes) else (self.tree.slots, 2 * self.tree.slots)
            )
            if not bool(((part.cells >= least) & (part.cells < most)).all()):
                return False
        return proof.proved + sum(shares(self.tree, part)[0] for part in proof.fronts if len(part)) == sets

    def search_cells(
        self,
        t: int,
        images: Tensor,
        specification: Specification,
        proofs: Sequence[Proof | None],
        *,
        pulse: Callable[[], None] = lambda: None,
    ) -> CellSearch:
        """Begin or go on with a level, by cells.

        Args:
            t: Number of groups that change.
            images: float32 ``[images, values]``.
            specification: What must hold of each image.
            proofs: What is kept of each image's proof at this level.
            pulse: Called while nodes are bounded; may raise ``Halted`` to end a step without a result.

        Returns:
            The search.
        """
        tables = self.memory // self.tuning.table_part
        instance = make_instance(self.plan, self.tree, self.domain, images, specification, t, tables)
        search = CellSearch(replace(instance, pulse=pulse), self.domain, self.batcher, t, self.memory // 2, self.tuning)
        for row, proof in enumerate(proofs):
            if proof is None:
                search.begin(row)
            else:
                search.go_on(row, proof.fronts)
        return search

    def search_boxes(
        self,
        t: int,
        images: Tensor,
        specification: Specification,
        proofs: Sequence[Proof | None],
        *,
        pulse: Callable[[], None] = lambda: None,
        keeps: bool = False,
    ) -> BoxSearch:
        """Begin or go on with a level that :meth:`can_use_boxes`, by clusters.

        Args:
            t: See :meth:`search_cells`.
            images: Likewise.
            specification: Likewise.
            proofs: Likewise, none, ``boxed`` ones, or ones that have proved nothing yet.
            pulse: Likewise.
            keeps: Whether steps carry the boxes that they proved.

        Returns:
            The search.
        """
        instance = make_instance(self.box_plan, self.tree, self.domain, images, specification, t, 0)
        instance = replace(instance, pulse=pulse)
        bounder: Bounder
        windowed = None if self.local is None else make_windowed(self.local, instance, self.memory // 4)
        if windowed is not None and self.by_windows(t):
            bounder = WindowBounder(windowed)
        else:
            budget = min(self.memory // 2, self.tuning.form_bytes.on(images.device))
            forms = make_form_instance(self.forward, self.prefix, instance, budget, self.memory // 4)
            bounder = FormBounder(forms, windowed)
        search = BoxSearch(bounder, self.domain, self.batcher, t, self.tuning, keeps=keeps)
        for row, proof in enumerate(proofs):
            if proof is None:
                search.begin(row)
            else:
                search.go_on(row, proof.fronts)
        return search


def make_prover(
    network: Network,
    domain: Domain,
    batcher: Batcher,
    memory: int,
    tuning: Tuning = DEFAULT_TUNING,
    pulse: Callable[[], None] = lambda: None,
) -> Prover:
    """Prepare proofs about a network.

    Args:
        network: With a graph.
        domain: What may change.
        batcher: Runs the network on candidate witnesses.
        memory: Bytes for tables, nodes and rows together.
        tuning: How much is proved at a time, and when boxes take over.
        pulse: Called between parts of the preparation; may raise ``Halted``.

    Returns:
        The prover, on the network's device.

    Raises:
        ModelError: If the network has no graph, or naming an operation that cannot be bounded.
    """
    if network.exact is None:
        raise ModelError(f"{network.name} cannot be certified: {network.note or 'its operations are not known'}")
    pulse()
    plan = make_plan(network.exact, domain, network.device)
    pulse()
    tree = make_tree(domain, network.exact)
    pulse()
    box_plan = make_plan(pools_first(network.exact), domain, network.device)
    pulse()
    local = prefix = None
    if one_pixel_each(box_plan, domain, tree):
        local = make_local(box_plan)
        pulse()
        prefix = make_prefix(box_plan, tuning.window_share)
        pulse()
    forward = make_forward(box_plan)
    pulse()
    return Prover(network, domain, plan, box_plan, tree, batcher, memory, local, forward, prefix, tuning)
