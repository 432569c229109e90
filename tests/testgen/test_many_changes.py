"""Tests of neurons that single changes do not lead to, and what is left of them."""

import torch
from torch import Tensor, nn

import l0tre
from l0tre.coverage.neurons import layers_of
from l0tre.domain import Domain, make_domain
from l0tre.scheduling.executor import InProcess, StopCondition
from l0tre.testgen.ascent import ascend
from l0tre.testgen.found import FAR, Found
from l0tre.testgen.generate import SuiteSettings, begin, make_bench
from l0tre.testgen.goals import Goals
from l0tre.testgen.tighten import tighten
from l0tre.testgen.transfer import transfer
from l0tre.testgen.units import Bench, Desk, UnitRunner


def work_on(module: nn.Module, domain: Domain, seed: Tensor, test: Tensor | None = None) -> tuple[Bench, Desk]:
    """What steps work with, if one test is known."""
    network = l0tre.load(module.eval(), input_shape=domain.shape, device="cpu")
    layers = layers_of(network)
    thresholds = torch.zeros(sum(layer.size for layer in layers), dtype=torch.float64)
    goals, state = begin(network, layers, thresholds, seed)
    if test is not None:
        none, sizes = torch.zeros(1, dtype=torch.int64), (test != seed).sum(1)
        state.found.take(test, none, sizes, goals.excess(test) > 0, none)
    bench = make_bench(network, goals, domain, seed, SuiteSettings(), lambda: None)
    executor = InProcess(UnitRunner(bench, remote=False))
    return bench, Desk(executor, StopCondition(lambda: False, None), state.found, [])


def activates(goals: Goals, found: Found, neuron: int) -> bool:
    """Whether a neuron's test does what it was kept for."""
    return bool(goals.confirmed(found.inputs[int(found.test[neuron])][None])[0, neuron])


def first_seed(goals: Goals) -> Tensor:
    """Every neuron's tests are made from the only seed."""
    return torch.zeros(goals.count, dtype=torch.int64)


def stripes() -> nn.Sequential:
    """One channel that answers where two pixels beside each other are light and the two below are dark."""
    module = nn.Sequential(nn.Conv2d(1, 1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    conv = module[0]
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]).view(1, 1, 2, 2))
        conv.bias.fill_(-1.5)
    return module


SEED = torch.full((1, 25), 0.5)
TEST = SEED.clone()
TEST[0, :2], TEST[0, 5:7] = 1.0, 0.0


def test_a_window_that_activates_one_neuron_is_shown_to_the_others() -> None:
    bench, desk = work_on(stripes(), make_domain((1, 5, 5)), SEED, TEST)
    found = desk.found
    assert int((found.distance < FAR).sum()) == 1
    transfer(desk, bench, 0, first_seed(bench.goals))
    assert found.distance.tolist() == [4] * 16
    assert all(activates(bench.goals, found, neuron) for neuron in range(16))
    moved = found.inputs[int(found.test[15])].view(5, 5)
    assert moved[3:, 3:].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert int((moved != 0.5).sum()) == 4


def test_what_may_not_change_is_not_shown() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[4] = False
    bench, desk = work_on(stripes(), make_domain((1, 5, 5), mask=mask), SEED, TEST)
    transfer(desk, bench, 0, first_seed(bench.goals))
    assert desk.found.distance.view(4, 4)[:3].tolist() == [[4] * 4] * 3
    assert bool((desk.found.distance.view(4, 4)[3] >= FAR).all())


def test_all_values_are_moved_at_once() -> None:
    module = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 2))
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0] * 3, [1.0] * 6]))
        layer.bias.copy_(torch.tensor([-2.5, -7.0]))  # three ones and three zeros; never
    bench, desk = work_on(module, make_domain((6,)), torch.full((1, 6), 0.5))
    ascend(desk, bench, 0, first_seed(bench.goals))
    assert desk.found.distance.tolist() == [6, FAR]
    assert activates(bench.goals, desk.found, 0)


def test_far_tests_come_near() -> None:
    module = nn.Sequential(nn.Linear(60, 1), nn.ReLU(), nn.Linear(1, 2))
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.01, 1.0, 60)[None])
        layer.bias.fill_(-3.8)  # the four largest weights do, three do not
    bench, desk = work_on(module, make_domain((60,)), torch.zeros(1, 60), torch.ones(1, 60))
    assert desk.found.distance.tolist() == [60]
    cost = tighten(desk, bench, 0)
    assert desk.found.distance.tolist() == [4]
    assert cost < 60  # passes: one by one it would take more than a thousand
