"""Differences in boxes against whole forward passes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import l0tre
from l0tre.locality import fused
from l0tre.locality.differences import FLOAT32, Precision, boxes, make_differences, output_change, row_bytes
from l0tre.locality.local_part import Span
from l0tre.locality.own_padding import pad_inside
from l0tre.model.graph import Graph, run


def _network(seed: int) -> Graph:
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)

    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), (1,), generator=random))]

    curves: list[nn.Module] = [nn.ReLU(), nn.SiLU(), nn.ReLU6(), nn.LeakyReLU(0.3), nn.Hardswish()]
    layers: list[nn.Module] = []
    channels = 2
    for _ in range(3):
        kernel = pick(1, 2, 3, 5)
        layers.append(nn.Conv2d(channels, 4, kernel, stride=pick(1, 2), padding=pick(0, kernel // 2), dilation=1))
        layers.append(curves[pick(0, 1, 2, 3, 4)])
        channels = 4
        if pick(0, 1):
            layers.append(nn.MaxPool2d(2, 1, 1) if pick(0, 1) else nn.AvgPool2d(3, 1, 1))
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    network = l0tre.load(module, input_shape=(2, 13, 11), device="cpu")
    assert network.graph is not None
    return network.graph


GRAPHS = [_network(seed) for seed in range(4)]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(GRAPHS), st.integers(0, 12), st.integers(0, 10), st.integers(1, 6), st.booleans())
def test_any_box_gives_what_whole_passes_give(graph: Graph, row: int, column: int, side: int, even: bool) -> None:
    generator = torch.Generator().manual_seed(row + 13 * column)
    image = torch.rand(2, 13, 11, generator=generator)
    box = (Span(row, min(row + side - 1, 12)), Span(column, min(column + side - 1, 10)))
    change = torch.randn(3, 2, box[0].size, box[1].size, generator=generator)
    around = make_differences(graph, image, FLOAT32)
    where = boxes(around.graph, box, even=even)
    assert row_bytes(around.graph, where, FLOAT32) > 0
    found = output_change(around, change, where)
    changed = image.repeat(3, 1, 1, 1)
    changed[:, :, box[0].first : box[0].last + 1, box[1].first : box[1].last + 1] += change
    with torch.inference_mode():
        want = run(graph, changed) - run(graph, image[None])
    torch.testing.assert_close(found, want, rtol=1e-4, atol=2e-6)


def test_differences_know_small_changes_that_scores_have_lost() -> None:
    graph, image = GRAPHS[0], torch.rand(2, 13, 11, generator=torch.Generator().manual_seed(0))
    box = (Span(6, 6), Span(5, 5))
    change = torch.full((1, 2, 1, 1), 1e-6)
    found = output_change(make_differences(graph, image, FLOAT32), change, boxes(graph, box))
    exact = graph.to("cpu", torch.float64)
    moved = image.double()[None].clone()
    moved[:, :, 6, 5] += change[0, :, 0, 0].double()
    want = run(exact, moved) - run(exact, image.double()[None])
    torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-13)


class Twice(nn.Module):
    """What a convolution gives is read before and after a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.as_tensor(self.last((y + 2 * torch.relu(y)).mean((2, 3))))


def test_what_is_read_again_stays_as_it_is() -> None:
    torch.manual_seed(0)
    graph = l0tre.load(Twice().eval(), input_shape=(1, 6, 6), device="cpu").graph
    assert graph is not None
    image, change = torch.rand(1, 6, 6), torch.randn(3, 1, 6, 6)
    found = output_change(make_differences(graph, image, FLOAT32), change, boxes(graph, None))
    torch.testing.assert_close(found, run(graph, image + change) - run(graph, image[None]), rtol=1e-4, atol=1e-6)


def test_zeros_around_maps_are_left_to_convolutions() -> None:
    torch.manual_seed(0)
    even, odd, other = nn.ZeroPad2d((2, 2, 1, 1)), nn.ZeroPad2d((0, 1, 1, 1)), nn.ConstantPad2d(1, 0.5)
    layers = [even, nn.Conv2d(2, 3, (3, 5), padding=(1, 0)), nn.ReLU(), odd, nn.Conv2d(3, 4, 3, stride=2), other]
    module = nn.Sequential(*layers, nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    graph = l0tre.load(module, input_shape=(2, 9, 8), device="cpu").graph
    assert graph is not None
    merged = pad_inside(graph)
    assert [operation.kind for operation in merged.operations].count("pad") == 2
    x = torch.rand(3, 2, 9, 8)
    torch.testing.assert_close(run(merged, x), run(graph, x))
    around, box = make_differences(graph, x[0], FLOAT32), (Span(0, 1), Span(6, 7))
    change = torch.randn(4, 2, 2, 2)
    changed = x[:1].repeat(4, 1, 1, 1)
    changed[:, :, :2, 6:] += change
    found = output_change(around, change, boxes(around.graph, box))
    torch.testing.assert_close(found, run(graph, changed) - run(graph, x[:1]), rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_give_what_torch_gives() -> None:
    assert fused.works(torch.device("cuda"))


def test_scaled_half_precision_keeps_the_share_of_a_change() -> None:
    # Products of matrices in half precision work on a CPU too, and so does all that is scaled around them.
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 2)).eval()
    graph = l0tre.load(module, input_shape=(6,), device="cpu").graph
    assert graph is not None
    image, change = torch.rand(6), 1e-3 * torch.randn(50, 6)
    where = boxes(graph, None)
    exact = output_change(make_differences(graph, image, FLOAT32), change, where)
    half = output_change(make_differences(graph, image, Precision(torch.float16, 256.0)), change, where)
    error = (half - exact).abs() / (exact.abs() + exact.abs().median())
    assert float(error.max()) < 0.02
    assert float(error.max()) > 0
