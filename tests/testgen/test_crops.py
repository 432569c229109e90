"""Neurons computed from windows have the values, and the gradients, of whole passes."""

import pytest
import torch
from torch import nn

import l0tre
from l0tre.coverage.neurons import layers_of
from l0tre.testgen.goals import make_goals

CASES = {
    "plain": lambda: [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2), nn.ReLU()],
    "padded": lambda: [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2, padding=1), nn.ReLU()],
    "strided": lambda: [nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ELU()],
    "normed": lambda: [
        nn.Conv2d(2, 3, 2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 2, 2),
        nn.ReLU(),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_windows_give_what_whole_passes_give(case: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*CASES[case](), nn.Flatten(), nn.LazyLinear(2))
    module(torch.rand(4, 2, 9, 9))
    network = l0tre.load(module.eval(), input_shape=(2, 9, 9), device="cpu")
    assert network.exact is not None
    layers = layers_of(network)
    count = sum(layer.size for layer in layers)
    goals = make_goals(network.exact, layers, torch.zeros(count, dtype=torch.float64), network.device)
    x = torch.rand(count, 162)
    whole = goals.excess(x).diagonal()
    for target in goals.targets:
        assert target.crop is not None
        assert 0 < goals.share(target) < 1
        place = target.layer.place
        rows = x[place].clone().requires_grad_()
        own = goals.own_excess(target, rows, torch.arange(place.start, place.stop))
        torch.testing.assert_close(own.detach(), whole[place], rtol=1e-4, atol=1e-5)
        (slope,) = torch.autograd.grad(own.sum(), rows)
        again = x[place].clone().requires_grad_()
        (wanted,) = torch.autograd.grad(goals.excess(again)[:, place].diagonal().sum(), again)
        torch.testing.assert_close(slope, wanted, rtol=1e-4, atol=1e-5)
