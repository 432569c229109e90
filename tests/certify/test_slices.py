"""Slices in windows: the prover's and the checker's rows, and changes carried by windows, against whole passes."""

import pytest
import torch
from torch import Tensor, nn

from l0tre.certify.checker.layers import make_layers
from l0tre.certify.checker.rows import carry as check_carry
from l0tre.certify.checker.rows import carry_windows
from l0tre.certify.relax.crown import carry, carry_window, neuron_rows, window_rows
from l0tre.certify.relax.plan import make_plan
from l0tre.certify.relax.relaxation import Relaxation
from l0tre.domain import make_domain
from l0tre.locality.local_part import LocalPlan, Span, plan_local, spans
from l0tre.locality.windows import Sites, base_values
from l0tre.locality.windows import carry as carry_change
from l0tre.model.graph import Graph, run
from l0tre.model.module_import import import_module


class Sliced(nn.Module):
    """Convolutions around a slice; the last two layers end the local part."""

    def __init__(self, rows: slice, columns: slice, channels: slice, *, pad: bool) -> None:
        super().__init__()
        self.cut, self.pad = (slice(None), channels, rows, columns), pad
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.second = nn.Conv2d(len(range(3)[channels]) + 2 * pad, 2, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Up to the second convolution."""
        y = self.first(x)[self.cut]
        y = nn.functional.pad(y, (0, 0, 0, 0, 1, 1)) if self.pad else y
        found: Tensor = self.second(y)
        return found


NO_LINES: dict[int, Relaxation] = {}  # of a network that is linear

CUTS = [
    (slice(0, None, 2), slice(0, None, 2), slice(None)),
    (slice(1, None, 2), slice(1, 8, 2), slice(1, None)),
    (slice(1, 7), slice(2, 9), slice(0, 3, 2)),
    (slice(0, 5, 2), slice(0, 5, 2), slice(None)),  # ends long before the map does
]


def graph_of(cut: tuple[slice, slice, slice], pad: bool) -> Graph:
    torch.manual_seed(0)
    return import_module(Sliced(*cut, pad=pad), (2, 9, 10))


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("pad", [False, True])
def test_rows_of_windows_are_those_of_whole_maps(cut: tuple[slice, slice, slice], pad: bool) -> None:
    graph = graph_of(cut, pad)
    domain, end = make_domain((2, 9, 10)), len(graph.operations) - 1
    plan = make_plan(graph, domain, torch.device("cpu"))
    count = plan.slack[end].numel()
    neurons = torch.arange(count)
    place, rows = neuron_rows(plan, end, neurons[None])
    whole = carry(plan, place, rows, NO_LINES.__getitem__).coefficients[0].view(count, 2, 9, 10)
    jacobian = torch.func.jacrev(lambda x: run(graph, x[None])[0].flatten())(torch.zeros(2, 9, 10).double())
    torch.testing.assert_close(whole, jacobian)
    seen = plan.receptive_fields[end].size
    begin, window = window_rows(plan, end, neurons)
    form = carry_window(plan, begin, window, NO_LINES.__getitem__, torch.zeros(count, dtype=torch.int64), seen)
    assert form.top is not None
    assert form.left is not None
    parts = form.coefficients[:, 0].view(count, 2, *seen)
    for neuron, (top, left) in enumerate(zip(form.top.tolist(), form.left.tolist(), strict=True)):
        picture = torch.zeros(2, 9 + 40, 10 + 40, dtype=torch.float64)
        picture[:, top + 20 : top + 20 + seen[0], left + 20 : left + 20 + seen[1]] = parts[neuron]
        torch.testing.assert_close(picture[:, 20:29, 20:30], jacobian[neuron])
        assert float(picture.abs().sum()) == pytest.approx(float(jacobian[neuron].abs().sum()))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_checker_has_the_same_rows(cut: tuple[slice, slice, slice]) -> None:
    graph = graph_of(cut, False).to("cpu", torch.float64)
    layers, end = make_layers(graph.operations), len(graph.operations) - 1
    assert end in layers.windowed
    jacobian = torch.func.jacrev(lambda x: run(graph, x[None])[0].flatten())(torch.zeros(2, 9, 10).double())
    count = len(jacobian)
    whole = check_carry(layers, end, torch.eye(count, dtype=torch.float64)[None], {}, 0)
    torch.testing.assert_close(whole.gradient[0], jacobian.flatten(1))
    form = carry_windows(layers, end, torch.arange(count), torch.zeros(count, dtype=torch.int64), {}, 0)
    assert form.window is not None
    height, width = form.window.size
    parts = form.gradient[:, 0].view(count, 2, height, width)
    for neuron, (top, left) in enumerate(zip(form.window.top.tolist(), form.window.left.tolist(), strict=True)):
        picture = torch.zeros(2, 9 + 40, 10 + 40, dtype=torch.float64)
        picture[:, top + 20 : top + 20 + height, left + 20 : left + 20 + width] = parts[neuron]
        torch.testing.assert_close(picture[:, 20:29, 20:30], jacobian[neuron])


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut[0].step == cut[1].step], ids=str)
@pytest.mark.parametrize("pad", [False, True])
def test_changes_are_carried_through_slices(cut: tuple[slice, slice, slice], pad: bool) -> None:
    graph = graph_of(cut, pad).to("cpu")
    plan = plan_local(graph, {"linear": 1.0, "mean": 1.0, "map": 1.0})
    assert isinstance(plan, LocalPlan)
    assert plan.cut == len(graph.operations) - 1
    image = torch.rand(1, 2, 9, 10)
    base, stride = base_values(plan, image), plan.stride
    shape = graph.output_shape
    for row in range(9):
        for column in range(10):
            phase = (row % stride, column % stride)
            boxes = [spans(plan.graph, plan.cut, Span(phase[axis], phase[axis]), axis) for axis in (0, 1)]
            steps = torch.tensor([[row // stride], [column // stride]])
            sites = Sites(steps, dict(enumerate(boxes[0])), dict(enumerate(boxes[1])))
            change = torch.tensor([0.7, -0.4]).view(1, 1, 1, 2, 1, 1)
            found = carry_change(plan, base, sites, 0, change.clone())[0, 0, 0]
            moved = image.clone()
            moved[0, :, row, column] += change.flatten()
            wanted = (run(graph, moved) - run(graph, image))[0]
            whole = torch.zeros(shape[0], shape[1] + 40, shape[2] + 40)
            rows, columns = (int(steps[axis, 0]) + boxes[axis][-1].first + 20 for axis in (0, 1))
            whole[:, rows : rows + found.shape[1], columns : columns + found.shape[2]] = found
            torch.testing.assert_close(whole[:, 20 : 20 + shape[1], 20 : 20 + shape[2]], wanted, rtol=1e-4, atol=1e-5)
            assert float(whole.abs().sum()) == pytest.approx(float(wanted.abs().sum()), abs=1e-3)
