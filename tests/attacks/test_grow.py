"""Groups that are added one by one, where a linear model promises more of many than comes true."""

import torch
from torch import Tensor, nn

from l0tre.api.attack import attack_details
from l0tre.attacks.grow import grow
from l0tre.attacks.meter import Meter
from l0tre.attacks.saliency import descend
from l0tre.attacks.task import AttackTask
from l0tre.domain import make_domain
from l0tre.objective import AllRivals
from tests.tools import plain_network

SHAPE = (1, 6, 6)
LURES, REAL = range(5, 11), (20, 33)


class Saturated(nn.Module):
    """Some values have steep slopes but come to little together; two others have gentle ones that go all the way."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        lures = 0.3 * torch.tanh(20 * flat[:, list(LURES)].sum(1))
        lead = 1 - lures - 0.6 * flat[:, list(REAL)].sum(1)
        return torch.stack([lead, torch.zeros_like(lead)], 1)


def start(count: int = 2) -> tuple[Meter, AttackTask]:
    images, domain = torch.zeros(count, 36), make_domain(SHAPE)
    task = AttackTask(images, AllRivals(torch.zeros(count, dtype=torch.int64)), domain, torch.ones(count).long())
    return Meter(plain_network(Saturated(), SHAPE, sample_bytes=2**10), count, 2**24), task


def test_groups_are_added_by_what_they_do_and_not_by_what_they_promise() -> None:
    meter, task = start()
    best = task.images.clone()
    grow(meter, task, best, torch.tensor([1]), torch.tensor([100, 100]))
    assert not bool(best[0].any())
    assert sorted(best[1].nonzero()[:, 0].tolist()) == list(REAL)
    # Two steps of a gradient and eight candidates.
    assert meter.forwards.tolist() == [0, 18]
    assert meter.backwards.tolist() == [0, 2]


def test_no_more_is_spent_than_given_and_no_input_gets_larger() -> None:
    for limit in range(0, 24, 3):
        meter, task = start()
        best = task.images.clone()
        best[0, list(REAL)] = 1.0
        known = best[0].clone()
        grow(meter, task, best, torch.arange(2), torch.tensor([100, limit]))
        assert torch.equal(best[0], known)
        assert int(meter.spent[1]) <= limit
        assert bool(best[1].any()) == (limit >= 20)


def test_descent_for_some_images_leaves_the_others_alone() -> None:
    meter, task = start(3)
    best = task.images.clone()
    descend(meter, task, best, torch.tensor([1]), torch.tensor([100, 80, 100]))
    assert best.any(1).tolist() == [False, True, False]
    assert meter.spent[[0, 2]].tolist() == [0, 0]
    assert 2 <= int(meter.spent[1]) <= 80


def test_the_attack_notices_that_linear_models_promise_too_much() -> None:
    result = attack_details(plain_network(Saturated(), SHAPE), torch.zeros(1, *SHAPE), budget=60)
    assert result.distance.tolist() == [2]
