"""Draw a map: the strongest pixels first, all others after them, and what there is whenever it is stopped."""

import time
from collections.abc import Callable, Iterator

import torch

from l0tre.halting import Halted
from l0tre.maps.perturber import Perturber
from l0tre.maps.strongest import expected_looks, fill, find_strongest
from l0tre.maps.work import MapState, MapStep, Work
from l0tre.maps.worst_values import SAMPLE, measure_half_error

__all__ = ["draw"]

FEW = 4096  # groups that are measured in one go, with nothing to predict


def draw(
    perturber: Perturber,
    state: MapState,
    *,
    coarse: bool,
    strongest: int = 100,
    both: bool = False,
    seed: int = 0,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[MapStep]:
    """Measure groups until all are measured, the strongest are found, the time is over, or the caller stops.

    Args:
        perturber: The number, the image, the groups.
        state: What is known; updated in place, consistent after every step.
        coarse: Whether to stop once the strongest groups are found.
        strongest: How many are to be found.
        both: Whether rises are wanted as certainly as drops.
        seed: Of the groups that are drawn at random.
        time_budget: Seconds for this call; ``None`` for no limit.
        stop: Asked before every batch.

    Yields:
        A step whenever something was measured.
    """
    began, before = time.monotonic(), state.seconds
    count = perturber.domain.groups
    generator = torch.Generator().manual_seed(seed)
    strongest_first, values = count > FEW or coarse, perturber.grid.shape[1]
    expected = expected_looks(count, values, strongest) if strongest_first else 0
    work = Work(perturber, state, both, expected if coarse else expected + values * count, began, before)

    def over() -> bool:
        return stop() or (time_budget is not None and time.monotonic() - began >= time_budget)

    def pulse() -> None:
        if over():
            raise Halted

    perturber.pulse = pulse
    try:
        work.half_error = measure_half_error(perturber, torch.randperm(count, generator=generator)[:SAMPLE])
        if strongest_first and not (state.found and (state.audit is not None or not coarse)):
            yield from find_strongest(work, strongest, generator, audited=coarse)
        if not (coarse and state.found):
            rest = (~state.measured).nonzero()[:, 0]
            yield from work.measure(rest, "rest")
        yield from work.recheck()
        share = 1.0
    except Halted:
        share = work.step("done").share
    fill(perturber, state)
    work.clock()
    yield MapStep("done", int(state.measured.sum()), count, share)
