"""Branch and bound over nodes: bound a batch, keep what is proved, split the rest, try its corners as witnesses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Kind, Nodes, join, root, shares, split_boxes, split_cells
from l0tre.certify.regions.stack import kept, take, without
from l0tre.certify.relax.bounds import Bounds, batch_sizes, bound, is_proved, margins_from, refinements
from l0tre.certify.relax.concretize import box_coefficients, look_up_minima, minimizing_inputs, taken_by_cells
from l0tre.certify.relax.instance import Instance
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.findings import Halted
from l0tre.memory import Batcher
from l0tre.model.network import exact_float32
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["CellSearch", "Front", "Step"]

# A box this narrow, relative to its range, whose bound is still not positive holds a tie: splitting it never ends.
NARROWEST = 2.0**-24


@dataclass
class Front:
    """What is left to prove for the images of a instance at one level: nodes of cells and nodes of boxes."""

    cells: list[CellNodes] = field(default_factory=list)
    boxes: list[BoxNodes] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """What one step found.

    Attributes:
        proved: The nodes that were proved.
        bounds: float64 ``[proved]``, the least margin's bound of each.
        nodes: Number of nodes that were bounded, by row of the instance's images.
        shares: How many sets were proved, by row of the instance's images.
        ties: Rows of images with a box too narrow to split.
        candidates: For some images the changed input with the smallest margin below zero, float32 ``[values]``.
        leaves: If they are kept, proved boxes as leaves of their sets' trees, see ``regions.leaves``, by image.
    """

    proved: Nodes
    bounds: Tensor
    nodes: dict[int, int]
    shares: dict[int, Fraction]
    ties: frozenset[int]
    candidates: dict[int, Tensor]
    leaves: Mapping[int, Tensor] = field(default_factory=dict)


class CellSearch:
    """The search for the images of one instance at one level ``t``."""

    def __init__(
        self, instance: Instance, domain: Domain, batcher: Batcher, t: int, budget: int, tuning: Tuning = DEFAULT_TUNING
    ) -> None:
        self.instance = instance
        self.batcher = batcher
        self.t = t
        self.total = math.comb(domain.groups, t)
        device = instance.plan.device
        self.low, self.high = domain.low.double().to(device), domain.high.double().to(device)
        self.widths = torch.nn.functional.pad(self.high - self.low, (0, 1), value=1.0)
        self.batch, self.row_bytes = batch_sizes(instance, t, budget)
        self.least = tuning.least_cells.on(device)
        # Bytes of what open nodes inherit; beyond, they begin with what they are.
        self.most_known = budget // 4
        self.front = Front()
        # By image the bound of all sets at once, the worst of the margins, relative to the image's own margin.
        self.outlook: dict[int, float] = {}

    def begin(self, image: int) -> None:
        """Start from all sets of an image, a row of the instance."""
        self._push(root(image, self.t, self.instance.plan.device))

    def go_on(self, image: int, fronts: Sequence[Nodes]) -> None:
        """Go on from what :meth:`left` gave."""
        for part in fronts:
            self._push(part.to(self.instance.plan.device).of_image(image))

    def open(self) -> bool:
        """Whether anything is left to prove."""
        return bool(self.front.cells or self.front.boxes)

    def is_open(self, image: int) -> bool:
        """Whether anything is left to prove for one image; looks through all open nodes."""
        open_: list[Nodes] = [*self.front.cells, *self.front.boxes]
        return any(bool((part.image == image).any()) for part in open_)

    def left(self, image: int) -> tuple[Nodes, ...]:
        """The open nodes of one image, on the CPU, with row number 0."""
        return (*kept(self.front.cells, image), *kept(self.front.boxes, image))

    def drop(self, images: Sequence[int]) -> None:
        """Forget the nodes of some images."""
        self.front = Front(without(self.front.cells, images), without(self.front.boxes, images))

    @torch.inference_mode()
    def step(self) -> Step:
        """Bound one batch, the deepest nodes first, so that few are open at a time.

        All or nothing: after a halt the open nodes are those from before the step, and none is counted; if the device's
        memory does not do, the step is made anew with fewer nodes.
        """
        while True:
            # Restoring the stacks as a whole leaves every node open exactly once, wherever the work ended.
            before = Front([*self.front.cells], [*self.front.boxes])
            try:
                return self._advance()
            except Halted:
                self.front = before
                none = root(0, self.t, self.instance.plan.device).pick(slice(0, 0))
                return Step(none, self.low.new_zeros(0), {}, {}, frozenset(), {})
            except torch.OutOfMemoryError as error:
                self.front = before
                if self.batch == 1:
                    raise ModelError(
                        "the device has too little memory for a single node: give less `memory_bytes`, or use "
                        "`device='cpu'`"
                    ) from error
            torch.cuda.empty_cache()
            self.batch, self.row_bytes = max(1, self.batch // 2), max(1, self.row_bytes // 2)

    def _advance(self) -> Step:
        if self.front.boxes:
            return self._bound_boxes(take(self.front.boxes, self.batch))
        return self._bound_cells(take(self.front.cells, self.batch))

    def _bound_cells(self, nodes: CellNodes) -> Step:
        parts, left, bounds = self._prove(nodes)
        proved, certain = [part for part, _ in parts], [bound for _, bound in parts]
        candidates: dict[int, Tensor] = {}
        if len(left):
            self._look_ahead(left, bounds)
            candidates = self._witnesses(left, bounds)
            self._descend(left, bounds, proved, certain)
        return self._step(nodes, join(proved), torch.cat(certain), frozenset(), candidates)

    def _bound_boxes(self, nodes: BoxNodes) -> Step:
        parts, left, bounds = self._prove(nodes)
        candidates: dict[int, Tensor] = {}
        ties: frozenset[int] = frozenset()
        if len(left):
            candidates = self._witnesses(left, bounds)
            ties = self._halve(left, bounds)
        done, certain = join([part for part, _ in parts]), torch.cat([bound for _, bound in parts])
        return self._step(nodes, done, certain, ties, candidates)

    def _prove(self, nodes: Kind) -> tuple[list[tuple[Kind, Tensor]], Kind, Bounds]:
        """Bound nodes, with as little work as proves each.

        Returns:
            Those that are proved with their least margins' bounds, those that are not, and the bounds of these.
        """
        done: list[tuple[Kind, Tensor]] = []
        for refined in refinements(self.instance.plan) if nodes.known is not None else [None]:
            with exact_float32(self.instance.plan.device):
                bounds = bound(self.instance, nodes, self.row_bytes, refined)
            yes, no = bounds.proved.nonzero()[:, 0], (~bounds.proved).nonzero()[:, 0]
            done.append((replace(nodes.pick(yes), known=None), bounds.margins[yes].amin(1)))
            nodes, bounds = nodes.pick(no), bounds.pick(no)
            if not len(nodes):
                break
            nodes = replace(nodes, known=bounds.known)
        return done, nodes, bounds

    def _step(
        self, nodes: Nodes, done: Nodes, certain: Tensor, ties: frozenset[int], candidates: dict[int, Tensor]
    ) -> Step:
        counts = nodes.image.bincount(minlength=len(self.instance.images)).tolist()
        bounded = {image: count for image, count in enumerate(counts) if count}
        proved = shares(self.instance.tree, done) if len(done) else {}
        return Step(done, certain, bounded, proved, ties, candidates)

    def _descend(self, nodes: CellNodes, bounds: Bounds, proved: list[CellNodes], certain: list[Tensor]) -> None:
        """Split nodes; their linear bounds hold for the halves too, which proves some of them by a look-up.

        Where to split is told by what each cell takes from the worst margin: its halves can differ by that. What is
        left is split again until there are enough nodes to fill the device: a batch of few takes as long.
        """
        assert bounds.table is not None
        instance, waiting = self.instance, sum(len(part) for part in self.front.cells)
        nodes, known = replace(nodes, known=None), bounds.known.margins
        worst = bounds.table[torch.arange(len(nodes), device=nodes.image.device), bounds.worst]
        owner = torch.arange(len(nodes), device=nodes.image.device)
        while len(nodes):
            nodes, parent = split_cells(instance.tree, nodes, taken_by_cells(instance, nodes, worst, owner))
            owner = owner[parent]
            change = bounds.form.constant[owner] + look_up_minima(instance, nodes, bounds.table, owner)
            margins = margins_from(instance, nodes, known[parent], bounds.rivals[owner], change)
            safe = is_proved(instance, nodes, margins)
            yes, no = safe.nonzero()[:, 0], (~safe).nonzero()[:, 0]
            proved.append(nodes.pick(yes))
            certain.append(margins[yes].amin(1))
            nodes, owner, known = nodes.pick(no), owner[no], margins[no].nan_to_num(nan=-torch.inf)
            full = waiting + len(nodes) >= self.least
            last = full | (instance.tree.sizes[nodes.cells] == 1).all(1)
            out, on = last.nonzero()[:, 0], (~last).nonzero()[:, 0]
            self._push(replace(nodes.pick(out), known=replace(bounds.known.pick(owner[out]), margins=known[out])))
            nodes, owner, known = nodes.pick(on), owner[on], known[on]

    def _look_ahead(self, nodes: CellNodes, bounds: Bounds) -> None:
        for row in (nodes.cells == 1).all(1).nonzero()[:, 0].tolist():
            image = int(nodes.image[row])
            self.outlook[image] = float((bounds.margins[row] / self.instance.margins[image]).min())

    def _push(self, nodes: Nodes) -> None:
        """Put children on the stacks; nodes of single groups get the box of all their values."""
        if not len(nodes):
            return
        open_: list[Nodes] = [*self.front.cells, *self.front.boxes]
        if sum(part.known.nbytes for part in open_ if part.known is not None) >= self.most_known:
            nodes = replace(nodes, known=None)
        if isinstance(nodes, BoxNodes):
            self.front.boxes.append(nodes)
            return
        single = (self.instance.tree.sizes[nodes.cells] == 1).all(1)
        several = nodes.pick(~single)
        if len(several):
            self.front.cells.append(several)
        alone = nodes.pick(single)
        if len(alone):
            cells = self._leaves(alone.cells)
            members = self.instance.members[cells - self.instance.tree.slots]
            low, high = (torch.nn.functional.pad(v, (0, 1))[members] for v in (self.low, self.high))
            depth = torch.zeros_like(alone.image)
            self.front.boxes.append(BoxNodes(alone.image, cells, low, high, depth, alone.known))

    def _leaves(self, cells: Tensor) -> Tensor:
        """The leaf of each cell that holds one group: its group lies at the left edge."""
        height = self.instance.tree.heights[cells]
        return cells << height

    def _halve(self, nodes: BoxNodes, bounds: Bounds) -> frozenset[int]:
        """Split boxes; returns the images with boxes that are too narrow."""
        widths = self.widths[self.instance.members[nodes.cells - self.instance.tree.slots]]
        narrow = ((nodes.high - nodes.low) / widths).amax((1, 2)) < NARROWEST
        weights = box_coefficients(self.instance, nodes, bounds.form, bounds.worst)
        if not bool(narrow.all()):
            wide = replace(nodes, known=bounds.known).pick(~narrow)
            self._push(split_boxes(wide, weights[~narrow]))
        return frozenset(nodes.image[narrow].tolist())

    def _witnesses(self, nodes: Nodes, bounds: Bounds) -> dict[int, Tensor]:
        """The worst corner of every node that was not proved, run through the network itself."""
        inputs = minimizing_inputs(self.instance, nodes, bounds.form, bounds.worst, self.low, self.high)
        shape = self.instance.plan.graph.operations[0].shape
        scores = self.batcher.run(len(inputs), lambda a, b: inputs[a:b].view(-1, *shape))
        found = self.instance.specification.pick(nodes.image).margins(scores)
        best: dict[int, tuple[float, int]] = {}
        for row in (found < 0).nonzero()[:, 0].tolist():
            image, margin = int(nodes.image[row]), float(found[row])
            if image not in best or margin < best[image][0]:
                best[image] = (margin, row)
        return {image: inputs[row] for image, (_, row) in best.items()}
