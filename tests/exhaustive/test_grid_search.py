"""The grid search of one level as a unit of work: where it stands says all that is needed to go on."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from l0tre.domain import make_domain
from l0tre.exhaustive.grid_scan import make_level
from l0tre.exhaustive.grid_search import GridSearch, end_of
from l0tre.exhaustive.progress import GridProgress
from l0tre.exhaustive.scanner import choose_engine, make_scanner
from l0tre.findings import Findings
from l0tre.grid import make_grid
from l0tre.memory import Batcher
from l0tre.objective import AllRivals
from tests.tools import plain_network, tiny_module

IMAGES = 3


class Work:
    """A level of a small network, and searches of it."""

    def __init__(self, *, proves: bool) -> None:
        module, shape = tiny_module("conv1", 11)
        for parameter in module.parameters():
            parameter.data *= 0.5
        network = plain_network(module, shape)
        domain = make_domain(shape)
        grid = make_grid(domain, 0.5)
        self.level = make_level(domain, grid, 2)
        self.batcher = Batcher(network, 2**30)
        self.images = torch.rand(IMAGES, 6, generator=torch.Generator().manual_seed(1))
        self.claims = AllRivals(network.scores(self.images.view(-1, *shape)).argmax(1))
        engine = choose_engine(network, domain, grid)
        self.scanner = make_scanner(engine, self.level, self.batcher, 2**30)[0]
        self.proves = proves

    def begin(self, progress: list[GridProgress] | None = None) -> GridSearch:
        return GridSearch(
            self.scanner,
            self.level,
            self.batcher,
            self.images,
            self.claims,
            progress or [],
            width=4 * IMAGES,
            proves=self.proves,
        )


class Total:
    """All that some steps found."""

    def __init__(self) -> None:
        self.steps = 0
        self.queries: Counter[int] = Counter()
        self.candidates: list[tuple[int, Tensor]] = []
        self.decided: dict[int, bool] = {}

    def add(self, found: Findings) -> None:
        self.steps += 1
        self.queries.update(found.queries)
        self.candidates += found.candidates
        assert not set(self.decided) & set(found.decided)
        self.decided.update(found.decided)


@pytest.mark.parametrize("proves", [True, False])
def test_a_search_that_is_left_after_every_step_finds_the_same(proves: bool) -> None:
    work, whole, parts = Work(proves=proves), Total(), Total()
    search = work.begin()
    while search.rows() and whole.steps < 100:
        whole.add(search.step())
    search, at = work.begin(), [0]
    while search.rows():
        parts.add(search.step())
        progress = [search.progress(row) for row in range(IMAGES)]
        at.append(progress[0].position)
        assert at[-1] > at[-2], "a step did not get on"
        if search.rows():
            search = work.begin(progress)
    assert at[-1] == end_of(work.level, proves=proves) == work.level.sets + (3 if proves else 2)
    assert (parts.steps, parts.queries, parts.decided) == (whole.steps, whole.queries, whole.decided)
    assert set(whole.decided) == (set(range(IMAGES)) if proves else set())
    assert len(whole.candidates) > 1
    for (row, changed), (other, wanted) in zip(parts.candidates, whole.candidates, strict=True):
        assert row == other
        assert torch.equal(changed, wanted)


def test_rows_that_are_dropped_cost_nothing_more() -> None:
    work = Work(proves=True)
    search = work.begin()
    while search.progress(0).position < work.level.sets:
        search.step()
    search.drop([1])
    assert set(search.step().decided) == {0, 2}
    search.drop([0])
    assert set(search.step().queries) == {2}
    assert search.rows() == [2]
    assert search.share(2) == 1.0
    search.step()
    assert search.rows() == []
    assert not search.step().queries
