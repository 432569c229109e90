"""Sensitivities of single groups from differences instead of whole forward passes; the same numbers.

For networks that need whole maps soon, where windows of one size for all groups end early: a difference lives in a box
that grows until it is the whole map.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from l0tre.exhaustive.grid_scan import Chunk, Level, reduce_points
from l0tre.exhaustive.settled import Work, settled
from l0tre.locality.differences import FLOAT32, boxes, row_bytes
from l0tre.locality.group_changes import GroupChanges
from l0tre.locality.local_part import Span
from l0tre.memory import Batcher, Portions
from l0tre.model.change_error import ChangeError
from l0tre.model.graph import Graph
from l0tre.model.rounding import Error, RoundOff, bends, gates
from l0tre.objective import Specification
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["DifferenceScanner"]


@dataclass(frozen=True)
class DifferenceScanner:
    """Scans single groups.

    Attributes:
        graph: The network, float32.
        level: The search space, ``t`` is 1.
        batcher: For the sets in doubt.
        budget: Bytes that batches may take.
        tuning: Sizes of batches.
    """

    graph: Graph
    level: Level
    batcher: Batcher
    budget: int
    tuning: Tuning = DEFAULT_TUNING

    def step_points(self) -> int:
        """Grid points of one step, which should stop within seconds."""
        height, width = self.graph.input_shape[1:]
        middle = (Span(height // 2, height // 2), Span(width // 2, width // 2))
        each = row_bytes(self.graph, boxes(self.graph, middle), FLOAT32)
        # At least a batch, which on a GPU is large.
        batch = Portions(self.budget, self.tuning, self.level.grid.device).rows(each)
        return max(batch, self.tuning.grid_step_bytes // each)

    @torch.inference_mode()
    def prepare(
        self, images: Tensor, specification: Specification, *, decide: bool = True
    ) -> Callable[[int, int], Chunk]:
        """See ``scanner.Scanner`` and ``settled``."""

        def make(rounding: RoundOff) -> tuple[Work, Callable[[], Error]]:
            found = ChangeError(rounding)
            portions = Portions(self.budget, self.tuning, images.device)
            shape, domain, grid = self.graph.input_shape, self.level.domain, self.level.grid
            around = [
                GroupChanges(
                    self.graph, domain, grid, image.view(shape), portions, FLOAT32, lambda: self.batcher.pulse()
                )
                for image in images
            ]
            return partial(self._scan, around, found), found.error

        return settled(self.batcher, self.level, images, specification, make, decide=decide)

    def _scan(
        self, around: list[GroupChanges], error: ChangeError, specification: Specification, start: int, stop: int
    ) -> Chunk:
        points = self.level.grid.shape[1]
        groups = torch.arange(start, stop).repeat_interleave(points)
        point = torch.arange(points).repeat(stop - start)
        scores = torch.cat([each.outputs(groups, point, _watch(each, error)) + each.around.base[-1] for each in around])
        shape = (len(around), stop - start, points)
        undecided = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        found = reduce_points(scores, specification.repeat(shape[1] * shape[2]), shape, undecided)
        return replace(found, sets=torch.arange(start, stop, device=scores.device))


def _watch(changes: GroupChanges, error: ChangeError) -> Callable[[int, int, Tensor], None]:
    operations, numbers = changes.around.graph.operations, bends(changes.around.graph)

    def see(place: int, slot: int, change: Tensor) -> None:
        whole = changes.around.base[operations[place].inputs[slot]].shape[1:]
        error.see(numbers[place], slot, change, gate=gates(operations[place]), whole=whole)

    return see
