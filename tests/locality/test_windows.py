"""Convolutions of windows: in float64 by one product for each place of the kernel."""

import pytest
import torch
import torch.nn.functional as F

from l0tre.locality import windows


@pytest.mark.parametrize("dilation", [(1, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (3, 2)])
def test_what_inputs_spread_is_a_transposed_convolution(kernel: tuple[int, int], dilation: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 5, 2, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 6, *kernel, generator=generator, dtype=torch.float64)
    found = windows._spread(x, weight.permute(2, 3, 0, 1), dilation=dilation)
    assert torch.allclose(found, F.conv_transpose2d(x, weight, dilation=dilation), rtol=0, atol=1e-12)
