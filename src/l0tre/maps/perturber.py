"""What changes of single groups do to the observed number, any groups to any of their values."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.locality.differences import (
    FLOAT32,
    HALF,
    Differences,
    boxes,
    make_differences,
    output_change,
    row_bytes,
)
from l0tre.locality.local_part import Span
from l0tre.maps.observed import Observed
from l0tre.rules import Free
from l0tre.tuning import DEFAULT_TUNING, PerDevice, Tuning

__all__ = ["Perturber"]

# Rows that should lie in one block of the image: with fewer a device idles, with more windows are large.
BLOCK_ROWS = PerDevice(32, 256)
SMALLEST_BLOCK = PerDevice(2, 16)
Box = tuple[Span, Span]


class Perturber:
    """Changes single groups of one image and looks what becomes of the observed number.

    Attributes:
        observed: The number.
        domain: The groups, on the network's device.
        grid: float32 ``[groups, points, width]``, the values that each group takes, likewise.
        image: float32 ``[values]``, likewise.
        base: The number for the unchanged image.
        pulse: Called before every batch; may raise ``Halted``.
        evaluations: Forward passes in float32 so far, whole or in part.
        ranked: Likewise in half precision.
    """

    def __init__(
        self,
        observed: Observed,
        domain: Domain,
        grid: Tensor,
        image: Tensor,
        budget: int,
        *,
        pulse: Callable[[], None] = lambda: None,
        tuning: Tuning = DEFAULT_TUNING,
        halves: bool = True,
    ) -> None:
        """Get ready for one image.

        Args:
            observed: The number.
            domain: The groups.
            grid: float32 ``[groups, points, width]``.
            image: float32 ``input_shape``.
            budget: Bytes that a batch may take.
            pulse: Called before every batch; may raise ``Halted``.
            tuning: How large batches are.
            halves: Whether half precision may be used, where the device is fast at it.

        Raises:
            ModelError: If the number of the unchanged image is not finite.
        """
        device = observed.network.device
        self.observed, self.domain, self.grid = observed, domain.to(device), grid.to(device)
        self.image = image.to(device).flatten()
        self.pulse, self.budget, self.tuning = pulse, budget, tuning
        self.device, self.share = device, 1.0
        self.evaluations = self.ranked = 0
        self.base = float(observed.number(image.to(device)[None])[0])
        if not math.isfinite(self.base):
            raise ModelError(f"the {observed.words} is {self.base} for the image itself: check the model")
        # Lists of values and directions need the whole input to be looked at.
        graph = observed.graph if isinstance(domain.rules, Free) else None
        self.corners = None if graph is None else _corners(domain, graph.input_shape)
        self.exact = None if graph is None else make_differences(graph, image.to(device), FLOAT32)
        self.fast: Differences | None = None
        if graph is not None and halves and device.type == "cuda":
            self.fast = make_differences(graph, image.to(device), HALF)

    def around(self, image: Tensor) -> "Perturber":
        """The same of another image, float32 ``[values]`` on the network's device; its evaluations go on from these."""
        other = Perturber(
            self.observed, self.domain, self.grid, image.reshape(self.domain.shape), self.budget, pulse=self.pulse,
            tuning=self.tuning, halves=False,
        )  # fmt: skip
        other.evaluations = self.evaluations
        return other

    @property
    def halves(self) -> bool:
        """Whether half precision can be asked for."""
        return self.fast is not None

    def changes(self, groups: Tensor, points: Tensor, *, half: bool = False) -> Tensor:
        """The observed number less that of the unchanged image.

        Args:
            groups: int64 ``[rows]`` on the CPU.
            points: int64 ``[rows]`` on the CPU: which of its values each group takes.
            half: In half precision, to rank with; its numbers can be infinite or NaN.

        Returns:
            float32 ``[rows]`` on the CPU.

        Raises:
            Halted: If the pulse does.
            ModelError: If the network gives NaN or infinity, in float32.
        """
        if half:
            self.ranked += len(groups)
        else:
            self.evaluations += len(groups)
        found = torch.empty(len(groups), device=self.device)
        around = self.fast if half else self.exact
        if around is None:
            self._whole(found, groups, points)
        else:
            for rows, box in self._blocks(groups):
                self._windows(found, around, groups, points, rows, box)
        if not half and not bool(torch.isfinite(found).all()):
            raise ModelError(
                f"the {self.observed.words} is NaN or infinite for an input with one changed {self.domain.unit}: "
                "check the model"
            )
        return found.cpu()

    def _blocks(self, groups: Tensor) -> Iterator[tuple[Tensor, Box | None]]:
        """Rows whose groups lie close together, and the box of the input that holds them."""
        if self.corners is None:
            yield torch.arange(len(groups)), None
            return
        corners = self.corners[groups]
        low, high = corners[:, :2].amin(0), corners[:, 2:].amax(0)
        height, width = (high - low + 1).tolist()
        side = math.sqrt(BLOCK_ROWS.on(self.device) * height * width / len(groups))
        side = max(SMALLEST_BLOCK.on(self.device), 2 ** round(math.log2(max(side, 1.0))))
        place = (corners[:, :2] - low) // side
        key = place[:, 0] * (width // side + 1) + place[:, 1]
        order = key.argsort(stable=True)
        for rows in order.split(key[order].unique_consecutive(return_counts=True)[1].tolist()):
            first, last = corners[rows, :2].amin(0).tolist(), corners[rows, 2:].amax(0).tolist()
            yield rows, (Span(first[0], last[0]), Span(first[1], last[1]))

    def _windows(
        self, found: Tensor, around: Differences, groups: Tensor, points: Tensor, rows: Tensor, box: Box | None
    ) -> None:
        """Rows of one block by differences."""
        where = boxes(around.graph, box, even=self.device.type == "cuda")
        start = 0
        while start < len(rows):
            self.pulse()
            step = self._rows(row_bytes(around.graph, where, around.precision))
            some = rows[start : start + step]
            try:
                filled = _filled(some, step) if self.device.type == "cuda" else some
                change = self._change(groups[filled].to(self.device), points[filled].to(self.device), box)
                found[some.to(self.device)] = output_change(around, change, where)[: len(some), 0]
            except torch.OutOfMemoryError as error:
                self._smaller(step, error)
                continue
            start += step

    def _change(self, groups: Tensor, points: Tensor, box: Box | None) -> Tensor:
        """The change of the input, in a box: ``[rows, C, rows of the box, columns of the box]``."""
        members = self.domain.members[groups]
        delta = self.grid[groups, points] - self.image[members]
        shape = self.domain.shape
        if box is None:
            change = torch.zeros(len(groups), len(self.image), device=self.device)
            return change.scatter_(1, members, delta).reshape(-1, *shape)
        height, width = shape[1:]
        channel, pixel = members // (height * width), members % (height * width)
        row, column = pixel // width - box[0].first, pixel % width - box[1].first
        place = (channel * box[0].size + row) * box[1].size + column
        change = torch.zeros(len(groups), shape[0] * box[0].size * box[1].size, device=self.device)
        return change.scatter_(1, place, delta).reshape(-1, shape[0], box[0].size, box[1].size)

    def _whole(self, found: Tensor, groups: Tensor, points: Tensor) -> None:
        """All rows by whole forward passes."""
        start = 0
        while start < len(groups):
            self.pulse()
            step = self._rows(self.observed.network.sample_bytes)
            some = slice(start, start + step)
            try:
                found[some] = self.observed.number(self.inputs(groups[some], points[some])) - self.base
            except torch.OutOfMemoryError as error:
                self._smaller(step, error)
                continue
            start += step

    def inputs(self, groups: Tensor, points: Tensor) -> Tensor:
        """Whole changed inputs ``[rows, *shape]``; with several groups a row, ``[rows, t]`` each, all of them."""
        groups, points = groups.to(self.device), points.to(self.device)
        own = self.image.expand(len(groups), -1)
        members, values = self.domain.members[groups].flatten(1), self.grid[groups, points].flatten(1)
        return admit(self.domain, own, own.scatter(1, members, values)).reshape(-1, *self.domain.shape)

    def together(self, groups: Tensor, points: Tensor) -> Tensor:
        """As :meth:`changes`, for sets of groups: int64 ``[rows, t]`` each."""
        self.evaluations += len(groups)
        found = torch.empty(len(groups), device=self.device)
        self._whole(found, groups, points)
        return found.cpu()

    def _rows(self, each: int) -> int:
        useful = self.tuning.batch_bytes.on(self.device) // each
        return max(1, int(self.share * min(max(useful, self.tuning.least_rows), self.budget // each)))

    def _smaller(self, step: int, error: torch.OutOfMemoryError) -> None:
        if step == 1:
            raise ModelError("the device has too little memory for one input: use `device='cpu'`") from error
        torch.cuda.empty_cache()
        self.share /= 2


def _filled(rows: Tensor, most: int) -> Tensor:
    """Rows, and repetitions of the first one up to one of few sizes: a GPU plans a convolution anew for each size."""
    size = 1 << (len(rows) - 1).bit_length()
    size = min(3 * size // 4 if 3 * size // 4 >= len(rows) else size, max(most, len(rows)))
    return torch.cat([rows, rows[:1].expand(size - len(rows))])


def _corners(domain: Domain, shape: tuple[int, ...]) -> Tensor | None:
    """First row and column, last row and column of every group, int64 ``[groups, 4]``; ``None`` if there is no map."""
    if len(shape) != 3:
        return None
    pixel = domain.members.cpu() % (shape[1] * shape[2])
    row, column = pixel // shape[2], pixel % shape[2]
    return torch.stack([row.amin(1), column.amin(1), row.amax(1), column.amax(1)], 1)
