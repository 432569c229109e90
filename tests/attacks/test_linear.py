"""Linear classifiers, whose exact distance follows from sorting the gains of all groups."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from l0tre.api.attack import attack_details
from l0tre.defaults import Method
from l0tre.domain import make_domain
from tests.attacks.cases import GROUPS, RANGES, SHAPES, Linear, Undecided, check_result, make_linear

linear_models = st.builds(
    make_linear,
    seed=st.integers(0, 2**31),
    shape=st.sampled_from(SHAPES),
    classes=st.integers(2, 4),
    ranges=st.sampled_from(RANGES),
    groups=st.sampled_from(GROUPS),
    masked=st.booleans(),
)


def distances(case: Linear) -> list[int]:
    try:
        return [case.distance(row) for row in range(len(case.images))]
    except Undecided:
        assume(False)
        raise


def below(wanted: list[int]) -> list[int]:
    """Lower bounds that end the search at the exact distances, so that no time is lost on looking for less."""
    return [max(0, distance - 1) for distance in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "local"])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(case=linear_models)
def test_the_exact_distance_is_found(method: Method, case: Linear) -> None:
    wanted = distances(case)
    options = {"domain": case.domain, "method": method, "lower": below(wanted), "budget": 800}
    result = attack_details(case.network, case.images, case.labels, **options)  # type: ignore[arg-type]
    assert result.distance.tolist() == wanted
    check_result(case.module, case.images, result, case.domain)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=st.builds(make_linear, st.integers(0, 2**31), st.sampled_from(SHAPES), st.just(2), st.sampled_from(RANGES)))
def test_ranking_single_groups_is_exact_for_two_classes(case: Linear) -> None:
    wanted = distances(case)
    result = attack_details(case.network, case.images, case.labels, domain=case.domain, method="greedy")
    assert result.distance.tolist() == wanted
    check_result(case.module, case.images, result, case.domain)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=linear_models)
def test_all_singles_and_pairs_are_exact_up_to_two(case: Linear) -> None:
    wanted = [distance if distance <= 2 else -1 for distance in distances(case)]
    result = attack_details(case.network, case.images, case.labels, domain=case.domain, method="exact", budget=10**6)
    assert result.distance.tolist() == wanted
    check_result(case.module, case.images, result, case.domain)


@pytest.mark.parametrize("classes", [6, 10])
def test_many_classes_and_pixels(classes: int) -> None:
    case = make_linear(5, (1, 6, 6), classes, count=4)
    result = attack_details(case.network, case.images, case.labels)
    assert result.distance.tolist() == distances(case)
    check_result(case.module, case.images, result, case.domain)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), shape=st.sampled_from(SHAPES), ranges=st.sampled_from(RANGES))
def test_of_two_classes_reaching_one_is_leaving_the_other(seed: int, shape: tuple[int, ...], ranges: str) -> None:
    case = make_linear(seed, shape, 2, ranges)
    wanted = distances(case)
    targets = 1 - case.labels
    options = {"domain": case.domain, "lower": below(wanted), "budget": 800}
    result = attack_details(case.network, case.images, targets, targeted=True, **options)  # type: ignore[arg-type]
    assert result.distance.tolist() == wanted
    check_result(case.module, case.images, result, case.domain, targeted=True)


@pytest.mark.parametrize("shape", [(2, 5), (3, 3, 3)])
def test_the_domain_s_parts_can_be_given_one_by_one(shape: tuple[int, ...]) -> None:
    case = make_linear(11, shape, 3, "each")
    low, high = case.domain.low.reshape(shape), case.domain.high.reshape(shape)
    mask = torch.arange(case.images[0].numel()).reshape(shape) % 4 != 0
    given_domain = make_domain(shape, groups="feature", mask=mask, low=low, high=high)
    whole = attack_details(case.network, case.images, case.labels, domain=given_domain, budget=300)
    options = {"unit": "feature", "mask": mask, "low": low, "high": high, "budget": 300}
    parts = attack_details(case.network, case.images, case.labels, **options)  # type: ignore[arg-type]
    assert torch.equal(whole.adversarial, parts.adversarial)
    assert bool((whole.adversarial == case.images)[:, ~mask].all())
    assert bool(whole.found.any())
