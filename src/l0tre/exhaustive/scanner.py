"""Which way a level is scanned, and in steps of which size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.exhaustive.difference_scan import DifferenceScanner
from l0tre.exhaustive.grid_scan import Chunk, Level, round_off_of, scan_sets
from l0tre.exhaustive.window_scan import WindowScanner, supports
from l0tre.locality.local_part import plan_local
from l0tre.locality.single_pixels import Locality, make_locality, table_bytes
from l0tre.memory import Batcher
from l0tre.model.network import Network
from l0tre.objective import Specification
from l0tre.rules import Free
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["Engine", "Scanner", "choose_engine", "make_scanner"]

Scan = Callable[[int, int], Chunk]


class Scanner(Protocol):
    """One way to scan a level."""

    def prepare(self, images: Tensor, specification: Specification, *, decide: bool = True) -> Scan:
        """Get ready for some images.

        Args:
            images: float32 ``[images, values]``.
            specification: What must hold of each image.
            decide: Whether ``Chunk.safe`` must be what the network's own source decides; else close points are left as
                they were computed.

        Returns:
            A function from a range of sets to their chunk.
        """


@dataclass(frozen=True)
class Engine:
    """How the sensitivities of a network are computed.

    Attributes:
        locality: For the windows; ``None`` if whole forward passes are needed.
        reason: Why they are needed; empty otherwise.
    """

    locality: Locality | None
    reason: str


@dataclass(frozen=True)
class ForwardScanner:
    """Every grid point by a whole forward pass."""

    level: Level
    batcher: Batcher

    def prepare(self, images: Tensor, specification: Specification, *, decide: bool = True) -> Scan:
        """See :class:`Scanner`."""
        rounding = round_off_of(self.batcher, self.level.domain, images) if decide else None

        def whole(start: int, stop: int) -> Chunk:
            sets = torch.arange(start, stop, device=images.device)
            return scan_sets(self.batcher, self.level, images, specification, sets, rounding)

        return whole


def choose_engine(network: Network, domain: Domain, grid: Tensor, tuning: Tuning = DEFAULT_TUNING) -> Engine:
    """Choose from the graph and the groups.

    Args:
        network: The classifier.
        domain: The groups, on the network's device.
        grid: float32 ``[groups, points, width]``, likewise.
        tuning: When convolutions of windows are matrices.

    Returns:
        Windows where the network begins with local operations and every group is one pixel, else forward passes.
    """
    if network.graph is None:
        return Engine(None, network.note or "the network has no graph of operations")
    if not isinstance(domain.rules, Free):
        return Engine(None, "some groups may take only some of the values in their ranges")
    plan = plan_local(network.graph, tuning=tuning)
    if isinstance(plan, str):
        return Engine(None, plan)
    locality = make_locality(plan, domain, grid)
    return Engine(None, locality) if isinstance(locality, str) else Engine(locality, "")


def make_scanner(
    engine: Engine, level: Level, batcher: Batcher, budget: int, tuning: Tuning = DEFAULT_TUNING
) -> tuple[Scanner, int, int]:
    """The scanner of a level.

    Args:
        engine: The choice.
        level: The search space.
        batcher: The network and its batch size.
        budget: Bytes that batches may take.
        tuning: How much is done in a step and in a batch.

    Returns:
        The scanner; the most images it should be given at once; and the number of (image, set) pairs of one step.
    """
    whole = level.sets * level.points
    locality = engine.locality
    if locality is not None and locality.plan.head == "map" and level.t == 1:
        differences = DifferenceScanner(locality.plan.graph, level, batcher, budget, tuning)
        points = differences.step_points()
        return differences, max(1, points // whole), max(1, points // level.points)
    if locality is not None and supports(locality, level.t, tuning):
        each = table_bytes(locality, level.t)
        points = tuning.grid_step_points[level.t - 1].on(level.grid.device)
        images = min(points // whole, budget // (4 * each))
        if 4 * each <= budget:
            scanner = WindowScanner(locality, level, batcher, budget, tuning)
            return scanner, max(1, images), max(1, points // level.points)
    rows = max(batcher.most, min(64 * batcher.most, tuning.grid_step_bytes // batcher.network.sample_bytes))
    return ForwardScanner(level, batcher), max(1, rows // whole), max(1, rows // level.points)
