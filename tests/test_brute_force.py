"""The bounds equal those of brute force over all subsets and grid points."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import l0tre
from l0tre.domain import make_domain
from l0tre.exhaustive.grid_scan import make_level, scan
from l0tre.exhaustive.subsets import unrank
from l0tre.grid import make_grid
from l0tre.memory import Batcher
from l0tre.objective import AllRivals
from tests.tools import NO_ATTACK, SAMPLE_BYTES, brute_force, plain_network, tiny_module

MANY = settings(max_examples=80, deadline=None, derandomize=True)


@pytest.mark.slow
@MANY
@given(
    kind=st.sampled_from(["dense", "conv1", "conv3"]),
    seed=st.integers(0, 10_000),
    max_t=st.integers(1, 4),
    rows=st.sampled_from([9, 100, 1024]),
    attacked=st.sampled_from([False, False, False, True]),
)
def test_bounds_equal_brute_force(kind: str, seed: int, max_t: int, rows: int, attacked: bool) -> None:
    module, shape = tiny_module(kind, seed)
    image = torch.rand(shape)
    axes = [0.0, 1.0] if kind == "conv3" else [0.0, 0.5, 1.0]
    domain = make_domain(shape)
    label = int(module(image[None]).argmax())
    exact = brute_force(module, image, label, domain, axes)
    assume(exact.closest_tie() > 1e-4)
    options: dict[str, Any] = {"max_t": max_t, "epsilon": axes[1], "memory_bytes": rows * SAMPLE_BYTES}
    options |= {} if attacked else NO_ATTACK
    result = l0tre.evaluate(plain_network(module, shape), image[None], [label], **options)[0]
    distance = exact.distance()
    if distance <= max_t:
        assert (result.lower, result.upper) == (distance - 1, distance)
        assert result.converged
    else:
        assert result.lower == max_t
        assert result.upper >= distance
    if result.witness is not None:
        assert result.witness.distance == result.upper
        changed = result.witness.apply(image)
        differ = (changed != image).flatten()[domain.members].any(1)
        assert int(differ.sum()) == result.upper
        assert int(module(changed[None]).argmax()) == result.witness.label != label
        assert ((changed >= 0) & (changed <= 1)).all()
    else:
        assert result.upper == domain.groups + 1


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["dense", "conv1", "conv3"]),
    seed=st.integers(0, 10_000),
    t=st.integers(1, 3),
    rows=st.integers(3, 200),
)
def test_sensitivities_equal_brute_force(kind: str, seed: int, t: int, rows: int) -> None:
    module, shape = tiny_module(kind, seed)
    images = torch.rand(2, *shape)
    axes = [0.0, 1.0] if kind == "conv3" else [0.0, 0.5, 1.0]
    domain = make_domain(shape)
    labels = module(images).argmax(1)
    level = make_level(domain, make_grid(domain, axes[1]), t)
    batcher = Batcher(plain_network(module, shape, sample_bytes=1), rows)
    chunk = scan(batcher, level, images.flatten(1), AllRivals(labels), 0, level.sets)
    for row in range(2):
        exact = brute_force(module, images[row], int(labels[row]), domain, axes)
        for number, groups in enumerate(unrank(torch.arange(level.sets), domain.groups, t).tolist()):
            assert float(chunk.margin[row, number]) == pytest.approx(exact.margins[tuple(groups)], abs=1e-4)
            assert float(chunk.score[row, number]) == pytest.approx(exact.scores[tuple(groups)], abs=1e-4)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100_000), features=st.integers(2, 7), classes=st.integers(2, 4))
def test_linear_classifier_has_its_exact_distance(seed: int, features: int, classes: int) -> None:
    torch.manual_seed(seed)
    module = nn.Linear(features, classes)
    image = torch.rand(features)
    scores = module(image).detach()
    label = int(scores.argmax())
    distance = features + 1
    for other in set(range(classes)) - {label}:
        direction = (module.weight[label] - module.weight[other]).detach()
        gains = torch.maximum(direction * image, direction * (image - 1)).sort(descending=True).values
        rest = float(scores[label] - scores[other]) - gains.cumsum(0)
        assume(bool((rest.abs() > 1e-4).all()))
        beaten = (rest < 0).nonzero()
        if len(beaten):
            distance = min(distance, int(beaten[0]) + 1)
    result = l0tre.evaluate(
        plain_network(module, (features,)), image[None], [label], max_t=features, epsilon=1.0, **NO_ATTACK
    )[0]
    assert (result.lower, result.upper) == (distance - 1, distance)


def test_the_largest_confidence_drop_need_not_be_the_misclassified_one() -> None:
    # Feature 0 drops the label's score most, but drops the others too; feature 1 drops it less and lets class 2 win.
    weight = torch.tensor([[-5.0, -2.0, 0.0], [-5.0, 0.0, 0.0], [-5.0, 1.0, 0.0]])
    bias = torch.tensor([2.0, 0.0, 0.5])
    module = nn.Linear(3, 3)
    module.weight.data, module.bias.data = weight, bias
    result = l0tre.evaluate(plain_network(module, (3,)), torch.zeros(1, 3), [0], max_t=1)[0]
    assert (result.lower, result.upper) == (0, 1)
    assert result.witness is not None
    assert result.witness.groups == (1,)


def test_every_class_can_be_the_adversarial_one() -> None:
    for label, other in itertools.permutations(range(3), 2):
        weight = torch.zeros(3, 4)
        weight[other, 2] = 3.0
        bias = torch.zeros(3)
        bias[label] = 1.0
        module = nn.Linear(4, 3)
        module.weight.data, module.bias.data = weight, bias
        result = l0tre.evaluate(plain_network(module, (4,)), torch.zeros(1, 4), [label], max_t=1)[0]
        assert result.upper == 1
        assert result.witness is not None
        assert result.witness.label == other
