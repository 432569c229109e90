"""Curves and slices as PyTorch and ONNX write them, compared with the sources."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import ModelError
from l0tre.model.graph import run
from l0tre.model.module_import import import_module

torch.manual_seed(0)
CURVES: list[tuple[nn.Module, str]] = [
    (nn.ELU(0.7), "elu"),
    (nn.SELU(), "elu"),
    (nn.Softplus(), "softplus"),
    (nn.Softplus(beta=2.5, threshold=40), "softplus"),
    (nn.SiLU(), "silu"),
    (nn.GELU(), "gelu"),
    (nn.GELU("tanh"), "gelu_tanh"),
    (nn.Hardswish(), "hard_swish"),
    (nn.Hardsigmoid(), "clip"),
]


@pytest.mark.parametrize(("module", "kind"), CURVES, ids=[str(module) for module, _ in CURVES])
def test_modules_become_curves(module: nn.Module, kind: str) -> None:
    graph = import_module(module, (7,))
    assert kind in [operation.kind for operation in graph.operations]
    x = torch.randn(40, 7, dtype=torch.float64) * 6
    torch.testing.assert_close(run(graph, x), module(x), rtol=1e-14, atol=1e-14)


class Written(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        found: Tensor = self.function(x)
        return found


SLICES: list[Any] = [
    lambda x: x[:, :, ::2, ::2],
    lambda x: x[:, 1:, 1:-1, 2::3],
    lambda x: x[:, :, 1:][:, :, ::2][:, :, :, 1::2],
    lambda x: x[:, -1:, :, -4:-1],
]


@pytest.mark.parametrize("function", SLICES)
def test_slices_are_one_operation(function: Any) -> None:
    graph = import_module(Written(function), (3, 8, 9))
    assert [operation.kind for operation in graph.operations] == ["input", "slice"]
    x = torch.randn(2, 3, 8, 9, dtype=torch.float64)
    assert torch.equal(run(graph, x), function(x))


def test_a_value_times_its_sigmoid_is_a_silu() -> None:
    for function in (lambda x: x * torch.sigmoid(x), lambda x: torch.sigmoid(x) * x):
        graph = import_module(Written(function), (5,))
        assert [operation.kind for operation in graph.operations] == ["input", "silu"]
    other = import_module(Written(lambda x: (x + 1) * torch.sigmoid(x)), (5,))
    assert other.operations[-1].kind == "mul"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x[:1], "batch"),
        (lambda x: x[:, 5:], "leaves nothing"),
        (lambda x: nn.functional.softplus(x, threshold=3.0), "threshold"),
    ],
)
def test_what_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        import_module(Written(function), (5,))


def test_a_shortcut_without_weights_is_certified_and_checked(tmp_path: Any) -> None:
    """As in residual networks for CIFAR: every second pixel, and channels of zeros."""

    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 4, 3, stride=2, padding=1)
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).relu()
            padded = nn.functional.pad(y[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1))
            found: Tensor = self.head(nn.functional.silu(self.second(y) + padded).flatten(1))
            return found

    module, image = Shortcut().eval(), torch.rand(1, 4, 4)
    with torch.no_grad():
        module.head.bias[int(module(image[None]).argmax())] += 2.0
    network = l0tre.load(module, input_shape=(1, 4, 4))
    verdict = l0tre.verify(network, image, radius=2, guarantee="certified", certificate=tmp_path / "c.l0cert")
    assert verdict.answer == "safe"
    certificate = l0tre.read_certificate(tmp_path / "c.l0cert")
    assert l0tre.check(certificate, network, image, l0tre.make_domain((1, 4, 4))).margin > 0
