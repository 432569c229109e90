"""What changes of single groups of one image do to a network's output: any groups, each to any of its values.

Groups that lie close together are carried through the network together, as differences inside boxes.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.locality.differences import (
    FLOAT32,
    Precision,
    Watch,
    boxes,
    make_differences,
    output_change,
    row_bytes,
)
from l0tre.locality.local_part import Span
from l0tre.locality.windows import Box
from l0tre.memory import Portions
from l0tre.model.graph import Graph
from l0tre.tuning import PerDevice

__all__ = ["GroupChanges"]

# Rows that should lie in one block of the image: with fewer a device idles, with more windows are large.
BLOCK_ROWS = PerDevice(32, 256)
SMALLEST_BLOCK = PerDevice(2, 16)  # side


class GroupChanges:
    """Changes single groups of one image.

    Attributes:
        around: The network around the image.
        domain: The groups, on the image's device.
        grid: float32 ``[groups, points, width]``, the values that each group takes, likewise.
        image: float32 ``[values]``.
        portions: Cuts the work.
        pulse: Called before every batch; may raise ``Halted``.
        corners: First row and column, last row and column of every group, int64 ``[groups, 4]`` on the CPU; ``None`` if
            the input is no map.
    """

    def __init__(
        self,
        graph: Graph,
        domain: Domain,
        grid: Tensor,
        image: Tensor,
        portions: Portions,
        precision: Precision = FLOAT32,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        """Get ready for one image.

        Args:
            graph: The network, float32 on the image's device.
            domain: Groups that may take any values of their ranges, likewise.
            grid: float32 ``[groups, points, width]``, likewise.
            image: float32 ``input_shape``.
            portions: Cuts the work.
            precision: Of the differences.
            pulse: Called before every batch; may raise ``Halted``.
        """
        self.around = make_differences(graph, image, precision)
        self.domain, self.grid, self.image = domain, grid, image.flatten()
        self.portions, self.pulse = portions, pulse
        self.corners = _corners(domain, graph.input_shape)

    def outputs(self, groups: Tensor, points: Tensor, see: Watch | None = None) -> Tensor:
        """The output less that of the unchanged image.

        Args:
            groups: int64 ``[rows]`` on the CPU.
            points: int64 ``[rows]`` on the CPU: which of its values each group takes.
            see: As for ``output_change``.

        Returns:
            float32 ``[rows, *output_shape]`` on the image's device.

        Raises:
            Halted: If the pulse does.
        """
        found = torch.empty(len(groups), *self.around.graph.output_shape, device=self.image.device)
        for rows, box in self._blocks(groups):
            self._block(found, groups, points, rows, box, see)
        return found

    def _block(
        self, found: Tensor, groups: Tensor, points: Tensor, rows: Tensor, box: Box | None, see: Watch | None
    ) -> None:
        """Rows of one block."""
        graph, device = self.around.graph, self.image.device
        even = device.type == "cuda"
        where = boxes(graph, box, even=even)

        def do(start: int, stop: int, most: int) -> None:
            self.pulse()
            some = rows[start:stop]
            filled = _filled(some, most) if even else some
            change = self._change(groups[filled].to(device), points[filled].to(device), box)
            found[some.to(device)] = output_change(self.around, change, where, see)[: len(some)]

        self.portions.work_off(len(rows), row_bytes(graph, where, self.around.precision), do)

    def _blocks(self, groups: Tensor) -> Iterator[tuple[Tensor, Box | None]]:
        """Rows whose groups lie close together, and the box of the input that holds them."""
        if self.corners is None or not len(groups):
            yield torch.arange(len(groups)), None
            return
        corners, device = self.corners[groups], self.image.device
        low, high = corners[:, :2].amin(0), corners[:, 2:].amax(0)
        height, width = (high - low + 1).tolist()
        area = BLOCK_ROWS.on(device) * height * width / len(groups)
        least = SMALLEST_BLOCK.on(device)
        rows = min(max(least, _power(math.sqrt(area))), _power(height, up=True))
        columns = max(least, _power(area / rows))
        place = (corners[:, :2] - low) // torch.tensor([rows, columns])
        key = place[:, 0] * (width // columns + 1) + place[:, 1]
        order = key.argsort(stable=True)
        for some in order.split(key[order].unique_consecutive(return_counts=True)[1].tolist()):
            first, last = corners[some, :2].amin(0).tolist(), corners[some, 2:].amax(0).tolist()
            yield some, (Span(first[0], last[0]), Span(first[1], last[1]))

    def _change(self, groups: Tensor, points: Tensor, box: Box | None) -> Tensor:
        """The change of the input, in a box: ``[rows, C, rows of the box, columns of the box]``."""
        members = self.domain.members[groups]
        delta = self.grid[groups, points] - self.image[members]
        shape = self.around.graph.input_shape
        if box is None:
            change = torch.zeros(len(groups), len(self.image), device=self.image.device)
            return change.scatter_(1, members, delta).reshape(-1, *shape)
        height, width = shape[1:]
        channel, pixel = members // (height * width), members % (height * width)
        row, column = pixel // width - box[0].first, pixel % width - box[1].first
        place = (channel * box[0].size + row) * box[1].size + column
        change = torch.zeros(len(groups), shape[0] * box[0].size * box[1].size, device=self.image.device)
        return change.scatter_(1, place, delta).reshape(-1, shape[0], box[0].size, box[1].size)


def _power(size: float, *, up: bool = False) -> int:
    """The nearest power of two (or the next one), at least 1."""
    exponent = math.log2(max(size, 1.0))
    return 1 << (math.ceil(exponent) if up else round(exponent))


def _filled(rows: Tensor, most: int) -> Tensor:
    """Rows, and repetitions of the first one up to one of few sizes: a GPU plans a convolution anew for each size."""
    size = 1 << (len(rows) - 1).bit_length()
    size = min(3 * size // 4 if 3 * size // 4 >= len(rows) else size, max(most, len(rows)))
    return torch.cat([rows, rows[:1].expand(size - len(rows))])


def _corners(domain: Domain, shape: tuple[int, ...]) -> Tensor | None:
    if len(shape) != 3:
        return None
    pixel = domain.members.cpu() % (shape[1] * shape[2])
    row, column = pixel // shape[2], pixel % shape[2]
    return torch.stack([row.amin(1), column.amin(1), row.amax(1), column.amax(1)], 1)
