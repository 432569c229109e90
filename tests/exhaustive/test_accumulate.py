"""Accumulation and tightening against plain loops."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from l0tre.domain import Domain, make_domain
from l0tre.exhaustive.accumulate import PREFIXES, accumulate, changed_groups, tighten
from l0tre.exhaustive.grid_scan import Level, make_level, scan, solutions
from l0tre.exhaustive.progress import advance, begin, split
from l0tre.exhaustive.ranking import Ranking
from l0tre.exhaustive.subsets import unrank
from l0tre.grid import make_grid
from l0tre.memory import Batcher
from l0tre.model.network import margins, round_off
from l0tre.objective import AllRivals
from tests.tools import plain_network, tiny_module


def _setup(kind: str, seed: int, t: int) -> tuple[nn.Module, Level, Batcher, Tensor, Tensor]:
    module, shape = tiny_module(kind, seed)
    for parameter in module.parameters():
        parameter.data *= 0.5  # larger distances
    domain = make_domain(shape)
    level = make_level(domain, make_grid(domain, 1.0), t)
    images = torch.rand(3, *shape)
    labels = module(images).argmax(1)
    return module, level, Batcher(plain_network(module, shape), 2**26), images.flatten(1), labels


def _slow_accumulation(
    module: nn.Module, level: Level, image: Tensor, label: int, ranking: Ranking, row: int
) -> Tensor | None:
    """Apply one ranked perturbation after the other; the first to touch a group keeps it."""
    taken: dict[int, list[float]] = {}
    for number, point in zip(ranking.sets[row].tolist(), ranking.points[row].tolist(), strict=True):
        if number < 0:
            continue
        groups = unrank(torch.tensor([number]), level.domain.groups, level.t)[0].tolist()
        _, values = solutions(level, torch.tensor(number), torch.tensor(point))
        for group, value in zip(groups, values.tolist(), strict=True):
            taken.setdefault(group, value)
        x = image.clone()
        for group, value in taken.items():
            x[level.domain.members[group]] = torch.tensor(value)
        scores = module(x.reshape(1, *level.domain.shape)).detach()
        if bool(margins(scores, torch.tensor([label]))[0] < -round_off(scores)[0]):
            return x
    return None


@settings(max_examples=40, deadline=None, derandomize=True)
@given(kind=st.sampled_from(["dense", "conv1", "conv3"]), seed=st.integers(0, 9999), t=st.integers(1, 2))
def test_accumulation_equals_a_plain_loop(kind: str, seed: int, t: int) -> None:
    module, level, batcher, images, labels = _setup(kind, seed, t)
    partial = begin(t, 3, level.sets, images.device)
    partial = advance(partial, scan(batcher, level, images, AllRivals(labels), 0, level.sets))
    for ranking in (partial.by_score, partial.by_margin):
        found, changed, queries = accumulate(batcher, level, images, AllRivals(labels), ranking)
        # Accumulations are looked at in parts, so long as the decision stays.
        looked = max(PREFIXES, batcher.rows // 3)
        assert bool((queries <= ranking.sets.shape[1]).all())
        assert bool(((queries == ranking.sets.shape[1]) | (queries >= looked)).all())
        for row in range(3):
            wanted = _slow_accumulation(module, level, images[row], int(labels[row]), ranking, row)
            assert bool(found[row]) == (wanted is not None)
            assert torch.equal(changed[row], images[row] if wanted is None else wanted)


def _flips(module: nn.Module, domain: Domain, x: Tensor, label: Tensor) -> float:
    return float(margins(module(x.reshape(1, *domain.shape)).detach(), label[None])[0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(kind=st.sampled_from(["dense", "conv1", "conv3"]), seed=st.integers(0, 9999))
def test_after_tightening_no_single_group_can_be_restored(kind: str, seed: int) -> None:
    module, level, batcher, images, labels = _setup(kind, seed, 1)
    domain = level.domain
    far = torch.rand(200, 3, images.shape[1]).round()
    scores = module(far.reshape(-1, *domain.shape)).detach()
    flipped = (margins(scores, labels.repeat(200)) < -1e-3).reshape(200, 3)
    rows = flipped.any(0).nonzero()[:, 0]
    start = (
        torch.stack([far[int(flipped[:, row].int().argmax()), row] for row in rows.tolist()])
        if len(rows)
        else far[0, :0]
    )
    better, queries = tighten(batcher, domain, images[rows], AllRivals(labels[rows]), start)
    before = changed_groups(domain, images[rows], start)
    after = changed_groups(domain, images[rows], better)
    assert (after.int() <= before.int()).all()
    assert (queries >= before.sum(1)).all()
    for place, row in enumerate(rows.tolist()):
        assert _flips(module, domain, better[place], labels[row]) < 0
        for group in after[place].nonzero()[:, 0].tolist():
            x = better[place].clone()
            x[domain.members[group]] = images[row, domain.members[group]]
            assert _flips(module, domain, x, labels[row]) > -1e-4


def test_tightening_many_groups_restores_several_at_once() -> None:
    # Only the first 3 of 64 changed features matter: the score of class 1 is their sum.
    module = nn.Linear(64, 2)
    module.weight.data = torch.zeros(2, 64)
    module.weight.data[1, :3] = 1.0
    module.bias.data = torch.tensor([2.5, 0.0])
    network = plain_network(module, (64,))
    better, queries = tighten(
        Batcher(network, 2**26), make_domain((64,)), torch.zeros(1, 64), AllRivals(torch.tensor([0])), torch.ones(1, 64)
    )
    assert better.nonzero()[:, 1].tolist() == [0, 1, 2]
    assert int(queries[0]) < 64 * 65 // 2 / 2  # one at a time would take 64 + 63 + ... queries


def test_rankings_do_not_depend_on_the_chunks() -> None:
    for seed in range(5):
        _, level, batcher, images, labels = _setup("conv1", seed, 2)
        whole = advance(begin(2, 3, 4, images.device), scan(batcher, level, images, AllRivals(labels), 0, level.sets))
        pieces = begin(2, 3, 4, images.device)
        for start in range(0, level.sets, 4):
            stop = min(start + 4, level.sets)
            pieces = advance(pieces, scan(batcher, level, images, AllRivals(labels), start, stop))
        assert pieces.position == whole.position == level.sets
        for a, b in ((whole.by_score, pieces.by_score), (whole.by_margin, pieces.by_margin)):
            assert torch.allclose(a.values, b.values, atol=1e-6)
        one = split(pieces, [1])
        assert torch.equal(one.by_score.sets[0], pieces.by_score.sets[1])
