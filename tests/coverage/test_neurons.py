"""Layers of neurons are found however the source writes its activations."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0tre
from l0tre.coverage.neurons import inner_values, layers_of


class ByFunctions(nn.Module):
    """Activations as functions, as a module used twice, and a clip before any weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 2)
        self.act = nn.ReLU()
        self.one = nn.Linear(8, 3)
        self.two = nn.Linear(3, 4)
        self.three = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv(x.clamp(0, 1)))
        x = self.act(self.one(x.flatten(1)))
        return torch.as_tensor(self.three(F.hardtanh(self.two(x), 0.0, 6.0)))


def test_functions_modules_and_clips_are_layers() -> None:
    torch.manual_seed(0)
    network = l0tre.load(ByFunctions().eval(), input_shape=(1, 3, 3), device="cpu")
    layers = layers_of(network)
    assert [(layer.name, layer.shape, layer.after) for layer in layers] == [
        ("relu1", (2, 2, 2), "conv"),
        ("relu2", (3,), "linear"),
        ("clip1", (4,), "linear"),
    ]
    assert [layer.start for layer in layers] == [0, 8, 11]
    assert layers[0].words(7) == "channel 1, row 1, column 1"
    assert layers[1].words(2) == "2"


def test_values_are_those_of_the_source() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), nn.Sigmoid(), nn.Linear(3, 2))
    network = l0tre.load(module.eval(), input_shape=(1, 3, 3), device="cpu")
    seen: list[Tensor] = []
    for part in (module[1], module[4]):
        part.register_forward_hook(lambda _, __, value: seen.append(value.flatten(1)))
    x = torch.rand(5, 1, 3, 3)
    with torch.inference_mode():
        module(x)
    assert network.exact is not None
    layers = layers_of(network)
    values = inner_values(network.exact, [layer.position for layer in layers], x.double())
    assert [layer.name for layer in layers] == ["relu1", "sigmoid1"]
    for own, wanted in zip(values, seen, strict=True):
        torch.testing.assert_close(own.float(), wanted)
