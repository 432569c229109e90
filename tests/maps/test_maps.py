"""Saliency maps against brute force, however they are made."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import l0tre
from l0tre.api.drawings import Drawing, begin_map
from l0tre.errors import ConfigError, ModelError, StoreError
from l0tre.maps import places
from l0tre.maps.files import read_map
from l0tre.maps.pairs import interacting_pairs
from l0tre.maps.slopes import Slopes
from l0tre.maps.work import MapStep
from l0tre.maps.worst_values import HalfError, candidates, find_worst_values
from l0tre.model.network import Network


class Mixed(nn.Module):
    """Strides, branches, pools, a product of two values: all that differences go through."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.short = nn.Conv2d(4, 4, 1, stride=2)
        self.long = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.gate = nn.Conv2d(4, 4, 1)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.first(x)), 3, 2, 1)
        x = x + F.silu(self.grouped(x))
        x = self.short(x) + self.long(F.hardtanh(F.avg_pool2d(x, 3, 1, 1)))
        x = F.leaky_relu(x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True))), 0.2)
        return torch.as_tensor(self.last(x.mean((2, 3))))


SHAPE = (3, 15, 13)
CORNERS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))


def brute(network: nn.Module, image: Tensor, target: int) -> Tensor:
    """Changes of a score by every pixel and colour, one forward pass each: ``[pixels, 8]``."""
    height, width = image.shape[1:]
    rows = image.repeat(height * width * 8, 1, 1, 1).view(height, width, 8, *image.shape)
    for row, column in itertools.product(range(height), range(width)):
        rows[row, column, :, :, row, column] = CORNERS
    with torch.inference_mode():
        scores = network(rows.flatten(0, 2))[:, target] - network(image[None])[0, target]
    return torch.as_tensor(scores.view(-1, 8))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return Mixed().eval()


@pytest.fixture(scope="module")
def network(module: nn.Module) -> Network:
    return l0tre.load(module, input_shape=SHAPE, device="cpu")


@pytest.fixture(scope="module")
def image() -> Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))


def finish(drawing: Drawing, **choices: object) -> l0tre.SaliencyMap:
    for _ in drawing.steps(**{"coarse": False, **choices}):
        pass
    return drawing.now()


def test_exact_map_is_brute_force(module: nn.Module, network: Network, image: Tensor) -> None:
    changes = brute(module, image, 2)
    found = l0tre.saliency_map(network, image, 2)
    assert found.complete
    torch.testing.assert_close(found.drop, -changes.amin(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.rise, changes.amax(1), rtol=1e-4, atol=1e-6)
    assert torch.allclose(changes.gather(1, _point(found.colours)[:, None])[:, 0], -found.drop, rtol=1e-4, atol=1e-6)
    attribution = l0tre.saliency(network, image, 2)
    assert attribution.shape == image.shape
    torch.testing.assert_close(attribution[1].flatten(), found.drop)


def _point(colours: Tensor) -> Tensor:
    return (colours @ torch.tensor([4.0, 2.0, 1.0])).long()


def test_functions_without_a_graph_have_the_same_map(module: nn.Module, network: Network, image: Tensor) -> None:
    opaque = l0tre.load(lambda x: module(x), input_shape=SHAPE, device="cpu")
    assert opaque.graph is None
    torch.testing.assert_close(
        l0tre.saliency(opaque, image, 1), l0tre.saliency(network, image, 1), rtol=1e-4, atol=1e-6
    )


def test_batches_targets_and_signs(module: nn.Module, network: Network, image: Tensor) -> None:
    both = torch.stack([image, image.flip(2)])
    found = l0tre.saliency(network, both, [0, 2], signed=True)
    assert found.shape == both.shape
    for place, target in enumerate((0, 2)):
        changes = brute(module, both[place], target)
        low, high = -changes.amin(1), changes.amax(1)
        torch.testing.assert_close(found[place, 0].flatten(), torch.where(high > low, -high, low), rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError, match="3 targets for 2 inputs"):
        l0tre.saliency(network, both, [0, 1, 2])


def test_grids_masks_and_vectors(module: nn.Module, network: Network, image: Tensor) -> None:
    mask = torch.zeros(15, 13, dtype=torch.bool)
    mask.view(-1)[brute(module, image, 0).amin(1).argsort()[[0, 5]]] = True
    domain = l0tre.make_domain(SHAPE, mask=mask)
    found = l0tre.saliency_map(network, image, 0, epsilon=0.5, domain=domain)
    reference = l0tre.sensitivity(network, image[None], [0], epsilon=0.5, domain=domain)
    assert found.points == 27
    torch.testing.assert_close(found.drop, reference.drop[0], rtol=1e-4, atol=1e-6)
    assert int((found.attribution() != 0).any(0).sum()) == 2
    dense = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    vector = torch.rand(6)
    drops = l0tre.sensitivity(dense, vector[None], [1], colours="corners").drop[0]
    torch.testing.assert_close(l0tre.saliency(dense, vector, 1), drops, rtol=1e-4, atol=1e-6)


def test_hidden_neurons(module: nn.Module, network: Network, image: Tensor) -> None:
    class Upto(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(module.first(x)).mean((2, 3))  # type: ignore[operator]

    layer = next(place for place, o in enumerate(network.graph.operations) if o.kind == "relu")  # type: ignore[union-attr]
    found = l0tre.saliency_map(network, image, neuron=f"{layer}:3")
    torch.testing.assert_close(found.drop, -brute(Upto(), image, 3).amin(1), rtol=1e-4, atol=1e-6)
    one = l0tre.saliency_map(network, image, neuron=f"{layer}:3:2:2")
    assert "neuron 3:2:2" in one.observed
    touched = one.attribution()[0] != 0
    assert not bool(touched[6:].any())
    assert not bool(touched[:, 6:].any())
    for wrong in ("nothing:1", f"{layer}:9", f"{layer}:1:2", "7"):
        with pytest.raises(ConfigError):
            l0tre.saliency_map(network, image, neuron=wrong)


def test_strongest_pixels_are_found_and_predictions_are_checked() -> None:
    # A smooth hill of sensitivity: what a coarse map is for.
    rows, columns = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    hill = torch.exp(-((rows - 40) ** 2 + (columns - 61) ** 2) / 300) + 0.05
    dense = nn.Sequential(nn.Flatten(), nn.Linear(96 * 96, 2, bias=False)).eval()
    with torch.no_grad():
        dense[1].weight.copy_(torch.stack([hill.flatten(), -hill.flatten()]))  # type: ignore[operator]
    image = torch.full((1, 96, 96), 0.8)
    network = l0tre.load(dense, input_shape=(1, 96, 96), device="cpu")
    told: list[MapStep] = []
    found = l0tre.saliency_map(network, image, 0, coarse=True, progress=told.append)
    true = 0.8 * hill.flatten()
    best = set(true.topk(100).indices.tolist())
    assert len(best & set(found.strongest(100).tolist())) >= 99
    assert found.share < 0.2
    assert found.audit is not None
    assert found.audit.beyond == 0
    assert found.audit.most < 0.05
    assert float((found.drop - true).abs().mean()) < 0.02
    assert told[-1].stage == "done"
    shares = [step.share for step in told]
    assert shares == sorted(shares)
    assert max(shares[:-1]) < shares[-1] == 1
    assert any(0.2 < share < 0.8 for share in shares)  # it moves while nothing new is measured with all its values


def test_stopped_maps_go_on(network: Network, image: Tensor, tmp_path: Path) -> None:
    drawing = begin_map(network, image, target=1)
    early = finish(drawing, stop=lambda: bool(drawing.state.measured.any()))
    assert 0 < early.share < 1
    file = drawing.write(tmp_path / "map.npz")
    again = begin_map(network, image, target=1, resume=file)
    assert int(again.state.measured.sum()) == int(early.measured.sum())
    found = finish(again)
    torch.testing.assert_close(found.drop, l0tre.saliency_map(network, image, 1).drop)
    assert 8 * 195 <= found.evaluations < 16 * 195  # what a stop interrupts is lost
    again.write(file)
    read, own, about = read_map(file)
    assert torch.equal(read.drop, found.drop)
    assert torch.equal(own, image)
    assert about["target"] == found.observed
    with np.load(file) as arrays:
        assert arrays["attribution"].shape == SHAPE
    with pytest.raises(StoreError, match="another target"):
        begin_map(network, image, target=2, resume=file)
    with pytest.raises(StoreError, match="a map with another image"):
        begin_map(network, image.flip(2), target=1, resume=file)
    file.write_bytes(b"nothing")
    with pytest.raises(StoreError, match="cannot be read"):
        read_map(file)


def test_predictions_are_checked_although_the_map_was_stopped_before(tmp_path: Path) -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(40 * 40, 2)).eval()
    network = l0tre.load(dense, input_shape=(1, 40, 40), device="cpu")
    image = torch.rand(1, 40, 40, generator=torch.Generator().manual_seed(1))
    drawing = begin_map(network, image, target=1)
    finish(drawing, coarse=True, strongest=5, stop=lambda: drawing.state.found)
    assert drawing.state.found
    assert drawing.now().audit is None
    again = begin_map(network, image, target=1, resume=drawing.write(tmp_path / "map.npz"))
    found = finish(again, coarse=True, strongest=5)
    assert found.audit is not None
    assert not found.complete


def test_a_map_that_is_stopped_early_knows_something_of_all_parts(network: Network, image: Tensor) -> None:
    drawing = begin_map(network, image, target=1)
    next(iter(drawing.steps(coarse=True)))
    rows = drawing.state.measured.nonzero()[:, 0] // SHAPE[2]
    assert 0 < len(rows) < 100
    assert int(rows.min()) < 4
    assert int(rows.max()) > 10


def test_what_was_looked_at_is_not_looked_at_again(network: Network, image: Tensor, tmp_path: Path) -> None:
    whole = begin_map(network, image, target=1)
    finish(whole, coarse=True, strongest=5)
    total = whole.state.evaluations
    calls = itertools.count()
    part = begin_map(network, image, target=1)
    early = finish(part, coarse=True, strongest=5, stop=lambda: next(calls) > 30)
    again = begin_map(network, image, target=1, resume=part.write(tmp_path / "map.npz"))
    finish(again, coarse=True, strongest=5)
    assert early.evaluations < total
    assert again.state.found
    assert again.state.evaluations < total + 8 * 64 + 8 * 64  # the sample of errors and a chunk, at the most


def test_ranking_is_decided_in_float32(network: Network, image: Tensor) -> None:
    drawing = begin_map(network, image, target=1)
    perturber, groups = drawing.perturber, torch.arange(195)
    exact = find_worst_values(perturber, groups, None, both=True)
    table = perturber.changes(groups.repeat_interleave(8), torch.arange(8).repeat(195)).reshape(195, 8)
    usual = float(table.abs().median())
    generator = torch.Generator().manual_seed(0)
    noisy = table + 0.1 * (table.abs() + usual) * (2 * torch.rand(table.shape, generator=generator) - 1)
    noisy[3, 2], noisy[5, 1] = torch.inf, torch.nan
    before = perturber.evaluations
    found = find_worst_values(perturber, groups, HalfError(rate=0.1, usual=usual), both=True, ranking=noisy)
    torch.testing.assert_close(found.low, exact.low, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.high, exact.high, rtol=1e-5, atol=1e-7)
    assert perturber.evaluations - before < 8 * 195
    # An error that was not allowed for is noticed, and more is allowed from then on.
    half_error = HalfError(rate=1e-6, usual=usual)
    low = find_worst_values(perturber, groups, half_error, both=False, ranking=noisy).low
    torch.testing.assert_close(low, exact.low, rtol=1e-5, atol=1e-7)
    assert half_error.rate > 1e-3


def test_candidates_hold_whatever_the_errors_are() -> None:
    generator = torch.Generator().manual_seed(3)
    true = torch.randn(2000, 5, generator=generator)
    half_error = HalfError(rate=0.05, usual=0.5)
    error = 3 * 0.05 * (true.abs() + 0.5) / 1.2 * (2 * torch.rand(true.shape, generator=generator) - 1)
    kept = candidates(true + error, half_error, both=False)
    assert bool(kept.gather(1, true.argmin(1, keepdim=True)).all())
    assert float(kept.float().mean()) < 0.6


def test_pairs_are_those_of_brute_force(module: nn.Module, network: Network, image: Tensor) -> None:
    drawing = begin_map(network, image, target=0)
    found = finish(drawing)
    pairs = interacting_pairs(drawing.perturber, drawing.state, 6)
    assert len(pairs.groups) == 15
    assert set(pairs.groups.flatten().tolist()) == set(found.strongest(6).tolist())
    for groups, together, more in zip(pairs.groups, pairs.together, pairs.interaction, strict=True):
        changed = found.change(image, groups)
        with torch.inference_mode():
            drop = float(module(image[None])[0, 0] - module(changed[None])[0, 0])
        assert float(together) == pytest.approx(drop, rel=1e-3, abs=1e-6)
        assert float(more) == pytest.approx(drop - float(found.drop[groups].sum()), rel=1e-2, abs=1e-6)


def test_scores_that_are_not_finite_are_refused() -> None:
    network = l0tre.load(_breaks, input_shape=(1, 4, 4), device="cpu")
    with pytest.raises(ModelError, match="NaN or infinite"):
        l0tre.saliency_map(network, torch.full((1, 4, 4), 0.1), 0)


def _breaks(x: Tensor) -> Tensor:
    """NaN only where a single value is 1 and all others are small, as no random input of the checks is."""
    flat = x.flatten(1)
    alone = (flat == 1).any(1) & (flat.sum(1) < 3)
    return torch.stack([torch.where(alone, torch.nan, flat.sum(1)), flat[:, 0]], 1)


def test_tiles_and_cells_cover_the_map() -> None:
    layout = places.make_layout(l0tre.make_domain((3, 20, 30)))
    drawn = places.tiles(layout, 24, torch.Generator().manual_seed(0))
    row, column = drawn // 30, drawn % 30
    assert len({(int(r) // 5, int(c) // 5) for r, c in zip(row, column, strict=True)}) == len(drawn) == 24
    worth = torch.rand(600, generator=torch.Generator().manual_seed(0))
    worth.view(20, 30)[:4, :4] = -torch.inf
    chosen = places.cells(layout, 4, worth)
    squares = worth.view(5, 4, 30, 1)[:, :, :28].reshape(5, 4, 7, 4).permute(0, 2, 1, 3).flatten(2)
    assert len(chosen) == 5 * 8 - 1
    assert set(squares.amax(2).flatten().tolist()) - {-torch.inf} <= set(worth[chosen].tolist())


@pytest.mark.parametrize("width", [3, 5])
def test_slopes_tell_what_colours_do_that_were_not_looked_at(width: int) -> None:
    """Neighbours alike but for a factor of their phase; what moves up counts otherwise than what moves down."""
    generator = torch.Generator().manual_seed(0)
    layout = places.Layout(12, 12, torch.arange(144))
    image, grid = torch.rand(144, width, generator=generator), torch.rand(144, 8, width, generator=generator).round()
    move, factor = grid - image[:, None], torch.where(torch.arange(144) // 12 % 2 == 0, 1.0, 3.0)
    true = factor[:, None] * (2 * move.clamp(min=0) + move.clamp(max=0)).sum(2)
    looked = torch.full_like(true, torch.nan)
    rows = torch.arange(144)
    looked[rows[::3], rows[::3] // 3 % 8] = true[rows[::3], rows[::3] // 3 % 8]
    slopes = Slopes(layout, image, grid)
    slopes.begin(looked, 3.0)
    found = slopes.predict(looked, (2.0, 1.0))
    assert float((found - true).abs().median()) < 0.2 * float(true.abs().median())
    assert float((found - true)[1::3].norm() / true[1::3].norm()) < 0.25
