"""Proofs as part of an evaluation: stopping inside a step, guarantees and their reasons, ties, several images."""

from pathlib import Path

import pytest
import torch
from torch import nn

import l0tre
from l0tre.certify import route
from l0tre.errors import ConfigError, ModelError
from tests.certify.oracle import exact_distance
from tests.certify.random_networks import planted, random_case


def small() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def test_a_step_that_is_halted_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    whole = l0tre.evaluate(small(), images, max_t=2)
    assert whole.finished
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3  # the witness search has its turns first

    monkeypatch.setattr(route, "HALT_SECONDS", -1.0)
    halted = l0tre.evaluate(small(), images, max_t=2, stop=stop, out=tmp_path / "run")
    assert not halted.finished
    monkeypatch.undo()
    resumed = l0tre.resume(tmp_path / "run", small())
    assert resumed.finished
    assert [(i.lower, i.upper) for i in resumed.images] == [(i.lower, i.upper) for i in whole.images]


def test_planted_pairs_are_found_and_single_pixels_proved() -> None:
    case = planted((2, 9), (0.3, 0.8))
    result = l0tre.evaluate(case.network, case.image[None], [case.label], max_t=2, domain=case.domain)
    bounds = result.images[0]
    assert (bounds.lower, bounds.guarantee) == (1, "certified")
    assert bounds.upper == 2
    verdict = l0tre.verify(case.network, case.image, case.label, radius=2, domain=case.domain)
    assert verdict.answer == "unsafe"
    assert verdict.witness is not None
    assert set(verdict.witness.groups) == {2, 9}


@pytest.mark.parametrize("seed", range(0, 39, 3))
def test_evaluations_agree_with_exact_distances(seed: int) -> None:
    case = random_case(seed)
    if case.kind in ("sigmoid", "tanh"):
        pytest.skip("no exact distance of smooth networks")
    most = min(2, case.domain.groups)
    result = l0tre.evaluate(
        case.network, case.image[None], [case.label], max_t=most, domain=case.domain, time_budget=20.0
    )
    bounds = result.images[0]
    distance = exact_distance(case.graph, case.image, case.label, case.domain, most)
    assert bounds.guarantee == "certified"
    assert bounds.lower < distance
    assert bounds.witness is None or bounds.upper >= distance
    if result.finished and not bounds.blocked:
        assert bounds.lower == min(distance - 1, most)


def test_auto_says_why_it_is_a_grid() -> None:
    result = l0tre.evaluate(lambda x: torch.stack([x.sum(1), 1 - x.sum(1)], 1), torch.full((1, 3), 0.9), max_t=1)
    assert result.images[0].guarantee == "grid"
    assert "cannot be certified" in result.config["guarantee"]["note"]
    with pytest.raises(ModelError, match="certified guarantee"):
        l0tre.evaluate(lambda x: torch.stack([x.sum(1), 1 - x.sum(1)], 1), torch.rand(1, 3), guarantee="certified")


def test_products_of_variables_are_refused_by_name() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.last(x * x.relu())
            return scores

    with pytest.raises(ModelError, match=r"mul .*cannot be bounded; supported: conv, linear"):
        l0tre.evaluate(Product(), torch.rand(1, 4), guarantee="certified")


def test_a_certificate_that_cannot_be_written_is_refused_before_the_proof(tmp_path: Path) -> None:
    def never() -> bool:
        raise AssertionError("the proof has begun")

    for place in (tmp_path, tmp_path / "nowhere" / "x.l0cert"):
        with pytest.raises(ConfigError, match="cannot be written"):
            l0tre.verify(small(), torch.rand(1, 4, 4), radius=1, certificate=place, stop=never)


def test_lipschitz_is_for_two_groups_at_most_and_proves_on_a_fine_grid() -> None:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ConfigError, match="at most 2 groups"):
        l0tre.evaluate(small(), images, max_t=3, guarantee="lipschitz")
    certified = l0tre.evaluate(small(), images, max_t=1, guarantee="certified")
    fine = l0tre.evaluate(small(), images, max_t=1, guarantee="lipschitz", epsilon=0.002)
    assert all(a.lower <= b.lower for a, b in zip(fine.images, certified.images, strict=True))
    assert sum(i.lower for i in fine.images) > 0
    assert {i.guarantee for i in fine.images} == {"lipschitz"}


def test_a_network_that_only_ties_is_never_proved() -> None:
    net = nn.Linear(2, 2)
    net.weight.data = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    net.bias.data = torch.tensor([1.0, 0.0])  # a tie at x = 1, no flip anywhere
    result = l0tre.evaluate(net, torch.zeros(1, 2), max_t=1)
    assert result.images[0].lower == 0
    assert result.images[0].blocked == 1
