"""Coverage as an assertion, and measured from the forms that data has."""

import numpy as np
import pytest
import torch
from torch import nn

import l0tre
from l0tre.errors import ConfigError, DataError
from l0tre.testing import assert_coverage


def network() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    layer.weight.data, layer.bias.data = torch.eye(2), torch.tensor([0.0, -0.5])
    return module.eval()


X = torch.tensor([[0.9, 0.2], [0.1, 0.2]])


def test_enough_coverage_gives_the_figures() -> None:
    figures = assert_coverage(network(), X, neuron=0.5, top_k=0.5, k=1)
    assert (figures["neuron"].share, figures["top-k"].share) == (0.5, 0.5)


def test_too_little_coverage_says_what_was_counted() -> None:
    with pytest.raises(AssertionError, match=r"below neuron 95 %: neuron 50.00 % \(1 of 2 neurons; value above 0"):
        assert_coverage(network(), X.numpy(), neuron=0.95)


def test_a_criterion_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"top_k=0\.9"):
        assert_coverage(network(), X)


def test_ranges_come_from_other_inputs() -> None:
    figure = l0tre.measure_coverage(network(), np.ones((1, 2)), criteria=["strong"], ranges=X)["strong"]
    assert (figure.covered, figure.total) == (2, 2)
    assert "ranges of 2 inputs of array" in figure.definition
    with pytest.raises(DataError, match="at least one"):
        l0tre.measure_coverage(network(), np.zeros((0, 2)))
