"""Lists of allowed values, whole numbers and directions: against brute force over all allowed inputs."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.admission import admit
from l0tre.domain import make_domain, restrict, same_domain
from l0tre.errors import CertificateError, ConfigError, DataError
from l0tre.grid import interval_points, make_grid
from l0tre.rules import Rules
from tests.tools import NO_ATTACK

KINDS: tuple[Any, ...] = ("certified", "grid")
GROUPS = torch.tensor([0, 1, 1, 1, 2, 3])  # a number, a one-hot group of three, a whole number, a number that rises


def domain() -> l0tre.Domain:
    plain = make_domain((6,), groups=GROUPS, high=torch.tensor([1.0, 1, 1, 1, 3, 1]))
    return restrict(plain, listed={1: torch.eye(3)}, whole=[4], upwards=[5])


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    last = nn.Linear(8, 2)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), last)
    for parameter in module.parameters():
        parameter.data *= 1.5
    margins = module(rows(200, 99)).detach() @ torch.tensor([1.0, -1.0])
    last.bias.data[0] -= margins.quantile(0.05 + 0.05 * seed)
    return module.eval()


def rows(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 6, generator=generator)
    x[:, 1:4] = torch.eye(3)[torch.randint(3, (count,), generator=generator)]
    x[:, 4] = torch.randint(4, (count,), generator=generator).float()
    return x


def allowed(x: Tensor, steps: int) -> list[list[Tensor]]:
    """Values that each group may take from one row."""
    line = torch.linspace(0, 1, steps)
    return [
        [torch.tensor([float(v)]) for v in line],
        list(torch.eye(3)),
        [torch.tensor([float(v)]) for v in range(4)],
        [torch.tensor([max(float(v), float(x[5]))]) for v in line],
    ]


def distance(module: nn.Module, x: Tensor, steps: int = 41) -> int:
    """Fewest groups whose change to some of their values changes the decision; 5 if none does."""
    label = int(module(x[None]).argmax())
    values, places = allowed(x, steps), [[0], [1, 2, 3], [4], [5]]
    for size in range(1, 5):
        for chosen in itertools.combinations(range(4), size):
            if size > 2:
                return size  # far enough for these tests
            inputs = []
            for combination in itertools.product(*(values[g] for g in chosen)):
                changed = x.clone()
                for group, vector in zip(chosen, combination, strict=True):
                    changed[places[group]] = vector
                inputs.append(changed)
            with torch.inference_mode():
                if bool((module(torch.stack(inputs)).argmax(1) != label).any()):
                    return size
    return 5


def is_allowed(x: Tensor, changed: Tensor) -> bool:
    one_hot = sorted(changed[1:4].tolist()) == [0, 0, 1]
    inside = bool((changed >= 0).all() & (changed[[0, 5]] <= 1).all() & (changed[4] <= 3))
    return one_hot and inside and float(changed[4]) == round(float(changed[4])) and bool(changed[5] >= x[5])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("guarantee", ["certified", "grid"])
def test_bounds_are_about_allowed_rows_and_witnesses_are_such_rows(seed: int, guarantee: Any) -> None:
    module, x = network(seed), rows(5, seed)
    result = l0tre.evaluate(module, x, domain=domain(), max_t=2, guarantee=guarantee, points=5, **NO_ATTACK)
    assert result.finished
    for image in result:
        true = distance(module, x[image.index], 5 if guarantee == "grid" else 41)
        # Whole numbers are proved over all numbers between them, so a bound may be left below the truth, never above.
        assert image.lower < true
        assert image.guarantee == guarantee
        if image.witness is not None:
            assert image.upper >= true or guarantee == "certified"
            assert is_allowed(x[image.index], image.witness.apply(x[image.index]))
    assert any(image.converged for image in result)
    assert any(image.lower for image in result)


def test_one_hot_groups_are_not_proved_over_rows_that_cannot_be(tmp_path: Path) -> None:
    """Only ``[1, 0, 1]``-like rows change the decision, so it is safe."""
    module = nn.Linear(3, 2)
    module.weight.data = torch.tensor([[0.0, 0, 0], [1.0, 1, 1]])
    module.bias.data = torch.tensor([1.5, 0.0])
    x = torch.tensor([[1.0, 0, 0]])
    groups = torch.tensor([0, 0, 0])
    free = make_domain((3,), groups=groups)
    assert l0tre.evaluate(module, x, domain=free, max_t=1, **NO_ATTACK).upper == 1
    kept = restrict(free, listed={0: torch.eye(3)})
    for guarantee in KINDS:
        result = l0tre.evaluate(module, x, domain=kept, max_t=1, guarantee=guarantee, **NO_ATTACK)
        assert (result.lower, result[0].witness) == (1, None)
    proof = tmp_path / "one.l0cert"
    assert l0tre.verify(module, x, domain=kept, radius=1, certificate=proof).answer == "safe"
    l0tre.check(proof, module, x, domain=kept)
    with pytest.raises(CertificateError, match="domain"):
        l0tre.check(proof, module, x, domain=free)


def test_only_upwards_is_another_question_than_both_ways() -> None:
    module = nn.Linear(1, 2)
    module.weight.data, module.bias.data = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 0.5])
    x = torch.tensor([[0.8]])
    for upwards, lower in (([0], 1), ([], 0)):
        kept = restrict(make_domain((1,)), upwards=upwards)
        for guarantee in KINDS:
            result = l0tre.evaluate(module, x, domain=kept, max_t=1, guarantee=guarantee, **NO_ATTACK)
            assert result.lower == lower


@pytest.mark.parametrize("method", ["auto", "greedy", "saliency", "local", "search", "exact"])
def test_attacks_give_allowed_rows(method: Any) -> None:
    found = 0
    for seed in range(3):
        module, x = network(seed), rows(6, seed + 10)
        result = l0tre.attack_details(module, x, domain=domain(), method=method, budget=400)
        for row in range(6):
            assert is_allowed(x[row], result.adversarial[row]), result.adversarial[row]
        found += int(result.changed.sum())
    assert found


def test_admitting_twice_changes_nothing() -> None:
    kept, x = domain(), rows(50, 3)
    inputs = torch.rand(50, 6) * torch.tensor([1.0, 1, 1, 1, 3, 1])
    once = admit(kept, x, inputs)
    assert torch.equal(admit(kept, x, once), once)
    assert torch.equal(admit(kept, x, x), x)
    assert all(is_allowed(before, after) for before, after in zip(x, once, strict=True))


def test_the_grid_holds_exactly_the_allowed_vectors() -> None:
    grid = make_grid(domain(), 0.5)
    assert {tuple(point) for point in grid[1].tolist()} == {tuple(row) for row in torch.eye(3).tolist()}
    assert sorted(set(grid[2, :, 0].tolist())) == [0, 1, 2, 3]
    assert sorted(set(grid[0, :, 0].tolist())) == [0, 0.5, 1]


def test_points_instead_of_a_spacing() -> None:
    wide = make_domain((2,), high=torch.tensor([1.0, 4000.0]))
    assert make_grid(wide, 0.25, points=5).shape[1] == 5


def test_rows_that_are_not_allowed_are_refused() -> None:
    for place, value, message in ((1, 1.0, "none of the 3 allowed"), (4, 0.5, "whole numbers only")):
        x = torch.tensor([[0.5, 0, 1, 0, 2, 0.5]])
        x[0, place] = value
        with pytest.raises(DataError, match=message):
            l0tre.evaluate(network(0), x, domain=domain())


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"listed": {9: torch.eye(3)}}, "group 9"),
        ({"listed": {1: torch.eye(2)}}, r"\(2, 2\): give finite numbers, \(values, 3\)"),
        ({"upwards": [0], "downwards": [0]}, "only rise or only fall"),
    ],
)
def test_rules_that_make_no_sense(rules: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        restrict(make_domain((6,), groups=GROUPS), **rules)


def test_rules_survive_in_a_run_folder(tmp_path: Path) -> None:
    module, x = network(1), rows(3, 1)
    l0tre.evaluate(module, x, domain=domain(), max_t=1, out=tmp_path / "run", time_budget=0)
    from l0tre.store import read_inputs

    stored = read_inputs(tmp_path / "run").domain
    assert isinstance(stored.rules, Rules)
    assert same_domain(stored, domain())
    assert not same_domain(stored, make_domain((6,), groups=GROUPS))
    whole = l0tre.evaluate(module, x, domain=domain(), max_t=1)
    again = l0tre.resume(tmp_path / "run", module)
    assert [image.lower for image in again] == [image.lower for image in whole]


@pytest.mark.parametrize("listed", [True, False])
def test_a_proof_under_rules_goes_on_where_it_was_stopped(listed: bool, tmp_path: Path) -> None:
    """Sessions of one step each come to an end, with the bounds of one that is not stopped."""
    ranges = make_domain((6,), high=torch.tensor([1.0, 1, 1, 1, 3, 1]))
    where = domain() if listed else restrict(ranges, upwards=range(6))
    module, x, folder = network(4 if listed else 1), rows(3, 1)[1:2] if listed else rows(2, 1)[:1], tmp_path / "run"
    whole = l0tre.evaluate(module, x, domain=where, max_t=2, **NO_ATTACK)
    assert whole.lower > 0
    result = l0tre.evaluate(module, x, domain=where, max_t=2, out=folder, time_budget=0, **NO_ATTACK)
    sessions = 1
    while not result.finished:
        result = l0tre.resume(folder, module, time_budget=0)
        sessions += 1
        assert sessions < 20
    assert sessions > 2
    assert [(image.lower, image.upper) for image in result] == [(image.lower, image.upper) for image in whole]


def test_a_value_in_every_interval() -> None:
    thresholds = torch.tensor([0.25, 0.5, 0.5, 2.0, -1.0], dtype=torch.float64)
    points = interval_points(0.0, 1.0, thresholds).tolist()
    assert points[0] == 0
    assert points[-1] == 1
    assert {sum(point > t for t in (0.25, 0.5)) for point in points} == {0, 1, 2}
    # Nothing lies between a threshold that is no float32 number and the next float32 number below it.
    tight = torch.tensor([0.1, torch.tensor(0.1).item()], dtype=torch.float64)
    near = interval_points(0.0, 1.0, tight)
    assert bool((near <= 1).all() & (near >= 0).all())
    whole = interval_points(0, 5, torch.tensor([1.5, 1.7, 3.0]), whole=True).tolist()
    assert whole == [float(round(value)) for value in whole]
    assert {sum(value > t for t in (1.5, 1.7, 3.0)) for value in whole} == {0, 2, 3}
