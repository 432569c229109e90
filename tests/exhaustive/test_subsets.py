import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.errors import ConfigError
from l0tre.exhaustive.subsets import count_sets, unrank


@settings(max_examples=60, deadline=None, derandomize=True)
@given(groups=st.integers(1, 9), t=st.integers(1, 5))
def test_every_set_has_exactly_one_number(groups: int, t: int) -> None:
    if t > groups:
        with pytest.raises(ConfigError, match="t is"):
            count_sets(groups, t)
        return
    count = count_sets(groups, t)
    sets = [tuple(row) for row in unrank(torch.arange(count), groups, t).tolist()]
    assert sorted(sets) == sorted(itertools.combinations(range(groups), t))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 50_176), st.integers(1, 4), st.data())
def test_numbers_of_large_spaces_come_back(groups: int, t: int, data: st.DataObject) -> None:
    t = min(t, groups)
    rank = data.draw(st.integers(0, count_sets(groups, t) - 1))
    members = unrank(torch.tensor([rank]), groups, t)[0].tolist()
    assert members == sorted(set(members))
    assert members[0] >= 0
    assert members[-1] < groups
    assert sum(math.comb(c, i + 1) for i, c in enumerate(members)) == rank


def test_a_space_that_no_machine_could_visit_is_refused() -> None:
    with pytest.raises(ConfigError, match="smaller t"):
        count_sets(50_176, 8)
