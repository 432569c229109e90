"""The strongest groups first: some with all their values, many with one value, those that matter with all again.

A few groups drawn from all over the image are measured with all their values. From these, slopes predict every other
group and value (see ``slopes``). What is predicted to be strongest in each small square of the image is looked at, then
rounds look at what is predicted to be strongest anywhere, each time with what was seen before, until nothing new turns
up for long. The strongest of all that was seen are then measured with all their values.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from l0tre.maps.perturber import Perturber
from l0tre.maps.places import cells, make_layout, tiles
from l0tre.maps.saliency_map import Audit
from l0tre.maps.slopes import Slopes
from l0tre.maps.work import MapState, MapStep, Work

__all__ = ["expected_looks", "fill", "find_strongest"]

TILES = 256  # of which one group each is measured with all its values
SPARSE = 16  # groups of a tile at the least
CELL = 4  # rows and columns of the squares of which one group each is looked at
ROUND = 64  # a round looks at one group in so many
ROUNDS = 128  # at the most
PATIENCE = 10  # rounds without anything new among the strongest
CALM = 0.01  # of the strongest that a round of measuring may still add when it is the last one
WIDTHS = (6.0, 1.0)  # how far neighbours are alike, in positions
DRAWN = 256  # groups that are measured for the audit
USUAL = 20  # rounds: what photographs need, for a forecast of the work


def expected_looks(count: int, values: int, strongest: int) -> int:
    """About how many values are looked at until the strongest of ``count`` groups with ``values`` each are found."""
    whole = _tile_count(count) + DRAWN + 2 * strongest
    return min(values * count, values * whole + count // CELL**2 + USUAL * _quota(count, strongest))


def _tile_count(count: int) -> int:
    return max(1, min(TILES, count // SPARSE))


def _quota(count: int, strongest: int) -> int:
    return max(strongest, count // ROUND)


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
    fill(work.perturber, work.state)
    if audited:
        yield from _audit(work, strongest, generator)


def _search(work: Work, strongest: int, generator: torch.Generator) -> Iterator[MapStep]:
    """Measure until the strongest groups count as found."""
    state, count = work.state, work.perturber.domain.groups
    layout = make_layout(work.perturber.domain)
    first = tiles(layout, _tile_count(count), generator)
    yield from work.measure(first[~state.measured[first]], "strongest", in_order=True)
    slopes = _begun(work.perturber, state)
    worth, point = _predicted(slopes, state)
    untouched = worth.masked_fill(~state.looked.isnan().all(1), -torch.inf)
    chosen = cells(layout, CELL, untouched)
    yield from work.look(chosen, point[chosen], "strongest")
    calm = 0
    for _ in range(ROUNDS):
        worth, point = _predicted(slopes, state)
        before = _best(state, strongest)
        chosen = worth.topk(min(_quota(count, strongest), count)).indices
        chosen = chosen[worth[chosen] > -torch.inf]
        yield from work.look(chosen, point[chosen], "strongest")
        calm = 0 if _fresh(_best(state, strongest), before) else calm + 1
        if calm == PATIENCE or not len(chosen):
            break
    for _ in range(ROUNDS):
        before = _found(state, strongest)
        seen = _seen_drop(state).masked_fill(state.measured, -torch.inf)
        chosen = seen.topk(min(strongest, count)).indices
        chosen = chosen[seen[chosen] > -torch.inf]
        yield from work.measure(chosen, "strongest")
        if not len(chosen) or _fresh(_found(state, strongest), before) <= CALM * strongest:
            break
    state.found = True


def _begun(perturber: Perturber, state: MapState) -> Slopes:
    """Slopes from the groups that were measured."""
    layout, count = make_layout(perturber.domain), perturber.domain.groups
    apart = max(1.0, (count / _tile_count(count)) ** (0.5 if layout.height > 1 else 1.0))
    slopes = Slopes(layout, perturber.image[perturber.domain.members], perturber.grid)
    slopes.begin(state.looked.masked_fill(~state.measured[:, None], torch.nan), apart)
    return slopes


def _predicted(slopes: Slopes, state: MapState) -> tuple[Tensor, Tensor]:
    """Of every group the drop of the best value that was not looked at, and that value; none: minus infinity."""
    drops = -slopes.predict(state.looked, WIDTHS)
    worth, point = drops.masked_fill(~state.looked.isnan(), -torch.inf).max(1)
    return worth, point


def fill(perturber: Perturber, state: MapState) -> None:
    """Predict the drops of all groups that were not measured, from those that were and from what was seen."""
    if bool(state.measured.all()) or not bool(state.measured.any()):
        return
    found = _begun(perturber, state).predict(state.looked, WIDTHS)
    drops = -torch.where(state.looked.isnan(), found, state.looked)
    state.drop = torch.where(state.measured, state.drop, drops.amax(1))


def _seen_drop(state: MapState) -> Tensor:
    """The largest drop of every group that was seen; minus infinity for none."""
    return -state.looked.nan_to_num(nan=torch.inf).amin(1)


def _best(state: MapState, count: int) -> Tensor:
    """The groups with the largest drops that were seen."""
    return _seen_drop(state).topk(min(count, len(state.looked))).indices


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
    yield from work.measure(drawn, "strongest")
    rows = drawn[state.measured[drawn]]
    error = (state.drop[drawn] - predicted)[state.measured[drawn]].abs()
    state.audit = Audit(
        len(rows),
        int((state.drop[rows] >= weakest).sum()),
        float(state.drop[rows].max()) / weakest if weakest > 0 else float("inf"),
        float(error.median()),
        float(error.quantile(0.95)),
    )
