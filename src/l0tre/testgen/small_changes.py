"""What single groups and near pairs of pixels can do to neurons: forms carried in the windows that these reach.

A pixel reaches few neurons of the first layers, so forms are carried in windows as long as these are small; from there
on, and where groups are not pixels, as whole maps. Two pixels do together what neither does alone only to neurons that
see both: of pairs that far apart nothing need be known.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.boxes import window_forms
from l0tre.certify.boxes.affine_forms import AffineForms
from l0tre.certify.boxes.form_bounds import seeds_of
from l0tre.certify.boxes.forward_forms import Forms, Forward, carry, item_bytes, ranges
from l0tre.certify.boxes.range_parts import full_boxes, halved
from l0tre.certify.boxes.tail import products
from l0tre.certify.boxes.window_forms import LocalNetwork, WindowSite, spread, stages
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.relax.instance import Instance
from l0tre.testgen.goals import Target

__all__ = ["MOST_PARTS", "Changes", "near_pairs", "pair_products", "refine"]

FORM_BYTES = {"cpu": 2**26, "cuda": 2**32}  # forms that are carried together
MOST_PARTS = 2  # parts of ranges for each set, beyond which they are not halved again
Top = Callable[[Target, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Changes:
    """A seed, and the neurons that are asked about.

    Attributes:
        instance: The seed, the only image.
        forward: The network.
        local: Its first layers, in windows; none if groups are not pixels.
        drift: How far the seed's own values are off, see ``rounding.drifts``.
        asked: Layers, each with the position whose range tells of it.
        open_: bool ``[neurons]``, those that are asked about.
        thresholds: float64 ``[neurons]``.
        top: The largest values ``[nodes, neurons]`` of a layer's neurons from the range at its position.
    """

    instance: Instance
    forward: Forward
    local: LocalNetwork | None
    drift: Mapping[int, Tensor]
    asked: Sequence[tuple[Target, int]]
    open_: Tensor
    thresholds: Tensor
    top: Top

    def attainable(self, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
        """Which neurons some input of some node may activate, for all that its forms say.

        Args:
            nodes: Boxes of one group each, or of several pixels in windows alone.

        Returns:
            bool ``[neurons]``, and bool ``[nodes]``: the nodes that are to blame.
        """
        neurons = torch.zeros_like(self.open_)
        blamed = torch.zeros(len(nodes), dtype=torch.bool, device=neurons.device)
        cut = 0 if self.local is None else self.local.plan.cut
        near, far = ([pair for pair in self.asked if (pair[1] <= cut) == inside] for inside in (True, False))
        for rows in self._parts(nodes, bool(far)):
            part = nodes.pick(rows)
            if self.local is None:
                forms = seeds_of(self.instance, part)
            else:
                forms = self._windows(part, near, far, neurons, blamed, rows)
            if far:
                keep = {place for _, place in far}
                found = carry(self.forward, self.instance, self.drift, part.image, cut, forms, keep)
                for target, place in far:
                    own, off = (values[place][part.image] for values in (self.instance.base, self.drift))
                    left = self._left(target, found[place], own, off)
                    neurons[target.layer.place] |= left.any(0)
                    blamed[rows] |= left.any(1)
        return neurons, blamed

    def unchanged(self) -> Tensor:
        """Which neurons the seed itself may activate, bool ``[neurons]``: windows do not tell of those out of reach."""
        neurons = torch.zeros_like(self.open_)
        for target, place in self.asked:
            own, off = self.instance.base[place], self.drift[place]
            left = self._left(target, Forms(torch.zeros_like(own)[:, None], torch.zeros_like(own)), own, off)
            neurons[target.layer.place] = left[0]
        return neurons

    def _left(self, target: Target, forms: Forms, own: Tensor, off: Tensor) -> Tensor:
        """Of whole maps, bool ``[nodes, neurons]``."""
        highest = self.top(target, *ranges(forms, own, off))
        # Written so that NaN proves nothing.
        return ~(highest <= self.thresholds[target.layer.place]) & self.open_[target.layer.place]

    def _windows(
        self,
        nodes: BoxNodes,
        near: Sequence[tuple[Target, int]],
        far: Sequence[tuple[Target, int]],
        neurons: Tensor,
        blamed: Tensor,
        rows: Tensor,
    ) -> Forms:
        """Note what nodes that lie alike may activate in windows; gives the forms of whole maps where these end."""
        local = self.local
        assert local is not None
        members = self.instance.members[nodes.cells - self.instance.tree.slots]
        items = window_forms.Items(nodes.image, members, nodes.low, nodes.high)
        last = local.plan.cut if far else max(place for _, place in near)
        site, values = stages(
            local, self.instance, items, keep=True, upto=last, drift=self.drift, extent=self._extents(nodes)[0]
        )
        for target, place in near:
            if all(span.size for span in site.windows[place]):
                left, index = self._left_in_window(site, target, place, values[place])
                neurons[index[left]] = True
                blamed[rows] |= left.flatten(1).any(1)
        if not far:
            return Forms(values[last].centre, values[last].radius[:, 0])
        whole = spread(site, last, values[last])
        return Forms(whole.centre, whole.radius[:, 0])

    def _left_in_window(
        self, site: WindowSite, target: Target, place: int, forms: AffineForms
    ) -> tuple[Tensor, Tensor]:
        """Of a window, bool ``[nodes, C, rows, columns]``; and the numbers of its neurons."""
        box, layer = site.windows[place], target.layer
        own, off = site.own(place, box), site.off(place, box)
        highest = self.top(target, *ranges(Forms(forms.centre, forms.radius[:, 0]), own, off)).view(own.shape)
        maps = (self.thresholds[layer.place], self.open_[layer.place])
        first = torch.zeros_like(site.image)
        limits, asked = (site.cut_out(values.view(1, *layer.shape), first, place, box) for values in maps)
        left = ~(highest <= limits) & asked  # written so that NaN proves nothing
        rows, columns, _ = site.places(place, box)
        channels, height, width = layer.shape
        channel = torch.arange(channels, device=rows.device)[:, None, None] * (height * width)
        return left, layer.start + channel + (rows * width + columns)[:, None]

    def _parts(self, nodes: BoxNodes, far: bool) -> Iterator[Tensor]:
        """Rows of nodes that can be carried together: those that lie alike, as many as there is room for."""
        variables, budget = nodes.low[0].numel(), FORM_BYTES[nodes.image.device.type]
        cut, end = 0 if self.local is None else self.local.plan.cut, max(place for _, place in self.asked)
        whole = item_bytes(self.forward, 1 + variables, cut, end) if far else 0
        every = torch.arange(len(nodes), device=nodes.image.device)
        if self.local is None:
            yield from every.split(max(1, budget // whole))
            return
        stride = self.local.plan.stride
        extents, first = self._extents(nodes), self._first(nodes)
        sizes = torch.tensor(extents, device=every.device)
        _, kind = torch.cat([sizes, first % stride], 1).unique(dim=0, return_inverse=True)
        for number in range(int(kind.max()) + 1):
            rows = (kind == number).nonzero()[:, 0]
            size = max(whole, window_forms.item_bytes(self.local, variables, extents[int(rows[0])]))
            yield from rows.split(max(1, budget // size))

    def _first(self, nodes: BoxNodes) -> Tensor:
        """The first row and column of each node's pixels, int64 ``[nodes, 2]``."""
        return self._pixels(nodes).amin(1)

    def _extents(self, nodes: BoxNodes) -> list[tuple[int, int]]:
        """Height and width of the box around each node's pixels."""
        pixels = self._pixels(nodes)
        return [(height, width) for height, width in (pixels.amax(1) - pixels.amin(1) + 1).tolist()]

    def _pixels(self, nodes: BoxNodes) -> Tensor:
        """Row and column of each pixel, int64 ``[nodes, pixels, 2]``."""
        _, height, width = self.instance.plan.graph.input_shape
        plane = self.instance.members[nodes.cells - self.instance.tree.slots][:, :, 0] % (height * width)
        return torch.stack([plane // width, plane % width], 2)


def refine(changes: Changes, cells: Tensor, halvings: int) -> Tensor:
    """Which of the neurons that are asked about the seed or some of the sets may activate, ranges halved where open.

    Args:
        changes: Seed and neurons.
        cells: int64 ``[sets, groups]``.
        halvings: Of each group's range, at the most.

    Returns:
        bool ``[neurons]``.
    """
    nodes = full_boxes(changes.instance, 0, cells)
    most = MOST_PARTS * len(nodes)
    neurons = torch.zeros_like(changes.open_)
    for halving in range(halvings + 1):
        neurons, blamed = changes.attainable(nodes)
        nodes = nodes.pick(blamed)
        if halving == halvings or not 0 < len(nodes) <= most:
            break
        nodes = halved(nodes, cells.shape[1])
    return neurons | changes.unchanged()


def near_pairs(instance: Instance, sight: tuple[int, int]) -> Tensor:
    """The pairs of pixels in windows of so many rows and columns, as leaves of the tree, int64 ``[pairs, 2]``."""
    assert instance.slot_of_pixel is not None
    _, height, width = instance.plan.graph.input_shape
    slots = instance.slot_of_pixel.view(height, width)
    found = []
    for down, right, _ in _offsets(instance, sight):
        left, more = max(0, -right), max(0, right)
        first, second = slots[: height - down, left : width - more], slots[down:, more : width - left]
        both = (first >= 0) & (second >= 0)
        found.append(torch.stack([first[both], second[both]], 1))
    pairs = torch.cat(found) if found else torch.zeros(0, 2, dtype=torch.int64, device=slots.device)
    return pairs + instance.tree.slots


def pair_products(local: LocalNetwork, instance: Instance, place: int, sight: tuple[int, int]) -> float:
    """Products that it takes to carry these pairs, whole ranges, to a position."""
    operations = local.plan.graph.operations
    columns = 2 + 2 * instance.members.shape[1]
    total = 0.0
    for down, right, count in _offsets(instance, sight):
        boxes = local.windows((0, 0), (down + 1, abs(right) + 1))
        for at in range(1, place + 1):
            share = boxes[at][0].size * boxes[at][1].size / math.prod(operations[at].shape[1:])
            total += columns * count * share * products(instance.plan, at)
    return total


def _offsets(instance: Instance, sight: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
    """How the second pixel of a pair can lie to the first one, in rows and columns, and how many pairs do."""
    _, height, width = instance.plan.graph.input_shape
    for down in range(min(sight[0], height)):
        for right in range(1 - min(sight[1], width), min(sight[1], width)):
            if (down, right) > (0, 0):
                yield down, right, (height - down) * (width - abs(right))
