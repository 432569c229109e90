"""Every method on its own, from random starts: never a larger input, never one that is not adversarial."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from l0tre.attacks.auto import METHODS, usable
from l0tre.attacks.drive import carry_out
from l0tre.attacks.meter import Meter
from l0tre.attacks.random_search import _round, _Walk
from l0tre.attacks.task import LEVELS, AttackTask, rounded
from l0tre.domain import Domain, make_domain
from l0tre.exhaustive.accumulate import flipped
from l0tre.model.network import margins
from l0tre.objective import AllRivals
from tests.attacks.cases import RANGES, count_changed, make_linear
from tests.tools import plain_network

MEMORY = 2**24


def random_start(module: nn.Module, task: AttackTask, generator: torch.Generator) -> Tensor:
    """For each image a random adversarial input with random changed groups; the original where none is drawn."""
    domain, best = task.domain, task.images.clone()
    for row, image in enumerate(task.images):
        for _ in range(40):
            chosen = torch.rand(domain.groups, generator=generator) < torch.rand(1, generator=generator)
            places = domain.members[chosen].unique()
            x = image.clone()
            share = torch.rand(len(places), generator=generator)
            values = domain.low[places] + share * (domain.high - domain.low)[places]
            x[places] = torch.minimum(task.snap(values), domain.high[places])
            if bool(flipped(module(x.reshape(1, *domain.shape)), task.specification.pick([row]))[0]):
                best[row] = x
                break
    return best


def bent(seed: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network with kinks, its input in any units."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        values = int(torch.tensor(shape).prod())
        layers = nn.Sequential(nn.Flatten(), nn.Linear(values, 8), nn.ReLU(), nn.Linear(8, classes))
        for parameter in layers.parameters():
            parameter.data *= 2
    return layers


def make_task(seed: int, ranges: str, groups: str, rounding: bool) -> tuple[nn.Module, AttackTask, torch.Generator]:
    model = make_linear(seed, (3, 2, 3), 3, ranges, groups, masked=seed % 2 == 0, count=3)
    domain: Domain = make_domain((3, 2, 3)) if rounding else model.domain
    images = rounded(model.images) if rounding else model.images
    module = bent(seed, (3, 2, 3), 3)
    labels = module(images).argmax(1)
    # Some images may be done already, so that the others' places are not those in the batch.
    enough = torch.tensor([[1, 1, 2], [domain.groups, 1, 1]][seed % 3 == 0])
    task = AttackTask(images.flatten(1), AllRivals(labels), domain, enough, LEVELS if rounding else 0)
    return module.eval().requires_grad_(False), task, torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    ranges=st.sampled_from(RANGES),
    groups=st.sampled_from(["auto", "feature", "own"]),
    known=st.booleans(),
    kind=st.sampled_from(["none", "8bit"]),
    limit=st.integers(0, 300),
)
def test_inputs_never_grow_and_stay_adversarial(
    name: str, seed: int, ranges: str, groups: str, known: bool, kind: str, limit: int
) -> None:
    rounding = kind == "8bit"
    module, task, generator = make_task(seed, "unit" if rounding else ranges, groups, rounding)
    start = random_start(module, task, generator) if known else task.images.clone()
    before = start.clone()
    meter = Meter(plain_network(module, task.domain.shape, sample_bytes=2**10), len(start), MEMORY)
    result = METHODS[name].run(meter, task, start, torch.full((len(start),), limit), generator)
    assert bool((meter.spent <= limit).all()), "more was spent than given"
    assert torch.equal(start, before), "the given inputs were changed in place"
    for row, (image, old, new) in enumerate(zip(task.images, before, result, strict=True)):
        unknown = torch.equal(image, old)
        if torch.equal(image, new):
            assert unknown
            continue
        assert bool(((new >= task.domain.low) & (new <= task.domain.high)).all())
        size = count_changed(task.domain, image, new)
        assert unknown or size <= count_changed(task.domain, image, old)
        scores = module(new.reshape(1, *task.domain.shape))
        assert int(scores.argmax()) != int(task.specification.labels[row])
        if rounding:
            assert torch.equal(rounded(new), new)


@pytest.mark.parametrize("name", METHODS)
def test_a_spent_limit_and_small_enough_inputs_cost_nothing(name: str) -> None:
    module, task, generator = make_task(4, "unit", "auto", False)
    start = random_start(module, task, generator)
    assert bool((task.sizes(start) <= task.domain.groups).all())
    network = plain_network(module, task.domain.shape, sample_bytes=2**10)
    for limit, enough in ((0, 1), (1000, task.domain.groups)):
        meter = Meter(network, len(start), MEMORY)
        some = AttackTask(task.images, task.specification, task.domain, torch.full((len(start),), enough))
        result = METHODS[name].run(meter, some, start, torch.full((len(start),), limit), generator)
        assert torch.equal(result, start)
        assert int(meter.spent.sum()) == 0


@pytest.mark.parametrize("name", METHODS)
def test_when_halted_the_best_input_is_kept(name: str) -> None:
    module, task, generator = make_task(4, "unit", "auto", False)
    start = random_start(module, task, generator)
    meter = Meter(plain_network(module, task.domain.shape), len(start), MEMORY, lambda: True)
    limit = torch.full((len(start),), 1000)
    assert torch.equal(METHODS[name].run(meter, task, start, limit, generator), start)


def test_ties_and_differences_within_round_off_are_no_success() -> None:
    scores = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 1e-6], [1.0, 1.0 + 1e-5], [1e3, 1e3 + 1e-3], [float("nan"), 1.0]])
    assert flipped(scores, AllRivals(torch.zeros(5, dtype=torch.int64))).tolist() == [False, False, True, False, False]


def test_a_round_of_the_search_returns_what_it_measured() -> None:
    module, task, generator = make_task(4, "unit", "feature", False)
    meter = Meter(plain_network(module, task.domain.shape, sample_bytes=2**10), 3, MEMORY)
    start = random_start(module, task, generator)
    owner = torch.tensor([0, 2])
    walk = _Walk(owner, start[owner], torch.full((2,), float("inf")), torch.tensor([0, 30]))
    inputs, margin, hit = _round(meter, task, walk, generator)
    scores = module(inputs.reshape(-1, *task.domain.shape))
    assert torch.allclose(margins(scores, task.specification.labels[owner]), margin, atol=1e-5)
    assert torch.equal(flipped(scores, task.specification.pick(owner)), hit)
    some = task.part(owner)
    # An exchange keeps the size, except that nothing can come in where all groups are changed.
    assert torch.equal(some.sizes(inputs), some.sizes(start[owner]).clamp(max=task.domain.groups - 1))
    assert meter.forwards.tolist() == [8, 0, 8]


def test_a_false_success_does_not_survive_the_replay() -> None:
    module, task, _ = make_task(4, "unit", "auto", False)
    network = plain_network(module, task.domain.shape)
    originals = {image.numpy().tobytes() for image in task.images}

    def steady(x: Tensor) -> Tensor:
        """The source decides as for the originals, whatever changes."""
        scores: Tensor = module(task.images[:1].view(1, *task.domain.shape))
        return scores.expand(len(x), -1)

    def lying(x: Tensor) -> Tensor:
        """Another decision as soon as anything changes."""
        same = torch.tensor([row.numpy().tobytes() in originals for row in x.flatten(1)])
        own = steady(x)
        return torch.where(same[:, None], own, own.roll(1, 1))

    task = replace(task, specification=AllRivals(steady(task.images).argmax(1)))
    meter = Meter(replace(network, forward=lying, reference=steady), len(task.images), MEMORY)
    outcome = carry_out(meter, task, usable("search", True), 100, 0)
    assert int(meter.forwards.sum()) > 0
    assert torch.equal(outcome.best, task.images)
    assert outcome.methods == ("", "", "")
