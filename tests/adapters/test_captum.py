"""Our attribution with captum's interface."""

import pytest
import torch
from torch import nn

import l0tre
from l0tre.adapters.captum import L0Sensitivity
from l0tre.errors import ConfigError

attr = pytest.importorskip("captum.attr")


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).eval()


def test_it_is_a_method_of_captum(module: nn.Module) -> None:
    inputs = torch.rand(2, 1, 6, 6)
    method = L0Sensitivity(module, device="cpu")
    assert isinstance(method, attr.PerturbationAttribution)
    assert isinstance(method, L0Sensitivity)
    found = method.attribute(inputs, target=torch.tensor([0, 2]))
    assert found.shape == inputs.shape
    torch.testing.assert_close(found, l0tre.saliency(module, inputs, [0, 2], device="cpu"))
    torch.testing.assert_close(
        method.attribute(inputs, 1, perturbations_per_eval=4), method.attribute(inputs, target=1)
    )


def test_one_black_window_is_occlusion(module: nn.Module) -> None:
    # With black as the only other value, the worst value of a pixel is captum's occlusion of one pixel.
    image = torch.rand(1, 1, 6, 6).clamp(min=0.1)
    occlusion = attr.Occlusion(module).attribute(image, target=1, sliding_window_shapes=(1, 1, 1), baselines=0.0)
    found = L0Sensitivity(module, device="cpu").attribute(image, 1, domain=l0tre.make_domain((1, 6, 6)))
    assert bool((found >= occlusion - 1e-6).all())
    low = L0Sensitivity(module, low=0.0, high=float(image.max()), device="cpu").attribute(image, 1)
    assert bool((low >= occlusion - 1e-6).all())


def test_several_tensors_are_refused(module: nn.Module) -> None:
    with pytest.raises(ConfigError, match="give one tensor"):
        L0Sensitivity(module, device="cpu").attribute((torch.rand(1, 1, 6, 6),), 0)  # type: ignore[arg-type]
