"""What attack and attack_details promise about their results."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.api.attack import attack, attack_details
from l0tre.attacks.auto import METHODS
from l0tre.defaults import Method
from l0tre.domain import make_domain
from l0tre.errors import ConfigError, DataError, ModelError
from l0tre.model.network import margins
from tests.attacks.cases import Linear, check_result, make_linear
from tests.tools import plain_network, tiny_module

SHAPE = (1, 4, 4)


class Scores(nn.Module):
    """Fixed weights and biases, one row of weights for each class."""

    def __init__(self, weight: list[list[float]], bias: list[float]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))
        self.register_buffer("bias", torch.tensor(bias))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.get_buffer("weight").T + self.get_buffer("bias")


@pytest.fixture(scope="module")
def case() -> Linear:
    return make_linear(3, SHAPE, 4, count=6)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_every_method_keeps_the_promises(method: Method) -> None:
    module, _ = tiny_module("conv1", 1)
    images = torch.rand(5, 1, 2, 3, generator=torch.Generator().manual_seed(1))
    network = plain_network(module, (1, 2, 3), sample_bytes=2**10)
    result = attack_details(network, images, [0, 1, 2, 0, 1], method=method, budget=300)
    check_result(module, images, result, make_domain((1, 2, 3)))


def test_attack_gives_the_inputs_of_attack_details(case: Linear) -> None:
    result = attack(case.network, case.images, case.labels, budget=300)
    assert torch.equal(result, attack_details(case.network, case.images, case.labels, budget=300).adversarial)
    assert torch.equal(result, l0tre.attack(case.network, case.images.numpy(), case.labels.numpy(), budget=300))


def test_without_labels_the_decisions_are_left(case: Linear) -> None:
    result = attack_details(case.network, case.images, budget=300)
    assert torch.equal(result.labels, case.labels)
    assert torch.equal(result.distance, attack_details(case.network, case.images, case.labels, budget=300).distance)


def test_an_image_with_another_decision_needs_no_change(case: Linear) -> None:
    labels = case.labels.clone()
    labels[[1, 4]] = (labels[[1, 4]] + 1) % 4
    result = attack_details(case.network, case.images, labels, budget=300)
    check_result(case.module, case.images, result, case.domain)
    for row in (1, 4):
        assert torch.equal(result.adversarial[row], case.images[row])
        assert (int(result.distance[row]), result.methods[row]) == (0, "")
        assert (int(result.forwards[row]), int(result.backwards[row])) == (1, 0)  # the first look
    assert result.changed.tolist() == [True, False, True, True, False, True]
    others = result.distance[[0, 2, 3, 5]].double()
    assert result.mean == pytest.approx(float(others.mean()))
    assert result.median == pytest.approx(float(np.median(others.numpy())))


def test_mixed_targets_are_reached_each(case: Linear) -> None:
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    result = attack_details(case.network, case.images, targets, targeted=True, budget=1000)
    check_result(case.module, case.images, result, case.domain, targeted=True)
    assert bool(result.found.all())
    assert torch.equal(result.decisions, targets)
    untargeted = attack_details(case.network, case.images, case.labels, budget=1000)
    away = targets != case.labels
    assert bool((result.distance[away] >= untargeted.distance[away]).all())
    assert bool((result.distance[~away] == 0).all())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("winner", [0, 1])
def test_class_zero_as_label_as_only_rival_and_as_target(classes: int, winner: int) -> None:
    # One pixel decides between classes 0 and 1; class 2 never wins.
    weight = [[0.0] * 16 for _ in range(classes)]
    weight[0][5], weight[1][5] = 1.0, -1.0
    module = Scores(weight, [0.0, 1.0, -9.0][:classes])
    network = plain_network(module, SHAPE)
    images = torch.zeros(1, *SHAPE)
    images.view(-1)[5] = 0.25 if winner else 0.75
    result = attack_details(network, images, budget=300)
    assert (result.labels.tolist(), result.decisions.tolist()) == ([winner], [1 - winner])
    aimed = attack_details(network, images, [1 - winner], targeted=True, budget=300)
    for each, targeted in ((result, False), (aimed, True)):
        check_result(module, images, each, make_domain(SHAPE), targeted=targeted)
        assert each.distance.tolist() == [1]
        assert (each.adversarial != images).flatten().nonzero()[:, 0].tolist() == [5]


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_a_constant_network_has_no_adversarial_input(method: Method) -> None:
    module = Scores([[0.0] * 16] * 3, [0.0, 1.0, -1.0])
    images = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    result = attack_details(plain_network(module, SHAPE), images, method=method, budget=200)
    check_result(module, images, result, make_domain(SHAPE))
    assert result.distance.tolist() == [-1, -1]
    assert result.methods == ("", "")
    assert not bool(result.optimal.any())
    assert torch.equal(result.adversarial, images)
    assert result.mean != result.mean
    assert result.median != result.median


def test_a_tie_is_no_other_decision() -> None:
    # Pixel 0 can make a tie and no more, pixel 1 nothing.
    module = Scores([[0.0] * 16, [1.0] + [0.0] * 15], [1.0, 0.0])
    images = torch.full((1, *SHAPE), 0.5)
    result = attack_details(plain_network(module, SHAPE), images, budget=300)
    assert result.distance.tolist() == [-1]
    check_result(module, images, result, make_domain(SHAPE))


def test_an_image_that_stays_a_tie_is_not_found() -> None:
    module = Scores([[0.0] * 16] * 3, [1.0, 1.0, 0.0])
    images = torch.full((1, *SHAPE), 0.5)
    for label, targeted in ((0, False), (1, False), (0, True), (1, True)):
        result = attack_details(plain_network(module, SHAPE), images, [label], targeted=targeted, budget=100)
        assert result.distance.tolist() == [-1]
        check_result(module, images, result, make_domain(SHAPE), targeted=targeted)


def test_an_image_that_is_a_tie_still_has_to_be_changed() -> None:
    module = Scores([[0.0] * 16, [1.0] + [0.0] * 15], [0.5, 0.0])
    images = torch.full((1, *SHAPE), 0.5)
    result = attack_details(plain_network(module, SHAPE), images, [0], budget=300)
    assert result.distance.tolist() == [1]
    check_result(module, images, result, make_domain(SHAPE))


class Shifted(nn.Module):
    """Another module whose class 1 scores a little more."""

    def __init__(self, inner: nn.Module, shift: float) -> None:
        super().__init__()
        self.inner, self.shift = inner, shift

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores + self.shift * torch.nn.functional.one_hot(torch.tensor([1]), scores.shape[1])


@pytest.mark.parametrize("shift", [-1e-6, 1e-6])
def test_the_source_has_the_last_word_on_images_near_a_tie(shift: float) -> None:
    # For the source class 0 wins by a hair, or not; the network that is queried sees it the other way.
    source = Scores([[0.0] * 16, [1.0] + [0.0] * 15], [0.5 + shift / 2, 0.0])
    network = plain_network(Shifted(source, shift), SHAPE)
    network = l0tre.Network(**{**vars(network), "reference": source})
    images = torch.full((1, *SHAPE), 0.5)
    result = attack_details(network, images, [0], budget=300)
    check_result(source, images, result, make_domain(SHAPE))
    assert result.distance.tolist() == [0 if shift < 0 else 1]


class Holes(nn.Module):
    """NaN scores wherever the first value is above a half; smooth gradients elsewhere."""

    def __init__(self, inner: nn.Module, start: float = 0.5) -> None:
        super().__init__()
        self.inner, self.start = inner, start

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return torch.where((x.flatten(1)[:, :1] > self.start), float("nan"), scores)


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize("start", [-1.0, 0.5], ids=["everywhere", "somewhere"])
def test_nan_is_never_a_success(method: Method, start: float) -> None:
    inner = make_linear(8, SHAPE, 3)
    images = inner.images.clone()
    images[:, 0, 0, 0] = 0.25
    module = Holes(inner.module, start)
    network = plain_network(module, SHAPE, sample_bytes=2**10)
    try:
        result = attack_details(network, images, inner.module(images).argmax(1), method=method, budget=300)
    except ModelError:
        assert method != "search"  # which needs no finite scores
        return
    for row, changed in enumerate(result.adversarial):
        lead = float(margins(module(changed[None]), result.labels[row : row + 1]))
        assert bool(result.found[row]) == (lead < 0)
    if start < 0:
        assert not bool(result.found.any())


def test_grad_modes_of_the_caller_make_no_difference(case: Linear) -> None:
    wanted = attack_details(case.network, case.images, case.labels, budget=400)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            result = attack_details(case.network, case.images.clone(), case.labels.clone(), budget=400)
        assert torch.equal(result.adversarial, wanted.adversarial)
        assert int(result.backwards.sum()) > 0


BAD: list[tuple[dict[str, object], type[Exception], str]] = [
    ({"method": "magic"}, ConfigError, "'magic' is unknown: give auto, greedy, linear"),
    ({"rounding": "4bit"}, ConfigError, "give none or 8bit"),
    ({"budget": 0}, ConfigError, "give 1 or more"),
    ({"time_budget": float("nan")}, ConfigError, "0 or more"),
    ({"time_budget": -1}, ConfigError, "0 or more"),
    ({"lower": [0, 0]}, DataError, "shape (2,) for 6 inputs"),
    ({"lower": [[0]] * 6}, DataError, "shape (6, 1) for 6 inputs"),
    ({"lower": [0, 0, 0, -1, 0, 0]}, DataError, "0 or more"),
    ({"labels": [0, 1, 2, 3, 4, 0]}, DataError, "input 4 has the label 4, the network has classes 0 to 3"),
    ({"labels": [0, 1]}, DataError, "2 labels for 6 inputs"),
    ({"targeted": True, "labels": None}, DataError, "give labels"),
    ({"unit": "voxel"}, ConfigError, "voxel"),
    ({"mask": np.zeros(SHAPE, dtype=bool)}, ConfigError, "no value may change"),
    ({"low": 0.5}, DataError, "outside the domain"),
]


@pytest.mark.parametrize(("options", "kind", "words"), BAD, ids=[words for _, _, words in BAD])
def test_what_cannot_be_used_is_refused(
    case: Linear, options: dict[str, object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        attack_details(case.network, case.images, **{"labels": case.labels, **options})  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_images_of_another_shape_are_refused(case: Linear) -> None:
    with pytest.raises(DataError, match="shape"):
        attack_details(case.network, torch.zeros(2, 1, 5, 4))
