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


def test_columns_of_any_scale_get_as_many_values_as_in_an_evaluation() -> None:
    seen: list[int] = []

    def scores(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return torch.stack([x.sum(1), 20000 - x.sum(1)], 1)

    domain = make_domain((2,), low=torch.tensor([0.0, 0.0]), high=torch.tensor([18424.0, 2.0]))
    found = l0tre.sensitivity(scores, torch.tensor([[1000.0, 1.0]]), domain=domain)
    assert found.drop.shape == (1, 2)
    assert sum(seen) < 200  # a spacing of 0.25 means 73,697 values of the first column
    assert float(l0tre.sensitivity(scores, torch.tensor([[1000.0, 1.0]]), domain=domain, points=2).drop.max()) > 0


def test_what_is_known_when_the_time_is_over_is_kept() -> None:
    shape, weights = (64,), torch.linspace(-1, 1, 64)

    def module(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x @ weights, x.sum(1)], 1)

    images = torch.rand(2, *shape)
    whole = l0tre.sensitivity(module, images)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    part = l0tre.sensitivity(module, images, memory_bytes=2**14, stop=stop)
    known = ~part.drop.isnan()
    assert 0 < part.share < 1
    assert known.any()
    assert not known.all()
    assert torch.allclose(part.drop[known], whole.drop[known], atol=1e-5)
    assert torch.equal(part.groups, whole.groups)
    unknown = ~known[0]
    assert torch.equal(part.solution(images, 0)[unknown], images[0].expand(int(unknown.sum()), *shape))
    none = l0tre.sensitivity(module, images, time_budget=0.0, t=2, top=3)
    assert none.share == 0
    assert none.drop.isnan().all()
