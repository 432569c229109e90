"""The paper's real-time mode: random subspaces instead of all of them, under a deadline. It proves nothing."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from l0tre.exhaustive.accumulate import accumulate, tighten
from l0tre.exhaustive.grid_scan import Level, scan_sets
from l0tre.exhaustive.progress import GridProgress
from l0tre.exhaustive.ranking import empty_ranking, update
from l0tre.findings import Findings
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
        seconds: When to stop. A batch that has begun is finished; at least one is made.
        generator: Draws the subspaces.
        tuning: Which share of the time is for them.

    Returns:
        The adversarial input ``[values]``, or ``None``; and the forward passes spent.
    """
    began, device = time.monotonic(), image.device
    by_score = by_margin = empty_ranking(1, min(level.sets, level.domain.groups), device)
    width = max(1, batcher.rows // level.points)
    queries = 0

    def spent() -> float:
        return (time.monotonic() - began) / seconds if seconds > 0 else 1.0

    while True:
        # Drawing with repetition is cheap at any size; a set drawn twice is looked at once.
        sets = torch.randint(level.sets, (width,), generator=generator).unique().to(device)
        sets = sets[~torch.isin(sets, by_score.sets)]
        chunk = scan_sets(batcher, level, image, specification, sets, None) if len(sets) else None
        if chunk is not None:
            by_score, by_margin = update(by_score, chunk, "score"), update(by_margin, chunk, "margin")
            queries += len(sets) * level.points
        if spent() >= tuning.sampling_share or bool(by_margin.values[0, 0] < 0) or queries >= level.sets * level.points:
            break
    for ranking in (by_margin, by_score):
        found, changed, each = accumulate(batcher, level, image, specification, ranking)
        queries += each
        if bool(found[0]):
            better, more = tighten(batcher, level.domain, image, specification, changed, stop=lambda: spent() >= 1)
            return better[0], queries + int(more[0])
        if spent() >= 1:
            break
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

    def rows(self) -> list[int]:
        """The image, until it was looked at."""
        return list(self.open)

    def step(self) -> Findings:
        """Look for a witness."""
        self.open = []
        changed, queries = sample(
            self.batcher, self.level, self.image, self.specification, self.seconds, self.generator, self.tuning
        )
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
