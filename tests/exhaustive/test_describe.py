import torch
from torch import nn

import l0tre
from l0tre.domain import make_domain
from l0tre.exhaustive.describe import Description, describe
from l0tre.exhaustive.scanner import choose_engine
from l0tre.grid import make_grid


def _describe(module: nn.Module, shape: tuple[int, ...]) -> Description:
    network = l0tre.load(module, input_shape=shape, device="cpu")
    domain = make_domain(shape)
    return describe(choose_engine(network, domain, make_grid(domain, 1.0)))


def test_windows_and_receptive_fields_of_a_small_network() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2)]
    found = _describe(nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 36, 3)), (1, 16, 16))
    assert found.windows
    assert found.levels == (1, 2, 3)
    assert [layer.window for layer in found.layers] == [(1, 1), (3, 3), (3, 3), (5, 5), (5, 5), (3, 3)]
    assert [layer.field for layer in found.layers] == [(1, 1), (3, 3), (3, 3), (5, 5), (5, 5), (6, 6)]
    assert found.layers[-1].stride == 2
    assert found.layers[-1].share == 9 / 36
    whole = 4 * 9 * 14 * 14 + 6 * 4 * 9 * 12 * 12 + 6 * 36 * 3
    windows = 4 * 9 * 9 + 6 * 4 * 9 * 25 + 6 * 9 * 3
    assert abs(found.saving - whole / windows) < 1e-6


def test_forward_passes_are_explained() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 9, padding=4), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 64, 3))
    found = _describe(module, (1, 8, 8))
    assert not found.windows
    assert "mixes all positions" in found.reason
    assert found.saving == 1
    assert found.layers == ()


def test_a_network_that_needs_the_whole_map_uses_windows_for_single_pixels() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 9), nn.ReLU(), nn.Flatten()]
    found = _describe(nn.Sequential(*layers, nn.Linear(4 * 36, 3)), (1, 16, 16))
    assert found.levels == (1,)
    assert "whole map" in found.reason
    assert found.saving > 1
