"""What is known so far: for every neuron the nearest test that activates it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["FAR", "Found", "Tests"]

FAR = 2**30  # the distance of a neuron that no test activates


@dataclass(frozen=True)
class Tests:
    """Tests, and the neurons that each is the nearest one of.

    Attributes:
        inputs: float32 ``[tests, values]``.
        seeds: int64 ``[tests]``, the seed of each.
        distances: int64 ``[tests]``, changed groups.
        aims: int64 ``[tests]``, the neuron that each was made for, -1 for none in particular.
        neurons: int64 ``[pairs]``.
        tests: int64 ``[pairs]``, the test of each of these neurons.
    """

    inputs: Tensor
    seeds: Tensor
    distances: Tensor
    aims: Tensor
    neurons: Tensor
    tests: Tensor


@dataclass
class Found:
    """The nearest tests so far, on one device; changed in place.

    Attributes:
        distance: int64 ``[neurons]``, changed groups of the nearest test; 0 if a seed activates it, ``FAR`` for none.
        test: int64 ``[neurons]``, the nearest test, -1 for a seed or none.
        inputs: float32 ``[values]`` of each test.
        seeds: Of each test the seed that it was made from.
        distances: Of each test.
        aims: Of each test the neuron that it was made for, -1 for none in particular.
    """

    distance: Tensor
    test: Tensor
    inputs: list[Tensor] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    distances: list[int] = field(default_factory=list)
    aims: list[int] = field(default_factory=list)

    @staticmethod
    def begin(neurons: int, device: torch.device) -> "Found":
        """Nothing is activated yet."""
        distance = torch.full((neurons,), FAR, dtype=torch.int64, device=device)
        return Found(distance, torch.full_like(distance, -1))

    def take(self, x: Tensor, seeds: Tensor, distances: Tensor, hits: Tensor, aims: Tensor) -> int:
        """Keep the tests that are nearer than what was known, for some neuron.

        Args:
            x: float32 ``[rows, values]``.
            seeds: int64 ``[rows]``, the seed of each.
            distances: int64 ``[rows]``, changed groups.
            hits: bool ``[rows, neurons]``, the activated neurons.
            aims: int64 ``[rows]``, the neuron that each was made for.

        Returns:
            How many tests were kept.
        """
        if not len(x):
            return 0
        possible = (hits.any(0) & (self.distance > distances.min())).nonzero()[:, 0]
        if not len(possible):
            return 0
        nearer = hits[:, possible] & (distances[:, None] < self.distance[possible])
        rows, columns = nearer.any(1).nonzero()[:, 0], nearer.any(0)
        if not len(rows):
            return 0
        neurons, nearer = possible[columns], nearer[rows][:, columns]
        # The nearest row of each neuron; of equally near ones the one that activates most.
        rank = torch.empty(len(rows), dtype=torch.int32, device=x.device)
        order = (distances[rows] * (hits.shape[1] + 1) - hits[rows].sum(1)).argsort(stable=True)
        rank[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
        row = rows[order[torch.where(nearer, rank[:, None], len(order)).amin(0).long()]]
        used = row.unique()
        place = torch.full((len(x),), -1, dtype=torch.int64, device=x.device)
        place[used] = torch.arange(len(used), device=x.device) + len(self.inputs)
        self.distance[neurons] = distances[row]
        self.test[neurons] = place[row]
        self.inputs.extend(x[used])
        self.seeds.extend(seeds[used].tolist())
        self.distances.extend(distances[used].tolist())
        self.aims.extend(aims[used].tolist())
        return len(used)

    @torch.inference_mode()
    def news(self, known: Tensor) -> Tests:
        """What is nearer than some distances, int64 ``[neurons]``."""
        neurons = (self.distance < known).nonzero()[:, 0]
        used, tests = self.test[neurons].unique(return_inverse=True)
        kept, device = used.tolist(), known.device
        inputs = torch.stack([self.inputs[test] for test in kept]) if kept else torch.zeros(0, 0, device=device)
        seeds, distances, aims = (
            torch.tensor([values[test] for test in kept], dtype=torch.int64, device=device)
            for values in (self.seeds, self.distances, self.aims)
        )
        return Tests(inputs, seeds, distances, aims, neurons, tests)

    @torch.inference_mode()
    def merge(self, news: Tests) -> None:
        """Keep the tests that are nearer than what is known, for some neuron."""
        nearer = news.distances[news.tests] < self.distance[news.neurons]
        neurons, tests = news.neurons[nearer], news.tests[nearer]
        used, tests = tests.unique(return_inverse=True)
        self.test[neurons] = tests + len(self.inputs)
        self.distance[neurons] = news.distances[used][tests]
        self.inputs.extend(news.inputs[used])
        self.seeds.extend(news.seeds[used].tolist())
        self.distances.extend(news.distances[used].tolist())
        self.aims.extend(news.aims[used].tolist())

    def prune(self) -> None:
        """Drop the tests that are not the nearest of any neuron."""
        used = self.test[self.test >= 0].unique()
        place = torch.full((len(self.inputs) + 1,), -1, dtype=torch.int64, device=self.test.device)
        place[used] = torch.arange(len(used), device=used.device)
        self.test = place[self.test]  # the spare last entry stays -1
        kept = used.tolist()
        self.inputs = [self.inputs[test] for test in kept]
        self.seeds = [self.seeds[test] for test in kept]
        self.distances = [self.distances[test] for test in kept]
        self.aims = [self.aims[test] for test in kept]
