"""Every engine proves and violates what an objective says: a label's margin, one target's, a neuron's side."""

import itertools
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.domain import make_domain
from l0tre.errors import ConfigError
from l0tre.evaluation.driver import drive
from l0tre.evaluation.problem import GuaranteeWish, Settings, make_problem, start
from l0tre.evaluation.results import ImageBounds
from l0tre.grid import make_grid
from l0tre.model.graph import run
from l0tre.objective import AllRivals, LabelMargin, NeuronValue, Objective, OneRival, TargetMargin, specify

POINTS = torch.linspace(0, 1, 5)
GUARANTEES: tuple[GuaranteeWish, ...] = ("certified", "grid", "lipschitz")


def small_network(seed: int, *, maps: bool) -> l0tre.Network:
    torch.manual_seed(seed)
    if maps:
        module = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 2 * 2, 3))
        return l0tre.load(module, input_shape=(1, 3, 3), device="cpu")
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
    return l0tre.load(module, input_shape=(5,), device="cpu")


def evaluate(
    network: l0tre.Network, image: Tensor, objective: Objective, guarantee: GuaranteeWish, max_t: int = 2
) -> ImageBounds:
    settings = Settings(max_t=max_t, guarantee=guarantee, memory_bytes=2**28, epsilon=0.25, attack_queries=50)
    problem = make_problem(network, image[None], None, settings=settings, objective=objective)
    *_, last = drive(problem, start(problem))
    return last.images[0]


def every_change(image: Tensor, t: int) -> Tensor:
    """All inputs with ``t`` values changed to points of the grid."""
    found = []
    for places in itertools.combinations(range(image.numel()), t):
        for values in itertools.product(POINTS.tolist(), repeat=t):
            changed = image.flatten().clone()
            changed[list(places)] = torch.tensor(values)
            found.append(changed.reshape(image.shape))
    return torch.stack(found)


def distance_on_grid(values: "torch.Tensor", most: int) -> int:
    """The smallest ``t`` whose margins are not all positive, ``most + 1`` if none is; a row for each ``t``."""
    return next((t for t, worst in enumerate(values.tolist(), start=1) if worst <= 0), most + 1)


def test_one_rival_is_the_lead_over_one_class() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, 5.0, 9.0]])
    claims = OneRival(torch.tensor([1, 0]), torch.tensor([2, 1]))
    assert claims.margins(scores).tolist() == [1.0, -5.0]
    assert claims.rivals(3).tolist() == [[2], [1]]
    assert claims.rival_scores(scores).argmax(1).tolist() == [2, 1]
    assert claims.pick([1]).margins(scores[1:]).tolist() == [-5.0]
    assert claims.repeat(2).labels.tolist() == [1, 1, 0, 0]
    assert OneRival(torch.tensor([0]), torch.tensor([1])).margins(torch.tensor([[float("nan"), 0.0]])).isnan().all()


def test_all_rivals_are_all_but_the_label() -> None:
    claims = AllRivals(torch.tensor([1, 0]))
    assert claims.rivals(3).tolist() == [[0, 2], [1, 2]]
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, 5.0, 9.0]])
    assert claims.margins(scores).tolist() == [1.0, -9.0]
    assert claims.rival_scores(scores).argmax(1).tolist() == [2, 2]


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_target_is_reached_as_near_as_brute_force_says(seed: int, maps: bool) -> None:
    network = small_network(seed, maps=maps)
    image = torch.rand(network.input_shape, generator=torch.Generator().manual_seed(seed))
    scores = network.scores(image[None])[0]
    label = int(scores.argmax())
    for target in range(3):
        if target == label:
            with pytest.raises(ConfigError, match="give another target"):
                evaluate(network, image, TargetMargin(target), "grid")
            continue
        worst = []
        for t in (1, 2):
            found = network.scores(every_change(image, t))
            worst.append((found[:, label] - found[:, target]).min())
        wanted = distance_on_grid(torch.stack(worst), 2)
        for guarantee in GUARANTEES:
            bounds = evaluate(network, image, TargetMargin(target), guarantee)
            plain = evaluate(network, image, LabelMargin(), guarantee)
            if guarantee == "grid":
                assert min(bounds.lower, 2) == min(wanted - 1, 2)
            assert bounds.lower < wanted or wanted == 3
            assert bounds.lower >= plain.lower  # leaving the label is easier than for one class
            if bounds.witness is not None:
                changed = network.scores(bounds.witness.apply(image)[None])[0]
                assert changed[target] > changed[label]


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_neuron_stays_on_its_side_as_brute_force_says(seed: int, maps: bool, side: Literal["above", "below"]) -> None:
    network = small_network(seed, maps=maps)
    assert network.exact is not None
    image = torch.rand(network.input_shape, generator=torch.Generator().manual_seed(seed + 9))
    sign = 1 if side == "above" else -1
    for position, neuron in ((1, 2), (len(network.exact.operations) - 1, 0)):
        cut = type(network.exact)(network.exact.operations[: position + 1])

        def value(x: Tensor, cut: object = cut, neuron: int = neuron) -> Tensor:
            return run(cut, x.double()).flatten(1)[:, neuron]  # type: ignore[arg-type]

        own = float(value(image[None])[0])
        worst = [float((sign * value(every_change(image, t))).min()) for t in (1, 2)]
        for between in (0.5, 1.5):
            threshold = sign * (sign * own - between * max(1e-3, sign * own - worst[0]))
            margins = torch.tensor([low - sign * threshold for low in worst])
            wanted = distance_on_grid(margins, 2)
            for guarantee in GUARANTEES:
                objective = NeuronValue(position, neuron, threshold, side)
                bounds = evaluate(network, image, objective, guarantee)
                if guarantee == "grid" and float(margins.abs().min()) > 1e-5:
                    assert min(bounds.lower, 2) == wanted - 1
                assert bounds.lower < wanted or wanted == 3
                if bounds.witness is not None:
                    assert sign * float(value(bounds.witness.apply(image)[None])[0]) < sign * threshold


def test_a_neuron_that_nothing_moves_is_proved() -> None:
    network = small_network(0, maps=True)
    image = torch.full((1, 3, 3), 0.5)
    for guarantee in ("certified", "grid"):
        bounds = evaluate(network, image, NeuronValue(1, 0, 1e3, "below"), guarantee)
        assert bounds.lower == 2


def test_what_is_not_there_is_named() -> None:
    network = small_network(0, maps=False)
    labels = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ConfigError, match="operations 1 to"):
        specify(network, NeuronValue(99, 0, 0.0, "above"), labels)
    with pytest.raises(ConfigError, match="neurons 0 to 7, not 8"):
        specify(network, NeuronValue(1, 8, 0.0, "above"), labels)
    with pytest.raises(ConfigError, match="give one of 0 to 2"):
        specify(network, TargetMargin(3), labels)
    function = l0tre.load(lambda x: torch.stack([x.sum(1), -x.sum(1)], 1), input_shape=(4,), device="cpu")
    with pytest.raises(ConfigError, match="has no graph"):
        specify(function, NeuronValue(1, 0, 0.0, "above"), labels)


def test_grid_points_are_those_of_the_search() -> None:
    assert torch.equal(make_grid(make_domain((5,)), 0.25)[0, :, 0], POINTS)
