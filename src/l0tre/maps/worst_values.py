"""The worst value of each group: ranked in half precision where that is fast, decided in float32 always.

Half precision says which of a group's values may be the worst; these, and the one that it takes for the worst, are
looked at again in float32, and only float32 numbers go into a map. How far half precision can be off is measured: on
some groups of which everything is known in float32, and on every value that is looked at again. If one of these shows
a larger error than was allowed for, more is allowed from then on, for groups that were settled before, too.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0tre.maps.perturber import Perturber

__all__ = ["HalfError", "WorstValues", "candidates", "find_worst_values", "measure_half_error"]

SAFETY = 3.0  # times the largest error that was measured
WORTH = 0.5  # errors of more than this share of a change leave nothing to rank
SAMPLE = 64  # groups on which errors are measured first


@dataclass(frozen=True)
class WorstValues:
    """Groups of which the worst values are known; tensors ``[groups]`` on the CPU.

    Attributes:
        low: Smallest change of the number, float32.
        low_point: The value that gives it.
        high: Largest change, likewise.
        high_point: The value that gives it.
        ranking: float32 ``[groups, points]``, all changes as half precision has them; ``None`` where it was not used.
        changes: float32 ``[groups, points]``, all changes as well as they are known.
    """

    low: Tensor
    low_point: Tensor
    high: Tensor
    high_point: Tensor
    ranking: Tensor | None
    changes: Tensor


@dataclass
class HalfError:
    """How far half precision can be off.

    Attributes:
        rate: Error as a share of a change and of the usual change together.
        usual: Median absolute change.
        seen: Values that were compared.
    """

    rate: float = 0.0
    usual: float = 0.0
    seen: int = field(default=0)

    def band(self, changes: Tensor) -> Tensor:
        """Allowed errors of some changes; infinite for what is not finite."""
        band = SAFETY * self.rate * (changes.abs() + self.usual)
        return band.masked_fill(~torch.isfinite(changes), torch.inf)

    def learn(self, half: Tensor, exact: Tensor) -> bool:
        """Compare both; tells whether more must be allowed than before."""
        known = torch.isfinite(half)
        self.seen += int(known.sum())
        if not bool(known.any()):
            return False
        share = ((half - exact).abs() / (exact.abs() + self.usual).clamp(min=1e-30))[known]
        largest = float(share.max())
        if largest <= SAFETY * self.rate:
            return False
        self.rate = largest
        return True


def measure_half_error(perturber: Perturber, groups: Tensor) -> HalfError | None:
    """Look at some groups in both precisions.

    Args:
        perturber: The number.
        groups: int64 ``[groups]``, a random sample.

    Returns:
        What was found; ``None`` where half precision is of no use.
    """
    if not perturber.halves:
        return None
    rows, points = _all_points(groups[:SAMPLE], perturber.grid.shape[1])
    exact, half = perturber.changes(rows, points), perturber.changes(rows, points, half=True)
    half_error = HalfError(usual=float(exact.abs().median()))
    half_error.learn(half, exact)
    finite = float(torch.isfinite(half).float().mean())
    return half_error if finite > WORTH and SAFETY * half_error.rate < WORTH else None


def find_worst_values(
    perturber: Perturber, groups: Tensor, half_error: HalfError | None, *, both: bool, ranking: Tensor | None = None
) -> WorstValues:
    """The worst values of some groups, in float32.

    Args:
        perturber: The number.
        groups: int64 ``[groups]`` on the CPU.
        half_error: In half precision; ``None`` to do without it.
        both: Whether the largest change is wanted, too; else only the smallest one is decided in float32 for certain.
        ranking: Changes in half precision, if they are known.

    Returns:
        What was found.

    Raises:
        Halted: If the perturber's pulse does; nothing is known then.
    """
    count, points = len(groups), perturber.grid.shape[1]
    if half_error is None or not count:
        table = perturber.changes(*_all_points(groups, points)).reshape(count, points)
        return _reduced(table, torch.ones_like(table, dtype=torch.bool), None)
    if ranking is None:
        ranking = perturber.changes(*_all_points(groups, points), half=True).reshape(count, points)
    table = torch.full_like(ranking, torch.nan)
    done = torch.zeros(count, points, dtype=torch.bool)
    while True:
        wanted = candidates(ranking, half_error, both=both) & ~done
        rows, point = wanted.nonzero(as_tuple=True)
        if not len(rows):
            return _reduced(table, done, ranking)
        exact = perturber.changes(groups[rows], point)
        table[rows, point], done[rows, point] = exact, True
        half_error.learn(ranking[rows, point], exact)


def candidates(ranking: Tensor, half_error: HalfError, *, both: bool) -> Tensor:
    """Which values of each group can be its worst one, bool ``[groups, points]``."""
    band = half_error.band(ranking)
    lowest, highest = ranking - band, ranking + band
    # What is not finite says nothing: it can be the worst, and rules nothing out.
    wild = ~torch.isfinite(ranking)
    least = highest.masked_fill(wild, torch.inf).amin(1, keepdim=True)
    found = (lowest <= least) | wild
    if both:
        most = lowest.masked_fill(wild, -torch.inf).amax(1, keepdim=True)
        found |= highest >= most
    return found


def _all_points(groups: Tensor, points: int) -> tuple[Tensor, Tensor]:
    return groups.repeat_interleave(points), torch.arange(points).repeat(len(groups))


def _reduced(table: Tensor, known: Tensor, ranking: Tensor | None) -> WorstValues:
    low, low_point = table.masked_fill(~known, torch.inf).min(1)
    high, high_point = table.masked_fill(~known, -torch.inf).max(1)
    changes = table if ranking is None else torch.where(known, table, ranking.nan_to_num(0.0, 0.0, 0.0))
    return WorstValues(low, low_point, high, high_point, ranking, changes)
