"""Rows laid out by the matrix that they share: each once, in batches of one key, of about equal length."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.certify.boxes.grouped_products import in_groups

COUNT = 41
KEYS = st.lists(st.integers(0, COUNT - 1), max_size=60) | st.lists(st.sampled_from([7, 0, COUNT - 1]), max_size=60)


@settings(deadline=None, max_examples=200)
@given(KEYS)
def test_every_row_has_one_place_in_a_batch_of_its_key(keys: list[int]) -> None:
    key = torch.tensor(keys, dtype=torch.int64)
    groups = in_groups(key, COUNT)
    assert groups.where.shape == key.shape
    assert len(groups.where.unique()) == len(key)
    assert torch.equal(groups.slots.flatten()[groups.where], torch.arange(len(key)))
    assert torch.equal(groups.first, groups.slots[:, 0])
    assert torch.equal(key[groups.slots], key[groups.first][:, None].expand_as(groups.slots))
    free = torch.ones(groups.slots.numel(), dtype=torch.bool)
    free[groups.where] = False
    repeated = groups.first[:, None].expand_as(groups.slots).flatten()
    assert torch.equal(groups.slots.flatten()[free], repeated[free])


@settings(deadline=None, max_examples=100)
@given(KEYS)
def test_batches_are_not_longer_than_the_average_group_nor_more_than_they_need_to_be(keys: list[int]) -> None:
    """So memory is at most twice that of the rows, but for the last place of each group."""
    groups, different = in_groups(torch.tensor(keys, dtype=torch.int64), COUNT), len(set(keys))
    assert groups.slots.shape[1] == max(1, -(-len(keys) // max(1, different)))
    assert len(groups.slots) <= 2 * different


@settings(deadline=None, max_examples=50)
@given(KEYS, st.integers(0, 2**20))
def test_batched_products_are_those_of_the_rows(keys: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    key = torch.tensor(keys, dtype=torch.int64)
    matrices = torch.randn(COUNT, 3, 2, generator=generator, dtype=torch.float64)
    rows = torch.randn(len(keys), 3, generator=generator, dtype=torch.float64)
    groups = in_groups(key, COUNT)
    found = torch.bmm(rows[groups.slots], matrices[key[groups.first]]).view(-1, 2)[groups.where]
    assert torch.allclose(found, torch.einsum("nc,ncf->nf", rows, matrices[key]), rtol=0, atol=1e-12)
