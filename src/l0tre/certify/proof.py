"""How far a proof has come: what is kept between steps, and stored."""

import math
from dataclasses import dataclass
from fractions import Fraction

from l0tre.certify.regions.leaves import Closed
from l0tre.certify.regions.nodes import CellNodes, Nodes

__all__ = ["ARITHMETIC", "Proof"]

# Soundness in floating point, as printed and stored with every proof.
ARITHMETIC = "real arithmetic on the network's float32 weights, by float64 bounds with rounding errors added"


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
        closed: What is proved, part by part, for a certificate; ``None`` if that is not kept.
    """

    t: int
    proved: Fraction
    total: int
    fronts: tuple[Nodes, ...] = ()
    nodes: int = 0
    tree: str = ""
    closed: Closed | None = None

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
        """Whether boxes can go on with it: only boxes of values are left, or all sets."""
        cells = [part for part in self.fronts if isinstance(part, CellNodes)]
        return bool(self.fronts) and all(bool((part.cells == 1).all()) for part in cells)
