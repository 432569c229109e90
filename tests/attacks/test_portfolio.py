"""Who gets the budget, and what the methods behind it promise by themselves."""

import pytest
import torch
from torch import Tensor, nn

from l0tre.attacks.auto import METHODS, usable
from l0tre.attacks.drive import carry_out
from l0tre.attacks.linear import approach
from l0tre.attacks.meter import Meter
from l0tre.attacks.portfolio import Learner, make_learner, portfolio
from l0tre.attacks.rows import lowest, places
from l0tre.attacks.task import AttackTask
from l0tre.exhaustive.accumulate import changed_groups, flipped
from l0tre.objective import AllRivals
from tests.attacks.cases import Conjunction, make_linear
from tests.tools import plain_network

MEMORY = 2**24


def make_task(count: int = 3, groups: int = 9) -> tuple[Meter, AttackTask]:
    case = make_linear(3, (1, 3, groups // 3), 3, count=count)
    task = AttackTask(case.images.flatten(1), AllRivals(case.labels), case.domain, torch.ones(count, dtype=torch.int64))
    return Meter(case.network, count, MEMORY), task


@pytest.mark.parametrize("groups", ["auto", "own", "feature"])
def test_one_linear_model_is_enough_for_a_linear_network_of_two_classes(groups: str) -> None:
    for seed in range(5):
        case = make_linear(seed, (3, 3, 3), 2, "each", groups, count=4)
        task = AttackTask(case.images.flatten(1), AllRivals(case.labels), case.domain, torch.ones(4, dtype=torch.int64))
        meter = Meter(case.network, 4, MEMORY)
        best = task.images.clone()
        approach(meter, task, best, torch.arange(4), torch.full((4,), -1), torch.full((4,), 6))
        assert bool((meter.spent <= 6).all())
        for row in range(4):
            distance = case.distance(row)
            assert int(task.sizes(best)[row]) == (distance if distance > 0 else case.domain.groups + 1)


def test_barred_groups_stay_as_they_are() -> None:
    case = make_linear(3, (1, 4, 4), 2, count=4)
    task = AttackTask(case.images.flatten(1), AllRivals(case.labels), case.domain, torch.ones(4, dtype=torch.int64))
    meter, best = Meter(case.network, 4, MEMORY), task.images.clone()
    barred = torch.rand(4, 16, generator=torch.Generator().manual_seed(0)) < 0.4
    limit = torch.full((4,), 50)
    approach(meter, task, best, torch.arange(4), torch.full((4,), -1), limit, barred=barred)
    changed = changed_groups(task.domain, task.images, best)
    assert bool(changed.any())
    assert not bool((changed & barred).any())


def test_any_group_is_found_that_gradients_do_not_show() -> None:
    positions, ends = [3, 7, 12], [1.0, 0.0, 1.0]
    network = plain_network(Conjunction(positions, ends, visible=False), (1, 5, 5), sample_bytes=2**10)
    images = torch.full((1, 25), 0.5)
    known = images.clone()  # two right ones of three are there, and three that do not matter
    known[0, [3, 7, 12, 20, 21, 22]] = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    domain = make_linear(0, (1, 5, 5), 2).domain
    task = AttackTask(images, AllRivals(torch.zeros(1, dtype=torch.int64)), domain, torch.ones(1, dtype=torch.int64))
    meter = Meter(network, 1, MEMORY)
    work, found = METHODS["rank"].start(meter, task, torch.Generator().manual_seed(0)), known
    for _ in range(12):
        found = work(found, torch.tensor([2000]))
    assert task.sizes(found).tolist() == [3]
    assert bool(flipped(network.scores(found.reshape(1, 1, 5, 5)), task.specification)[0])
    assert int(meter.spent[0]) <= 2000


def spend(meter: Meter, task: AttackTask, gains: dict[str, float], total: int) -> tuple[dict[str, int], Tensor]:
    """Play with methods that remove such a share of the groups with 500 passes; passes of each, and the sizes."""
    sizes = torch.full((len(task.images),), float(task.domain.groups), dtype=torch.float64)
    used = dict.fromkeys(gains, 0)

    def turn(name: str, limit: Tensor) -> None:
        passes = (limit - meter.spent).clamp(min=0)
        used[name] += int(passes.sum())
        meter.charge(torch.arange(len(passes)), passes)
        sizes.mul_((1 - gains[name]) ** (passes / 500))

    portfolio(meter, task, list(gains), total, lambda: sizes.ceil().long(), turn, torch.Generator().manual_seed(0))
    return used, sizes


@pytest.mark.parametrize("good", ["local", "values", "search"])
def test_the_budget_goes_to_the_method_that_pays(good: str) -> None:
    meter, task = make_task(groups=900)
    gains = {name: 0.1 if name == good else 0.0 for name in ("local", "values", "search")}
    used, _ = spend(meter, task, gains, 3 * 20_000)
    assert sum(used.values()) <= 3 * 20_000
    assert used[good] >= 0.5 * sum(used.values())


@pytest.mark.parametrize("total", [3, 30, 300, 3001])
def test_all_images_together_never_have_more_than_their_budgets(total: int) -> None:
    meter, task = make_task(groups=900)
    spend(meter, task, {"local": 0.1, "search": 0.0}, total)
    assert int(meter.spent.sum()) <= total
    assert int(meter.spent.sum()) >= total - 60


def test_methods_without_work_rest_until_something_changes() -> None:
    learner = make_learner(["local", "rank"], 2, 9, torch.device("cpu"))
    ten, none = torch.tensor([10, 10]), torch.tensor([0, -1])
    learner.learn(1, ten, ten, none)
    assert learner.idle.tolist() == [[False, False], [True, False]]
    assert learner.choose(torch.Generator().manual_seed(0)).tolist()[0] == 0
    learner.learn(0, ten, torch.tensor([9, 10]), torch.tensor([50, 50]))
    assert learner.idle.tolist() == [[False, False], [False, False]]
    assert learner.removed[0].tolist() == pytest.approx([0.1, 0.0])
    assert learner.passes[0].tolist() == [50, 50]


def test_only_values_between_the_ends_are_left_where_all_smaller_sets_were_tried() -> None:
    learner = make_learner(["local", "exact", "values"], 4, 9, torch.device("cpu"))
    sizes = torch.tensor([3, 3, 4, 3])
    learner.learn(1, sizes, torch.tensor([3, 2, 4, 3]), torch.tensor([50, 50, 50, 0]))
    assert learner.settled.tolist() == [True, False, False, False]
    assert learner.resting[:, 0].tolist() == [True, True, False]
    assert learner.choose(torch.Generator().manual_seed(0)).tolist()[0] == 2
    learner.learn(2, sizes, torch.tensor([2, 3, 4, 3]), torch.tensor([20, -1, -1, -1]))
    assert not bool(learner.settled.any())


def test_nothing_is_settled_where_no_input_is_known() -> None:
    learner = make_learner(["exact", "search"], 1, 2, torch.device("cpu"))
    learner.learn(0, torch.tensor([3]), torch.tensor([3]), torch.tensor([12]))
    assert not bool(learner.settled)
    assert learner.resting[:, 0].tolist() == [True, False]


def test_images_that_are_settled_cost_nothing_more_if_no_method_goes_between_the_ends() -> None:
    case = make_linear(3, (1, 3, 3), 3, count=3)
    task = AttackTask(case.images.flatten(1), AllRivals(case.labels), case.domain, torch.ones(3, dtype=torch.int64))
    meter = Meter(case.network, 3, MEMORY)
    outcome = carry_out(meter, task, usable("auto", True, ends_only=True), 1500, 0)
    sizes = task.sizes(outcome.best)
    small = sizes <= 3
    assert bool(small.any())
    assert sizes[small].tolist() == [case.distance(row) for row in small.nonzero()[:, 0].tolist()]
    assert bool((meter.spent[small] < 1200).all())


def test_nothing_is_chosen_where_all_rest() -> None:
    learner = make_learner(["local"], 1, 9, torch.device("cpu"))
    idle = Learner(
        learner.names, learner.removed, learner.passes, torch.ones(1, 1, dtype=torch.bool), learner.settled, 9
    )
    assert idle.choose(torch.Generator()).tolist() == [-1]


def test_rows_of_owners() -> None:
    owner = torch.tensor([2, 0, 2, 2, 0])
    assert places(owner).tolist() == [0, 0, 1, 2, 1]
    values = torch.tensor([3.0, float("inf"), 1.0, 2.0, float("nan")])
    assert lowest(values, owner, 3).tolist() == [-1, -1, 2]


def test_rows_beyond_the_limit_are_not_afforded() -> None:
    meter = Meter(plain_network(nn.Flatten(), (3,)), 2, MEMORY)
    meter.charge(torch.tensor([0]), 5)
    owner = torch.tensor([0, 1, 0, 1, 1])
    assert meter.affords(owner, torch.tensor([7, 4]), 2).tolist() == [True, True, False, True, False]
