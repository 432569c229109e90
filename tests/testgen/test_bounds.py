"""Proofs that neurons are out of reach: none for what a sample reaches, on random networks and domains."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.coverage.neurons import Layer, find_layers, inner_values
from l0tre.errors import ModelError
from l0tre.testgen.bounds import NeuronProver, make_neuron_prover
from l0tre.testgen.goals import make_goals
from tests.certify.random_networks import KINDS, Case, random_case

CPU = torch.device("cpu")
CHANGES = (1, 2)


def sampled(case: Case, layers: tuple[Layer, ...], count: int, rng: np.random.Generator) -> Tensor:
    """The largest values of all neurons over inputs with so many changed groups; 0 for all groups."""
    domain = case.domain
    sets = list(itertools.combinations(range(domain.groups), count or domain.groups))
    each = 300 if count == 0 else 24 // count
    x = case.image.flatten().double().repeat(len(sets) * each, 1)
    for row, groups in enumerate(groups for groups in sets for _ in range(each)):
        places = torch.cat([domain.members[group, : domain.sizes[group]] for group in groups])
        share = torch.from_numpy(rng.random(len(places)))
        low, high = domain.low[places].double(), domain.high[places].double()
        x[row, places] = (low + (share.round() if row % 4 else share) * (high - low)).clamp(low, high)
    assert case.network.exact is not None
    values = inner_values(case.network.exact, [layer.position for layer in layers], x.view(-1, *domain.shape))
    return torch.cat(values, 1).amax(0)


def prover_of(case: Case, layers: tuple[Layer, ...], thresholds: Tensor) -> NeuronProver:
    assert case.network.exact is not None
    found = make_neuron_prover(case.network.exact, make_goals(case.network.exact, layers, thresholds, CPU), case.domain)
    assert isinstance(found, NeuronProver)
    return found


@pytest.mark.family
@pytest.mark.parametrize("seed", range(2 * len(KINDS)))
def test_what_a_sample_reaches_is_never_out_of_reach(seed: int) -> None:
    case, rng = random_case(7000 + seed), np.random.default_rng(seed)
    assert case.network.exact is not None
    try:
        layers = find_layers(case.network.exact)
    except ModelError:
        return  # a linear network has no neurons
    image = case.image.flatten()
    for count in (0, *(count for count in CHANGES if count <= case.domain.groups)):
        highest = sampled(case, layers, count, rng)
        known = torch.ones_like(highest, dtype=torch.bool)
        near = prover_of(case, layers, torch.nextafter(highest, torch.tensor(-torch.inf).double()))
        far = prover_of(case, layers, highest.abs() * 1e6 + 1e6)
        for prover, expected in ((near, torch.zeros_like(known)), (far, known)):
            every = torch.ones_like(known)
            out = prover.within(image, count, every) if count else prover.nowhere(image, every)
            assert bool((out == expected).all())
            if count == 1:  # group by group
                assert bool((prover.alone(image, every) == expected).all())
                assert not bool(prover.alone(image, ~every).any())


def test_clips_between_any_limits_are_bounded() -> None:
    torch.manual_seed(0)
    parts = [nn.Linear(4, 8), nn.Hardtanh(-0.25, 0.75), nn.Linear(8, 8), nn.Hardtanh(-0.3, 0.2), nn.Linear(8, 2)]
    network, domain = l0tre.load(nn.Sequential(*parts).eval(), input_shape=(4,)), l0tre.make_domain((4,))
    assert network.exact is not None
    layers, every = find_layers(network.exact), torch.ones(16, dtype=torch.bool)
    seed = torch.full((4,), 0.4)
    x = seed.double().repeat(4 * 201, 1)
    x[torch.arange(804), torch.arange(804) % 4] = torch.linspace(0, 1, 201, dtype=torch.float64).repeat_interleave(4)
    highest = torch.cat(inner_values(network.exact, [layer.position for layer in layers], x), 1).amax(0)
    assert int(((highest[:8] > -0.25) & (highest[:8] < 0.75)).sum()) >= 3
    for more, expected in ((-1e-9, False), (1e-9, True)):
        prover = make_neuron_prover(network.exact, make_goals(network.exact, layers, highest + more, CPU), domain)
        assert isinstance(prover, NeuronProver)
        proved = prover.alone(seed, every, 6), prover.within(seed, 1, every)
        for found in proved:
            assert bool((found[:8] == expected).all())
            assert expected or not bool(found.any())


class TwoCurves(nn.Module):
    """A clip and a ReLU of the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        values = self.first(x)
        result: Tensor = self.last(values.clamp(0.0, 6.0) + values.relu())
        return result


def test_clips_that_share_their_input_have_ranges_of_their_own() -> None:
    network = l0tre.load(TwoCurves().eval(), input_shape=(4,))
    suite = l0tre.generate_tests(network, torch.zeros(1, 4), threshold=1e9, max_l0=1)
    assert bool(suite.dead.all())
