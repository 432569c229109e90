"""All sets of groups at the ends of their ranges: how they are scanned, and what that costs."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask
from l0tre.exhaustive.describe import describe
from l0tre.exhaustive.grid_scan import Level, make_level
from l0tre.exhaustive.progress import GridProgress, advance, begin
from l0tre.exhaustive.scanner import Engine, ForwardScanner, Scanner, choose_engine, make_scanner
from l0tre.grid import make_grid

__all__ = ["CornerScan", "Corners", "cheapest", "corners_of"]

MOST_SAVING = 16  # points that are believed to cost as much as one forward pass, before that is known


@dataclass(frozen=True)
class CornerScan:
    """A scan of all sets of one size.

    Attributes:
        level: The sets.
        scanner: Looks at them.
        most: Images that it should be given at once, at the most.
        width: Pairs of an image and a set of one step.
        saving: Points that cost as much as one forward pass.
    """

    level: Level
    scanner: Scanner
    most: int
    width: int
    saving: float

    def cost(self, sets: int) -> int:
        """Forward passes that so many sets count as."""
        return math.ceil(sets * self.level.points / self.saving)

    def rank(self, meter: Meter, task: AttackTask, owner: Tensor, inputs: Tensor, kept: int) -> GridProgress:
        """Look at all sets of inputs.

        Args:
            meter: Counts what it takes, and may halt it.
            task: What is attacked.
            owner: int64 ``[rows]``, the image behind each input, at most ``most`` of them.
            inputs: float32 ``[rows, values]``.
            kept: Sets that are ranked, at the most.

        Raises:
            Halted: If the work should stop.
        """
        scan = self.scanner.prepare(inputs, task.specification.pick(owner), decide=False)
        progress = begin(self.level.t, len(owner), min(self.level.sets, kept), inputs.device)
        while progress.position < self.level.sets:
            meter.clock.pulse()
            before = progress.position
            stop = min(before + max(1, self.width // len(owner)), self.level.sets)
            progress = advance(progress, scan(before, stop))
            meter.charge(owner, self.cost(stop) - self.cost(before))
        return progress


@dataclass(frozen=True)
class Corners:
    """What scans of all sizes share.

    Attributes:
        grid: float32 ``[groups, points, width]``, the ends.
        engine: Windows or whole forward passes.
        saving: Windows that cost as much as one forward pass.
        scans: Those of sizes that were asked for.
    """

    grid: Tensor
    engine: Engine
    saving: float
    scans: dict[int, CornerScan] = field(default_factory=dict, repr=False)

    def scan(self, meter: Meter, task: AttackTask, t: int) -> CornerScan:
        """All sets of ``t`` groups."""
        if t not in self.scans:
            level = make_level(task.domain, self.grid, t)
            scanner, most, width = make_scanner(self.engine, level, meter.batcher, meter.memory, meter.tuning)
            saving = 1.0 if isinstance(scanner, ForwardScanner) else self.saving
            self.scans[t] = CornerScan(level, scanner, most, width, saving)
        return self.scans[t]


def cheapest(task: AttackTask, t: int) -> int:
    """What a scan of all sets of ``t`` groups takes at the least: with less it is not worth to see how it would go."""
    points = 1 << (t * int(task.domain.sizes.min()))
    return math.comb(task.domain.groups, t) * points // MOST_SAVING


def corners_of(meter: Meter, task: AttackTask) -> Corners:
    """What a meter's task needs for scans, worked out once."""
    if meter.corners is None:
        grid = make_grid(task.domain, 1.0, colours="corners").to(task.images.device)
        engine = choose_engine(meter.network, task.domain, grid, meter.tuning)
        meter.corners = Corners(grid, engine, describe(engine).saving)
    return meter.corners
