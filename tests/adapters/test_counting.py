"""Counts of forward and backward passes are exact."""

import pytest
import torch
from torch import nn

from l0tre.adapters.counting import Counting
from tests.adapters.linear import SHAPE, make_linear


def counted() -> Counting:
    return Counting(make_linear(), torch.device("cpu"), lambda _: None)


@pytest.mark.parametrize(("calls", "batch"), [(1, 1), (3, 4), (5, 2)])
def test_every_sample_of_a_call_counts(calls: int, batch: int) -> None:
    counter = counted()
    for _ in range(calls):
        counter(torch.rand(batch, *SHAPE))
    assert (counter.forwards, counter.backwards) == (calls * batch, 0)


def test_a_backward_pass_counts_once_and_a_second_one_again() -> None:
    counter = counted()
    x = torch.rand(3, *SHAPE, requires_grad=True)
    scores = counter(x)
    scores[:, 0].sum().backward(retain_graph=True)
    assert (counter.forwards, counter.backwards) == (3, 3)
    scores[:, 1].sum().backward()
    assert (counter.forwards, counter.backwards) == (3, 6)


def test_scores_and_gradients_are_those_of_the_network() -> None:
    model, counter = make_linear(), counted()
    x = torch.rand(2, *SHAPE)
    plain, wrapped = x.clone().requires_grad_(), x.clone().requires_grad_()
    assert torch.equal(model(plain), counter(wrapped))
    model(plain).square().sum().backward()
    counter(wrapped).square().sum().backward()
    assert torch.equal(plain.grad, wrapped.grad)  # type: ignore[arg-type]


def test_without_gradients_nothing_counts_backwards() -> None:
    counter = counted()
    with torch.no_grad():
        counter(torch.rand(2, *SHAPE, requires_grad=True))
    assert counter.backwards == 0
    assert next(counter.parameters()).device == torch.device("cpu")


def test_a_caller_can_end_the_attack() -> None:
    def end(counter: Counting) -> None:
        if counter.forwards > 4:
            raise KeyboardInterrupt

    counter = Counting(nn.Flatten(), torch.device("cpu"), end)
    counter(torch.rand(4, *SHAPE))
    with pytest.raises(KeyboardInterrupt):
        counter(torch.rand(1, *SHAPE))
