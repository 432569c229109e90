"""Criteria on networks small enough to count by hand."""

import pytest
import torch
from torch import nn

import l0tre
from l0tre.coverage.measure import CRITERIA, Coverage, measure_ranges
from l0tre.coverage.ranges import Ranges
from l0tre.errors import ConfigError, DataError, ModelError
from l0tre.model.network import Network


def dense() -> Network:
    """First layer: ``a - b`` and ``b - 0.5``; second layer: their sum less 0.25, and the first less the second."""
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    weights = ([[1.0, -1.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]])
    biases = ([0.0, -0.5], [-0.25, 0.0], [0.0, 0.0])
    with torch.no_grad():
        for layer, weight, bias in zip(list(module)[::2], weights, biases, strict=True):
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
    return l0tre.load(module, input_shape=(2,), device="cpu")


# Values behind the first activation: (1, 0), (0, 0.5), (0, 0); behind the second: (0.75, 1), (0.25, 0), (0, 0).
INPUTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])


def share(criterion: str, inputs: torch.Tensor, **options: object) -> tuple[int, int]:
    metric = Coverage(dense(), [criterion], **options)  # type: ignore[arg-type]
    metric.update(inputs)
    figure = metric.compute()[criterion]
    assert figure.inputs == len(inputs)
    return figure.covered, figure.total


@pytest.mark.parametrize(("rows", "covered"), [([0], 3), ([1], 2), ([2], 0), ([0, 1], 4)])
def test_neurons_above_zero_are_covered(rows: list[int], covered: int) -> None:
    assert share("neuron", INPUTS[rows]) == (covered, 4)


def test_the_threshold_is_one_of_values() -> None:
    assert share("neuron", INPUTS, threshold=0.5) == (3, 4)  # 0.5 itself is not above it


def test_layers_can_be_chosen() -> None:
    assert share("neuron", INPUTS[:1], layers=("relu2",)) == (2, 2)


def test_channels_are_scaled_by_layer_and_input() -> None:
    # First input: (1, 0) and (0, 1) after scaling; second: (0, 1) and (1, 0); third: nothing to scale.
    assert share("channel", INPUTS[:1], channel_threshold=0.9) == (2, 4)
    assert share("channel", INPUTS, channel_threshold=0.9) == (4, 4)
    assert share("channel", INPUTS[2:], channel_threshold=0.0) == (0, 4)


def test_channels_are_averaged_over_their_map() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    conv = module[0]
    assert isinstance(conv, nn.Conv2d)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, 0.5]).view(2, 1, 1, 1))
        conv.bias.zero_()  # type: ignore[union-attr]
    network = l0tre.load(module, input_shape=(1, 1, 2), device="cpu")
    metric = Coverage(network, ["channel"], channel_threshold=0.4)
    metric.update(torch.tensor([[[[1.0, 0.0]]]]))  # means 0.5 and 0.25
    assert (metric.compute()["channel"].covered, metric.compute()["channel"].total) == (1, 2)


def ranges() -> Ranges:
    """From the two inputs (1, 0) and (0, 0): neurons range over 0..1, 0..0, 0..0.75, 0..1."""
    return measure_ranges(dense(), INPUTS[[0, 2]], "inputs")


def test_ranges_are_smallest_and_largest_values() -> None:
    assert ranges().low.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert ranges().high.tolist() == [1.0, 0.0, 0.75, 1.0]


def test_sections_of_ranges() -> None:
    # One neuron has no range. (1, 0) gives the last section of the three others, (0.5, 0) a middle one: 0.5, 0.25, 0.5.
    assert share("kmnc", INPUTS[:1], ranges=ranges(), sections=4) == (3, 12)
    assert share("kmnc", torch.tensor([[1.0, 0.0], [0.5, 0.0]]), ranges=ranges(), sections=4) == (6, 12)
    # (0, 1) is 0.25 in the third neuron (second section of four), 0 in the first and fourth, above in the second.
    assert share("kmnc", INPUTS[1:2], ranges=ranges(), sections=4) == (3, 12)


def test_corners_are_strictly_outside() -> None:
    assert share("boundary", INPUTS[[0, 2]], ranges=ranges()) == (0, 8)
    assert share("boundary", INPUTS, ranges=ranges()) == (1, 8)
    assert share("strong", INPUTS, ranges=ranges()) == (1, 4)


def test_values_below_the_range_count_for_boundary_alone() -> None:
    narrow = measure_ranges(dense(), INPUTS[:1], "input")  # (1, 0, 0.75, 1)
    assert share("boundary", INPUTS[2:], ranges=narrow) == (3, 8)
    assert share("strong", INPUTS[2:], ranges=narrow) == (0, 4)


def test_top_k_takes_the_most_active_of_each_layer() -> None:
    assert share("top-k", INPUTS[:1], k=1) == (2, 4)
    assert share("top-k", INPUTS[:2], k=1) == (4, 4)
    assert share("top-k", INPUTS[:1], k=2) == (4, 4)


def test_sign_sign_pairs() -> None:
    # Signs: (1, 0 | 1, 1), (0, 1 | 1, 0), (0, 0 | 0, 0). Inputs 0 and 2 differ in condition 0 alone and in both
    # decisions; 1 and 2 in condition 1 alone and in decision 0; 0 and 1 in both conditions.
    assert share("mcdc", INPUTS[[0, 2]]) == (2, 4)
    assert share("mcdc", INPUTS[[1, 2]]) == (1, 4)
    assert share("mcdc", INPUTS[[0, 1]]) == (0, 4)
    assert share("mcdc", INPUTS) == (3, 4)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_batches_and_merged_parts_count_as_one(criterion: str) -> None:
    network = dense()
    options = {"ranges": measure_ranges(network, INPUTS[[0, 2]], "inputs"), "k": 1, "sections": 4}
    whole, first, second = (Coverage(network, [criterion], **options) for _ in range(3))  # type: ignore[arg-type]
    inputs = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) * 2
    whole.update(inputs)
    for row in inputs[:7]:
        first.update(row[None])
    second.update(inputs[7:])
    first.merge(second)
    assert first.compute() == whole.compute()
    whole.reset()
    assert whole.compute()[criterion].covered == 0
    whole.update(inputs)
    assert first.compute() == whole.compute()


@pytest.mark.parametrize(
    ("criterion", "one", "other"),
    [
        ("neuron", {"threshold": 0.0}, {"threshold": 0.5}),
        ("channel", {"channel_threshold": 0.1}, {"channel_threshold": 0.2}),
        ("top-k", {"k": 1}, {"k": 2}),
        ("kmnc", {"sections": 4}, {"sections": 4, "ranges": measure_ranges(dense(), INPUTS[[1, 2]], "inputs")}),
        ("strong", {}, {"ranges": measure_ranges(dense(), INPUTS[[1, 2]], "inputs")}),
        ("neuron", {"layers": ["relu1"]}, {"layers": ["relu2"]}),
    ],
)
def test_figures_of_two_definitions_are_not_merged(
    criterion: str, one: dict[str, object], other: dict[str, object]
) -> None:
    first, second = (Coverage(dense(), [criterion], **{"ranges": ranges(), **more}) for more in (one, other))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one definition"):
        first.merge(second)


def test_figures_say_what_they_count() -> None:
    metric = Coverage(dense(), ["neuron"])
    metric.update(INPUTS)
    figure = metric.compute()["neuron"]
    assert str(figure) == (
        "neuron 100.00 % (4 of 4 neurons; value above 0 at its position; 4 neurons of relu1, relu2; 3 inputs)"
    )
    assert figure.to_json()["share"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criteria": ["line"]}, "'line' is unknown"),
        ({"criteria": []}, "missing is unknown"),
        ({"layers": ["relu7"]}, "no layer 'relu7'.*relu1 2, relu2 2"),
        ({"criteria": ["kmnc"]}, "kmnc needs the ranges"),
        ({"criteria": ["top-k"], "k": 0}, "1 or more"),
        ({"threshold": float("nan")}, "give a number"),
        ({"criteria": ["channel"], "channel_threshold": 1.0}, "less than 1"),
    ],
)
def test_bad_choices(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Coverage(dense(), **options)  # type: ignore[arg-type]


def test_ranges_of_other_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="ranges"):
        Coverage(dense(), ["kmnc"], layers=["relu1"], ranges=ranges())


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(DataError, match="shape"):
        Coverage(dense()).update(torch.zeros(1, 3))


def test_a_network_without_activations_has_no_neurons() -> None:
    network = l0tre.load(nn.Sequential(nn.Linear(2, 2)), input_shape=(2,), device="cpu")
    with pytest.raises(ModelError, match="no activations"):
        Coverage(network)


def test_mcdc_needs_two_dense_layers() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="two dense layers"):
        Coverage(l0tre.load(module, input_shape=(2,), device="cpu"), ["mcdc"])
