"""Captum's attributions of a linear network on colour images, which are known in closed form."""

import pytest
import torch
from torch import nn

import l0tre
from l0tre.studies.attributions import METHODS, attribute


@pytest.mark.parametrize("method", METHODS)
def test_attributions_of_a_linear_network_are_weights_times_values(method: str) -> None:
    pytest.importorskip("captum")
    torch.manual_seed(0)
    linear = nn.Linear(3 * 4 * 4, 5)
    network = l0tre.load(nn.Sequential(nn.Flatten(), linear), input_shape=(3, 4, 4), device="cpu")
    image = torch.rand(3, 4, 4)
    found, _ = attribute(network, image, 2, method)
    values = linear.weight[2].detach().reshape(3, 4, 4) * image
    expected = values if method == "integrated gradients" else values.sum(0, keepdim=True).expand(3, 4, 4)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
