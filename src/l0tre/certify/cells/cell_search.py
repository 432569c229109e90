"""Branch and bound over nodes: bound a batch, keep what is proved, split the rest, try its corners as witnesses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.cells.additive import PixelLosses, apart, can_add, make_losses, sum_proves
from l0tre.certify.regions.nodes import Nodes, join, root, shares, split_boxes, split_cells
from l0tre.certify.relax.bounds import Bounds, batch_sizes, bound, is_proved
from l0tre.certify.relax.concretize import box_coefficients, look_up_minima, minimizing_inputs
from l0tre.certify.relax.instance import Halted, Instance
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.memory import Batcher
from l0tre.model.network import exact_float32, margins

__all__ = ["CellSearch", "Front", "Step"]

# A box this narrow, relative to its range, whose bound is still not positive holds a tie: splitting it never ends.
NARROWEST = 2.0**-24
VOTERS = 16  # nodes that are bounded with both kinds of lines
PATIENCE = 512  # nodes an image before what single pixels do is worth a table of its own


@dataclass
class Front:
    """What is left to prove for the images of a instance at one level: nodes of cells and nodes of boxes."""

    cells: list[Nodes] = field(default_factory=list)
    boxes: list[Nodes] = field(default_factory=list)


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
    """

    proved: Nodes
    bounds: Tensor
    nodes: dict[int, int]
    shares: dict[int, Fraction]
    ties: frozenset[int]
    candidates: dict[int, Tensor]


class CellSearch:
    """The search for the images of one instance at one level ``t``."""

    def __init__(self, instance: Instance, domain: Domain, batcher: Batcher, t: int, budget: int) -> None:
        self.instance = instance
        self.batcher = batcher
        self.t = t
        self.total = math.comb(domain.groups, t)
        device = instance.plan.device
        self.low, self.high = domain.low.double().to(device), domain.high.double().to(device)
        self.widths = torch.nn.functional.pad(self.high - self.low, (0, 1), value=1.0)
        self.batch, self.row_bytes = batch_sizes(instance, t, budget)
        self.front = Front()
        self.hints: dict[int, Tensor] = {}
        self.lessons: dict[int, list[Tensor]] = {}
        # By image the bound of all sets at once, the worst of the margins, relative to the image's own margin.
        self.outlook: dict[int, float] = {}
        self.singles: PixelLosses | None = None
        self.adds = False
        self.spent = 0
        self.votes = torch.zeros(2, dtype=torch.float64)
        self.voters = 0

    def allow_sums(self) -> None:
        """Let sets of pixels that are far apart be proved by sums, where the network is linear behind its windows."""
        self.adds = self.t > 1 and can_add(self.instance)

    def begin(self, image: int) -> None:
        """Start from all sets of an image, a row of the instance."""
        self._push(root(image, self.t, self.instance.plan.device))

    def go_on(self, image: int, fronts: Sequence[Nodes]) -> None:
        """Go on from what :meth:`left` gave."""
        for part in fronts:
            moved = part.to(self.instance.plan.device)
            self._push(replace(moved, image=torch.full_like(moved.image, image)))

    def open(self) -> bool:
        """Whether anything is left to prove."""
        return bool(self.front.cells or self.front.boxes)

    def is_open(self, image: int) -> bool:
        """Whether anything is left to prove for one image; looks through all open nodes."""
        return any(bool((part.image == image).any()) for part in (*self.front.cells, *self.front.boxes))

    def left(self, image: int) -> tuple[Nodes, ...]:
        """The open nodes of one image, on the CPU, with row number 0."""
        result = []
        for stack in (self.front.cells, self.front.boxes):
            own = [part.pick(part.image == image) for part in stack]
            own = [replace(part, image=torch.zeros_like(part.image), signs=None) for part in own if len(part)]
            if own:
                result.append(join(own).to(torch.device("cpu")))
        return tuple(result)

    def lesson(self, image: int) -> Tensor | None:
        """Keys of the nodes of an image that could not be proved: at the next level those around them cannot either."""
        parts = self.lessons.get(image)
        return torch.cat(parts).unique() if parts else None

    def drop(self, images: Sequence[int]) -> None:
        """Forget the nodes of some images."""
        gone = torch.tensor(list(images), device=self.instance.plan.device)
        for stack in (self.front.cells, self.front.boxes):
            kept = [part.pick(~torch.isin(part.image, gone)) for part in stack]
            stack[:] = [part for part in kept if len(part)]

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
                        "the device has too little memory for a single node: give less --memory to the tables, or use "
                        "--device cpu"
                    ) from error
            torch.cuda.empty_cache()
            self.batch, self.row_bytes = max(1, self.batch // 2), max(1, self.row_bytes // 2)

    def _advance(self) -> Step:
        nodes = self._pop()
        if nodes.low is None and self.hints:
            nodes = self._skip(nodes)
        with exact_float32(self.instance.plan.device):
            if self.adds and self.singles is None and self.spent > PATIENCE * len(self.instance.images):
                self.singles = make_losses(self.instance, self.low, self.high, self.batch, self.row_bytes)
            bounds = self._better(nodes)
        self.spent += len(nodes)
        least, rows = bounds.margins.min(1)
        proved, certain = [nodes.pick(bounds.proved)], [least[bounds.proved]]
        candidates: dict[int, Tensor] = {}
        ties: frozenset[int] = frozenset()
        failed = (~bounds.proved).nonzero()[:, 0]
        if len(failed):
            self._look_ahead(nodes, bounds)
            left, part = nodes.pick(failed), bounds.pick(failed)
            candidates = self._witnesses(left, part, rows[failed])
            if left.low is None:
                self._learn(left)
                self._descend(left, part, proved, certain)
            else:
                ties = self._halve(left, part, rows[failed])
        counts = nodes.image.bincount(minlength=len(self.instance.images)).tolist()
        done = join(proved)
        return Step(
            done,
            torch.cat(certain),
            {image: count for image, count in enumerate(counts) if count},
            shares(self.instance.tree, done) if len(done) else {},
            ties,
            candidates,
        )

    def _better(self, nodes: Nodes) -> Bounds:
        """Bound nodes with the kind of lines that gave the larger margins so far; the first nodes try both."""
        if nodes.low is not None or self.voters >= VOTERS:
            return bound(self.instance, nodes, self.row_bytes, touching=bool(self.votes[0] >= self.votes[1]))
        both = [bound(self.instance, nodes, self.row_bytes, touching=touching) for touching in (True, False)]
        sums = torch.stack([b.margins.amin(1).sum().cpu() for b in both]).nan_to_num()
        self.votes += sums
        self.voters += len(nodes)
        return both[int(sums.argmax())]

    def _descend(self, nodes: Nodes, bounds: Bounds, proved: list[Nodes], certain: list[Tensor]) -> None:
        """Split nodes; their linear bounds hold for the halves too, which proves some of them by a look-up."""
        assert bounds.table is not None
        nodes, owner = split_cells(self.instance.tree, replace(nodes, signs=bounds.signs))
        worst = look_up_minima(self.instance, nodes, bounds.table, owner)
        margins = self.instance.margins[nodes.image] + bounds.form.constant[owner] + worst
        safe = is_proved(self.instance, nodes, margins)
        proved.append(nodes.pick(safe))
        certain.append(margins[safe].amin(1))
        self._add_up(nodes.pick(~safe), proved, certain)

    def _add_up(self, nodes: Nodes, proved: list[Nodes], certain: list[Tensor]) -> None:
        """Prove nodes whose pixels are far apart by sums, and split those that are not proved; push all others."""
        if self.singles is None:
            self._push(nodes)
            return
        while len(nodes):
            far = apart(self.singles, nodes)
            self._push(nodes.pick(~far))
            nodes = nodes.pick(far)
            margins, safe = sum_proves(self.instance, self.singles, nodes)
            proved.append(nodes.pick(safe))
            certain.append(margins[safe].amin(1))
            nodes = nodes.pick(~safe)
            wide = (self.instance.tree.sizes[nodes.cells] > 1).any(1)
            self._push(nodes.pick(~wide))
            nodes = split_cells(self.instance.tree, nodes.pick(wide))[0]

    def _look_ahead(self, nodes: Nodes, bounds: Bounds) -> None:
        if nodes.low is None:
            for row in (nodes.cells == 1).all(1).nonzero()[:, 0].tolist():
                image = int(nodes.image[row])
                self.outlook[image] = float((bounds.margins[row] / self.instance.margins[image]).min())

    def _learn(self, nodes: Nodes) -> None:
        keys = nodes.keys()
        for image in nodes.image.unique().tolist():
            self.lessons.setdefault(image, []).append(keys[nodes.image == image])

    def _skip(self, nodes: Nodes) -> Nodes:
        """Split nodes at once, without bounding them, that contain one which failed with one group fewer."""
        for _ in range(2 * self.instance.tree.depth):
            hopeless = torch.zeros_like(nodes.image, dtype=torch.bool)
            for image, known in self.hints.items():
                own = nodes.image == image
                for slot in range(self.t):
                    others = torch.cat([nodes.cells[:, :slot], nodes.cells[:, slot + 1 :]], 1)
                    hopeless |= own & torch.isin(Nodes(nodes.image, others).keys(), known)
            hopeless &= (self.instance.tree.sizes[nodes.cells] > 1).any(1)
            if not bool(hopeless.any()):
                break
            self._push(nodes.pick(~hopeless))
            self._push(split_cells(self.instance.tree, nodes.pick(hopeless))[0])
            nodes = self._pop()
            if nodes.low is not None:
                break
        return nodes

    def _pop(self) -> Nodes:
        stack = self.front.boxes or self.front.cells
        taken: list[Nodes] = []
        room = self.batch
        while stack and room:
            part = stack.pop()
            if len(part) > room:
                stack.append(part.pick(slice(0, len(part) - room)))
                part = part.pick(slice(len(part) - room, len(part)))
            taken.append(part)
            room -= len(part)
        return join(taken)

    def _push(self, nodes: Nodes) -> None:
        """Put children on the stacks; nodes of single groups get the box of all their values."""
        if not len(nodes):
            return
        if nodes.low is not None:
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
            self.front.boxes.append(Nodes(alone.image, cells, low, high, depth, alone.signs))

    def _leaves(self, cells: Tensor) -> Tensor:
        """The leaf of each cell that holds one group: its group lies at the left edge."""
        height = self.instance.tree.heights[cells]
        return cells << height

    def _halve(self, nodes: Nodes, bounds: Bounds, rows: Tensor) -> frozenset[int]:
        """Split boxes; returns the images with boxes that are too narrow."""
        assert nodes.low is not None
        assert nodes.high is not None
        widths = self.widths[self.instance.members[nodes.cells - self.instance.tree.slots]]
        narrow = ((nodes.high - nodes.low) / widths).amax((1, 2)) < NARROWEST
        weights = box_coefficients(self.instance, nodes, bounds.form, rows)
        if not bool(narrow.all()):
            wide = replace(nodes, signs=bounds.signs).pick(~narrow)
            self._push(split_boxes(wide, weights[~narrow]))
        return frozenset(nodes.image[narrow].tolist())

    def _witnesses(self, nodes: Nodes, bounds: Bounds, rows: Tensor) -> dict[int, Tensor]:
        """The worst corner of every node that was not proved, run through the network itself."""
        inputs = minimizing_inputs(self.instance, nodes, bounds.form, rows, self.low, self.high)
        shape = self.instance.plan.graph.operations[0].shape
        scores = self.batcher.run(len(inputs), lambda a, b: inputs[a:b].view(-1, *shape))
        found = margins(scores, self.instance.labels[nodes.image])
        best: dict[int, tuple[float, int]] = {}
        for row in (found < 0).nonzero()[:, 0].tolist():
            image, margin = int(nodes.image[row]), float(found[row])
            if image not in best or margin < best[image][0]:
                best[image] = (margin, row)
        return {image: inputs[row] for image, (_, row) in best.items()}
