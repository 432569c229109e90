"""Generated suites against brute force over every set of pixels on tiny networks."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import ConfigError, DataError, L0treError, StoreError
from l0tre.model.network import Network
from l0tre.testgen.suite import Suite


def conv_module(seed: int, *, padding: int = 0, size: int = 4) -> nn.Sequential:
    """Two convolutions, a pool and a dense layer, with some neurons that hardly anything activates."""
    torch.manual_seed(seed)
    side = (size + 4 * padding - 2) // 2
    module = nn.Sequential(
        nn.Conv2d(1, 3, 2, padding=padding),
        nn.ReLU(),
        nn.Conv2d(3, 3, 2, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * side * side, 4),
        nn.ReLU(),
        nn.Linear(4, 2),
    )
    for place, shift in ((0, 0.5), (2, 0.4), (6, 0.3)):
        bias = module[place].bias
        assert isinstance(bias, Tensor)
        bias.data -= shift
    for parameter in module.parameters():
        parameter.data *= 1 + (parameter.dim() > 1)
    return module.eval()


def pixels_in(seed: Tensor, sizes: range) -> Tensor:
    """Every input with so many pixels of a seed at 0 or 1."""
    rows = []
    for size in sizes:
        for chosen in itertools.combinations(range(seed.numel()), size):
            for values in itertools.product((0.0, 1.0), repeat=size):
                row = seed.flatten().clone()
                row[list(chosen)] = torch.tensor(values)
                rows.append(row)
    return torch.stack(rows).view(-1, *seed.shape)


def activated(module: nn.Sequential, x: Tensor) -> Tensor:
    """Which neurons inputs activate, by the module itself in float64; bool ``[inputs, neurons]``."""
    seen, wide = [], module.double()
    y = x.double()
    with torch.inference_mode():
        for part in wide:
            y = part(y)
            if isinstance(part, nn.ReLU):
                seen.append(y.flatten(1) > 0)
    module.float()
    return torch.cat(seen, 1)


def network_of(module: nn.Module, shape: tuple[int, ...] = (1, 4, 4)) -> Network:
    return l0tre.load(module, input_shape=shape, device="cpu")


def image(seed: int, shape: tuple[int, ...] = (1, 4, 4)) -> Tensor:
    return torch.rand(1, *shape, generator=torch.Generator().manual_seed(seed))


def small_suite(seed: int, **options: object) -> tuple[nn.Sequential, Tensor, Suite]:
    module, seeds = conv_module(seed), image(seed)
    return module, seeds, l0tre.generate_tests(network_of(module), seeds, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_distances_and_proofs_agree_with_brute_force(seed: int) -> None:
    module, seeds, suite = small_suite(seed)
    at_seed = activated(module, seeds)[0]
    nearest = torch.where(at_seed, 0, 99)
    for size in (1, 2, 3):
        hits = activated(module, pixels_in(seeds[0], range(size, size + 1))).any(0)
        nearest[hits & (nearest > size)] = size
    assert torch.equal(suite.distance == 0, at_seed)
    found = suite.distance >= 0
    near = found & (suite.distance <= 3)
    # Nothing is nearer than what every set of pixels at its ends shows, unless values in between help.
    assert bool((suite.lower <= nearest).all())
    assert bool((suite.lower[found] <= suite.distance[found]).all())
    assert not bool((suite.dead & (nearest < 99)).any())
    first = suite.layers[0].place
    assert torch.equal(suite.distance[first][near[first]], nearest[first][near[first]])
    # Single changes are tried one by one; climbs may miss a set.
    assert torch.equal(suite.distance == 1, nearest == 1)
    assert float((suite.distance[nearest < 99] == nearest[nearest < 99]).double().mean()) > 0.95
    assert suite.exact > int(at_seed.sum())
    # Every single pixel is bounded by itself.
    assert float(((suite.lower > 1) | suite.dead)[nearest > 1].double().mean()) > 0.95


@pytest.mark.parametrize("seed", [0, 3])
def test_every_test_does_what_the_suite_says(seed: int) -> None:
    module, seeds, suite = small_suite(seed)
    hits = activated(module, suite.images)
    changed = (suite.images != seeds).flatten(1).sum(1)
    assert torch.equal(changed, suite.sizes)
    assert bool((suite.sizes[1:] >= suite.sizes[:-1]).all())
    by_test = suite.distance > 0
    assert bool(hits[suite.nearest[by_test], by_test.nonzero()[:, 0]].all())
    assert torch.equal(suite.sizes[suite.nearest[by_test]], suite.distance[by_test])
    open_ = suite.distance != 0
    assert torch.equal(hits[list(suite.minimal)].any(0)[open_], hits.any(0)[open_])
    assert torch.equal(hits.any(0)[open_], (suite.distance > 0)[open_])
    assert int(suite.gains.sum()) == int(by_test.sum())
    with torch.inference_mode():
        assert torch.equal(module(suite.images).argmax(1), suite.decisions)


def test_counts_add_up_to_all_neurons() -> None:
    _, _, suite = small_suite(4)
    assert sum(suite.counts().values()) == suite.neurons == 27 + 12 + 4
    rows = suite.by_layer()
    assert [row["neurons"] for row in rows] == [27, 12, 4, 43]
    for name in ("by seeds", "by tests", "dead", "out of reach", "open"):
        assert sum(row[name] for row in rows[:-1]) == rows[-1][name]


def test_dead_and_distant_neurons_are_told_apart() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.copy_(torch.tensor([-5.0, -2.5, -4.0]))  # never; with three ones; the sum 4 is not above 4
    suite = l0tre.generate_tests(network_of(module, (4,)), torch.zeros(1, 4), max_l0=2)
    assert suite.dead.tolist() == [True, False, False]  # the third one is a tie: within round-off of it
    assert suite.distance.tolist() == [-1, -1, -1]
    assert suite.lower[1] == 3
    assert suite.counts() == {"by seeds": 0, "by tests": 0, "dead": 1, "out of reach": 2, "open": 0}
    further = l0tre.generate_tests(network_of(module, (4,)), torch.zeros(1, 4), max_l0=4)
    assert further.distance.tolist() == [-1, 3, -1]
    assert further.exact == 1


def test_neurons_without_a_test_are_looked_at_part_by_part() -> None:
    # The last neuron: how far x is above 0.3, but not above 0.45, less 0.17. Nothing activates it: narrow parts show.
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2))
    weights = ([[1.0, 0.0], [1.0, 0.0]], [[1.0, -1.0]])
    biases = ([-0.3, -0.45], [-0.17])
    with torch.no_grad():
        for layer, weight, bias in zip((module[0], module[2]), weights, biases, strict=True):
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
    suite = l0tre.generate_tests(network_of(module, (2,)), torch.zeros(1, 2), max_l0=1)
    assert suite.distance.tolist() == [1, 1, -1]
    assert bool(suite.lower[2] > 1)
    assert suite.counts()["open"] == 0


@pytest.mark.parametrize("padding", [0, 1])
def test_padding_and_several_seeds(padding: int) -> None:
    module = conv_module(5, padding=padding)
    seeds = torch.cat([image(1), image(2), torch.zeros(1, 1, 4, 4)])
    suite = l0tre.generate_tests(network_of(module), seeds)
    hits, at_seeds = activated(module, suite.images), activated(module, seeds).any(0)
    assert torch.equal(suite.distance >= 0, at_seeds | hits.any(0))
    changed = (suite.images != seeds[suite.origins]).flatten(1).sum(1)
    assert torch.equal(changed, suite.sizes)
    for seed in seeds:
        single = activated(module, pixels_in(seed, range(1, 2))).any(0)
        assert not bool((single & (suite.lower > 1)).any())


def test_a_smooth_activation_and_a_threshold() -> None:
    torch.manual_seed(6)
    module = nn.Sequential(nn.Linear(5, 6), nn.Sigmoid(), nn.Linear(6, 2)).eval()
    seeds = image(3, (5,))
    suite = l0tre.generate_tests(network_of(module, (5,)), seeds, threshold=0.6)
    rows = torch.cat([seeds, pixels_in(seeds[0], range(1, 6))])
    with torch.inference_mode():
        values = module[1](module[0](rows))
    reachable = (values > 0.6).any(0)
    assert torch.equal(suite.distance >= 0, reachable)
    assert torch.equal(suite.dead, ~reachable)  # one layer: ranges are exact


def test_masked_pixels_stay() -> None:
    module = conv_module(7)
    mask = np.zeros((4, 4), dtype=bool)
    mask[:2] = True
    seeds = image(4)
    suite = l0tre.generate_tests(network_of(module), seeds, mask=mask)
    assert torch.equal(suite.images[:, :, 2:], seeds[:, :, 2:].expand(len(suite), -1, -1, -1))
    unreached = suite.layers[0].place
    low = suite.distance[unreached].view(3, 3, 3)[:, 2]
    assert bool(((low == 0) | suite.dead[unreached].view(3, 3, 3)[:, 2]).all())


def test_the_highest_value_of_training_data_must_be_exceeded() -> None:
    module, seeds = conv_module(8), image(5)
    training = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(1)) * 0.5
    network = network_of(module)
    suite = l0tre.generate_tests(network, seeds, criterion="strong", ranges=training)
    metric = l0tre.measure_coverage(network, torch.cat([seeds, suite.images]), criteria=["strong"], ranges=training)
    assert metric["strong"].covered == int((suite.distance >= 0).sum())
    assert len(suite) > 0


def test_a_stopped_suite_goes_on(tmp_path: Path) -> None:
    module, seeds, whole = small_suite(9)
    network, steps = network_of(module), []

    def stop() -> bool:
        steps.append(1)
        return len(steps) > 4

    part = l0tre.generate_tests(network, seeds, out=tmp_path / "suite", stop=stop)
    assert not part.complete
    assert part.coverage < whole.coverage
    rest = l0tre.generate_tests(network, seeds, out=tmp_path / "suite")
    assert rest.complete
    assert torch.equal(rest.distance, whole.distance)
    again = l0tre.generate_tests(network, seeds, out=tmp_path / "suite", stop=lambda: True)
    assert again.complete
    assert torch.equal(again.images, rest.images)
    with pytest.raises(StoreError, match="other seeds or settings"):
        l0tre.generate_tests(network, seeds, max_l0=3, out=tmp_path / "suite")


def test_chance_can_be_tried_later(tmp_path: Path) -> None:
    _, _, whole = small_suite(9)
    _, _, without = small_suite(9, out=tmp_path / "suite", baseline=False)
    assert without.complete
    assert without.curve()[0]["random"] is None
    _, _, later = small_suite(9, out=tmp_path / "suite")
    assert torch.equal(later.random, whole.random)
    assert later.random_queries == later.queries == whole.queries


def test_no_time_leaves_what_the_seeds_activate() -> None:
    module, seeds, suite = small_suite(10, time_budget=0.0)
    assert torch.equal(suite.distance >= 0, activated(module, seeds)[0])
    assert len(suite) == 0
    assert suite.to_json()["tests"] == 0
    assert suite.entropy == 0.0


def test_the_folder_holds_the_suite(tmp_path: Path) -> None:
    module, seeds = conv_module(11), image(6)
    network = network_of(module)
    suite = l0tre.generate_tests(network, seeds, out=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"suite.npz", "suite.json", "manifest.csv", "layers.csv", "coverage.csv", "adversarial.csv"} <= names
    assert len(list((tmp_path / "pictures").glob("*.png"))) == len(suite.minimal)
    assert len((tmp_path / "manifest.csv").read_text().splitlines()) == len(suite) + 1
    figure = l0tre.measure_coverage(network, tmp_path)["neuron"]
    assert figure.covered == int((suite.distance >= 0).sum())
    assert figure.inputs == len(suite) + 1
    ranged = l0tre.measure_coverage(network, tmp_path, criteria=["kmnc", "boundary"])
    assert "seeds of the suite" in ranged["kmnc"].definition
    data = l0tre.load_data(tmp_path, input_shape=(1, 4, 4))
    assert torch.equal(data.images, suite.images)


def test_chance_is_counted_like_the_search() -> None:
    _, _, suite = small_suite(12)
    assert suite.random_queries == suite.queries > 0
    curve = suite.curve()
    assert [row["coverage"] for row in curve] == sorted(row["coverage"] for row in curve)
    for row in curve:
        assert row["random"] <= row["at_most"] + 1e-12
        assert row["random"] <= row["coverage"] + 1e-12  # tests found by chance are tests too
        assert row["coverage"] <= row["at_most"] + 1e-12
    assert curve[-1]["share_of_adversarial"] in (0.0, 1.0)


BLACK_BOX = l0tre.load(lambda x: torch.stack([x.sum(1), -x.sum(1)], 1), input_shape=(4,), device="cpu")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"criterion": "kmnc"}, ConfigError, "neuron or strong"),
        ({"criterion": "strong"}, ConfigError, "ranges"),
        ({"max_l0": 0}, ConfigError, "max_l0"),
        ({"proofs": -1}, ConfigError, "proofs"),
        ({"threshold": float("nan")}, ConfigError, "threshold"),
        ({"layers": ["conv1"]}, ConfigError, "relu1 3x3x3"),
        ({"time_budget": -1.0}, ConfigError, "time_budget"),
        ({"network": BLACK_BOX, "seeds": torch.zeros(1, 4)}, L0treError, "no graph"),
        ({"seeds": torch.zeros(1, 1, 5, 5)}, DataError, "shape"),
        ({"seeds": torch.full((1, 1, 4, 4), 2.0)}, DataError, "outside the domain"),
        ({"seeds": torch.zeros(0, 1, 4, 4)}, DataError, "at least one|no inputs|empty|nothing"),
    ],
)
def test_bad_input_is_refused(options: dict[str, object], error: type[L0treError], message: str) -> None:
    given = {"network": network_of(conv_module(0)), "seeds": image(0), **options}
    with pytest.raises(error, match=message):
        l0tre.generate_tests(**given)  # type: ignore[arg-type]


def test_each_test_names_a_neuron_and_layers_that_are_on_anyway_are_noted() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    suite = l0tre.generate_tests(module, torch.rand(1, 6, generator=torch.Generator().manual_seed(1)))
    assert suite.notes == ("almost any value of sigmoid1 is above the threshold: a higher one tells more",)
    assert len(suite) > 0
    active = activated(module, suite.images)
    assert all(bool(active[test, aim - 5]) for test, aim in enumerate(suite.aims.tolist()))
    assert all(row["layer"] == "relu1" for row in suite.manifest())
