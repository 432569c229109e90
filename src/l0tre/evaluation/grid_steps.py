"""The exhaustive search, level by level, in units that can be stopped and resumed."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from l0tre.defaults import ATTACK_QUERIES
from l0tre.evaluation.forecast import Forecast, duration, pass_seconds
from l0tre.evaluation.ledger import Ledger
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.run_search import LevelProgress, run_search
from l0tre.exhaustive.describe import describe
from l0tre.exhaustive.grid_scan import Chunk, make_level
from l0tre.exhaustive.grid_search import Decision, GridSearch, end_of
from l0tre.exhaustive.sampled import SampleSearch
from l0tre.exhaustive.scanner import ForwardScanner, choose_engine, make_scanner

__all__ = ["SafeSets", "end_of_look", "exhaust", "is_cheap", "look_for_witnesses", "sample_all"]

CHEAP = 20  # attacks on an image that trying its single groups may cost before it is put off

FEW = 10_000  # forward passes of a level that are made before their cost is worth measuring

# Which sets of a chunk are safe for some images of the problem: bool ``[images, sets]``.
SafeSets = Callable[[int, Sequence[int], Chunk], Tensor]


def exhaust(ledger: Ledger, t: int, safe_sets: SafeSets | None) -> Iterator[None]:
    """Every set of ``t`` groups and every grid point.

    Args:
        ledger: The evaluation, for a grid or Lipschitz guarantee.
        t: The level.
        safe_sets: What is safe, for the Lipschitz guarantee; for a grid what is at all its points.

    Yields:
        After every recorded step.
    """
    ledger.t = t
    yield from _go_through(ledger, t, ledger.pending(), safe_sets)


def look_for_witnesses(ledger: Ledger) -> Iterator[None]:
    """Only for upper bounds: every single group, and what its most sensitive ones give together."""
    ledger.t = 1
    end, bounds = end_of_look(ledger.problem), ledger.state.bounds
    todo = [image for image in ledger.places if bounds[image].level < 1 and _position(ledger, image) < end]
    yield from _go_through(ledger, 1, todo, None, proves=False)


def end_of_look(problem: Problem) -> int:
    """The position at which :func:`look_for_witnesses` has tried everything."""
    return end_of(make_level(problem.domain, problem.grid, 1), proves=False)


def is_cheap(problem: Problem) -> bool:
    """Whether trying every single group costs at most some attacks' worth of forward passes."""
    engine = choose_engine(problem.network, problem.domain, problem.grid)
    passes = problem.domain.groups * problem.grid.shape[1] / describe(engine).saving
    return passes <= CHEAP * max(ATTACK_QUERIES, problem.settings.attack_queries)


def sample_all(ledger: Ledger) -> Iterator[None]:
    """The real-time mode: some milliseconds for each image, upper bounds only."""
    problem, settings = ledger.problem, ledger.problem.settings
    ledger.t = settings.max_t
    level = make_level(problem.domain, problem.grid, ledger.t)
    todo = [image for image in ledger.places if ledger.state.bounds[image].level < ledger.t]
    work, told = LevelProgress(ledger.t, todo), False
    for image in todo:
        generator = torch.Generator().manual_seed(settings.seed + ledger.state.bounds[image].index)
        images, claims = problem.images[image : image + 1], problem.specification.pick([image])
        search = SampleSearch(
            ledger.batcher, level, images, claims, settings.sample_ms / 1000, generator, problem.tuning
        )
        yield from run_search(ledger, work, search, [image])
        if search.looked_at_nothing and not told:
            told = True
            unit = f"{problem.domain.unit}{'' if ledger.t == 1 else 's'}"
            each = duration(level.points * ledger.batcher.row_seconds)
            ledger.tell(
                f"{settings.sample_ms:g} ms for each {problem.noun} are too few for a single set of {ledger.t} {unit}, "
                f"which has {level.points:,} grid points, about {each} here: give more time, a coarser "
                "grid, or use l0tre attack"
            )


def _go_through(
    ledger: Ledger, t: int, todo: Sequence[int], safe_sets: SafeSets | None, *, proves: bool = True
) -> Iterator[None]:
    """One level for some images, block by block."""
    if not todo:  # as in levels that a resumed run has behind it
        return
    problem = ledger.problem
    level = make_level(problem.domain, problem.grid, t)
    engine = choose_engine(problem.network, problem.domain, problem.grid, problem.tuning)
    scanner, most, width = make_scanner(engine, level, ledger.batcher, problem.settings.memory_bytes, problem.tuning)
    work = LevelProgress(t, todo)
    forecast = Forecast(t, len(todo), len(todo) * level.sets * level.points, problem.domain.unit, problem.noun)

    def share() -> float:
        done = [1.0 if i in work.over else min(1.0, _position(ledger, i) / level.sets) for i in todo]
        return sum(done) / max(1, len(todo))

    forecast.at = share()
    if isinstance(scanner, ForwardScanner) and forecast.passes >= FEW:
        first = problem.images[todo[:1]].reshape(1, *problem.domain.shape)
        if sentence := forecast.beforehand(pass_seconds(ledger.batcher, first)):
            ledger.tell(sentence)
    for block in _blocks(ledger, todo, most):
        kept = [ledger.state.partials[image] for image in block if image in ledger.state.partials]
        images, claims = problem.images[block], problem.specification.pick(block)
        decide = None if safe_sets is None else _for_block(safe_sets, t, block)
        search = GridSearch(
            scanner, level, ledger.batcher, images, claims, kept, width=width, decide=decide, proves=proves
        )
        for _ in run_search(ledger, work, search, block, closes=proves):
            if not forecast.said and (sentence := forecast.sentence(share())):
                ledger.tell(sentence)
            yield


def _for_block(safe_sets: SafeSets, t: int, block: Sequence[int]) -> Decision:
    return lambda rows, chunk: safe_sets(t, [block[row] for row in rows], chunk)


def _position(ledger: Ledger, image: int) -> int:
    progress = ledger.state.partials.get(image)
    return 0 if progress is None else progress.position


def _blocks(ledger: Ledger, todo: Sequence[int], most: int) -> Iterator[list[int]]:
    """Images that go through the level together: at most so many, all at the same position."""
    block: list[int] = []
    for image in todo:
        if block and (len(block) == most or _position(ledger, image) != _position(ledger, block[0])):
            yield block
            block = []
        block.append(image)
    if block:
        yield block
