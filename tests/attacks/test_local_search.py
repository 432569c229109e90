"""The moves of the local search, one by one, and what small parts of other methods must do."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from l0tre.attacks import local_search as searching
from l0tre.attacks.auto import METHODS
from l0tre.attacks.chains import NARROWING, begin, pick, survivors
from l0tre.attacks.first_order import first_order_gains
from l0tre.attacks.linear import no_sides
from l0tre.attacks.meter import Meter
from l0tre.attacks.random_search import _fewer
from l0tre.attacks.task import AttackTask
from l0tre.objective import AllRivals
from tests.attacks.cases import Conjunction, Linear, make_linear
from tests.tools import plain_network

MEMORY = 2**24
SHAPE = (1, 5, 5)


def make_task(case: Linear) -> tuple[Meter, AttackTask, torch.Generator]:
    count = len(case.images)
    task = AttackTask(case.images.flatten(1), AllRivals(case.labels), case.domain, torch.ones(count, dtype=torch.int64))
    return Meter(case.network, count, MEMORY), task, torch.Generator().manual_seed(0)


def ample(images: int) -> Tensor:
    """Passes that are enough for anything."""
    return torch.full((images,), 5000)


def corners_of(task: AttackTask, groups: int) -> Tensor:
    """Every image with its first groups at the farther ends of their ranges."""
    far = torch.where(task.images - task.domain.low > task.domain.high - task.images, task.domain.low, task.domain.high)
    x = task.images.clone()
    places = task.domain.members[:groups].flatten()
    x[:, places] = far[:, places]
    return x


@pytest.mark.parametrize("known", [True, False])
def test_chains_aim_at_one_group_less_than_the_best(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    case = make_linear(132, (1, 6, 6), 3, count=4)
    meter, task, generator = make_task(case)
    best = METHODS["search"].run(meter, task, task.images, torch.full((4,), 150), generator) if known else task.images
    first: list[Tensor] = []
    step = searching._step

    def spy(meter: Meter, task: AttackTask, chains: Any, aim: Tensor, *rest: Any) -> Any:
        first.append(torch.zeros(4, dtype=torch.int64).scatter(0, chains.image, aim))
        return step(meter, task, chains, aim, *rest)

    monkeypatch.setattr(searching, "_step", spy)
    searching.local(meter, task, generator)(best, meter.spent + 200)
    # Linear models have the first word, and can only make the inputs smaller.
    assert bool((first[0] <= task.sizes(best) - 1).all())
    assert bool((first[0] >= torch.tensor([case.distance(row) - 1 for row in range(4)])).all())


def test_dropped_groups_stay_away_for_some_steps() -> None:
    case = make_linear(132, (1, 6, 6), 3, count=2)
    meter, task, generator = make_task(case)
    best = corners_of(task, 6)
    chains = begin(meter, task, task.images.clone(), torch.arange(2), ample(2), no_sides(task), generator)
    chains = replace(chains, x=best[chains.image])
    aim = torch.full((len(chains),), 6)
    before = {(row, group) for row in range(len(chains)) for group in range(6)}
    moved, _, _ = searching._step(meter, task, chains, aim, ample(2), 10, generator)
    changed = (moved.x != task.images[moved.image]).nonzero().tolist()  # one value for each group here
    gone = before - {(row, group) for row, group in changed}
    assert len(gone) > 0
    for row, group in gone:
        assert 10 + searching.TABU[0] <= int(moved.tabu[row, group]) < 10 + searching.TABU[1]
    assert int((moved.tabu > 0).sum()) == len(gone)
    slope = torch.ones(moved.x.shape)
    for now, allowed in ((11, False), (10 + searching.TABU[1], True)):
        gain, _ = first_order_gains(task, task.images[moved.image], moved.x, slope)
        gain = searching._shaken(gain, moved, now, generator)
        finite = torch.isfinite(gain)
        assert all(bool(finite[row, group]) == allowed for row, group in gone if float(moved.x[row, group]) > 0)


def test_a_step_adds_the_best_group_or_drops_the_cheapest_one() -> None:
    case = make_linear(132, (1, 6, 6), 2, count=3)
    meter, task, generator = make_task(case)
    weight = next(iter(case.module.parameters())).detach()
    chains = begin(meter, task, task.images.clone(), torch.arange(3), ample(3), no_sides(task), generator)
    chains = pick(pick(chains, ~chains.shaken), torch.arange(3))
    chains = replace(chains, x=task.images[chains.image])
    slope = weight[task.specification.labels] - weight[1 - task.specification.labels]
    gains = torch.maximum(slope * task.images, slope * (task.images - 1))
    added, _, _ = searching._step(meter, task, chains, torch.full((3,), 36), ample(3), 0, generator)
    assert (added.x != task.images).nonzero()[:, 1].tolist() == gains.argmax(1).tolist()
    whole = corners_of(task, 9)
    effect = (slope * (whole - task.images))[:, :9]
    dropped, _, _ = searching._step(meter, task, replace(chains, x=whole), torch.full((3,), 4), ample(3), 0, generator)
    assert (dropped.x != whole).nonzero()[:, 1].tolist() == effect.argmax(1).tolist()


def test_few_rivals_are_joined_by_chains_with_chance() -> None:
    for classes, rivals, shaken in ((2, 1, 2), (3, 2, 2), (5, 4, 0)):
        meter, task, generator = make_task(make_linear(1, (1, 4, 4), classes, count=2))
        chains = begin(meter, task, task.images.clone(), torch.arange(2), ample(2), no_sides(task), generator)
        for image in range(2):
            own = chains.image == image
            assert len(chains.rival[own].unique()) == rivals
            assert int(chains.shaken[own].sum()) == shaken
            assert int(task.specification.labels[image]) not in chains.rival[own].tolist()
    assert bool((meter.spent <= ample(2)).all())


def test_the_nearest_chains_of_each_image_survive() -> None:
    meter, task, generator = make_task(make_linear(1, (1, 4, 4), 9, count=2))
    chains = begin(meter, task, task.images.clone(), torch.arange(2), ample(2), no_sides(task), generator)
    chains = pick(chains, torch.arange(16))  # without those from the best inputs
    least = torch.arange(16.0).flip(0)  # eight chains for each image, its last ones are nearest
    chains = replace(chains, least=least)
    (early, many), (late, few) = NARROWING
    for since, counts in (([0, 0], (8, 8)), ([early, 0], (many, 8)), ([late, early], (few, many))):
        kept = survivors(chains, torch.tensor(since))
        for image, count in enumerate(counts):
            assert kept[chains.image == image].tolist() == [False] * (8 - count) + [True] * count


def test_random_groups_are_put_back_to_their_own_image() -> None:
    _, task, generator = make_task(make_linear(9, (3, 2, 3), 3, count=3))
    best, owner = corners_of(task, 5), torch.tensor([2, 1])
    fewer = _fewer(task, best, owner, torch.tensor([1, 3]), generator)
    assert task.part(owner).sizes(fewer).tolist() == [4, 2]
    assert bool(((fewer == best[owner]) | (fewer == task.images[owner])).all())


@pytest.mark.parametrize(("planted", "start", "wanted"), [(1, 2, 1), (2, 3, 2), (1, 4, 4), (2, 4, 4), (2, 2, 2)])
def test_all_singles_are_tried_from_two_and_all_pairs_from_three(planted: int, start: int, wanted: int) -> None:
    positions = [7, 18][:planted]
    network = plain_network(Conjunction(positions, [1.0, 0.0][:planted], visible=False), SHAPE, sample_bytes=2**10)
    images = torch.full((1, 25), 0.5)
    known = images.clone()
    known[0, [7, 18, 3, 11][:start]] = torch.tensor([1.0, 0.0, 0.0, 1.0])[:start]
    domain = make_linear(0, SHAPE, 2).domain
    task = AttackTask(images, AllRivals(torch.zeros(1, dtype=torch.int64)), domain, torch.ones(1, dtype=torch.int64))
    meter = Meter(network, 1, MEMORY)
    found = METHODS["exact"].run(meter, task, known, torch.tensor([10_000]), torch.Generator())
    assert task.sizes(found).tolist() == [wanted]
    # Two ends for each of 25 pixels, four for each of 300 pairs; and the best of each ranking again.
    tried = {(1, 2): 2 * 25, (2, 3): 4 * 300, (2, 2): 2 * 25}.get((planted, start), 0)
    assert meter.forwards.tolist() == [tried + 2 * bool(tried)]
