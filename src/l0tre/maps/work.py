"""What is known while a map is drawn, and the work that makes more known."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.maps.perturber import Perturber
from l0tre.maps.saliency_map import Audit, SaliencyMap
from l0tre.maps.worst_values import HalfError, WorstValues, candidates, find_worst_values
from l0tre.tuning import PerDevice

__all__ = ["MapState", "MapStep", "Work", "empty_state", "finished"]

CHUNK_SECONDS = 0.5  # of groups that are measured together, after which there is something new to show
FIRST_CHUNK = PerDevice(32, 1024)  # groups
BLOCK = 16  # side of the squares in which groups are measured one after the other


@dataclass
class MapState:
    """What is known of a map; tensors ``[groups]`` on the CPU.

    Attributes:
        measured: Whether a group was measured.
        drop: How far it lowers the number, or what is predicted.
        rise: How far it raises the number; NaN where it was not measured.
        drop_point: The value that gives the drop; -1 where none is known.
        rise_point: The value that gives the rise; -1 likewise.
        ranking: float32 ``[groups, points]``, changes in half precision; NaN where there are none.
        looked: float32 ``[groups, points]``, changes as far as they were looked at; NaN elsewhere.
        rate: The error that was allowed for when a group was settled; infinite where all its values were looked at.
        evaluations: Values that were looked at in float32.
        ranked: Likewise in half precision.
        seconds: Spent so far.
        audit: Of the predictions.
        found: Whether the strongest groups count as found.
    """

    measured: Tensor
    drop: Tensor
    rise: Tensor
    drop_point: Tensor
    rise_point: Tensor
    ranking: Tensor
    looked: Tensor
    rate: Tensor
    evaluations: int = 0
    ranked: int = 0
    seconds: float = 0.0
    audit: Audit | None = None
    found: bool = False


@dataclass(frozen=True)
class MapStep:
    """A step of the way.

    Attributes:
        stage: ``strongest``, ``rest`` or ``done``.
        done: Groups that were measured so far.
        total: All groups.
        share: Of the work that is expected until the end, from 0 to 1, which only a map that is done reaches.
    """

    stage: str
    done: int
    total: int
    share: float


def empty_state(groups: int, points: int) -> MapState:
    """Nothing is known yet."""
    return MapState(
        torch.zeros(groups, dtype=torch.bool),
        torch.zeros(groups),
        torch.full((groups,), torch.nan),
        torch.full((groups,), -1),
        torch.full((groups,), -1),
        torch.full((groups, points), torch.nan),
        torch.full((groups, points), torch.nan),
        torch.full((groups,), torch.inf),
    )


class Work:
    """Measures groups into a state.

    Attributes:
        perturber: The number, the image, the groups.
        state: What is known; updated in place.
        both: Whether rises are wanted as certainly as drops.
        expected: Values that are to be looked at until the end, about.
        half_error: In half precision; ``None`` to do without it.
    """

    def __init__(
        self, perturber: Perturber, state: MapState, both: bool, expected: int, began: float, before: float
    ) -> None:
        self.perturber, self.state, self.both, self.expected = perturber, state, both, expected
        self.began, self.before = began, before
        self.half_error: HalfError | None = None
        self.counts = (state.evaluations, state.ranked)
        self.chunk = FIRST_CHUNK.on(perturber.device)

    def step(self, stage: str) -> MapStep:
        """How far it is, with the costs so far in the state."""
        self.clock()
        share = min(0.99, (self.state.evaluations + self.state.ranked) / max(1, self.expected))
        return MapStep(stage, int(self.state.measured.sum()), len(self.state.measured), share)

    def clock(self) -> None:
        """Put the costs so far into the state."""
        state = self.state
        state.seconds = self.before + time.monotonic() - self.began
        state.evaluations = self.counts[0] + self.perturber.evaluations
        state.ranked = self.counts[1] + self.perturber.ranked

    def measure(self, groups: Tensor, stage: str, *, in_order: bool = False) -> Iterator[MapStep]:
        """Measure groups, neighbours together, or in the order given."""
        groups, start = groups if in_order else groups[_by_blocks(self.perturber, groups)], 0
        while start < len(groups):
            some, began = groups[start : start + self.chunk], time.monotonic()
            self._take(some, find_worst_values(self.perturber, some, self.half_error, both=self.both))
            start += len(some)
            self._fit(time.monotonic() - began)
            yield self.step(stage)

    def look(self, groups: Tensor, points: Tensor, stage: str) -> Iterator[MapStep]:
        """Look at groups with one value each; in half precision where that is fast."""
        order, start = _by_blocks(self.perturber, groups), 0
        groups, points = groups[order], points[order]
        while start < len(groups):
            some = slice(start, start + self.perturber.grid.shape[1] * self.chunk)
            began = time.monotonic()
            change = self.perturber.changes(groups[some], points[some], half=self.half_error is not None)
            # What half precision cannot say is as good as nothing.
            self.state.looked[groups[some], points[some]] = change.nan_to_num(0.0, 0.0, 0.0)
            start = some.stop
            self._fit(time.monotonic() - began)
            yield self.step(stage)

    def _fit(self, elapsed: float) -> None:
        """Make chunks larger or smaller."""
        if elapsed < CHUNK_SECONDS / 2:
            self.chunk *= 2
        elif elapsed > 2 * CHUNK_SECONDS and self.chunk > 8:
            self.chunk //= 2

    def recheck(self) -> Iterator[MapStep]:
        """Settle groups anew for which larger errors must be allowed than when they were settled."""
        state, half_error = self.state, self.half_error
        if half_error is None:
            return
        while True:
            old = (state.measured & (state.rate < half_error.rate)).nonzero()[:, 0]
            if not len(old):
                return
            known = state.ranking[old]
            before = torch.stack(
                [_allowed(known, half_error, rate, self.both) for rate in state.rate[old].unique().tolist()]
            )
            narrow = before[torch.searchsorted(state.rate[old].unique(), state.rate[old]), torch.arange(len(old))]
            more = (candidates(known, half_error, both=self.both) & ~narrow).any(1)
            state.rate[old[~more]] = half_error.rate
            if bool(more.any()):
                some = old[more]
                self._take(
                    some,
                    find_worst_values(self.perturber, some, half_error, both=self.both, ranking=state.ranking[some]),
                )
            yield self.step("rest")

    def _take(self, groups: Tensor, settled: WorstValues) -> None:
        state = self.state
        state.drop[groups], state.drop_point[groups] = -settled.low, settled.low_point
        state.rise[groups], state.rise_point[groups] = settled.high, settled.high_point
        state.measured[groups], state.looked[groups] = True, settled.changes
        if settled.ranking is not None and self.half_error is not None:
            state.ranking[groups], state.rate[groups] = settled.ranking, self.half_error.rate


def _allowed(ranking: Tensor, half_error: HalfError, rate: float, both: bool) -> Tensor:
    return candidates(ranking, HalfError(rate, half_error.usual), both=both)


def _by_blocks(perturber: Perturber, groups: Tensor) -> Tensor:
    """The order of groups that keeps neighbours together: places in what is given."""
    if perturber.corners is None or not len(groups):
        return torch.arange(len(groups))
    corner = perturber.corners[groups][:, :2]
    block = corner // BLOCK
    key = (block[:, 0] * 4096 + block[:, 1]) * BLOCK**2 + (corner[:, 0] % BLOCK) * BLOCK + corner[:, 1] % BLOCK
    return key.argsort(stable=True)


def finished(perturber: Perturber, state: MapState) -> SaliencyMap:
    """The map as it is known now."""
    domain, rows = perturber.domain.to(torch.device("cpu")), torch.arange(perturber.domain.groups)
    grid, own = perturber.grid.cpu(), perturber.image.cpu()[domain.members]

    def colours(point: Tensor) -> Tensor:
        return torch.where(state.measured[:, None], grid[rows, point.clamp(min=0)], own)

    return SaliencyMap(
        domain.shape,
        domain.members,
        domain.ids,
        state.drop.clone(),
        state.rise.clone(),
        state.measured.clone(),
        colours(state.drop_point),
        colours(state.rise_point),
        perturber.observed.words,
        perturber.observed.unit,
        perturber.base,
        grid.shape[1],
        domain.unit,
        None if bool(state.measured.all()) else state.audit,
        state.evaluations,
        state.ranked,
        state.seconds,
    )
