"""What chance achieves: random pixels of the seeds at random values, with the same number of queries."""

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.testgen.found import FAR
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
    def distances(self, number: int, queries: int) -> Tensor:
        """The distances at which a batch activates neurons.

        Args:
            number: Of the batch, from 0 on.
            queries: Inputs of all batches.

        Returns:
            int64 ``[neurons]``, ``FAR`` for neurons that no input activated.
        """
        if number < self._drawn:  # it was lost, and is made again
            self._begin()
        while self._drawn < number:
            self._draw(self.rows)
        domain, device = self.domain, self.seeds.device
        count = min(self.rows, queries - number * self.rows)
        draw, order, source, high = self._draw(count)
        sizes = (torch.tensor(float(self.most), device=device) ** draw).round().long()
        order = order.argsort(1)
        changed = torch.zeros_like(order, dtype=torch.bool)
        changed.scatter_(1, order, torch.arange(domain.groups, device=device) < sizes[:, None])
        target = torch.where(high < 0.5, domain.high, domain.low)
        x = self.seeds[source].clone()
        row, group = changed.nonzero(as_tuple=True)
        x[row[:, None], domain.members[group]] = target[row[:, None], domain.members[group]]
        x = admit(domain, self.seeds[source], x)
        moved = (x != self.seeds[source])[:, domain.members].any(2).sum(1)
        return torch.where(self.goals.excess(x) > 0, moved[:, None], FAR).amin(0)

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
