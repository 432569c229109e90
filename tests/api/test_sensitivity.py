"""The paper's S(T0, t) and solution tensor, as users get them."""

import itertools

import pytest
import torch
from torch import nn

import l0tre
from l0tre.domain import make_domain
from l0tre.errors import ConfigError
from tests.tools import brute_force, plain_network, tiny_module


@pytest.mark.parametrize("kind", ["dense", "conv1", "conv3"])
def test_single_drops_equal_brute_force_in_the_order_of_the_groups(kind: str) -> None:
    module, shape = tiny_module(kind, 5)
    images = torch.rand(3, *shape)
    found = l0tre.sensitivity(plain_network(module, shape), images, epsilon=1.0)
    domain = make_domain(shape)
    scores = module(images)
    labels = scores.argmax(1)
    assert found.groups[..., 0].tolist() == [domain.ids.tolist()] * 3
    for row in range(3):
        exact = brute_force(module, images[row], int(labels[row]), domain, [0.0, 1.0])
        for group in range(domain.groups):
            wanted = float(scores[row, labels[row]]) - exact.scores[(group,)]
            assert float(found.drop[row, group]) == pytest.approx(wanted, abs=1e-4)


def test_the_largest_drops_of_pairs_come_first_with_the_inputs_that_attain_them() -> None:
    module, shape = tiny_module("conv1", 6)
    images = torch.rand(2, *shape)
    labels = torch.tensor([1, 2])
    found = l0tre.sensitivity(module, images, labels, t=2, top=4, epsilon=0.5)
    before = module(images).detach()
    domain = make_domain(shape)
    for row in range(2):
        exact = brute_force(module, images[row], int(labels[row]), domain, [0.0, 0.5, 1.0])
        drops = sorted(
            (float(before[row, labels[row]]) - exact.scores[pair] for pair in itertools.combinations(range(6), 2)),
            reverse=True,
        )
        assert found.drop[row].tolist() == pytest.approx(drops[:4], abs=1e-4)
        worst = found.solution(images, row)
        assert worst.shape == (4, *shape)
        after = module(worst)[:, labels[row]]
        assert torch.allclose(before[row, labels[row]] - after, found.drop[row], atol=1e-4)
        assert ((worst != images[row]).flatten(1).sum(1) <= 2).all()


def test_top_works_for_single_groups_too_and_must_be_positive() -> None:
    network = plain_network(nn.Linear(4, 3), (4,))
    found = l0tre.sensitivity(network, torch.rand(1, 4), top=2)
    assert found.drop.shape == (1, 2)
    assert found.drop[0, 0] >= found.drop[0, 1] >= 0
    assert found.unit == "feature"
    with pytest.raises(ConfigError, match="top is 0"):
        l0tre.sensitivity(network, torch.rand(1, 4), top=0)
    with pytest.raises(ConfigError, match="t is 5"):
        l0tre.sensitivity(network, torch.rand(1, 4), t=5)
