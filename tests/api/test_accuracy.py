import warnings

import pytest
import torch
from torch import nn

import l0tre
from l0tre.evaluation.accuracy import classified, doubt
from tests.tools import NO_ATTACK


class First(nn.Module):
    """Class 1 where the first value is above a half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, 0] * 0 + 0.5, x[:, 0]], 1)


def rows(right: int, wrong: int) -> tuple[torch.Tensor, list[int]]:
    images = torch.full((right + wrong, 2), 0.9)
    return images, [1] * right + [0] * wrong


def test_few_correct_decisions_are_doubtful() -> None:
    with pytest.warns(l0tre.L0treWarning, match="only 2 of 3 inputs correctly") as caught:
        l0tre.evaluate(First(), *rows(2, 1), max_t=1, **NO_ATTACK)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("right", "wrong"), [(7, 3), (3, 0)])
def test_enough_correct_decisions_are_not(right: int, wrong: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", l0tre.L0treWarning)
        result = l0tre.evaluate(First(), *rows(right, wrong), max_t=1, **NO_ATTACK)
    assert result.config["data"]["labelled"] is True


def test_words() -> None:
    assert classified(2, 3) == "classified correctly: 2 of 3 (66.7%)"
    assert "no labels" in classified(3, 3, labelled=False)
    assert doubt(7, 10) == ""
    assert "`scale`" in doubt(6, 10)


def test_8_bit_values_and_a_domain_in_their_units_need_a_stated_scale() -> None:
    images = torch.tensor([[230, 0]], dtype=torch.uint8)
    domain = l0tre.make_domain((2,), high=255)
    for call in (
        lambda: l0tre.evaluate(First(), images, domain=domain),
        lambda: l0tre.verify(First(), images, domain=domain, radius=1),
        lambda: l0tre.attack(First(), images, high=255),
    ):
        with pytest.raises(l0tre.L0treError, match="`scale=1`"):
            call()
    stated = l0tre.data.from_arrays(images, scale=1)
    assert l0tre.evaluate(First(), stated, domain=domain, max_t=1, **NO_ATTACK)[0].label == 1
