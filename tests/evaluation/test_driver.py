"""The anytime loop: monotone, the same for a set as for each image, honest about ties, NaN and time."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.domain import make_domain
from l0tre.errors import ConfigError, DataError, ModelError
from l0tre.model.network import Network
from tests.tools import SAMPLE_BYTES, plain_network, tiny_module


def _linear(weight: list[list[float]], bias: list[float]) -> Network:
    module = nn.Linear(len(weight[0]), len(weight))
    module.weight.data, module.bias.data = torch.tensor(weight), torch.tensor(bias)
    return plain_network(module, (len(weight[0]),))


@pytest.mark.parametrize("kind", ["dense", "conv1", "conv3"])
def test_bounds_are_monotone_and_never_cross(kind: str) -> None:
    for seed in range(3):
        module, shape = tiny_module(kind, seed)
        images = torch.rand(4, *shape)
        lower, upper, seconds = [0] * 4, [999] * 4, 0.0
        options: dict[str, Any] = {"epsilon": 1.0, "memory_bytes": 20 * SAMPLE_BYTES, "attack_queries": 50}
        for snapshot in l0tre.anytime(plain_network(module, shape), images, max_t=3, **options):
            for row, image in enumerate(snapshot.images):
                assert lower[row] <= image.lower < image.upper <= upper[row]
                lower[row], upper[row] = image.lower, image.upper
            assert snapshot.seconds >= seconds
            seconds = snapshot.seconds
            assert snapshot.uncertainty == pytest.approx((snapshot.upper - snapshot.lower) / 2)
            assert snapshot.estimate == pytest.approx((snapshot.upper + snapshot.lower) / 2)
        assert snapshot.finished


@pytest.mark.slow
def test_a_set_gives_the_same_bounds_as_each_image_alone() -> None:
    module, shape = tiny_module("conv1", 3)
    network = plain_network(module, shape)
    images = torch.rand(5, *shape)
    alone = [l0tre.evaluate(network, image[None], max_t=3, attack_queries=50)[0] for image in images]
    for rows in (7, 100, 5000):
        options: dict[str, Any] = {"memory_bytes": rows * SAMPLE_BYTES, "attack_queries": 50}
        together = l0tre.evaluate(network, images, max_t=3, **options)
        assert [(i.lower, i.upper) for i in together] == [(i.lower, i.upper) for i in alone]
        assert together.lower == pytest.approx(sum(image.lower for image in together.images) / 5)


def test_a_tie_is_neither_safe_nor_a_witness() -> None:
    # Feature 0 at 1 makes both scores 1: not safe, yet the label is still the (first) largest.
    result = l0tre.evaluate(_linear([[0.0, 0.0], [1.0, 0.0]], [1.0, 0.0]), torch.zeros(1, 2), [0], max_t=2)[0]
    assert (result.lower, result.blocked) == (0, 1)
    assert result.witness is None
    assert result.upper == 3


def test_a_tie_does_not_stop_the_search_for_a_witness() -> None:
    # One feature ties, two flip.
    network = _linear([[0.0, 0.0], [1.0, 1.0]], [1.0, 0.0])
    result = l0tre.evaluate(network, torch.zeros(1, 2), [0], max_t=2)[0]
    assert (result.lower, result.upper, result.blocked) == (0, 2, 1)
    assert not result.converged
    verdict = l0tre.verify(network, torch.zeros(2), 0, radius=1)
    assert (verdict.answer, verdict.witness) == ("unknown", None)
    assert "tie" in verdict.reason


def test_a_tie_at_one_level_is_not_forgotten_at_a_safe_higher_one() -> None:
    # Feature 0 alone ties; with feature 1 moved off its middle as well, the label is far ahead.
    def forward(x: Tensor) -> Tensor:
        return torch.stack([1 + 10 * (x[:, 1] - 0.5).abs(), x[:, 0]], 1)

    network = Network(forward, forward, (2,), 2, torch.device("cpu"), None, "tie", sample_bytes=SAMPLE_BYTES)
    result = l0tre.evaluate(network, torch.tensor([[0.0, 0.5]]), [0], max_t=2, epsilon=1.0)[0]
    assert (result.lower, result.level, result.blocked) == (0, 2, 1)


def test_a_tie_in_an_early_step_is_not_forgotten_in_a_later_one() -> None:
    weight = [[0.0] * 200, [1.0] + [0.0] * 199]
    network = _linear(weight, [1.0, 0.0])
    steps = list(l0tre.anytime(network, torch.zeros(1, 200), [0], max_t=1, memory_bytes=SAMPLE_BYTES))
    assert len(steps) > 2
    assert (steps[-1][0].lower, steps[-1][0].blocked) == (0, 1)


def test_a_margin_within_round_off_is_not_safe() -> None:
    gap = 1e-4  # of scores around 1000: below what float32 evaluations agree on
    result = l0tre.evaluate(_linear([[0.0], [1.0]], [1000.0 + gap, 999.0]), torch.zeros(1, 1), [0], max_t=1)[0]
    assert result.lower == 0


def test_an_unchangeable_decision_has_every_group_as_radius() -> None:
    result = l0tre.evaluate(_linear([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0]), torch.zeros(1, 2), [0], max_t=2)
    assert (result[0].lower, result[0].upper, result[0].witness) == (2, 3, None)
    assert result[0].converged
    assert result.without_witness == 1


def test_misclassified_images_are_reported_and_left_out() -> None:
    network = _linear([[0.0, 0.0], [1.0, 0.0]], [0.5, 0.0])
    images = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    result = l0tre.evaluate(network, images, [0, 0, 0], max_t=1)
    assert [image.index for image in result.images] == [0]
    assert [(e.index, e.predicted) for e in result.excluded] == [(1, 1), (2, 0)]
    assert "tie" in result.excluded[1].reason
    with pytest.raises(KeyError, match="left out: classified as 1"):
        result[1]
    with pytest.raises(KeyError, match="not part"):
        result[7]
    with pytest.raises(DataError, match="misclassifies the only input"):
        l0tre.evaluate(network, images[1:2], [0], max_t=1)


def test_nan_at_a_changed_input_is_an_error_and_never_a_proof() -> None:
    def forward(x: Tensor) -> Tensor:
        good = torch.stack([1 - x[:, 0] * 0, x[:, 0] * 0], 1)
        return torch.where(x[:, 1:] > 0.9, torch.full_like(good, float("nan")), good)

    network = Network(forward, forward, (2,), 2, torch.device("cpu"), None, "nan", sample_bytes=SAMPLE_BYTES)
    with pytest.raises(ModelError, match="NaN"):
        l0tre.evaluate(network, torch.zeros(1, 2), [0], max_t=1)
    with pytest.raises(ModelError, match="input 0"):
        l0tre.evaluate(network, torch.ones(1, 2), [0], max_t=1)


def test_a_witness_that_its_source_does_not_confirm_is_dropped() -> None:
    def forward(x: Tensor) -> Tensor:
        return torch.stack([1 - 2 * x[:, 0], x[:, 0]], 1)

    def reference(x: Tensor) -> Tensor:
        return torch.stack([torch.ones(len(x)), torch.zeros(len(x))], 1)

    network = Network(forward, reference, (2,), 2, torch.device("cpu"), None, "odd", sample_bytes=SAMPLE_BYTES)
    result = l0tre.evaluate(network, torch.zeros(1, 2), [0], max_t=2)[0]
    assert result.witness is None
    assert result.lower == 0  # and what looked unsafe is not called safe either


def test_frozen_groups_never_change() -> None:
    module, shape = tiny_module("conv1", 4)
    images = torch.rand(5, *shape)
    mask = torch.zeros(shape[1:], dtype=torch.bool)
    mask[0] = True
    result = l0tre.evaluate(plain_network(module, shape), images, max_t=2, domain=make_domain(shape, mask=mask))
    for image in result.images:
        assert image.groups == shape[2]
        if image.witness is not None:
            changed = (image.witness.apply(images[image.index]) != images[image.index]).any(0)
            assert not (changed & ~mask).any()


def test_the_time_budget_and_the_caller_end_the_search_early() -> None:
    module, shape = tiny_module("dense", 5)
    for parameter in module.parameters():
        parameter.data *= 0.2
    network, images = plain_network(module, shape), torch.rand(3, *shape)
    options: dict[str, Any] = {"max_t": 4, "memory_bytes": 8 * SAMPLE_BYTES}
    assert not l0tre.evaluate(network, images, time_budget=0.0, **options).finished
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 3

    result = l0tre.evaluate(network, images, stop=stop, **options)
    assert not result.finished
    assert len(asked) == 3


def test_a_time_budget_that_is_no_time_is_refused() -> None:
    network = _linear([[0.0, 0.0], [1.0, 0.0]], [1.0, 0.0])
    for budget in (float("nan"), -1.0):
        with pytest.raises(ConfigError, match="time_budget"):
            l0tre.evaluate(network, torch.zeros(1, 2), [0], time_budget=budget)


def test_verify_answers() -> None:
    network = _linear([[0.0, 0.0, 0.0], [0.4, 0.4, 0.4]], [1.0, 0.0])
    image = torch.zeros(3)
    assert l0tre.verify(network, image, 0, radius=2).answer == "safe"
    unsafe = l0tre.verify(network, image, 0, radius=3)
    assert unsafe.answer == "unsafe"
    assert unsafe.witness is not None
    assert unsafe.witness.distance == 3
    unknown = l0tre.verify(network, image, 0, radius=2, time_budget=0.0, memory_bytes=SAMPLE_BYTES)
    assert unknown.answer == "unknown"
    assert "the time is over at level" in unknown.reason
    assert unknown.timed_out
    with pytest.raises(ConfigError, match="`radius` is 0"):
        l0tre.verify(network, image, 0, radius=0)
    with pytest.raises(ConfigError, match="only 3 features"):
        l0tre.verify(network, image, 0, radius=4)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_t": 0}, "`max_t` is 0"),
        ({"max_t": 9}, "only 2 features may change"),
        ({"epsilon": 0.0}, "`epsilon` is 0"),
        ({"epsilon": float("nan")}, "`epsilon` is nan"),
        ({"grid": "fine"}, "uniform or paper"),
        ({"colours": "some"}, "grid or corners"),
        ({"memory_bytes": -1}, "`memory_bytes` is -1"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        l0tre.evaluate(_linear([[0.0, 0.0], [1.0, 0.0]], [1.0, 0.0]), torch.zeros(1, 2), [0], **options)


@pytest.mark.parametrize(
    ("images", "labels", "word"),
    [
        (torch.zeros(0, 2), [], "empty|no inputs"),
        (torch.tensor([[0.0, float("nan")]]), [0], "input 0"),
        (torch.zeros(2, 2), [0], "2 inputs and 1 label|one label"),
        (torch.zeros(1, 2), [5], "label 5"),
        (torch.zeros(1, 2), [-1], "-1"),
        (torch.full((1, 2), 2.0), [0], "outside the domain"),
        (torch.zeros(1, 3), [0], "3 values, the network takes 2"),
    ],
)
def test_bad_data_is_refused(images: Tensor, labels: list[int], word: str) -> None:
    with pytest.raises(DataError, match=word):
        l0tre.evaluate(_linear([[0.0, 0.0], [1.0, 0.0]], [1.0, 0.0]), images, labels)
