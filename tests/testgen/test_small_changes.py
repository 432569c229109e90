"""Single pixels and near pairs in windows: brute force over pairs, in networks with padding, strides and pools."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.certify.regions.tree import make_tree
from l0tre.certify.relax.instance import make_instance
from l0tre.certify.relax.plan import make_plan
from l0tre.coverage.neurons import inner_values, layers_of
from l0tre.domain import Domain
from l0tre.model.network import Network
from l0tre.objective import AllRivals
from l0tre.testgen.bounds import NeuronProver, make_neuron_prover
from l0tre.testgen.goals import make_goals
from l0tre.testgen.small_changes import near_pairs

CPU = torch.device("cpu")
SHAPE = (2, 16, 16)


def network(kind: str) -> Network:
    torch.manual_seed(3)
    curve = nn.Tanh() if kind == "tanh" else nn.ReLU()
    second = [nn.MaxPool2d(2), nn.Conv2d(3, 4, 3)] if kind == "pool" else [nn.Conv2d(3, 4, 3, stride=2, padding=1)]
    first = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), curve, *second, curve, nn.Flatten())
    size = first(torch.zeros(1, *SHAPE)).shape[1]
    return l0tre.load(nn.Sequential(first, nn.Linear(size, 5), curve, nn.Linear(5, 3)).eval(), input_shape=SHAPE)


def free_corner() -> Domain:
    """The pixels of a corner may change, but one, and of another one a value."""
    mask = torch.zeros(SHAPE, dtype=torch.bool)
    mask[:, :5, :4] = True
    mask[:, 1, 2] = mask[0, 2, 3] = False
    return l0tre.make_domain(SHAPE, mask=mask)


def changed(domain: Domain, image: Tensor, count: int) -> Tensor:
    """Inputs that differ from an image in so many pixels: all corners, and as many values between."""
    sets = torch.tensor(list(itertools.combinations(range(domain.groups), count)))
    members = domain.members[sets].flatten(1)
    corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=members.shape[1])), dtype=torch.float64)
    between = torch.rand(corners.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = torch.cat([corners, between]).repeat(len(sets), 1)
    members = members.repeat_interleave(2 * len(corners), 0)
    return image.repeat(len(values), 1).scatter(1, members, values).view(-1, *SHAPE)


@pytest.mark.parametrize("kind", ["stride", "pool", "tanh"])
def test_no_pair_of_pixels_activates_what_is_proved_out_of_their_reach(kind: str) -> None:
    net, domain = network(kind), free_corner()
    seed, layers = torch.rand(math.prod(SHAPE), generator=torch.Generator().manual_seed(1)), layers_of(net)
    assert net.exact is not None
    highest = [
        torch.cat(inner_values(net.exact, [layer.position for layer in layers], x), 1).amax(0)
        for x in (changed(domain, seed.double(), count) for count in (1, 2))
    ]
    most = torch.maximum(*highest)

    def prover_of(thresholds: Tensor) -> NeuronProver:
        assert net.exact is not None
        found = make_neuron_prover(net.exact, make_goals(net.exact, layers, thresholds, CPU), domain)
        assert isinstance(found, NeuronProver)
        assert found.local is not None
        return found

    for scale in (0.0, 0.1):  # some neurons are out of reach of single pixels but not of pairs
        thresholds = most - scale * (most - highest[0]) - 1e-9
        prover = prover_of(thresholds)
        alone = prover.alone(seed, most > -torch.inf)
        assert not bool((alone & (highest[0] > thresholds)).any())
        assert not bool((prover.together(seed, alone) & (most > thresholds)).any())
    below, dense = prover_of(highest[0] - 1e-9), torch.zeros_like(most, dtype=torch.bool)
    dense[layers[2].place] = True
    assert not bool(below.alone(seed, ~dense).any())
    assert not bool(below.alone(seed, dense).any())
    dense[0] = True  # seen by few pixels: what others do to the dense layer is looked at all the same
    assert not bool(below.alone(seed, dense).any())
    above = prover_of(most + 0.1 * (most - most.min()).clamp(min=0.1))
    proved = above.together(seed, above.alone(seed, most > -torch.inf))
    maps = sum(layer.size for layer in layers[:2])
    assert bool(proved[: layers[0].size].all())
    assert float(proved[:maps].double().mean()) > 0.9
    assert not bool(proved[maps:].any())  # after the windows nothing is listed


def test_near_pairs_are_those_that_lie_in_a_window() -> None:
    net, domain = network("stride"), free_corner()
    assert net.exact is not None
    plan = make_plan(net.exact, domain, CPU)
    label = AllRivals(torch.zeros(1, dtype=torch.int64))
    instance = make_instance(plan, make_tree(domain), domain, torch.zeros(1, math.prod(SHAPE)), label, 0, 0)
    places = domain.ids[instance.tree.order[near_pairs(instance, (3, 2)) - instance.tree.slots]].tolist()
    expected = [
        {a, b}
        for a, b in itertools.combinations(domain.ids.tolist(), 2)
        if abs(a // 16 - b // 16) < 3 and abs(a % 16 - b % 16) < 2
    ]
    assert len(places) == len(expected)
    assert all(set(pair) in expected for pair in places)


def test_groups_that_are_no_pixels_are_carried_as_whole_maps() -> None:
    net = network("stride")
    assert net.exact is not None
    layers = layers_of(net)
    thresholds = torch.full((sum(layer.size for layer in layers),), 1e6, dtype=torch.float64)
    found = make_neuron_prover(
        net.exact, make_goals(net.exact, layers, thresholds, CPU), l0tre.make_domain(SHAPE, groups="feature")
    )
    assert isinstance(found, NeuronProver)
    assert found.local is None
    seed, every = torch.full((math.prod(SHAPE),), 0.5), torch.ones(len(thresholds), dtype=torch.bool)
    assert bool(found.alone(seed, every).all())
    assert not bool(found.together(seed, every).any())
