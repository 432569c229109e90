"""The anytime loop over t: bounds that hold whenever it is stopped, and only ever get better."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.errors import ConfigError
from l0tre.exhaustive.engine import Scanner, choose_engine, make_scanner
from l0tre.exhaustive.partial import Partial, advance, begin, join, split
from l0tre.exhaustive.sampled import sample
from l0tre.exhaustive.scan import Chunk, Level, make_level, solutions
from l0tre.exhaustive.upper import accumulate, changed_groups, tighten
from l0tre.memory import Batcher
from l0tre.model.network import margins
from l0tre.problem import Problem
from l0tre.results import HistoryPoint, ImageBounds, Snapshot, make_witness
from l0tre.state import Recorder, State

__all__ = ["drive"]


def drive(
    problem: Problem,
    state: State,
    *,
    recorder: Recorder | None = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Snapshot]:
    """Improve the bounds until the search is complete, the time is spent, or the caller stops.

    Args:
        problem: Network, inputs, domain and settings.
        state: Bounds and positions to go on from; updated in place, always consistent between two snapshots.
        recorder: Told of every step before its snapshot is given out.
        time_budget: Seconds for this call; ``None`` for no limit. At least one step is made.
        stop: Asked between two steps.

    Yields:
        A snapshot after every step; the last one has ``finished`` set if the search is complete up to ``max_t``.
    """
    if time_budget is not None and not time_budget >= 0:
        raise ConfigError(f"the time budget is {time_budget} seconds: give 0 or more")
    loop = _Loop(problem, state, recorder)
    began = time.monotonic()
    for _ in loop.steps():
        yield loop.snapshot()
        if stop() or (time_budget is not None and time.monotonic() - began >= time_budget):
            return
    state.finished = True
    loop.record(())
    yield loop.snapshot()


class _Loop:
    """One evaluation at work: the batcher, and what the current step changes."""

    def __init__(self, problem: Problem, state: State, recorder: Recorder | None) -> None:
        self.problem = problem
        self.state = state
        self.recorder = recorder
        self.batcher = Batcher(problem.network, problem.settings.memory)
        self.engine = choose_engine(problem.network, problem.domain, problem.grid)
        self.t = 1
        self.share = 0.0

    def snapshot(self) -> Snapshot:
        state = self.state
        return Snapshot(
            tuple(state.bounds),
            self.problem.excluded,
            state.seconds,
            self.t,
            self.problem.domain.unit,
            state.finished,
            self.share,
            tuple(state.history),
            self.problem.config,
        )

    def steps(self) -> Iterator[None]:
        """Work, one step at a time; between two steps everything is recorded."""
        if self.problem.settings.sample:
            yield from self.samples()
            return
        for t in range(1, self.problem.settings.max_t + 1):
            self.t = t
            level = make_level(self.problem.domain, self.problem.grid, t)
            scanner, most, width = make_scanner(self.engine, level, self.batcher, self.problem.settings.memory)
            todo = self.pending()
            for block in self.blocks(todo, most):
                yield from self.visit(level, scanner, width, block, todo)

    def samples(self) -> Iterator[None]:
        """The real-time mode: some milliseconds for each image, upper bounds only."""
        settings = self.problem.settings
        self.t = settings.max_t
        level = make_level(self.problem.domain, self.problem.grid, self.t)
        todo = self.pending()
        for done, image in enumerate(todo, start=1):
            began = time.monotonic()
            one = slice(image, image + 1)
            generator = torch.Generator().manual_seed(settings.seed + self.state.bounds[image].index)
            images, labels = self.problem.images[one], self.problem.labels[one]
            changed, queries = sample(self.batcher, level, images, labels, settings.sample / 1000, generator)
            if changed is not None:
                self.offer(image, changed)
            self.spend([image], time.monotonic() - began, queries)
            self.close([image])
            self.share = done / len(todo)
            self.record((image,))
            yield

    def pending(self) -> list[int]:
        """Images that this level can still improve."""
        if self.problem.settings.sample:
            return [i for i, b in enumerate(self.state.bounds) if b.level < self.t]
        return [i for i, b in enumerate(self.state.bounds) if b.level < self.t and b.upper > self.t]

    def blocks(self, todo: Sequence[int], most: int) -> Iterator[list[int]]:
        """Images that go through the level together: at most so many, all at the same position."""
        block: list[int] = []
        for image in todo:
            if block and (len(block) == most or self.position(image) != self.position(block[0])):
                yield block
                block = []
            block.append(image)
        if block:
            yield block

    def position(self, image: int) -> int:
        partial = self.state.partials.get(image)
        return 0 if partial is None else partial.position

    def visit(
        self, level: Level, scanner: Scanner, width: int, block: list[int], todo: Sequence[int]
    ) -> Iterator[None]:
        """Take a block of images through the rest of the level."""
        device = self.problem.images.device
        kept = min(level.sets, level.domain.groups)
        stored = [self.state.partials[i] for i in block if i in self.state.partials]
        partial = join(stored, device) if stored else begin(level.t, len(block), kept, device)
        scan = None
        while partial.position < level.sets and block:
            began = time.monotonic()
            if scan is None:
                scan = scanner.prepare(self.problem.images[block], self.problem.labels[block])
            stop = min(partial.position + max(1, width // len(block)), level.sets)
            chunk = scan(partial.position, stop)
            partial = advance(partial, chunk)
            self.spend(block, time.monotonic() - began, len(chunk.sets) * level.points)
            self.try_chunk(level, block, chunk)
            open_ = [row for row, image in enumerate(block) if self.state.bounds[image].upper > level.t]
            closed = [image for row, image in enumerate(block) if row not in open_]
            partial, block = split(partial, open_), [block[row] for row in open_]
            scan = None if closed else scan
            self.close(closed)
            self.keep(block, partial)
            self.share = (todo.index((block or closed)[0]) + stop / level.sets) / len(todo)
            self.record((*block, *closed))
            yield
        if block:
            self.finish(level, block, partial)
            yield

    def keep(self, block: Sequence[int], partial: Partial) -> None:
        for row, image in enumerate(block):
            self.state.partials[image] = split(partial, [row])

    def close(self, images: Sequence[int]) -> None:
        """A witness of this size was found: the level is over for these images."""
        for image in images:
            self.state.partials.pop(image, None)
            self.state.bounds[image] = replace(self.state.bounds[image], level=self.t)

    def spend(self, block: Sequence[int], seconds: float, queries: int) -> None:
        """Book work: seconds shared by the block, queries for each of its images."""
        self.state.seconds += seconds
        for image in block:
            bounds = self.state.bounds[image]
            self.state.bounds[image] = replace(
                bounds, seconds=bounds.seconds + seconds / len(block), queries=bounds.queries + queries
            )

    def try_chunk(self, level: Level, block: Sequence[int], chunk: Chunk) -> None:
        """The worst point of each image, if it changes the decision, is a witness."""
        margin, column = chunk.margin.min(1)
        for row in (margin < 0).nonzero()[:, 0].tolist():
            place = column[row]
            groups, values = solutions(level, chunk.sets[place], chunk.margin_point[row, place])
            changed = self.problem.images[block[row]].clone()
            changed[level.domain.members[groups].reshape(-1)] = values.reshape(-1)
            self.offer(block[row], changed)

    def finish(self, level: Level, block: list[int], partial: Partial) -> None:
        """The whole level was visited: raise the lower bounds, then look for better witnesses."""
        began = time.monotonic()
        for image, safe in zip(block, partial.safe.tolist(), strict=True):
            self.state.bounds[image] = _level_done(self.state.bounds[image], level.t, safe)
        device = self.problem.images.device
        spent = torch.zeros(len(block), dtype=torch.int64, device=device)
        for ranking in (partial.by_score, partial.by_margin):
            open_ = [row for row, image in enumerate(block) if not self.state.bounds[image].converged]
            if not open_:
                break
            rows = torch.tensor(open_, device=device)
            part = [block[row] for row in open_]
            images, labels = self.problem.images[part], self.problem.labels[part]
            chosen = type(ranking)(ranking.values[rows], ranking.sets[rows], ranking.points[rows])
            found, changed, each = accumulate(self.batcher, level, images, labels, chosen)
            spent[rows] += each
            hits = found.nonzero()[:, 0]
            better, queries = tighten(self.batcher, level.domain, images[hits], labels[hits], changed[hits])
            spent.index_add_(0, rows[hits], queries)
            for row, hit in enumerate(hits.tolist()):
                self.offer(part[hit], better[row])
        share = time.monotonic() - began
        self.state.seconds += share
        for image, queries_ in zip(block, spent.tolist(), strict=True):
            bounds = self.state.bounds[image]
            self.state.partials.pop(image, None)
            self.state.bounds[image] = replace(
                bounds, level=level.t, seconds=bounds.seconds + share / len(block), queries=bounds.queries + queries_
            )
        self.record(block)

    def offer(self, image: int, changed: Tensor) -> None:
        """Replay an input that seems to change the decision; keep it if it does and is the closest so far."""
        problem, bounds = self.problem, self.state.bounds[image]
        original = problem.images[image]
        support = changed_groups(problem.domain, original[None], changed[None])[0]
        distance = int(support.sum())
        if distance >= bounds.upper:
            return
        scores = problem.network.replay(changed.reshape(problem.domain.shape))
        margin = float(margins(scores[None], torch.tensor([bounds.label]))[0])
        if not margin < 0:
            return
        groups = tuple(problem.domain.ids[support].tolist())
        witness = make_witness(original, changed, groups, int(scores.argmax()), margin, self.t)
        # A witness inside a proved radius would show that round-off fooled the proof: believe the witness.
        lower = min(bounds.lower, distance - 1)
        self.state.bounds[image] = replace(bounds, upper=distance, lower=lower, witness=witness)

    def record(self, images: Sequence[int]) -> None:
        state = self.state
        lower, upper = (sum(getattr(b, name) for b in state.bounds) / len(state.bounds) for name in ("lower", "upper"))
        last = state.history[-1] if state.history else None
        point = None
        if last is None or (last.lower, last.upper, last.t) != (lower, upper, self.t):
            point = HistoryPoint(state.seconds, self.t, lower, upper)
            state.history.append(point)
        if self.recorder is not None:
            self.recorder.record(state, images, point)


def _level_done(bounds: ImageBounds, t: int, safe: bool) -> ImageBounds:
    """The bounds after every set of size ``t`` was visited without a witness of that size."""
    if safe:
        return replace(bounds, lower=t) if bounds.lower == t - 1 else bounds
    return replace(bounds, blocked=bounds.blocked or t)
