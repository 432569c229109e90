"""The paper's real-time mode: random subspaces instead of all of them, under a deadline. It proves nothing."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from l0tre.exhaustive.accumulate import longest, prefixes, tighten
from l0tre.exhaustive.grid_scan import Level, scan_sets
from l0tre.exhaustive.progress import GridProgress
from l0tre.exhaustive.ranking import empty_ranking, update
from l0tre.findings import Findings
from l0tre.halting import Halted
from l0tre.memory import Batcher
from l0tre.objective import Specification
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["SampleSearch", "sample"]


@torch.inference_mode()
def sample(
    batcher: Batcher,
    level: Level,
    image: Tensor,
    specification: Specification,
    seconds: float,
    generator: torch.Generator,
    tuning: Tuning = DEFAULT_TUNING,
) -> tuple[Tensor | None, int]:
    """Look for an adversarial input close to one image.

    Args:
        batcher: The network and its batch size.
        level: Which subspaces to draw from.
        image: float32 ``[1, values]``.
        specification: What must hold of it.
        seconds: When to stop. At least one batch is made, of a single input where nothing was measured before.
        generator: Draws the subspaces.
        tuning: Which share of the time is for them.

    Returns:
        The adversarial input ``[values]``, or ``None``; and the forward passes spent.
    """
    device = image.device
    queries = 0
    if not batcher.row_seconds:
        batcher.run(1, lambda _, __: image.reshape(1, *level.domain.shape))
        queries += 1
    began, looking = time.monotonic(), batcher.within(tuning.sampling_share * seconds)
    by_score = by_margin = empty_ranking(1, min(level.sets, level.domain.groups), device)
    width = max(1, batcher.most // level.points)
    while True:
        # Drawing with repetition is cheap at any size; a set drawn twice is looked at once.
        sets = torch.randint(level.sets, (width,), generator=generator).unique().to(device)
        sets = sets[~torch.isin(sets, by_score.sets)]
        if len(sets):
            try:
                chunk = scan_sets(looking, level, image, specification, sets, None)
            except Halted:
                batcher.pulse()  # if it was not this image's time alone
                break
            by_score, by_margin = update(by_score, chunk, "score"), update(by_margin, chunk, "margin")
            queries += len(sets) * level.points
        over = time.monotonic() - began >= tuning.sampling_share * seconds
        if over or bool(by_margin.values[0, 0] < 0) or queries >= level.sets * level.points:
            break
    rest = batcher.within(seconds - (time.monotonic() - began))
    for ranking in (by_margin, by_score):
        first, most = 0, longest(ranking)
        while first < most:
            last = min(first + rest.rows, most)
            try:
                found, changed = prefixes(rest, level, image, specification, ranking, first, last)
            except Halted:
                batcher.pulse()
                return None, queries
            queries += last - first
            if bool(found[0]):
                better, more = tighten(rest, level.domain, image, specification, changed)
                return better[0], queries + int(more[0])
            first = last
    return None, queries


class SampleSearch:
    """The real-time mode for one image, see ``findings.LevelSearch``: one step that nothing can go on from."""

    light = False
    handed: frozenset[int] = frozenset()

    def __init__(
        self,
        batcher: Batcher,
        level: Level,
        image: Tensor,
        specification: Specification,
        seconds: float,
        generator: torch.Generator,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """Get ready; the arguments are those of :func:`sample`."""
        self.batcher, self.level, self.image, self.specification = batcher, level, image, specification
        self.seconds, self.generator, self.tuning = seconds, generator, tuning
        self.open = [0]
        self.looked_at_nothing = False

    def rows(self) -> list[int]:
        """The image, until it was looked at."""
        return list(self.open)

    def step(self) -> Findings:
        """Look for a witness.

        Raises:
            Halted: If the batcher's pulse does; the image is then looked at anew.
        """
        state = self.generator.get_state()
        try:
            changed, queries = sample(
                self.batcher, self.level, self.image, self.specification, self.seconds, self.generator, self.tuning
            )
        except Halted:
            self.generator.set_state(state)
            raise
        self.open = []
        # Where nothing was measured before, one query is that of the input itself.
        self.looked_at_nothing = changed is None and queries <= 1
        return Findings({0: queries}, [] if changed is None else [(0, changed)])

    def drop(self, rows: Sequence[int]) -> None:
        """Leave the image."""
        self.open = [row for row in self.open if row not in rows]

    def share(self, row: int) -> float:
        """Nothing, until it was looked at."""
        return 0.0 if row in self.open else 1.0

    def progress(self, row: int) -> GridProgress:
        """There is none in the middle of a step.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError(f"row {row} is looked at in one step")
