"""The checker's forms hold in real arithmetic, to the last digit, and lose little to rounding in deep networks."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.certify.checker.clusters import box_margins
from l0tre.certify.checker.forms import Bend, bend, ends_of, loosened, ranges_of
from l0tre.certify.checker.forward import make_forward, with_margins
from l0tre.certify.checker.margins import LINEAR, make_bounder
from l0tre.certify.checker.sums import effects_of, sum_margins
from l0tre.domain import Domain, make_domain
from l0tre.model.graph import Graph, Operation, run_operation

CPU = torch.device("cpu")


def _exact(values: Tensor) -> Any:
    return np.array([Fraction(float(x)) for x in values.flatten()], dtype=object)


def _true_margins(graph: Graph, inputs: Any) -> Any:
    """The network's outputs in rational numbers; ReLUs, max pools and linear operations."""
    values = [inputs]
    for operation in graph.operations[1:]:
        (source,) = operation.inputs
        shape, given = graph.operations[source].shape, values[source]
        if operation.kind in LINEAR:
            size = len(given)
            shift = run_operation(operation, torch.zeros(1, *shape, dtype=torch.float64)).flatten()
            plain = replace(operation, tensors={k: v for k, v in operation.tensors.items() if k in ("weight", "scale")})
            columns = run_operation(plain, torch.eye(size, dtype=torch.float64).view(size, *shape)).flatten(1)
            result = _exact(shift)
            for row, column in columns.nonzero().tolist():
                result[column] += Fraction(float(columns[row, column])) * given[row]
        elif operation.kind == "relu":
            result = np.array([max(x, Fraction(0)) for x in given], dtype=object)
        else:
            kernel, stride = operation.ints("kernel"), operation.ints("stride")
            maps = given.reshape(shape)
            result = np.array(
                [
                    max(
                        maps[c, y * stride[0] + i, x * stride[1] + j]
                        for i in range(kernel[0])
                        for j in range(kernel[1])
                    )
                    for c, y, x in np.ndindex(*operation.shape)
                ],
                dtype=object,
            )
        values.append(result)
    return values[-1]


def _cancelling(kind: str, seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Large numbers that later layers take off again, so that scores are as large as their rounding errors."""
    torch.manual_seed(seed)
    shape: tuple[int, ...] = (4,)
    layers: list[nn.Module] = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
    if kind == "conv":
        shape = (1, 7, 7)
        layers = [nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(3 * 25, 4), nn.ReLU()]
        layers.append(nn.Linear(4, 3))
    for layer in layers[:-1]:
        for name, parameter in layer.named_parameters():
            if name == "bias":
                parameter.data += 2.0**20 * torch.rand_like(parameter)
    return nn.Sequential(*layers).eval(), shape


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_bounds_hold_in_rational_numbers(kind: str) -> None:
    """Boxes of a single point: the bound is what the checker computes for it, less what that can be off by."""
    above = 0
    for seed in range(3):
        module, shape = _cancelling(kind, seed)
        network = l0tre.load(module, input_shape=shape, device="cpu")
        assert network.exact is not None
        domain, image = make_domain(shape), torch.rand(shape)
        graph = with_margins(network.exact, int(network.replay(image).argmax()))
        bounder = make_bounder(graph, image, domain, torch.arange(domain.groups), CPU, 2**24)
        forward = make_forward(bounder)
        true = _true_margins(graph, _exact(image))
        assert all(Fraction(float(a)) <= b for a, b in zip(forward.own_least, true, strict=True))
        groups = torch.tensor([[0, 1], [1, domain.groups - 1]])
        change = (torch.rand(2, 2, 1) - image.double().flatten()[groups][..., None]) * 0.9
        for row, bound in enumerate(box_margins(forward, groups, change, change)):
            inputs = _exact(image)
            for group, moved in zip(groups[row].tolist(), change[row].flatten().tolist(), strict=True):
                inputs[group] += Fraction(moved)
            least = min(_true_margins(graph, inputs))
            assert Fraction(float(bound)) <= least
            assert float(least) - float(bound) < 1e-4
            above += float(bound) > 0
        effects = effects_of(forward, torch.arange(domain.groups)[:, None], 4)
        zero, far = torch.zeros(1, dtype=torch.int64), torch.tensor([domain.groups - 1])
        found = sum_margins(forward, 1, lambda _, e=effects, z=zero, f=far: [(e, z, z), (e, z, f)])  # type: ignore[misc]
        assert not bool(found.isnan().any())
    assert above  # not all of them are lost


def test_deep_networks_lose_little_to_rounding() -> None:
    """By absolute weights the largest values of the domain grow without end; those of a small box do not."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU()]
    for _ in range(9):
        layers += [nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 64, 3)).eval()
    for parameter in module.parameters():
        parameter.data *= 2.5
    network, image = l0tre.load(module, input_shape=(1, 8, 8), device="cpu"), torch.rand(1, 8, 8)
    assert network.exact is not None
    graph = with_margins(network.exact, int(network.replay(image).argmax()))
    bounder = make_bounder(graph, image, make_domain((1, 8, 8)), torch.arange(64), CPU, 2**24)
    forward = make_forward(bounder)
    change = torch.full((1, 1, 1), 1e-4, dtype=torch.float64)
    bound = box_margins(forward, torch.tensor([[20]]), -change, change)
    own = float(forward.own.min())
    assert bounder.slack[-1].max() > own
    assert 0.9 * own < float(bound) < own


def _wide(seed: int) -> tuple[Graph, Domain, Tensor]:
    """One group of 400 values, whose products cancel; the last layer multiplies what rounding has left by 1,000."""
    torch.manual_seed(seed)
    first, last = nn.Linear(400, 1), nn.Linear(1, 2)
    first.weight.data = torch.ones(1, 400) * 2.0**20
    first.weight.data[:, ::2] *= -1
    last.weight.data, last.bias.data = torch.tensor([[1000.0], [0.0]]), torch.tensor([1.0, 0.0])
    network = l0tre.load(nn.Sequential(first, last), input_shape=(400,), device="cpu")
    assert network.exact is not None
    groups = torch.zeros(400, dtype=torch.int64)
    return with_margins(network.exact, 0), make_domain((400,), groups=groups), torch.full((400,), 0.5)


def test_what_sums_can_be_off_by_at_the_worst_is_taken_off() -> None:
    """Errors rarely come near that, so it is asked for itself: a share of n * 2**-53 of all absolute products."""
    graph, domain, image = _wide(0)
    forward = make_forward(make_bounder(graph, image, domain, torch.arange(1), CPU, 2**24))
    worst = 1000 * 400 * 2.0**-53 * 400 * 2.0**20 * 0.5
    assert float(forward.own_least) < float(forward.own) - worst
    change = torch.full((1, 1, 400), 0.25, dtype=torch.float64)
    bound = float(box_margins(forward, torch.zeros(1, 1, dtype=torch.int64), change, change))
    assert bound < float(forward.own_least) - worst / 2
    assert bound > float(forward.own) - 100 * worst


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "sigmoid"])
def test_lines_begin_where_the_image_may_really_be(kind: str) -> None:
    operation = Operation(kind, (0,), (1,), {}, {"slope": 0.3} if kind == "leaky_relu" else {})
    one = torch.ones(1, 1, dtype=torch.float64)
    before, drift, forms = 0.5 * one, 0.4 * one, torch.tensor([[[-0.2], [1.5]]], dtype=torch.float64)
    after, ends = run_operation(operation, before), ends_of(forms, forms)
    moved = torch.maximum(
        run_operation(operation, before + drift) - after, after - run_operation(operation, before - drift)
    )
    low, high = ranges_of(ends, before, 99 * one, drift)
    assert float(low) <= 0.1 - 0.2 - 1.5
    assert float(high) >= 0.9 - 0.2 + 1.5
    lower, upper = bend(operation, Bend(low, high, before, drift, after, moved), (forms, forms))
    place = torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None]
    for own in torch.linspace(0.1, 0.9, 9, dtype=torch.float64):
        found = run_operation(operation, own - 0.2 + 1.5 * place) - run_operation(operation, own.view(1, 1))
        assert bool((lower[0, 0] + lower[0, 1] * place <= found).all())
        assert bool((upper[0, 0] + upper[0, 1] * place >= found).all())


def test_ends_and_sums_of_forms_move_outwards() -> None:
    forms = torch.tensor([[[1.0], [-3.0], [2.0]]], dtype=torch.float64)
    for (low, high), (least, most) in (
        (ends_of(forms, forms), (-4.0, 6.0)),
        (tuple(x[:, 0] for x in loosened(forms, forms)), (1.0, 1.0)),
    ):
        assert float(low) < least - 6 * 2.0**-50
        assert float(high) > most + 6 * 2.0**-50
