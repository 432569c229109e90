"""Fewer tests with the same coverage."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.testgen.found import FAR, Found
from l0tre.testgen.hits import pack
from l0tre.testgen.reduce import distances_by, gains, minimal

ROWS = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=8)
)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_the_minimal_subset_covers_as_much_and_needs_each_of_its_tests(rows: list[list[bool]]) -> None:
    hits = torch.tensor(rows)
    chosen = minimal(pack(hits))
    assert torch.equal(hits[chosen].any(0) if chosen else torch.zeros(len(rows[0]), dtype=torch.bool), hits.any(0))
    for test in chosen:
        others = [row for row in chosen if row != test]
        covered = hits[others].any(0) if others else torch.zeros(len(rows[0]), dtype=torch.bool)
        assert not torch.equal(covered, hits.any(0))


def test_gains_count_what_is_new() -> None:
    hits = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)
    assert gains(pack(hits)).tolist() == [2, 0, 1]


def test_distances_follow_from_hits() -> None:
    hits = torch.tensor([[1, 0, 0], [1, 1, 0]], dtype=torch.bool)
    open_ = torch.tensor([True, False, True, True])
    distance, test = distances_by(pack(hits), torch.tensor([1, 3]), 4, open_)
    assert distance.tolist() == [1, 0, 3, FAR]
    assert test.tolist() == [0, -1, 1, -1]


def test_the_nearest_test_is_kept_and_of_equal_ones_the_one_that_does_more() -> None:
    found = Found.begin(3, torch.device("cpu"))
    x = torch.arange(6.0).view(3, 2)
    hits = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    nobody = torch.full((3,), -1)
    assert found.take(x, torch.zeros(3, dtype=torch.int64), torch.tensor([2, 2, 4]), hits, nobody) == 2
    assert found.distance.tolist() == [2, 2, 4]
    assert [found.inputs[test].tolist() for test in found.test.tolist()] == [[2.0, 3.0], [2.0, 3.0], [4.0, 5.0]]
    better = torch.tensor([[9.0, 9.0]])
    none = torch.tensor([[0, 0, 1]], dtype=torch.bool)
    found.take(better, torch.zeros(1, dtype=torch.int64), torch.tensor([1]), none, torch.tensor([2]))
    found.prune()
    assert found.distances == [2, 1]
    assert found.test.tolist() == [0, 0, 1]
    assert found.take(better, torch.zeros(1, dtype=torch.int64), torch.tensor([5]), none, torch.tensor([2])) == 0


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_packed_rows_are_what_was_packed(rows: list[list[bool]]) -> None:
    table = torch.tensor(rows)
    hits, every = pack(table), torch.arange(len(rows))
    assert torch.equal(hits.rows(every.flip(0)), table.flip(0))
    assert torch.equal(hits.times(every), table.sum(0))
    assert torch.equal(hits.any(every[1:]), table[1:].any(0))
    columns = torch.arange(table.shape[1]) % 2 == 0
    assert torch.equal(hits.counts(every, columns), table[:, columns].sum(1))
    for neuron, place in enumerate(hits.first(every).tolist()):
        assert place == next((row for row in range(len(rows)) if rows[row][neuron]), len(rows))


def test_rows_of_several_words_are_counted() -> None:
    table = torch.rand(5, 200, generator=torch.Generator().manual_seed(0)) < 0.7
    some = torch.tensor([4, 1, 2])
    assert torch.equal(pack(table).counts(some, table[0]), (table[some] & table[0]).sum(1))
    assert pack(torch.ones(1, 200, dtype=torch.bool)).counts(some[:0], table[0]).tolist() == []
    assert pack(torch.ones(2, 200, dtype=torch.bool)).counts(torch.tensor([1]), table[0] | True).tolist() == [200]
