"""What chance achieves: random pixels of the seeds at random values, with the same number of queries."""

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.testgen.found import FAR, Found
from l0tre.testgen.goals import Goals

__all__ = ["Chance"]


class Chance:
    """Random changes in batches, which are the same whoever makes them.

    Sizes are drawn so that each power of two gets as many inputs; values are those at the ends of the ranges, which
    move neurons most.

    Attributes:
        rows: Inputs of a batch.
    """

    def __init__(self, goals: Goals, domain: Domain, seeds: Tensor, most: int, seed: int, memory: int) -> None:
        """Get ready.

        Args:
            goals: The neurons.
            domain: The groups.
            seeds: float32 ``[seeds, values]``.
            most: Changed groups at the most.
            seed: Of chance.
            memory: Bytes that a batch may take.
        """
        self.goals = goals
        self.domain = domain
        self.seeds = seeds
        self.most = min(most, domain.groups)
        self.seed = seed
        self.rows = max(1, memory // (3 * goals.row_bytes + 8 * domain.groups))
        self._drawn = 0
        self._begin()

    @torch.inference_mode()
    def distances(self, found: Found, number: int, queries: int) -> Tensor:
        """The distances at which a batch activates neurons.

        Args:
            found: Receives tests that happen to be nearer than those that were looked for.
            number: Of the batch, from 0 on.
            queries: Inputs of all batches.

        Returns:
            int64 ``[neurons]``, ``FAR`` for neurons that no input activated.
        """
        if number < self._drawn:  # it was lost, and is made again
            self._begin()
        while self._drawn < number:
            self._draw(self.rows)
        domain, seeds = self.domain, self.seeds
        count = min(self.rows, queries - number * self.rows)
        draw, order, source, high = self._draw(count)
        sizes = (torch.tensor(float(self.most), device=seeds.device) ** draw).round().long()
        chosen = order.topk(self.most, 1, largest=False).indices  # the first ones are as random as all
        taken = torch.arange(self.most, device=seeds.device) < sizes[:, None]
        members = domain.members[chosen].flatten(1)
        original = seeds[source]
        target = torch.where(high < 0.5, domain.high, domain.low)
        changed = taken.repeat_interleave(domain.members.shape[1], 1)
        values = torch.where(changed, target.gather(1, members), original.gather(1, members))
        x = admit(domain, original, original.scatter(1, members, values))
        moved = (x != original).gather(1, members).view(count, self.most, -1).any(2).sum(1)
        hits = self.goals.hits(x)
        found.take(x, source, moved, hits & (moved > 0)[:, None], torch.full_like(moved, -1))
        return self._nearest(hits, moved)

    def _nearest(self, hits: Tensor, moved: Tensor) -> Tensor:
        """The smallest size among the inputs that activate each neuron."""
        order = moved.argsort(stable=True)
        sizes, counts = moved[order].unique_consecutive(return_counts=True)
        nearest = torch.full((self.goals.count,), FAR, dtype=torch.int64, device=moved.device)
        for size, rows in zip(sizes.tolist(), order.split(counts.tolist()), strict=True):
            nearest = torch.where(hits[rows].any(0) & (nearest > size), size, nearest)
        return nearest

    def _begin(self) -> None:
        self._drawn = 0
        self._generator = torch.Generator(device=self.seeds.device).manual_seed(self.seed)

    def _draw(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The next random numbers: for sizes, groups, seeds and values."""
        self._drawn += 1
        chance, device = self._generator, self.seeds.device
        return (
            torch.rand(count, generator=chance, device=device),
            torch.rand(count, self.domain.groups, generator=chance, device=device),
            torch.randint(len(self.seeds), (count,), generator=chance, device=device),
            torch.rand(count, self.seeds.shape[1], generator=chance, device=device),
        )
