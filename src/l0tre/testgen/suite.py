"""A generated suite: its tests, what is known of every neuron, and the figures drawn from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from l0tre.coverage.neurons import Layer
from l0tre.domain import Domain
from l0tre.errors import require
from l0tre.model.network import Network, margins, round_off
from l0tre.shown import Shown
from l0tre.testgen.found import FAR
from l0tre.testgen.generate import SuiteSettings, SuiteState
from l0tre.testgen.goals import Goals
from l0tre.testgen.reduce import distances_by, gains, minimal, needed_tests

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NOT_FOUND", "Seeds", "Suite", "decided", "make_suite"]

NOT_FOUND = -1  # the distance of a neuron that no test activates
BATCH = 256  # inputs that are decided at once


@dataclass(frozen=True, eq=False)
class Seeds:
    """What tests are made from; everything on the CPU.

    Attributes:
        images: float32 ``[seeds, *shape]``.
        indices: Their positions in the user's data.
        decisions: int64 ``[seeds]``, by the network's source.
    """

    images: Tensor
    indices: tuple[int, ...]
    decisions: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Suite(Shown):
    """Tests by distance, and what is known of every neuron; everything on the CPU.

    Attributes:
        network: Its name.
        fingerprint: Hash of its weights.
        criterion: What covers a neuron, in words.
        unit: What a changed group is called.
        layers: The neurons.
        seeds: What tests are made from.
        images: float32 ``[tests, *shape]``.
        origins: int64 ``[tests]``, the seed of each, by its place among the seeds.
        sizes: int64 ``[tests]``, changed groups.
        aims: int64 ``[tests]``, the neuron that each was made for; of single and random changes the first one that it
            is the nearest test of.
        decisions: int64 ``[tests]``, by the network's source.
        gains: int64 ``[tests]``, neurons that no seed and no test before activates.
        minimal: Tests that together activate as many neurons as all.
        distance: int64 ``[neurons]``: 0 if a seed activates it, else changed groups of the nearest test, -1 for none.
        nearest: int64 ``[neurons]``, the nearest test, -1 for none.
        lower: int64 ``[neurons]``: with fewer changed groups of any seed nothing activates it, proved.
        dead: bool ``[neurons]``: nothing in the domain activates it, proved.
        random: int64 ``[neurons]``, as ``distance``, for random changes; empty if none were tried.
        queries: What the search cost, in forward passes; a pass through a window counts as its share.
        random_queries: Random inputs tried.
        seconds: Of work.
        complete: Whether everything was done that was asked for.
        notes: What users should know.
        max_l0: Changed groups that were allowed.
    """

    network: str
    fingerprint: str
    criterion: str
    unit: str
    layers: tuple[Layer, ...]
    seeds: Seeds
    images: Tensor
    origins: Tensor
    sizes: Tensor
    aims: Tensor
    decisions: Tensor
    gains: Tensor
    minimal: tuple[int, ...]
    distance: Tensor
    nearest: Tensor
    lower: Tensor
    dead: Tensor
    random: Tensor
    queries: int
    random_queries: int
    seconds: float
    complete: bool
    notes: tuple[str, ...]
    max_l0: int

    def __repr__(self) -> str:
        return f"Suite({len(self)} tests, {100 * self.coverage:.2f} % of {self.neurons} neurons)"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def neurons(self) -> int:
        """Number of neurons."""
        return len(self.distance)

    @property
    def coverage(self) -> float:
        """Share of neurons that a seed or a test activates."""
        return float((self.distance >= 0).double().mean())

    @property
    def adversarial(self) -> Tensor:
        """Which tests are decided otherwise than their seed, bool ``[tests]``."""
        return self.decisions != self.seeds.decisions[self.origins]

    @property
    def entropy(self) -> float:
        """Of the tests' decisions, in bits; 0 if all are the same."""
        if not len(self):
            return 0.0
        shares = torch.bincount(self.decisions).double() / len(self)
        return max(0.0, -float(torch.special.xlogy(shares, shares).sum()) / math.log(2))

    def counts(self, layer: Layer | None = None) -> dict[str, int]:
        """How many neurons are what; together they are all neurons.

        Args:
            layer: Of this layer alone.

        Returns:
            ``by seeds``, ``by tests``, ``dead`` (no input activates it, proved), ``out of reach`` (none within one
            change or more, proved) and ``open``.
        """
        place = slice(None) if layer is None else layer.place
        distance, dead, lower = self.distance[place], self.dead[place], self.lower[place]
        missed = distance < 0
        return {
            "by seeds": int((distance == 0).sum()),
            "by tests": int((distance > 0).sum()),
            "dead": int((missed & dead).sum()),
            "out of reach": int((missed & ~dead & (lower > 1)).sum()),
            "open": int((missed & ~dead & (lower <= 1)).sum()),
        }

    @property
    def exact(self) -> int:
        """Neurons whose nearest distance is proved to be what was found."""
        return int((self.distance == self.lower).sum())

    def within(self, size: int) -> float:
        """Share of neurons that a seed, or a test with so many changed groups, activates."""
        return float(((self.distance >= 0) & (self.distance <= size)).double().mean())

    def curve(self) -> list[dict[str, Any]]:
        """Coverage and adversarial tests against distance, one row for each distance of a test."""
        adversarial, total = self.adversarial, max(1, int(self.adversarial.sum()))
        rows = []
        for size in sorted({0, *self.sizes.tolist()}):
            near = self.sizes <= size
            out = self.dead | (self.lower > size)
            rows.append(
                {
                    "l0": size,
                    "coverage": self.within(size),
                    "at_most": 1 - float(out.double().mean()),
                    "random": self._random_within(size),
                    "tests": int(near.sum()),
                    "adversarial": int((adversarial & near).sum()),
                    "share_of_adversarial": int((adversarial & near).sum()) / total,
                    "adversarial_share": float(adversarial[near].double().mean()) if bool(near.any()) else 0.0,
                }
            )
        return rows

    def _random_within(self, size: int) -> float | None:
        if not len(self.random):
            return None
        return float(((self.random >= 0) & (self.random <= size)).double().mean())

    def by_layer(self) -> list[dict[str, Any]]:
        """One row for each layer, and one for all."""
        rows = []
        for layer in (*self.layers, None):
            counts = self.counts(layer)
            total = sum(counts.values())
            covered = counts["by seeds"] + counts["by tests"]
            name = "all" if layer is None else layer.name
            rows.append({"layer": name, "neurons": total, "coverage": covered / total, **counts})
        return rows

    def manifest(self) -> list[dict[str, Any]]:
        """One row for each test."""
        adversarial, small = self.adversarial.tolist(), set(self.minimal)
        rows = []
        for test in range(len(self)):
            origin, aim = int(self.origins[test]), int(self.aims[test])
            layer = next((one for one in self.layers if one.start <= aim < one.start + one.size), None)
            rows.append(
                {
                    "test": test,
                    "seed": self.seeds.indices[origin],
                    "l0": int(self.sizes[test]),
                    "layer": "" if layer is None else layer.name,
                    "neuron": "" if layer is None else layer.words(aim - layer.start),
                    "gain": int(self.gains[test]),
                    "seed_label": int(self.seeds.decisions[origin]),
                    "label": int(self.decisions[test]),
                    "adversarial": adversarial[test],
                    "minimal": test in small,
                }
            )
        return rows

    def to_dataframe(self) -> "pd.DataFrame":
        """The tests as a table: a row each, indexed by their numbers, with the columns of :meth:`manifest`.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        rows = self.manifest()
        columns = [name for name in rows[0] if name != "test"] if rows else None
        return require("pandas", "tables").DataFrame(rows, columns=columns).rename_axis("test")

    def to_json(self) -> dict[str, Any]:
        """Everything but images and single neurons, for files."""
        found = self.distance[self.distance > 0].double()
        missed = self.counts()["dead"] + self.counts()["out of reach"]
        uncovered = int((self.distance < 0).sum())
        return {
            "network": self.network,
            "fingerprint": self.fingerprint,
            "criterion": self.criterion,
            "unit": self.unit,
            "layers": [{"name": one.name, "shape": list(one.shape), "source": one.source} for one in self.layers],
            "neurons": self.neurons,
            "seeds": list(self.seeds.indices),
            "coverage": self.coverage,
            "coverage_of_seeds": self.within(0),
            "coverage_of_random": self._random_within(self.max_l0),
            "counts": self.counts(),
            "proved_share_of_uncovered": missed / uncovered if uncovered else None,
            "exact_distances": self.exact,
            "mean_distance": float(found.mean()) if len(found) else None,
            "tests": len(self),
            "minimal": len(self.minimal),
            "adversarial": int(self.adversarial.sum()),
            "entropy": self.entropy,
            "queries": self.queries,
            "random_queries": self.random_queries,
            "max_l0": self.max_l0,
            "seconds": self.seconds,
            "complete": self.complete,
            "notes": list(self.notes),
            "by_layer": self.by_layer(),
            "curve": self.curve(),
        }


def make_suite(
    network: Network,
    goals: Goals,
    domain: Domain,
    seeds: Seeds,
    criterion: str,
    settings: SuiteSettings,
    state: SuiteState,
    pulse: Callable[[], None] = lambda: None,
) -> Suite:
    """The suite behind a state: tests that no other makes superfluous, everything computed anew from them.

    Args:
        network: Decides every test by its source, on the CPU.
        goals: The neurons; what a test activates is confirmed in float64.
        domain: Its unit.
        seeds: What the tests were made from.
        criterion: What covers a neuron, in words.
        settings: What was looked for.
        state: What was found.
        pulse: Felt between batches.

    Returns:
        The suite.
    """
    open_ = state.found.distance > 0
    memory = 2**28 if goals.device.type == "cpu" else 2**32
    kept, hits = needed_tests(goals, state.found, open_, settings.max_l0, memory, pulse)
    numbers = kept.tolist()
    sizes = torch.tensor([state.found.distances[test] for test in numbers], dtype=torch.int64)
    distance, nearest = distances_by(hits, sizes.to(goals.device), goals.count, open_)
    shape = network.input_shape
    images = torch.stack([state.found.inputs[test] for test in numbers]).cpu() if numbers else torch.zeros(0, 1)
    images = images.view(-1, *shape) if numbers else torch.zeros(0, *shape)
    return Suite(
        network.name,
        network.fingerprint,
        criterion,
        domain.unit,
        tuple(target.layer for target in goals.targets),
        seeds,
        images,
        torch.tensor([state.found.seeds[test] for test in numbers], dtype=torch.int64),
        sizes,
        _aims(torch.tensor([state.found.aims[test] for test in numbers], dtype=torch.int64), nearest.cpu()),
        decided(network, images),
        gains(hits).cpu(),
        tuple(minimal(hits)),
        _told(distance),
        nearest.cpu(),
        state.lower.cpu(),
        state.dead.cpu(),
        _told(state.random),
        math.ceil(state.queries),
        state.random_queries,
        state.seconds,
        state.complete,
        tuple(state.notes),
        settings.max_l0,
    )


def _aims(aims: Tensor, nearest: Tensor) -> Tensor:
    """The neurons that tests were made for, or else the first ones that they are the nearest tests of."""
    neurons = (nearest >= 0).nonzero()[:, 0]
    first = torch.full_like(aims, len(nearest)).scatter_reduce(0, nearest[neurons], neurons, "amin")
    return torch.where(aims >= 0, aims, first)


def _told(distance: Tensor) -> Tensor:
    """Distances as users see them."""
    return torch.where(distance >= FAR, NOT_FOUND, distance).cpu()


@torch.inference_mode()
def decided(network: Network, images: Tensor) -> Tensor:
    """Decisions, int64 ``[images]``; by the source where they are not the most common one, or close."""
    if not len(images):
        return torch.zeros(0, dtype=torch.int64)
    scores = torch.cat([network.scores(part).cpu() for part in images.split(BATCH)])
    decisions = scores.argmax(1)
    doubtful = (margins(scores, decisions) <= round_off(scores)) | (decisions != decisions.mode().values)
    for rows in doubtful.nonzero()[:, 0].split(BATCH):
        decisions[rows] = network.source_scores(images[rows]).argmax(1)
    return decisions
