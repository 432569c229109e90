"""Proofs for the images of a problem, level by level: what is shared, what is kept between steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from torch import Tensor

from l0tre.certify.clusters.ground import make_ground
from l0tre.certify.clusters.local import Local, make_local
from l0tre.certify.clusters.search import ClusterSearch
from l0tre.certify.nodes import Nodes, shares
from l0tre.certify.plan import Plan, make_plan
from l0tre.certify.scene import make_scene, one_pixel_each, table_size
from l0tre.certify.search import Search
from l0tre.certify.tree import Tree, make_tree
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.memory import Batcher
from l0tre.model.network import Network

__all__ = ["ARITHMETIC", "Proof", "Prover", "make_prover"]

# Soundness in floating point, as printed and stored with every proof.
ARITHMETIC = "real arithmetic on the network's float32 weights, by float64 bounds with rounding errors added"
TABLE_SHARE = 4  # the tables of the first layer take this part of the memory at the most
IMAGES = {"cpu": 1, "cuda": 64}  # proved together: a GPU needs many nodes at a time, a CPU does not
CLUSTER_SETS = 2**22  # of one image that can all be listed
CLUSTER_IMAGES = {"cpu": 1, "cuda": 256}  # the same by clusters, which take less memory
BLOCK_SETS = 2**26  # of the images that go through a level together
SET_BYTES = 64  # that a set takes if it is left open


@dataclass(frozen=True)
class Proof:
    """How far the proof for one image has come at one level.

    Attributes:
        t: The level.
        proved: Number of sets of ``t`` groups that are proved, an exact count; a part of a set's values counts as a
            fraction.
        total: Number of all sets.
        fronts: The nodes that are still open: of cells, of boxes. Row numbers of images are all 0.
        nodes: Nodes bounded so far.
        tree: ``Tree.digest`` of the tree whose cells the open nodes name; empty if it is not known.
    """

    t: int
    proved: Fraction
    total: int
    fronts: tuple[Nodes, ...] = ()
    nodes: int = 0
    tree: str = ""

    @property
    def share(self) -> float:
        """Proved part of all sets, from 0 to 1; 1 only if nothing is left."""
        return 1.0 if self.done else min(float(self.proved / self.total), math.nextafter(1.0, 0.0))

    @property
    def done(self) -> bool:
        """Whether the count is complete; it is a proof only if nothing is open either."""
        return self.proved == self.total

    @property
    def partial(self) -> bool:
        """Whether it is the middle of a proof: not all is proved, and something is open."""
        return 0 <= self.proved < self.total and any(len(part) for part in self.fronts)

    @property
    def boxed(self) -> bool:
        """Whether only boxes of values are left, which any search can go on with."""
        return bool(self.fronts) and all(part.low is not None for part in self.fronts)


@dataclass(frozen=True)
class Prover:
    """What the proofs of all images share.

    Attributes:
        network: What is proved about.
        domain: What may change.
        plan: The network's operations.
        tree: The cells.
        batcher: Runs the network on candidate witnesses.
        memory: Bytes for tables, nodes and rows together.
        local: The part of the network where changes stay in windows, if groups are pixels and there is one.
    """

    network: Network
    domain: Domain
    plan: Plan
    tree: Tree
    batcher: Batcher
    memory: int
    local: Local | None

    @property
    def device_kind(self) -> str:
        """``cuda`` or ``cpu``."""
        return "cuda" if self.plan.device.type == "cuda" else "cpu"

    def can_cluster(self, t: int) -> bool:
        """Whether a level can be proved by clusters of pixels."""
        if self.local is None:
            return False
        return t <= (3 if self.local.flat else 2) and math.comb(self.domain.groups, t) <= CLUSTER_SETS

    def block(self, t: int, *, clusters: bool = False) -> int:
        """How many images go through a level together."""
        if clusters:
            most = min(BLOCK_SETS, self.memory // SET_BYTES) // math.comb(self.domain.groups, t)
            return max(1, min(CLUSTER_IMAGES[self.device_kind], most))
        one = sum(table_size(self.plan, self.tree, position, 1, t) for position in self.plan.borders)
        return max(1, min(IMAGES[self.device_kind], self.memory // TABLE_SHARE // max(1, one)))

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
            least, most = (1, 2 * self.tree.slots) if part.low is None else (self.tree.slots, 2 * self.tree.slots)
            if not bool(((part.cells >= least) & (part.cells < most)).all()):
                return False
        return proof.proved + sum(shares(self.tree, part)[0] for part in proof.fronts if len(part)) == sets

    def search(
        self,
        t: int,
        images: Tensor,
        labels: Tensor,
        proofs: Sequence[Proof | None],
        hints: Sequence[Tensor | None],
        *,
        sums: bool = False,
        pulse: Callable[[], None] = lambda: None,
    ) -> Search:
        """Begin or go on with a level, by cells.

        Args:
            t: Number of groups that change.
            images: float32 ``[images, values]``.
            labels: int64 ``[images]``.
            proofs: What is kept of each image's proof at this level.
            hints: For each image what a search at level ``t - 1`` learnt, see ``Search.lessons``.
            sums: Whether sets may be proved by sums (see ``additive``): not for certificates, whose nodes must each
                stand on their own.
            pulse: Called while nodes are bounded; may raise ``Halted`` to end a step without a result.

        Returns:
            The search.
        """
        scene = make_scene(self.plan, self.tree, self.domain, images, labels, t, self.memory // TABLE_SHARE)
        search = Search(replace(scene, pulse=pulse), self.domain, self.batcher, t, self.memory // 2)
        if sums:
            search.allow_sums()
        for row, (proof, hint) in enumerate(zip(proofs, hints, strict=True)):
            if proof is None:
                search.begin(row)
            else:
                search.go_on(row, proof.fronts)
            if hint is not None:
                search.hints[row] = hint.to(self.plan.device)
        return search

    def search_clusters(
        self,
        t: int,
        images: Tensor,
        labels: Tensor,
        proofs: Sequence[Proof | None],
        *,
        pulse: Callable[[], None] = lambda: None,
    ) -> ClusterSearch:
        """Begin or go on with a level that :meth:`can_cluster`, by clusters.

        Args:
            t: See :meth:`search`.
            images: Likewise.
            labels: Likewise.
            proofs: Likewise, none, ``boxed`` ones, or ones that have proved nothing yet.
            pulse: Likewise.

        Returns:
            The search.
        """
        assert self.local is not None
        scene = make_scene(self.plan, self.tree, self.domain, images, labels, t, 0)
        ground = make_ground(self.local, replace(scene, pulse=pulse), self.memory // 4)
        search = ClusterSearch(ground, self.domain, self.batcher, t)
        for row, proof in enumerate(proofs):
            if proof is None:
                search.begin(row)
            else:
                search.go_on(row, proof.fronts)
        return search


def make_prover(network: Network, domain: Domain, batcher: Batcher, memory: int) -> Prover:
    """Prepare proofs about a network.

    Args:
        network: With a graph.
        domain: What may change.
        batcher: Runs the network on candidate witnesses.
        memory: Bytes for tables, nodes and rows together.

    Returns:
        The prover, on the network's device.

    Raises:
        ModelError: If the network has no graph, or naming an operation that cannot be bounded.
    """
    if network.exact is None:
        raise ModelError(f"{network.name} cannot be certified: {network.note or 'its operations are not known'}")
    plan = make_plan(network.exact, domain, network.device)
    tree = make_tree(domain, network.exact)
    local = make_local(plan) if one_pixel_each(plan, domain, tree) else None
    return Prover(network, domain, plan, tree, batcher, memory, local)
