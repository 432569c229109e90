"""The exhaustive search of one level: every set of groups at every grid point, then what the most sensitive ones give.

First all sets are scanned. Then the paper's upper bounds: the ranked perturbations of each image are applied together
until the decision changes, and what is not needed is restored.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.exhaustive.accumulate import PREFIXES, longest, prefixes, tighten
from l0tre.exhaustive.grid_scan import Chunk, Level, solutions
from l0tre.exhaustive.progress import GridProgress, advance, begin, join, split
from l0tre.exhaustive.ranking import Ranking
from l0tre.exhaustive.scanner import Scan, Scanner
from l0tre.findings import Findings
from l0tre.memory import Batcher
from l0tre.objective import Specification

__all__ = ["Decision", "GridSearch", "end_of"]

# Which sets of a chunk are safe for some rows of the block: bool ``[rows, sets]``.
Decision = Callable[[Sequence[int], Chunk], Tensor]

# What comes when all sets were scanned, one step each: the level is decided, then each ranking is accumulated. A
# position beyond the last set counts the steps that are done, so that they too are gone on with after a stop.
LAST_STEPS = ("decide", "by_score", "by_margin")


def end_of(level: Level, *, proves: bool) -> int:
    """The position of an image that a search has nothing left to do for.

    Args:
        level: The search space.
        proves: Whether the level is decided.

    Returns:
        How many sets there are, and steps after their scan.
    """
    return level.sets + len(_last_steps(proves))


def _last_steps(proves: bool) -> tuple[str, ...]:
    return LAST_STEPS if proves else LAST_STEPS[1:]


class GridSearch:
    """A level for a block of images that stand at the same position of it, see ``findings.LevelSearch``.

    Rows leave when they are dropped; those that are still there when all sets were scanned are decided, then looked at
    for closer witnesses.
    """

    light = True
    handed: frozenset[int] = frozenset()

    def __init__(
        self,
        scanner: Scanner,
        level: Level,
        batcher: Batcher,
        images: Tensor,
        specification: Specification,
        progress: Sequence[GridProgress],
        *,
        width: int,
        decide: Decision | None = None,
        proves: bool = True,
    ) -> None:
        """Begin, or go on.

        Args:
            scanner: How sets are scanned.
            level: The search space.
            batcher: The network and its batch size.
            images: float32 ``[images, values]``.
            specification: What must hold of each image.
            progress: Where each image stands, at the same position; empty to begin.
            width: Pairs of an image and a set for one step.
            decide: Which sets are safe; default those whose grid points all are.
            proves: Whether the level is decided; else only witnesses are looked for.
        """
        self.scanner, self.level, self.batcher = scanner, level, batcher
        self.images, self.specification = images, specification
        self.width, self.decide, self.proves = width, decide, proves
        kept = min(level.sets, level.domain.groups)
        device = images.device
        self.open, self.over = list(range(len(images))), list[int]()
        self.state = join(progress, device) if progress else begin(level.t, len(images), kept, device)
        self.scan: Scan | None = None
        self.last = _last_steps(proves)
        self.reached = 0  # accumulations of the ranking at work that were looked at
        self.hits: set[int] = set()  # rows whose decision one of them changed
        self.spent: dict[int, int] = {}  # forward passes by row, for these
        self.candidates: list[tuple[int, Tensor]] = []

    def rows(self) -> list[int]:
        """Rows with work left, in order."""
        return list(self.open)

    def step(self) -> Findings:
        """Scan some sets; or tell which rows are safe; or accumulate one ranking.

        Raises:
            Halted: If the batcher's pulse does; the search's position is then what it was before the step.
        """
        if not self.open:
            return Findings()
        if self.state.position < self.level.sets:
            return self._scan_some()
        step = self.last[self.state.position - self.level.sets]
        if step == "decide":
            found = Findings(decided=dict(zip(self.open, self.state.safe.tolist(), strict=True)))
        else:
            found = self._accumulate(getattr(self.state, step))
        self.state = replace(self.state, position=self.state.position + 1)
        if self.state.position == end_of(self.level, proves=self.proves):
            self.over, self.open = self.open, []
        return found

    def narrow(self) -> None:
        """Make the next steps as small as can be: one that is too long for a short session is never made otherwise."""
        self.width = 1

    def drop(self, rows: Sequence[int]) -> None:
        """Leave some rows: nothing more can be gained for them."""
        gone = set(rows)
        stay = [place for place, row in enumerate(self.open) if row not in gone]
        if len(stay) < len(self.open):
            self.state, self.open, self.scan = split(self.state, stay), [self.open[place] for place in stay], None

    def share(self, row: int) -> float:  # noqa: ARG002  # all rows stand at the same position
        """How much of the level is done."""
        return min(1.0, self.state.position / self.level.sets)

    def progress(self, row: int) -> GridProgress:
        """Where a row stands; at the end of the level when all is done, so that a resumed run need not look again."""
        return split(self.state, [(self.over or self.open).index(row)])

    def _scan_some(self) -> Findings:
        rows, level = self.open, self.level
        if self.scan is None:
            images, specification = self.images[rows], self.specification.pick(rows)
            self.scan = self.scanner.prepare(images, specification, decide=self.proves)
        stop = min(self.state.position + max(1, self.width // len(rows)), level.sets)
        chunk = self.scan(self.state.position, stop)
        self.state = advance(self.state, chunk, None if self.decide is None else self.decide(rows, chunk))
        queries = len(chunk.sets) * level.points
        return Findings(dict.fromkeys(rows, queries), self._violations(chunk))

    def _violations(self, chunk: Chunk) -> list[tuple[int, Tensor]]:
        """The worst point of each image, if it violates the specification."""
        margin, column = chunk.margin.min(1)
        found = []
        for place in (margin < 0).nonzero()[:, 0].tolist():
            worst = column[place]
            groups, values = solutions(self.level, chunk.sets[worst], chunk.margin_point[place, worst])
            changed = self.images[self.open[place]].clone()
            changed[self.level.domain.members[groups].reshape(-1)] = values.reshape(-1)
            found.append((self.open[place], changed))
        return found

    def _accumulate(self, ranking: Ranking) -> Findings:
        """The accumulations of a ranking, the shortest first, for the rows that have no hit yet.

        Nothing counts before the ranking's end: where a session ends inside it, the next one begins it anew. One that
        is halted and asked again goes on where it was.
        """
        most = longest(ranking)
        while self.reached < most and (places := [at for at, row in enumerate(self.open) if row not in self.hits]):
            last = min(self.reached + max(PREFIXES, self.batcher.most // len(places)), most)
            found, spent = self._look_at(places, ranking, last)
            self.candidates += found
            for row, count in spent.items():
                self.spent[row] = self.spent.get(row, 0) + count
            self.reached = last
        findings = Findings({row: self.spent.get(row, 0) for row in self.open}, self.candidates)
        self.reached, self.hits, self.spent, self.candidates = 0, set(), {}, []
        return findings

    def _look_at(
        self, places: Sequence[int], ranking: Ranking, last: int
    ) -> tuple[list[tuple[int, Tensor]], dict[int, int]]:
        """Some accumulations of some rows: candidates, and forward passes by row."""
        rows = torch.tensor([self.open[place] for place in places], device=self.images.device)
        at = torch.tensor(places, device=rows.device)
        images, specification = self.images[rows], self.specification.pick(rows)
        part = Ranking(ranking.values[at], ranking.sets[at], ranking.points[at])
        found, changed = prefixes(self.batcher, self.level, images, specification, part, self.reached, last)
        spent = torch.full_like(rows, last - self.reached)
        hits = found.nonzero()[:, 0]
        better, queries = tighten(
            self.batcher, self.level.domain, images[hits], specification.pick(hits), changed[hits]
        )
        spent.index_add_(0, hits, queries)
        self.hits.update(rows[hits].tolist())
        candidates = [(int(rows[hit]), better[place]) for place, hit in enumerate(hits.tolist())]
        return candidates, dict(zip(rows.tolist(), spent.tolist(), strict=True))
