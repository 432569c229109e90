"""The search by clusters: what is far apart is decided by sums, the rest by boxes of values."""

import math
import time
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.boxes.bounders import Bounder
from l0tre.certify.boxes.margin_errors import proved
from l0tre.certify.cells.cell_search import NARROWEST, Step
from l0tre.certify.regions.leaves import leaves_of
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes, root, shares, split_boxes
from l0tre.certify.regions.stack import kept, take, without
from l0tre.certify.relax.instance import Instance
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.findings import Halted
from l0tre.memory import Batcher
from l0tre.model.network import exact_float32
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["BoxSearch"]


class BoxSearch:
    """The search for the images of one instance at one level ``t``, used as ``certify.search.CellSearch`` is."""

    def __init__(
        self,
        bounder: Bounder,
        domain: Domain,
        batcher: Batcher,
        t: int,
        tuning: Tuning = DEFAULT_TUNING,
        *,
        keeps: bool = False,
    ) -> None:
        """See the class; ``keeps`` says whether steps carry the boxes that they proved."""
        self.bounder = bounder
        self.batcher = batcher
        self.t = t
        self.tuning = tuning
        self.total = math.comb(domain.groups, t)
        self.keeps = keeps
        device = bounder.instance.images.device
        low, high = (end.double().to(device) for end in (domain.low, domain.high))
        self.widths = torch.nn.functional.pad(high - low, (0, 1), value=1.0)
        self.lengths = torch.nn.functional.pad(high - low, (0, 1))
        self.starts = torch.nn.functional.pad(low, (0, 1))
        # Many, since those of one arrangement go together: a GPU would wait for the many small steps of a few.
        self.batch = min(tuning.boxes.on(bounder.instance.images.device), bounder.fits(t))
        self.fresh: list[int] = []
        self.boxes: list[BoxNodes] = []

    @property
    def instance(self) -> Instance:
        """The images."""
        return self.bounder.instance

    def begin(self, image: int) -> None:
        """Start from all sets of an image, a row of the instance."""
        self.fresh.append(image)

    def go_on(self, image: int, fronts: Sequence[Nodes]) -> None:
        """Go on from what :meth:`left` gave, or from cells that were split without anything being proved."""
        if any(isinstance(part, CellNodes) for part in fronts):
            self.begin(image)  # all sets, so that boxes beside the cells must not be added to them
            return
        self.boxes += [
            part.to(self.instance.images.device).of_image(image) for part in fronts if isinstance(part, BoxNodes)
        ]

    def open(self) -> bool:
        """Whether anything is left to prove."""
        return bool(self.fresh or self.boxes)

    def is_open(self, image: int) -> bool:
        """Whether anything is left to prove for one image; looks through all open boxes."""
        return image in self.fresh or any(bool((part.image == image).any()) for part in self.boxes)

    def left(self, image: int) -> tuple[Nodes, ...]:
        """The open nodes of one image, on the CPU, with row number 0."""
        cpu = torch.device("cpu")
        if image in self.fresh:
            return (root(0, self.t, cpu),)
        return kept(self.boxes, image)

    def drop(self, images: Sequence[int]) -> None:
        """Forget the nodes of some images."""
        self.fresh = [image for image in self.fresh if image not in images]
        self.boxes = without(self.boxes, images)

    @torch.inference_mode()
    def step(self) -> Step:
        """Look at the images that were not looked at yet, or bound boxes for a while.

        Each look at new images and each batch is all or nothing: halted, or out of memory, it leaves open what was open
        before it, and counts nothing.
        """
        result = _Tally(self.instance)
        began = time.monotonic()
        while self.open():
            before = [*self.fresh], [*self.boxes]
            try:
                with exact_float32(self.instance.images.device):
                    self._first_pass(result) if self.fresh else self._bound(result)
                if time.monotonic() - began >= self.tuning.box_step_seconds:
                    break
                continue
            except Halted:
                self.fresh, self.boxes = before
                break
            except torch.OutOfMemoryError as error:
                self.fresh, self.boxes = before
                if self.batch == 1:
                    raise ModelError("the device has too little memory for one box: use `device='cpu'`") from error
            torch.cuda.empty_cache()
            self.batch = max(1, self.batch // 2)
            self.bounder = self.bounder.smaller()
        return result.step()

    def _first_pass(self, result: "_Tally") -> None:
        """Look at as many images as seem to take a few seconds: many share the cost of starting small steps of work."""
        pace, began = self.bounder.pace, time.monotonic()
        most = self.tuning.first_pass_images
        if self.t in pace:
            most = max(most, int(self.tuning.first_pass_seconds / pace[self.t]))
        chosen = self.fresh[:most]
        found = self.bounder.first_pass(torch.tensor(chosen, device=self.instance.images.device), self.t)
        pace[self.t] = max(time.monotonic() - began, 1e-3) / len(chosen)
        self.fresh = self.fresh[most:]
        if len(found.left):
            self.boxes.append(found.left)
        for image, share, bounded in zip(chosen, found.proved, found.bounded, strict=True):
            result.add(image, bounded, share)

    def _bound(self, result: "_Tally") -> None:
        last = [self.boxes.pop()]  # boxes of one batch alone: those of one arrangement are bounded together
        nodes = take(last, self.batch)
        self.boxes += last
        bounds, coefficients = self.bounder.bound(nodes)
        safe = proved(bounds)
        failed = (~safe).nonzero()[:, 0]
        left = nodes.pick(failed)
        ties: set[int] = set()
        if len(left):
            worst, rows = bounds[failed].nan_to_num(nan=-math.inf).min(1)
            slopes = coefficients[failed, rows].view(len(failed), self.t, -1)
            self._try_corners(result, left, slopes, worst)
            left, ties = self._halve(left)
        done = nodes.pick(safe)
        if self.keeps and len(done):
            instance = self.instance
            result.keep(*leaves_of(instance.tree, instance.members, self.lengths, self.starts, done))
        counts = nodes.image.bincount(minlength=len(self.instance.images)).tolist()
        counted = shares(self.instance.tree, done) if len(done) else {}
        if len(left):
            self.boxes.append(left)
        # Only now, when nothing can fail any more: what is entered must not be bounded again.
        result.ties |= ties
        for image, count in enumerate(counts):
            if count:
                result.add(image, count, counted.get(image, Fraction(0)))

    def _try_corners(self, result: "_Tally", nodes: BoxNodes, slopes: Tensor, worst: Tensor) -> None:
        """Run the worst corners of the worst boxes through the network itself."""
        chosen = worst.topk(min(self.tuning.tried_boxes, len(worst)), largest=False).indices
        nodes = nodes.pick(chosen)
        corners = torch.where(slopes[chosen] > 0, nodes.low, nodes.high)
        inputs = torch.nn.functional.pad(self.instance.images[nodes.image], (0, 1))
        inputs = inputs.scatter_(1, self._members(nodes).flatten(1), corners.flatten(1))[:, :-1].float()
        shape = self.instance.plan.graph.input_shape
        scores = self.batcher.run(len(inputs), lambda a, b: inputs[a:b].view(-1, *shape))
        result.offer(nodes.image, self.instance.specification.pick(nodes.image).margins(scores), inputs)

    def _halve(self, nodes: BoxNodes) -> tuple[BoxNodes, set[int]]:
        """Halve boxes; those that are too narrow hold a tie and are left out, and their images are told."""
        extent = nodes.high - nodes.low
        narrow = (extent / self.widths[self._members(nodes)]).amax((1, 2)) < NARROWEST
        # The longest side: errors come from what bends on it, which its slope does not tell.
        weight = 1 / self.widths[self._members(nodes)]
        return split_boxes(nodes.pick(~narrow), weight[~narrow]), set(nodes.image[narrow].tolist())

    def _members(self, nodes: BoxNodes) -> Tensor:
        return self.instance.members[nodes.cells - self.instance.tree.slots]


class _Tally:
    """What a step found so far."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.nodes: dict[int, int] = {}
        self.shares: dict[int, Fraction] = {}
        self.ties: set[int] = set()
        self.best: dict[int, tuple[float, Tensor]] = {}
        self.leaves: dict[int, list[Tensor]] = {}

    def add(self, image: int, nodes: int, proved: Fraction) -> None:
        self.nodes[image] = self.nodes.get(image, 0) + nodes
        self.shares[image] = self.shares.get(image, Fraction(0)) + proved

    def keep(self, image: Tensor, leaves: Tensor) -> None:
        """Keep proved boxes, on the CPU."""
        order = image.argsort(stable=True)
        numbers, counts = image.unique(return_counts=True)
        parts = leaves[:, order].cpu().split(counts.tolist(), 1)
        for number, part in zip(numbers.tolist(), parts, strict=True):
            self.leaves.setdefault(number, []).append(part)

    def offer(self, image: Tensor, margin: Tensor, inputs: Tensor) -> None:
        """Keep the input with the smallest margin below zero for each image."""
        rows = (margin < 0).nonzero()[:, 0]
        found = zip(rows.tolist(), image[rows].tolist(), margin[rows].tolist(), strict=True)
        for row, number, value in found:
            if number not in self.best or value < self.best[number][0]:
                self.best[number] = (value, inputs[row])

    def step(self) -> Step:
        device = self.instance.images.device
        none = root(0, 1, device).pick(slice(0, 0))
        candidates = {image: changed for image, (_, changed) in self.best.items()}
        bounds = self.instance.images.new_zeros(0)
        leaves = {image: torch.cat(parts, 1) for image, parts in self.leaves.items()}
        return Step(none, bounds, self.nodes, self.shares, frozenset(self.ties), candidates, leaves)
