"""The exhaustive search, level by level, in steps that can be stopped and resumed."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.book import Book
from l0tre.exhaustive.engine import Scanner, choose_engine, make_scanner
from l0tre.exhaustive.partial import Partial, advance, begin, join, split
from l0tre.exhaustive.sampled import sample
from l0tre.exhaustive.scan import Chunk, Level, make_level, solutions
from l0tre.exhaustive.upper import accumulate, tighten

__all__ = ["attack", "exhaust", "sample_all"]

Judge = Callable[[Level, Sequence[int], Chunk], Tensor]


def exhaust(book: Book, judge: Judge | None = None) -> Iterator[None]:
    """Every set of groups and every grid point, for ``t`` = 1, 2, ...

    Args:
        book: The evaluation.
        judge: Decides which sets of a chunk are safe for a block of images, bool ``[images, sets]``; default those
            whose grid points all are.

    Yields:
        After every recorded step.
    """
    for t in range(1, book.problem.settings.max_t + 1):
        book.t = t
        yield from _Walk(book, t, judge).run(book.pending())


def attack(book: Book) -> Iterator[None]:
    """Only for upper bounds: every single group, and what its most sensitive ones give together."""
    book.t = 1
    walk = _Walk(book, 1, None, proves=False)
    done = walk.level.sets
    todo = [i for i in range(len(book.state.bounds)) if book.state.bounds[i].level < 1 and walk.position(i) <= done]
    yield from walk.run(todo)


def sample_all(book: Book) -> Iterator[None]:
    """The real-time mode: some milliseconds for each image, upper bounds only."""
    settings = book.problem.settings
    book.t = settings.max_t
    level = make_level(book.problem.domain, book.problem.grid, book.t)
    todo = [i for i, b in enumerate(book.state.bounds) if b.level < book.t]
    for done, image in enumerate(todo, start=1):
        began = time.monotonic()
        one = slice(image, image + 1)
        generator = torch.Generator().manual_seed(settings.seed + book.state.bounds[image].index)
        images, labels = book.problem.images[one], book.problem.labels[one]
        changed, queries = sample(book.batcher, level, images, labels, settings.sample / 1000, generator)
        if changed is not None:
            book.offer(image, changed)
        book.spend([image], time.monotonic() - began, queries)
        book.close([image])
        book.share = done / len(todo)
        book.record((image,))
        yield


class _Walk:
    """One level for all images."""

    def __init__(self, book: Book, t: int, judge: Judge | None, *, proves: bool = True) -> None:
        problem = book.problem
        self.book = book
        self.judge = judge
        self.proves = proves
        self.level = make_level(problem.domain, problem.grid, t)
        engine = choose_engine(problem.network, problem.domain, problem.grid)
        self.scanner: Scanner
        self.scanner, self.most, self.width = make_scanner(engine, self.level, book.batcher, problem.settings.memory)

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
        partial = self.book.state.partials.get(image)
        return 0 if partial is None else partial.position

    def visit(self, block: list[int], todo: Sequence[int]) -> Iterator[None]:
        """Take a block of images through the rest of the level."""
        book, level, problem = self.book, self.level, self.book.problem
        device = problem.images.device
        kept = min(level.sets, level.domain.groups)
        stored = [book.state.partials[i] for i in block if i in book.state.partials]
        partial = join(stored, device) if stored else begin(level.t, len(block), kept, device)
        scan = None
        while partial.position < level.sets and block:
            began = time.monotonic()
            if scan is None:
                scan = self.scanner.prepare(problem.images[block], problem.labels[block], decide=self.proves)
            stop = min(partial.position + max(1, self.width // len(block)), level.sets)
            chunk = scan(partial.position, stop)
            partial = advance(partial, chunk, None if self.judge is None else self.judge(level, block, chunk))
            book.spend(block, time.monotonic() - began, len(chunk.sets) * level.points)
            self.try_chunk(block, chunk)
            open_ = [row for row, image in enumerate(block) if book.state.bounds[image].upper > level.t]
            closed = [image for row, image in enumerate(block) if row not in open_]
            partial, block = split(partial, open_), [block[row] for row in open_]
            scan = None if closed else scan
            book.close(closed)
            self.keep(block, partial)
            if self.proves:
                book.share = (todo.index((block or closed)[0]) + stop / level.sets) / len(todo)
            book.record((*block, *closed))
            yield
        if block:
            self.finish(block, partial)
            yield

    def keep(self, block: Sequence[int], partial: Partial) -> None:
        for row, image in enumerate(block):
            self.book.state.partials[image] = split(partial, [row])

    def try_chunk(self, block: Sequence[int], chunk: Chunk) -> None:
        """The worst point of each image, if it changes the decision, is a witness."""
        margin, column = chunk.margin.min(1)
        for row in (margin < 0).nonzero()[:, 0].tolist():
            place = column[row]
            groups, values = solutions(self.level, chunk.sets[place], chunk.margin_point[row, place])
            changed = self.book.problem.images[block[row]].clone()
            changed[self.level.domain.members[groups].reshape(-1)] = values.reshape(-1)
            self.book.offer(block[row], changed)

    def finish(self, block: list[int], partial: Partial) -> None:
        """The whole level was visited: raise the lower bounds, then look for better witnesses."""
        book, problem = self.book, self.book.problem
        began = time.monotonic()
        if self.proves:
            for image, safe in zip(block, partial.safe.tolist(), strict=True):
                book.level_done(image, safe)
        device = problem.images.device
        spent = torch.zeros(len(block), dtype=torch.int64, device=device)
        for ranking in (partial.by_score, partial.by_margin):
            open_ = [row for row, image in enumerate(block) if not book.state.bounds[image].converged]
            if not open_:
                break
            rows = torch.tensor(open_, device=device)
            part = [block[row] for row in open_]
            images, labels = problem.images[part], problem.labels[part]
            chosen = type(ranking)(ranking.values[rows], ranking.sets[rows], ranking.points[rows])
            found, changed, each = accumulate(book.batcher, self.level, images, labels, chosen)
            spent[rows] += each
            hits = found.nonzero()[:, 0]
            better, queries = tighten(book.batcher, self.level.domain, images[hits], labels[hits], changed[hits])
            spent.index_add_(0, rows[hits], queries)
            for row, hit in enumerate(hits.tolist()):
                book.offer(part[hit], better[row])
        book.spend(block, time.monotonic() - began, spent.tolist())
        if self.proves:
            book.close(block)
        else:  # kept, one past the end: a resumed run need not look again
            self.keep(block, replace(partial, position=self.level.sets + 1))
        book.record(block)
