"""What an attack spends, when it stops, and that it can be repeated."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from l0tre.adapters.counting import Counting
from l0tre.api.attack import attack_details
from l0tre.attacks.attacked import Attacked
from l0tre.attacks.auto import METHODS
from l0tre.defaults import Method
from l0tre.domain import make_domain
from tests.attacks.cases import Linear, check_result, make_linear, with_forward
from tests.tools import plain_network

SHAPE = (3, 6, 6)


def make_module(seed: int = 1) -> nn.Module:
    """A network of four classes whose decisions take a few pixels to change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, last = nn.Linear(108, 8), nn.Linear(8, 4)
        module = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
        for parameter in module.parameters():
            parameter.data *= 1.8
        last.bias.data[0] += 0.5
    return module.eval().requires_grad_(False)


def make_images(count: int = 3) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0))


def counted(module: nn.Module, images: Tensor, **options: object) -> tuple[Attacked, Counting]:
    counting = Counting(module, torch.device("cpu"), lambda _: None)
    network = with_forward(plain_network(module, SHAPE, sample_bytes=2**10), counting)
    result = attack_details(network, images, module(images).argmax(1), **options)  # type: ignore[arg-type]
    check_result(module, images, result, make_domain(SHAPE))
    return result, counting


@pytest.mark.parametrize("budget", [200, 1000])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_every_pass_is_counted_and_the_budget_is_kept(method: Method, budget: int) -> None:
    images = make_images()
    result, counting = counted(make_module(), images, method=method, budget=budget)
    # Beside the attack: one pass each way to see whether there are gradients.
    assert counting.forwards == int(result.forwards.sum()) + 1
    assert counting.backwards == int(result.backwards.sum()) + 1
    spent = result.forwards + result.backwards
    assert int(spent.sum()) <= budget * len(images)
    # Only what other images have left may come on top.
    assert bool((spent <= budget).all()) or method == "auto"
    if method not in ("values", "exact"):
        assert budget == 200 or bool(result.found.all())


def test_more_budget_is_used_where_the_distance_is_not_known() -> None:
    small, _ = counted(make_module(), make_images(), budget=300)
    large, _ = counted(make_module(), make_images(), budget=1500)
    open_ = large.distance > 1
    assert bool(open_.any())
    assert bool(((large.forwards + large.backwards)[open_] >= 1450).all())
    assert bool((large.distance <= torch.where(small.found, small.distance, 99)).all())


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_tiny_budgets_end_with_a_valid_result(method: Method, budget: int) -> None:
    result, _ = counted(make_module(), make_images(), method=method, budget=budget)
    # The first look at each image counts as well.
    assert 3 <= int((result.forwards + result.backwards).sum()) <= 3 * budget


def test_no_time_at_all_leaves_the_originals() -> None:
    images = make_images()
    result, _ = counted(make_module(), images, time_budget=0)
    assert torch.equal(result.adversarial, images)
    assert result.forwards.tolist() == [1] * len(images)  # the first look


def stop_after(calls: int) -> Callable[[], bool]:
    left = iter([False] * calls)
    return lambda: next(left, True)


@pytest.mark.family
@pytest.mark.parametrize("calls", [1, 3, 10])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_stopping_ends_early_with_a_valid_result(method: Method, calls: int) -> None:
    result, _ = counted(make_module(), make_images(), method=method, budget=400, stop=stop_after(calls))
    whole, _ = counted(make_module(), make_images(), method=method, budget=400)
    assert bool((result.forwards <= whole.forwards).all())
    assert int(result.forwards.sum()) < int(whole.forwards.sum()) or method in ("greedy", "exact", "values", "rank")


def bounds_of(case: Linear) -> list[int]:
    return [case.distance(row) - 1 for row in range(len(case.images))]


def test_an_image_is_finished_one_above_its_lower_bound() -> None:
    case = make_linear(132, (1, 6, 6), 3, count=4)
    lower = bounds_of(case)
    assert min(lower) >= 2
    open_ended = attack_details(case.network, case.images, case.labels, budget=3000)
    assert not bool(open_ended.optimal.any())
    assert int((open_ended.forwards + open_ended.backwards).sum()) >= 4 * 2900
    finished = attack_details(case.network, case.images, case.labels, lower=lower, budget=3000)
    assert bool(finished.optimal.all())
    assert torch.equal(finished.distance, open_ended.distance)
    assert bool((finished.forwards + finished.backwards < 1500).all())
    # A bound that is one too low proves nothing, and the search goes on.
    too_low = [bound - 1 for bound in lower]
    loose = attack_details(case.network, case.images, case.labels, lower=too_low, budget=3000)
    assert not bool(loose.optimal.any())
    assert int((loose.forwards + loose.backwards).sum()) >= 4 * 2900


def test_finished_images_leave_their_passes_to_others() -> None:
    case = make_linear(132, (1, 6, 6), 3, count=4)
    lower = bounds_of(case)
    alone = attack_details(case.network, case.images, case.labels, lower=lower)
    mixed = attack_details(case.network, case.images, case.labels, lower=[lower[0], 0, 0, lower[3]])
    spent = mixed.forwards + mixed.backwards
    assert bool((spent[[1, 2]] >= 5500).all())
    assert int(spent.sum()) <= 4 * 5000
    assert bool((spent[[0, 3]] <= 2 * (alone.forwards + alone.backwards)[[0, 3]]).all())


@pytest.mark.parametrize("method", ["auto", "local", "search"])
def test_the_same_seed_gives_the_same_result(method: Method) -> None:
    images = make_images()
    first, again = (counted(make_module(), images, budget=600, method=method, seed=3)[0] for _ in range(2))
    assert torch.equal(first.adversarial, again.adversarial)
    assert torch.equal(first.forwards, again.forwards)
    assert first.methods == again.methods


def test_another_seed_is_another_search() -> None:
    first, other = (counted(make_module(), make_images(), budget=300, method="search", seed=s)[0] for s in (3, 4))
    assert not torch.equal(first.adversarial, other.adversarial)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_little_memory_means_blocks_of_images_and_equally_valid_results(method: Method) -> None:
    case = make_linear(4, (1, 4, 4), 3, count=5)
    asked: list[int] = []
    counting = Counting(case.module, torch.device("cpu"), lambda _: None)

    def scores(x: Tensor) -> Tensor:
        asked.append(len(x))
        return counting(x)  # type: ignore[no-any-return]

    network = with_forward(case.network, scores)  # type: ignore[arg-type]
    result = attack_details(network, case.images, case.labels, method=method, memory_bytes=2**13, budget=400)
    check_result(case.module, case.images, result, case.domain)
    assert max(asked) <= 2**13 // case.network.sample_bytes
    assert counting.forwards == int(result.forwards.sum()) + 1
    if method in ("auto", "local"):
        assert result.distance.tolist() == [case.distance(row) for row in range(5)]


def test_progress_names_the_stages_and_never_goes_back() -> None:
    told: list[tuple[str, float, float]] = []
    case = make_linear(132, (1, 6, 6), 3, count=2)
    attack_details(case.network, case.images, case.labels, progress=lambda *words: told.append(words))
    assert {stage for stage, _, _ in told} >= {"saliency", "local", "search"}
    shares = [share for _, share, _ in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    assert math.isnan(told[0][2])
    assert told[-1][2] > 1
