"""Operations that the importers write as several others, compared with PyTorch, onnxruntime and brute force."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0tre
from l0tre.errors import ModelError
from l0tre.model.compositions import ceil_margins
from l0tre.model.module_import import import_module
from tests.model.onnx_models import Weights, check, integers, node, normal, ops, refused
from tests.model.test_module_import import Function, same_function

IMAGE, SEQUENCE = (3, 8, 7), (2, 11)


def slopes(*values: float) -> nn.PReLU:
    module = nn.PReLU(len(values))
    module.weight.data = torch.tensor(values)
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one slope": (lambda: slopes(0.3), IMAGE),
    "a slope for each channel": (lambda: slopes(0.25, -0.7, 1.4), IMAGE),
    "slopes that 1 - s would round": (lambda: slopes(1e-12, -0.7, 1.4), IMAGE),
    "slopes of a vector": (lambda: nn.Sequential(nn.Linear(6, 3), slopes(0.25, -0.7, 1.4)), (6,)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), IMAGE),
    "transposed with strides": (
        lambda: nn.ConvTranspose2d(3, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
        IMAGE,
    ),
    "transposed and cut": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, padding=2, bias=False), IMAGE),
    "transposed in groups": (lambda: nn.ConvTranspose2d(3, 6, 3, stride=2, groups=3, dilation=2), IMAGE),
    "transposed sequence": (lambda: nn.ConvTranspose1d(2, 3, 4, stride=2, padding=1), SEQUENCE),
    "sequence": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2), SEQUENCE),
    "sequence in groups": (lambda: nn.Conv1d(2, 4, 4, padding="same", groups=2), SEQUENCE),
    "pools of sequences": (
        lambda: nn.Sequential(nn.MaxPool1d(3, 2, padding=1), nn.AvgPool1d(2, padding=1), nn.AdaptiveAvgPool1d(2)),
        SEQUENCE,
    ),
    "adaptive pools of sequences": (lambda: nn.AdaptiveMaxPool1d(1), SEQUENCE),
    "normalised sequence": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), SEQUENCE),
    "ragged maximum": (lambda: nn.MaxPool2d(3, 2, ceil_mode=True), IMAGE),
    "ragged maximum of positive values": (
        lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d((3, 2), 3, padding=1, ceil_mode=True)),
        IMAGE,
    ),
    "ragged maximum with holes": (lambda: nn.MaxPool2d(2, 3, dilation=2, ceil_mode=True), (3, 9, 10)),
    "ragged average": (lambda: nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), (3, 8, 6)),
    "ragged average of pixels": (
        lambda: nn.AvgPool2d((2, 3), 2, padding=(0, 1), ceil_mode=True, count_include_pad=False),
        IMAGE,
    ),
    "uneven average": (lambda: nn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "nearest": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "nearest to a size": (lambda: nn.Upsample(size=(13, 5)), IMAGE),
    "bilinear": (lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), IMAGE),
    "bilinear with corners": (lambda: nn.Upsample(size=(5, 9), mode="bilinear", align_corners=True), IMAGE),
    "bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    "reflection": (lambda: nn.ReflectionPad2d((1, 2, 3, 0)), IMAGE),
    "replication": (lambda: nn.Sequential(nn.ReplicationPad2d((1, 2, 3, 0)), nn.Conv2d(3, 2, 3)), IMAGE),
    "circular": (lambda: nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"), IMAGE),
    "pixel shuffle": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2)), IMAGE),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), (3, 8, 6)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module = make().eval()
    same_function(import_module(module, shape), module, shape)


LINE = torch.linspace(-1, 1, 7)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute": lambda x: x.abs(),
    "larger": lambda x: torch.maximum(x[:, :1], x[:, 1:2]) - torch.max(x[:, :1], x[:, 2:]),
    "smaller": lambda x: torch.minimum(x, 0.3 * x[:, :1]),
    "larger than a constant": lambda x: torch.maximum(x, LINE) - torch.minimum(LINE[:1], x),
    "sum": lambda x: x.sum((1, 3), keepdim=True) + x.sum(-1, keepdim=True),
    "largest of a plane": lambda x: x.amax((2, 3)),
    "parts": lambda x: torch.cat([part * (i + 1) for i, part in enumerate(x.split(3, 2))], 2),
    "parts of sizes": lambda x: x.split([1, 5, 1], 3)[1],
    "chunks": lambda x: torch.maximum(*x[:, :2].chunk(2, 1)),
    "one of them": lambda x: torch.stack([x[:, 1] + x[:, -1], x[:, 0] - x[:, :, 2].sum(1, keepdim=True)], 1),
    "unbound and stacked": lambda x: torch.stack(list(x.unbind(1))[::-1], 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function = FUNCTIONS[name]
    module = Function(lambda x, _: function(x))
    same_function(import_module(module, IMAGE), module, IMAGE)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, _: F.adaptive_max_pool2d(x, 3), "evenly"),
        (lambda x, _: F.avg_pool2d(x, 3, divisor_override=2), "divisor_override"),
        (lambda x, _: x.sum(0, keepdim=True) + x, "batch"),
        (lambda x, _: x.amax(1), "rows and columns"),
        (lambda x, _: torch.maximum(x, x.mean((1, 2))), "shapes"),
        (lambda x, _: torch.stack([x, x]).sum(0), "batch"),
    ],
)
def test_what_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        import_module(Function(function), IMAGE)


FILES: list[tuple[Any, tuple[int, ...], Weights]] = [
    (node("PRelu", "x w"), (3, 4, 5), {"w": normal(3, 1, 1)}),
    (node("PRelu", "x w"), (6,), {"w": normal(1)}),
    (node("Abs"), (6,), {}),
    (node("Max", "x v w"), (6,), {"v": normal(1, 6), "w": normal(1)}),
    (node("Min", "w x"), (6,), {"w": normal(6)}),
    (node("Conv", "x w b", strides=(2,), pads=(1, 2), dilations=(2,)), (2, 9), {"w": normal(4, 2, 3), "b": normal(4)}),
    (node("MaxPool", kernel_shape=(3,), strides=(2,), pads=(1, 0)), (2, 9), {}),
    (node("AveragePool", kernel_shape=(2,), strides=(2,), ceil_mode=1), (2, 9), {}),
    (node("MaxPool", kernel_shape=(2, 3), strides=(2, 2), ceil_mode=1), (2, 7, 6), {}),
    (node("AveragePool", kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1), (2, 7, 5), {}),
    (
        node("ConvTranspose", "x w b", strides=(2, 1), pads=(1, 0, 0, 1), output_padding=(1, 0)),
        (2, 4, 5),
        {"w": normal(2, 3, 3, 2), "b": normal(3)},
    ),
    (node("ConvTranspose", "x w", strides=(2,)), (2, 5), {"w": normal(2, 2, 3)}),
    (node("MaxPool", kernel_shape=(2,), strides=(3,), ceil_mode=1, pads=(1, 1)), (2, 7), {}),
    (node("DepthToSpace", blocksize=2), (8, 2, 3), {}),
    (node("DepthToSpace", blocksize=2, mode="CRD"), (8, 2, 3), {}),
    (node("Pad", "x w", mode="reflect"), (2, 4, 5), {"w": integers(0, 0, 1, 2, 0, 0, 3, 0)}),
    (node("Pad", "x w", mode="edge"), (2, 4, 5), {"w": integers(0, 0, 1, 2, 0, 0, 3, 0)}),
    (node("ReduceSum", "x w", keepdims=0), (2, 4, 5), {"w": integers(1, 3)}),
    (node("ReduceMax", axes=(2, 3), keepdims=0), (2, 4, 5), {}),
    (node("Gather", "x w", axis=1), (4, 5), {"w": integers(0, 2)}),
    (node("Gather", "x w", axis=2), (4, 5), {"w": integers(-1)[0]}),
    (
        node("Resize", "x _ s", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        (2, 3, 4),
        {"s": normal(4) * 0 + [1, 1, 2, 3]},
    ),
    (
        node("Resize", "x _ _ s", mode="linear", coordinate_transformation_mode="align_corners"),
        (2, 3, 4),
        {"s": integers(1, 2, 5, 7)},
    ),
    (node("Resize", "x _ _ s", mode="linear"), (2, 3, 4), {"s": integers(1, 2, 6, 4)}),
]


@pytest.mark.parametrize(("last", "shape", "weights"), FILES, ids=[str(last.op_type) for last, _, _ in FILES])
def test_onnx(last: Any, shape: tuple[int, ...], weights: Weights) -> None:
    weights = {key: value if value.dtype.kind == "i" else value.astype("float32") for key, value in weights.items()}
    check([last], shape, weights)


def test_splits_of_onnx() -> None:
    from onnx import helper

    split = helper.make_node("Split", ["x", "w"], ["a", "b", "c"], name="split", axis=1)
    graph = check([split, node("Concat", "c a b a", axis=1)], (6, 2), {"w": integers(1, 3, 2)})
    assert ops(graph).count("slice") == 3
    even = helper.make_node("Split", ["x"], ["a", "b"], name="split", axis=-1)
    check([even, node("Max", "a b")], (6, 4))


REFUSED: list[tuple[Any, tuple[int, ...], Weights, str]] = [
    (node("ConvTranspose", "x w", auto_pad="SAME_UPPER"), (2, 4, 4), {"w": normal(2, 1, 3, 3)}, "auto_pad"),
    (node("Resize", "x _ s", mode="cubic"), (2, 3, 4), {"s": normal(4)}, "only what PyTorch exports"),
    (node("ReduceSum"), (6,), {}, "across the samples"),
    (node("ReduceMax", axes=(1,)), (2, 3, 4), {}, "rows and columns"),
    (node("Gather", "x w", axis=1), (6,), {"w": integers(0, 1, 3)}, "equal distances"),
    (node("Gather", "x w", axis=0), (6,), {"w": integers(0)}, "axis 0"),
]


@pytest.mark.parametrize(("last", "shape", "weights", "reason"), REFUSED)
def test_onnx_refused(last: Any, shape: tuple[int, ...], weights: Weights, reason: str) -> None:
    assert reason in refused([last], shape, weights)


def test_sizes_that_are_rounded_up_are_those_of_torch() -> None:
    for size, kernel, stride, dilation in itertools.product(range(3, 9), (1, 2, 3), (1, 2, 3, 4), (1, 2)):
        for padding in range(kernel // 2 + 1):
            if size + 2 * padding <= dilation * (kernel - 1):
                continue
            x = torch.zeros(1, 1, 1, size)
            wanted = nn.MaxPool2d((1, kernel), (1, stride), (0, padding), (1, dilation), ceil_mode=True)(x).shape[3]
            more = ceil_margins(size, kernel, stride, (padding, padding), dilation)
            assert (size + 2 * padding + more - dilation * (kernel - 1) - 1) // stride + 1 == wanted


PROVED: dict[str, Callable[[], nn.Module]] = {
    "slopes": lambda: nn.Sequential(nn.Conv2d(1, 2, 2), slopes(0.25, -0.3), nn.Flatten(), nn.Linear(18, 3)),
    "transposed": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, stride=2), nn.Flatten(), nn.Linear(16, 3)
    ),
    "ragged maximum": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.MaxPool2d(2, 2, ceil_mode=True), nn.Flatten(), nn.Linear(8, 3)
    ),
    "sequence": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(21, 3)
    ),
    "uneven average": lambda: nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(27, 3)
    ),
    "absolute values": lambda: Absolute(),
}


class Absolute(nn.Module):
    """A network of absolute values and maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Its scores."""
        one, other = self.first(x.flatten(1)).chunk(2, 1)
        found: Tensor = self.last(torch.maximum(one.abs(), other))
        return found


@pytest.mark.parametrize("name", PROVED)
def test_proofs_agree_with_brute_force_and_the_checker(name: str, tmp_path: Path) -> None:
    """A network is shifted until its margin is just below, and just above, what one pixel can take from it."""
    torch.manual_seed(1)
    module = PROVED[name]().eval().requires_grad_(False)
    image = torch.rand(1, 4, 4)
    grid = torch.linspace(0, 1, 41)
    changed = image.repeat(16, 41, 1, 1).reshape(16, 41, 1, 16)
    for pixel in range(16):
        changed[pixel, :, 0, pixel] = grid
    scores = module(changed.reshape(-1, 1, 4, 4)).double()
    label = int(module(image[None]).argmax())
    rivals = [c for c in range(3) if c != label]
    worst = (scores[:, [label]] - scores[:, rivals]).min().item()
    final = next(part for part in list(module.modules())[::-1] if isinstance(part, nn.Linear))
    for shift, answer in ((-worst + 0.05, "safe"), (-worst - 1e-3, "unsafe")):
        assert final.bias is not None
        final.bias[label] += shift
        network = l0tre.load(module, input_shape=(1, 4, 4))
        file = tmp_path / f"{answer}.l0cert"
        verdict = l0tre.verify(
            network, image, label, radius=1, guarantee="certified", certificate=file, attack_queries=200
        )
        if int(module(image[None]).argmax()) == label:
            assert verdict.answer == answer
        if answer == "safe":
            assert l0tre.check(file, network, image).margin > 0
        final.bias[label] -= shift
