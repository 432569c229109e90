"""Networks with a distance known by construction, and brute force on tiny ones."""

import pytest
import torch

from l0tre.api.attack import attack_details
from l0tre.defaults import Method
from l0tre.domain import make_domain
from tests.attacks.cases import Conjunction, Gate, check_result
from tests.certify.oracle import exact_distance
from tests.certify.random_networks import SMOOTH, planted, random_case
from tests.tools import brute_force, plain_network, tiny_module

SHAPE = (1, 5, 5)


@pytest.mark.parametrize("visible", [True, False], ids=["slopes", "flat"])
@pytest.mark.parametrize(
    ("positions", "ends"), [([7], [1.0]), ([3, 20], [0.0, 1.0]), ([0, 12, 24], [1.0, 0.0, 1.0])], ids=["1", "2", "3"]
)
def test_planted_pixels_are_found(positions: list[int], ends: list[float], visible: bool) -> None:
    module = Conjunction(positions, ends, visible=visible)
    network, images = plain_network(module, SHAPE, sample_bytes=2**10), torch.full((2, *SHAPE), 0.5)
    result = attack_details(network, images, budget=2500)
    for changed in result.adversarial:
        assert (changed != 0.5).flatten().nonzero()[:, 0].tolist() == positions
    check_result(module, images, result, make_domain(SHAPE))


@pytest.mark.parametrize("method", ["auto", "exact", "greedy", "search"])
def test_a_single_that_no_slope_shows_is_found_without_gradients(method: Method) -> None:
    module = Conjunction([17], [0.0], visible=False)
    network, images = plain_network(module, SHAPE, sample_bytes=2**10), torch.full((1, *SHAPE), 0.5)
    result = attack_details(network, images, method=method)
    assert result.distance.tolist() == [1]
    assert (result.adversarial != 0.5).flatten().nonzero()[:, 0].tolist() == [17]


@pytest.mark.parametrize("method", ["auto", "exact", "greedy"])
def test_a_single_that_works_only_alone_is_found_by_trying_them_all(method: Method) -> None:
    module = Gate(13, 0.5)
    network, images = plain_network(module, SHAPE, sample_bytes=2**10), torch.full((1, *SHAPE), 0.5)
    result = attack_details(network, images, method=method)
    assert result.distance.tolist() == [1]
    assert result.methods[0] in (("exact", "rank", "search") if method == "auto" else (method,))


@pytest.mark.parametrize("method", ["saliency", "local", "values"])
def test_gradients_alone_find_nothing_where_they_are_zero(method: Method) -> None:
    module = Conjunction([17], [0.0], visible=False)
    images = torch.full((1, *SHAPE), 0.5)
    result = attack_details(plain_network(module, SHAPE, sample_bytes=2**10), images, method=method, budget=400)
    assert result.distance.tolist() == [-1]
    check_result(module, images, result, make_domain(SHAPE))


@pytest.mark.parametrize("values", [[1.0], [0.0, 1.0]])
def test_planted_networks_of_the_prover_with_their_graphs(values: list[float]) -> None:
    case = planted([5, 10][: len(values)], values)
    result = attack_details(case.network, case.image[None])
    assert result.distance.tolist() == [len(values)]
    assert result.labels.tolist() == [0]
    check_result(case.module, case.image[None], result, case.domain)


@pytest.mark.parametrize("kind", ["dense", "conv1", "conv3"])
@pytest.mark.parametrize("seed", range(2))
def test_no_larger_than_the_best_corner_of_tiny_networks(kind: str, seed: int) -> None:
    module, shape = tiny_module(kind, seed)
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(seed))
    network = plain_network(module, shape, sample_bytes=2**10)
    domain = make_domain(shape)
    result = attack_details(network, images, budget=800)
    check_result(module, images, result, domain)
    for row, image in enumerate(images):
        exact = brute_force(module, image, int(result.labels[row]), domain, [0.0, 1.0])
        if exact.closest_tie() > 1e-4:
            assert (int(result.distance[row]) if result.found[row] else domain.groups + 1) <= exact.distance()


@pytest.mark.slow
def test_never_below_the_exact_distance_over_all_real_values() -> None:
    met = []
    for seed in [seed for seed in range(13) if random_case(seed).kind not in SMOOTH]:
        case = random_case(seed)
        result = attack_details(case.network, case.image[None], [case.label], domain=case.domain, budget=300)
        check_result(case.module, case.image[None], result, case.domain)
        if bool(result.found[0]) and int(result.distance[0]) > 1:
            below = int(result.distance[0]) - 1
            assert exact_distance(case.graph, case.image, case.label, case.domain, min(below, 2)) > min(below, 2)
            met.append(int(result.distance[0]))
    assert len(met) >= 2, "hardly anything was compared"
