"""Attacks that no package carries: Sparse-RS by its paper, and the attack of the L0-TRE paper."""

from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor, nn

from l0tre.adapters.peers.peer import count_classes
from l0tre.domain import make_domain
from l0tre.exhaustive.accumulate import accumulate, tighten
from l0tre.exhaustive.grid_scan import make_level, scan
from l0tre.exhaustive.ranking import empty_ranking, update
from l0tre.grid import make_grid
from l0tre.layout import channel_axis
from l0tre.memory import Batcher, default_budget
from l0tre.model.footprint import sample_bytes
from l0tre.model.network import Network, margins
from l0tre.objective import AllRivals

__all__ = ["paper", "schedule", "sparse_rs"]

# Sparse-RS: the share of the k pixels that is exchanged falls with the iteration, here of 10,000.
FIRST_SHARE = 0.3
ENDS = (0, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
DIVISORS = (1, 2, 4, 5, 6, 8, 10, 12, 15, 20)
FIRST_SIZE = 0.1  # of the pixels: the first k
RUNS = 4  # a run at one k has this part of the budget: budget / RUNS
STEP = 0.75  # from one k to the next while all succeed


def schedule(iteration: int, queries: int) -> float:
    """The published share of pixels that an iteration exchanges, rescaled to a run's number of queries."""
    return FIRST_SHARE / DIVISORS[bisect_left(ENDS, int(iteration / queries * 10_000))]


@torch.no_grad()
def sparse_rs(model: nn.Module, images: Tensor, labels: Tensor, budget: int, seed: int) -> Tensor:
    """Sparse-RS (AAAI 2022) at decreasing k: random search over k pixels with corner colours, without gradients.

    A run at one k is the published algorithm: k random pixels get random corner colours; then, again and again, some of
    them are put back and as many others take their place, which is kept if the margin falls. A run ends when the
    decision changes, or after a quarter of the budget; the next one has a smaller k, or one between the largest k that
    failed and the smallest that succeeded. All images are queried together.

    Args:
        model: The network.
        images: In [0, 1]: ``[n, *shape]``.
        labels: int64 ``[n]``.
        budget: Forward passes for each image.
        seed: Of the random search.

    Returns:
        ``[n, *shape]``: the adversarial input with the fewest changed pixels, the original where there is none.
    """
    generator = torch.Generator(images.device).manual_seed(seed)
    originals, back = _planes(images)
    count, channels, pixels = originals.shape
    length = max(1, budget // RUNS)
    shares = torch.tensor([schedule(i, length) for i in range(length)], device=images.device)
    best, current = originals.clone(), originals.clone()
    chosen = torch.zeros(count, pixels, dtype=torch.bool, device=images.device)
    lowest = torch.zeros(count, device=images.device)  # margin of the current input
    age = torch.zeros(count, dtype=torch.int64, device=images.device)
    failed, fewest = torch.zeros_like(age), torch.full_like(age, pixels + 1)
    k = torch.full_like(age, max(1, round(FIRST_SIZE * pixels)))
    for _ in range(budget):
        rows = (fewest > 1).nonzero()[:, 0]
        if not len(rows):
            break
        fresh = age[rows] == 0
        inside = chosen[rows] & ~fresh[:, None]
        some = (shares[age[rows]] * k[rows]).long().clamp(min=1)
        leave = _random_subset(inside, torch.where(fresh, 0, some), generator)
        enter = _random_subset(~inside, torch.where(fresh, k[rows], some), generator)
        new = (inside & ~leave) | enter
        colours = torch.randint(0, 2, (len(rows), channels, pixels), generator=generator, device=images.device)
        x = torch.where(enter[:, None], colours.to(images.dtype), current[rows])
        x = torch.where(new[:, None], x, originals[rows])
        margin = margins(model(back(x)), labels[rows])
        better = fresh | (margin < lowest[rows])
        kept = rows[better]
        chosen[kept], current[kept], lowest[kept] = new[better], x[better], margin[better]
        age[rows] += 1
        hit = rows[lowest[rows] < 0]
        best[hit] = current[hit]
        fewest[hit] = (current[hit] != originals[hit]).any(1).sum(1)
        lost = rows[(lowest[rows] >= 0) & (age[rows] >= length)]
        failed[lost] = k[lost]
        ended = torch.cat([hit, lost])
        age[ended] = 0
        k[ended] = _next_size(fewest[ended], failed[ended], k[ended], pixels)
    return back(best)


def _next_size(fewest: Tensor, failed: Tensor, k: Tensor, pixels: int) -> Tensor:
    """The k of the next run: below the fewest pixels that were enough, above what failed if there is room."""
    shrunk = torch.minimum((STEP * fewest).long(), fewest - 1)
    between = torch.where(failed + 1 < fewest, (failed + fewest) // 2, fewest - 1)
    after_success = torch.where(failed > 0, between, shrunk)
    return torch.where(fewest <= pixels, after_success, 2 * k).clamp(1, pixels)


def _random_subset(among: Tensor, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """So many of the marked entries of each row (all, if there are fewer), at random: bool like ``among``."""
    noise = torch.rand(among.shape, generator=generator, device=among.device).masked_fill(~among, 2.0)
    ranks = torch.empty_like(among, dtype=torch.int64)
    places = torch.arange(among.shape[1], device=among.device).expand_as(ranks)
    ranks.scatter_(1, noise.argsort(1), places)
    return (ranks < sizes[:, None]) & among


def _planes(images: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Images as ``[n, channels, pixels]``, and the way back; for a vector every value is a pixel."""
    shape = tuple(images.shape[1:])
    axis = channel_axis(shape)
    if axis is None:
        return images.reshape(len(images), 1, -1), lambda x: x.reshape(-1, *shape)
    moved = images.movedim(axis + 1, 1)
    inner = moved.shape[1:]
    return moved.flatten(2), lambda x: x.reshape(-1, *inner).movedim(1, axis + 1)


def paper(model: nn.Module, images: Tensor, labels: Tensor, budget: int, seed: int) -> Tensor:  # noqa: ARG001
    """The attack of the L0-TRE paper: rank pixels once, change them in this order, restore what is not needed.

    Pixels are ranked by the smallest score of the label over the corner colours, as in the published code. There is
    nothing to set a budget by, and nothing random.
    """
    shape = tuple(images.shape[1:])
    network = Network(
        model,
        model,
        shape,
        count_classes(model, images),
        images.device,
        None,
        "peer",
        sample_bytes=sample_bytes(model, shape, images.device),
    )
    batcher = Batcher(network, default_budget(images.device))
    domain = make_domain(shape).to(images.device)
    level = make_level(domain, make_grid(domain, 0.5, "paper", "corners").to(images.device), 1)
    flat = images.flatten(1)
    found = flat.clone()
    for row in range(len(flat)):
        one = slice(row, row + 1)
        chunk = scan(batcher, level, flat[one], AllRivals(labels[one]), 0, level.sets)
        ranking = update(empty_ranking(1, level.sets, images.device), chunk, "score")
        hit, changed, _ = accumulate(batcher, level, flat[one], AllRivals(labels[one]), ranking)
        if hit[0]:
            found[one] = tighten(batcher, domain, flat[one], AllRivals(labels[one]), changed)[0]
    return found.reshape(images.shape)
