"""The exhaustive search, level by level, in steps that can be stopped and resumed."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.evaluation.ledger import Ledger
from l0tre.exhaustive.accumulate import accumulate, tighten
from l0tre.exhaustive.grid_scan import Chunk, Level, make_level, solutions
from l0tre.exhaustive.progress import GridProgress, advance, begin, join, split
from l0tre.exhaustive.sampled import sample
from l0tre.exhaustive.scanner import Scanner, choose_engine, make_scanner

__all__ = ["attack", "exhaust", "sample_all"]

Decision = Callable[[Level, Sequence[int], Chunk], Tensor]


def exhaust(ledger: Ledger, decide: Decision | None = None) -> Iterator[None]:
    """Every set of groups and every grid point, for ``t`` = 1, 2, ...

    Args:
        ledger: The evaluation.
        decide: Decides which sets of a chunk are safe for a block of images, bool ``[images, sets]``; default those
            whose grid points all are.

    Yields:
        After every recorded step.
    """
    for t in range(1, ledger.problem.settings.max_t + 1):
        ledger.t = t
        yield from _Walk(ledger, t, decide).run(ledger.pending())


def attack(ledger: Ledger) -> Iterator[None]:
    """Only for upper bounds: every single group, and what its most sensitive ones give together."""
    ledger.t = 1
    walk = _Walk(ledger, 1, None, proves=False)
    done = walk.level.sets
    todo = [i for i in range(len(ledger.state.bounds)) if ledger.state.bounds[i].level < 1 and walk.position(i) <= done]
    yield from walk.run(todo)


def sample_all(ledger: Ledger) -> Iterator[None]:
    """The real-time mode: some milliseconds for each image, upper bounds only."""
    settings = ledger.problem.settings
    ledger.t = settings.max_t
    level = make_level(ledger.problem.domain, ledger.problem.grid, ledger.t)
    todo = [i for i, b in enumerate(ledger.state.bounds) if b.level < ledger.t]
    for done, image in enumerate(todo, start=1):
        began = time.monotonic()
        one = slice(image, image + 1)
        generator = torch.Generator().manual_seed(settings.seed + ledger.state.bounds[image].index)
        images, labels = ledger.problem.images[one], ledger.problem.labels[one]
        changed, queries = sample(ledger.batcher, level, images, labels, settings.sample_ms / 1000, generator)
        if changed is not None:
            ledger.offer(image, changed)
        ledger.spend([image], time.monotonic() - began, queries)
        ledger.close([image])
        ledger.share = done / len(todo)
        ledger.record((image,))
        yield


class _Walk:
    """One level for all images."""

    def __init__(self, ledger: Ledger, t: int, decide: Decision | None, *, proves: bool = True) -> None:
        problem = ledger.problem
        self.ledger = ledger
        self.decide = decide
        self.proves = proves
        self.level = make_level(problem.domain, problem.grid, t)
        engine = choose_engine(problem.network, problem.domain, problem.grid)
        self.scanner: Scanner
        self.scanner, self.most, self.width = make_scanner(
            engine, self.level, ledger.batcher, problem.settings.memory_bytes
        )

    def run(self, todo: Sequence[int]) -> Iterator[None]:
        for block in self.blocks(todo):
            yield from self.visit(block, todo)

    def blocks(self, todo: Sequence[int]) -> Iterator[list[int]]:
        """Images that go through the level together: at most so many, all at the same position."""
        block: list[int] = []
        for image in todo:
            if block and (len(block) == self.most or self.position(image) != self.position(block[0])):
                yield block
                block = []
            block.append(image)
        if block:
            yield block

    def position(self, image: int) -> int:
        partial = self.ledger.state.partials.get(image)
        return 0 if partial is None else partial.position

    def visit(self, block: list[int], todo: Sequence[int]) -> Iterator[None]:
        """Take a block of images through the rest of the level."""
        ledger, level, problem = self.ledger, self.level, self.ledger.problem
        device = problem.images.device
        kept = min(level.sets, level.domain.groups)
        stored = [ledger.state.partials[i] for i in block if i in ledger.state.partials]
        partial = join(stored, device) if stored else begin(level.t, len(block), kept, device)
        scan = None
        while partial.position < level.sets and block:
            began = time.monotonic()
            if scan is None:
                scan = self.scanner.prepare(problem.images[block], problem.labels[block], decide=self.proves)
            stop = min(partial.position + max(1, self.width // len(block)), level.sets)
            chunk = scan(partial.position, stop)
            partial = advance(partial, chunk, None if self.decide is None else self.decide(level, block, chunk))
            ledger.spend(block, time.monotonic() - began, len(chunk.sets) * level.points)
            self.try_chunk(block, chunk)
            open_ = [row for row, image in enumerate(block) if ledger.state.bounds[image].upper > level.t]
            closed = [image for row, image in enumerate(block) if row not in open_]
            partial, block = split(partial, open_), [block[row] for row in open_]
            scan = None if closed else scan
            ledger.close(closed)
            self.keep(block, partial)
            if self.proves:
                ledger.share = (todo.index((block or closed)[0]) + stop / level.sets) / len(todo)
            ledger.record((*block, *closed))
            yield
        if block:
            self.finish(block, partial)
            yield

    def keep(self, block: Sequence[int], partial: GridProgress) -> None:
        for row, image in enumerate(block):
            self.ledger.state.partials[image] = split(partial, [row])

    def try_chunk(self, block: Sequence[int], chunk: Chunk) -> None:
        """The worst point of each image, if it changes the decision, is a witness."""
        margin, column = chunk.margin.min(1)
        for row in (margin < 0).nonzero()[:, 0].tolist():
            place = column[row]
            groups, values = solutions(self.level, chunk.sets[place], chunk.margin_point[row, place])
            changed = self.ledger.problem.images[block[row]].clone()
            changed[self.level.domain.members[groups].reshape(-1)] = values.reshape(-1)
            self.ledger.offer(block[row], changed)

    def finish(self, block: list[int], partial: GridProgress) -> None:
        """The whole level was visited: raise the lower bounds, then look for better witnesses."""
        ledger, problem = self.ledger, self.ledger.problem
        began = time.monotonic()
        if self.proves:
            for image, safe in zip(block, partial.safe.tolist(), strict=True):
                ledger.level_done(image, safe)
        device = problem.images.device
        spent = torch.zeros(len(block), dtype=torch.int64, device=device)
        for ranking in (partial.by_score, partial.by_margin):
            open_ = [row for row, image in enumerate(block) if not ledger.state.bounds[image].converged]
            if not open_:
                break
            rows = torch.tensor(open_, device=device)
            part = [block[row] for row in open_]
            images, labels = problem.images[part], problem.labels[part]
            chosen = type(ranking)(ranking.values[rows], ranking.sets[rows], ranking.points[rows])
            found, changed, each = accumulate(ledger.batcher, self.level, images, labels, chosen)
            spent[rows] += each
            hits = found.nonzero()[:, 0]
            better, queries = tighten(ledger.batcher, self.level.domain, images[hits], labels[hits], changed[hits])
            spent.index_add_(0, rows[hits], queries)
            for row, hit in enumerate(hits.tolist()):
                ledger.offer(part[hit], better[row])
        ledger.spend(block, time.monotonic() - began, spent.tolist())
        if self.proves:
            ledger.close(block)
        else:  # kept, one past the end: a resumed run need not look again
            self.keep(block, replace(partial, position=self.level.sets + 1))
        ledger.record(block)
