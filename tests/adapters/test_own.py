"""Sparse-RS and the paper's attack."""

import pytest
import torch
from torch import Tensor, nn

from l0tre.adapters.peers.own import paper, schedule, sparse_rs
from tests.adapters.linear import fewest_changes, make_case


class Planted(nn.Module):
    """Decides for class 1 only when all planted pixels have their planted colours, else for class 0.

    The margin falls with every planted pixel that is right, so that a search can find them one by one.
    """

    def __init__(self, pixels: list[tuple[int, int]], colour: list[float]) -> None:
        super().__init__()
        self.pixels, self.colour = pixels, torch.tensor(colour)

    def forward(self, x: Tensor) -> Tensor:
        right = torch.stack([(x[:, :, r, c] == self.colour).all(1) for r, c in self.pixels]).sum(0)
        gap = len(self.pixels) - 0.5 - right
        return torch.stack([gap, torch.zeros_like(gap)], 1)


def test_the_schedule_is_the_published_one() -> None:
    # Of a run of 10,000 queries: the exchanged share at its first iteration, and around the published ends.
    assert schedule(0, 10_000) == pytest.approx(0.3)
    expected = {1: 2, 50: 2, 51: 4, 200: 4, 201: 5, 501: 6, 1001: 8, 2001: 10, 4001: 12, 6001: 15, 8001: 20, 9999: 20}
    for iteration, divisor in expected.items():
        assert schedule(iteration, 10_000) == pytest.approx(0.3 / divisor)
    assert schedule(25, 500) == schedule(500, 10_000)


@pytest.mark.parametrize(("colour", "side", "queries"), [([1.0], 8, 2000), ([0.0, 1.0, 1.0], 5, 4000)])
def test_sparse_rs_finds_planted_pixels(colour: list[float], side: int, queries: int) -> None:
    planted = [(0, 1), (4, 4)]
    images = torch.full((2, len(colour), side, side), 0.5)
    found = sparse_rs(Planted(planted, colour), images, torch.zeros(2, dtype=torch.int64), queries, 0)
    for image, changed in zip(images, found, strict=True):
        assert sorted(map(tuple, (image != changed).any(0).nonzero().tolist())) == planted
        for row, column in planted:
            assert changed[:, row, column].tolist() == colour


def test_sparse_rs_returns_the_original_where_it_finds_nothing() -> None:
    images = torch.full((1, 1, 4, 4), 0.5)
    found = sparse_rs(Planted([(0, 0)], [0.25]), images, torch.zeros(1, dtype=torch.int64), 200, 0)
    assert torch.equal(found, images)


@pytest.mark.parametrize("shape", [(7,), (2, 5), (2, 6, 3), (6, 5, 2)])
def test_sparse_rs_takes_vectors_and_every_layout_of_images(shape: tuple[int, ...]) -> None:
    model, images, labels = make_case(3, 1, shape)
    found = sparse_rs(model, images, labels, 800, 0)
    assert bool((model(found).argmax(1) != labels).all())


@pytest.mark.parametrize("seed", range(3))
def test_the_paper_s_attack_is_no_worse_than_ranking_allows(seed: int) -> None:
    model, images, labels = make_case(3, seed)
    found = paper(model, images, labels, 0, 0)
    assert bool((model(found).argmax(1) != labels).all())
    changed = found[found != images]
    assert set(changed.tolist()) <= {0.0, 1.0}
    for image, result, label in zip(images, found, labels.tolist(), strict=True):
        distance = int((image != result).sum())
        assert distance >= fewest_changes(model, image, label)
        for position in (image != result).flatten().nonzero()[:, 0].tolist():  # no single change can be taken back
            restored = result.flatten().clone()
            restored[position] = image.flatten()[position]
            assert int(model(restored.reshape(1, *image.shape)).argmax()) == label
