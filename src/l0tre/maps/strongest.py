"""The strongest groups first: some with all their values, many with one value, those that matter with all again.

On many photographs the worst colour of the strongest pixels is nearly always the same one, and a map in that colour is
smooth; where it is not, strong pixels with another worst colour are missed, which the audit shows. So a few groups
drawn from all over the image tell the colour, a lattice tells in that colour where the strong groups are, rounds fill
in what lies between strong ones, and these are then measured with all their values.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.maps.forecast import lattice, make_layout, spread, tiles
from l0tre.maps.saliency_map import Audit
from l0tre.maps.work import MapState, MapStep, Work, by_blocks

__all__ = ["expected_looks", "fill", "find_strongest"]

TILES = 256  # of which one group each is measured with all its values
LATTICE = 2  # every so many rows and columns one group is looked at with one value
ROUND = 64  # a round looks at one group in so many
ROUNDS = 16  # at the most
CALM = 0.01  # of the strongest that a round may still add when it is the last one
NEAR = 1.5  # standard deviation of what counts as near on a lattice, in its steps
DRAWN = 256  # groups that are measured for the audit
USUAL = 4  # rounds, of both kinds: what photographs need, for a forecast of the work


def expected_looks(count: int, values: int, strongest: int) -> int:
    """About how many values are looked at until the strongest of ``count`` groups with ``values`` each are found."""
    rounds = USUAL * (max(strongest, count // ROUND) + values * strongest)
    return min(values * count, values * (TILES + DRAWN) + count // LATTICE**2 + rounds)


def find_strongest(work: Work, strongest: int, generator: torch.Generator, *, audited: bool) -> Iterator[MapStep]:
    """Measure until the strongest groups count as found, and predict the others.

    Args:
        work: What measures.
        strongest: How many are to be found.
        generator: Draws groups.
        audited: Whether to check the predictions on groups drawn at random.

    Yields:
        A step whenever something was measured.
    """
    if not work.state.found:
        yield from _search(work, strongest, generator)
    fill(work.perturber.domain, work.state)
    if audited:
        yield from _audit(work, strongest, generator)


def _search(work: Work, strongest: int, generator: torch.Generator) -> Iterator[MapStep]:
    """Measure until the strongest groups count as found."""
    state, count = work.state, work.perturber.domain.groups
    layout = make_layout(work.perturber.domain)
    quota = max(strongest, count // ROUND)
    first = tiles(layout, TILES, generator)
    yield from work.measure(first[~state.measured[first]], "strongest")
    if state.colour < 0:
        state.colour = _worst_colour(state)
    side = LATTICE if layout.height > 1 else 1
    seen = Seen(work)
    yield from seen.look(lattice(layout, side))
    for _ in range(ROUNDS):
        guess = spread(layout, seen.known, seen.drop, NEAR * side)
        before = seen.best(strongest)
        yield from seen.look(guess.masked_fill(seen.known, -torch.inf).topk(quota).indices)
        if _fresh(seen.best(strongest), before) <= CALM * strongest:
            break
    for _ in range(ROUNDS):
        left = (seen.known & ~state.measured).nonzero()[:, 0]
        chosen = left[seen.drop[left].argsort(descending=True)[:strongest]]
        before = _found(state, strongest)
        yield from work.measure(by_blocks(work.perturber, chosen), "strongest")
        if not len(chosen) or _fresh(_found(state, strongest), before) <= CALM * strongest:
            break
    state.found = True


def fill(domain: Domain, state: MapState) -> None:
    """Predict the drops of all groups that were not measured, from those that were and from what was seen."""
    if bool(state.measured.all()) or not bool(state.measured.any()):
        return
    layout = make_layout(domain)
    wide = max(1.0, (domain.groups / TILES) ** 0.5)
    if not bool(state.seen.any()):
        low, gain = spread(layout, state.measured, state.drop, wide), torch.zeros_like(state.drop)
    else:
        near = NEAR * (LATTICE if layout.height > 1 else 1)
        low = torch.where(state.seen, state.seen_drop, spread(layout, state.seen, state.seen_drop, near))
        gain = spread(layout, state.measured & state.seen, state.drop - state.seen_drop, wide)
    state.drop = torch.where(state.measured, state.drop, low + gain)


class Seen:
    """Groups that were looked at with one value.

    Attributes:
        work: What looks, and keeps what was seen.
    """

    def __init__(self, work: Work) -> None:
        self.work = work

    @property
    def known(self) -> Tensor:
        """Which groups were looked at, bool ``[groups]``."""
        return self.work.state.seen

    @property
    def drop(self) -> Tensor:
        """How far that value lowers the number, float32 ``[groups]``."""
        return self.work.state.seen_drop

    def look(self, groups: Tensor) -> Iterator[MapStep]:
        """Look at groups, as far as they are not known."""
        groups = by_blocks(self.work.perturber, groups[~self.known[groups]])
        points = torch.full_like(groups, self.work.state.colour)
        for some, change in self.work.changes(groups, points):
            # What half precision cannot say is as good as nothing.
            self.drop[some] = -change.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            self.known[some] = True
            yield self.work.step("strongest")

    def best(self, count: int) -> Tensor:
        """The groups with the largest drops among those that are known."""
        drops = self.drop.masked_fill(~self.known, -torch.inf)
        return drops.topk(min(count, int(self.known.sum()))).indices


def _worst_colour(state: MapState) -> int:
    """The value that is the worst one of most of the strongest groups, each counted with its drop."""
    drop = state.drop.masked_fill(~state.measured, 0.0).clamp(min=0.0)
    votes = torch.zeros(state.ranking.shape[1])
    votes.index_add_(0, state.drop_point.clamp(min=0), drop**2)
    return int(votes.argmax())


def _found(state: MapState, count: int) -> Tensor:
    drops = state.drop.masked_fill(~state.measured, -torch.inf)
    return drops.topk(min(count, int(state.measured.sum()))).indices


def _fresh(now: Tensor, before: Tensor) -> int:
    return len(set(now.tolist()) - set(before.tolist()))


def _audit(work: Work, strongest: int, generator: torch.Generator) -> Iterator[MapStep]:
    """Measure some groups that were drawn at random, and compare them with their predictions."""
    state = work.state
    left = (~state.measured).nonzero()[:, 0]
    drawn = left[torch.randperm(len(left), generator=generator)[:DRAWN]]
    if not len(drawn):
        return
    predicted, weakest = state.drop[drawn].clone(), float(state.drop[_found(state, strongest)].min())
    yield from work.measure(by_blocks(work.perturber, drawn), "strongest")
    rows = drawn[state.measured[drawn]]
    error = (state.drop[drawn] - predicted)[state.measured[drawn]].abs()
    state.audit = Audit(
        len(rows),
        int((state.drop[rows] >= weakest).sum()),
        float(state.drop[rows].max()) / weakest if weakest > 0 else float("inf"),
        float(error.median()),
        float(error.quantile(0.95)),
    )
