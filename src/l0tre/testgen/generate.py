"""Generation, step by step: seeds, single changes, climbs, proofs, smaller tests, and chance for comparison."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0tre.coverage.neurons import Layer
from l0tre.defaults import MAX_L0, PROOFS
from l0tre.domain import Domain
from l0tre.errors import InternalError
from l0tre.halting import Halted
from l0tre.memory import default_budget
from l0tre.model.network import Network
from l0tre.testgen.baseline import random_distances
from l0tre.testgen.bounds import make_neuron_prover
from l0tre.testgen.climb import climb, make_start
from l0tre.testgen.found import FAR, Found
from l0tre.testgen.goals import Goals, make_goals
from l0tre.testgen.sweep import KEPT, Ranked, corner_points, sweep
from l0tre.testgen.tighten import tighten

__all__ = ["STAGES", "Settings", "State", "begin", "generate"]

STAGES = ("sweep", "search", "proofs", "tighten", "baseline")
SWEPT = 16  # seeds that climbs start from: those from which most neurons seem near
NEAR = 3  # changes that a seed is judged by
PART = 8  # of the memory budget that a batch of inputs may take is one part in so many
BATCH = {"cpu": 2**28, "cuda": 2**34}  # bytes beyond which batches are no faster


@dataclass(frozen=True)
class Settings:
    """What is looked for.

    Attributes:
        criterion: ``neuron`` (above the threshold) or ``strong`` (above the highest value on training data).
        threshold: That neurons must exceed, in the units of their values.
        max_l0: Changed groups of a test, at the most.
        proofs: Changed groups up to which proofs are tried; 0 for none.
        baseline: Whether random changes are tried for comparison.
        seed: Of all chance.
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
    """

    criterion: str = "neuron"
    threshold: float = 0.0
    max_l0: int = MAX_L0
    proofs: int = PROOFS
    baseline: bool = True
    seed: int = 0
    memory_bytes: int = 0


@dataclass
class State:
    """What is known so far; changed in place.

    Attributes:
        found: The nearest tests.
        lower: int64 ``[neurons]``: no input with fewer changed groups of any seed activates the neuron, proved.
        dead: bool ``[neurons]``: no input of the domain does, proved.
        random: int64 ``[neurons]``, distances that chance found; empty before.
        queries: What the search cost, in forward passes; a pass through a window counts as its share.
        random_queries: Inputs that chance tried.
        seconds: Of work.
        done: Stages that are complete.
        notes: What users should know.
    """

    found: Found
    lower: Tensor
    dead: Tensor
    random: Tensor
    queries: float = 0.0
    random_queries: int = 0
    seconds: float = 0.0
    done: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return len(self.done) == len(STAGES)


@dataclass(frozen=True)
class _Work:
    network: Network
    goals: Goals
    domain: Domain
    seeds: Tensor
    settings: Settings
    memory: int
    pulse: Callable[[], None]


def begin(network: Network, layers: Sequence[Layer], thresholds: Tensor, seeds: Tensor) -> tuple[Goals, State]:
    """What the seeds activate.

    Args:
        network: With a graph.
        layers: The neurons.
        thresholds: float64 ``[neurons]``.
        seeds: float32 ``[seeds, values]``.

    Returns:
        The goals, and a state to start from.
    """
    graph = network.exact or network.graph
    assert graph is not None
    goals = make_goals(graph.to("cpu", torch.float64), layers, thresholds, network.device)
    found = Found.begin(goals.count, network.device)
    with torch.inference_mode():
        for seed in seeds.to(network.device):
            found.distance[goals.confirmed(seed[None])[0]] = 0
    lower = (found.distance > 0).long()
    nothing = torch.zeros(0, dtype=torch.int64, device=network.device)
    return goals, State(found, lower, torch.zeros_like(lower, dtype=torch.bool), nothing)


def generate(
    network: Network,
    goals: Goals,
    domain: Domain,
    seeds: Tensor,
    settings: Settings,
    state: State,
    halted: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Go on until everything is done or somebody asks to stop.

    Args:
        network: As in :func:`begin`.
        goals: Likewise.
        domain: What may change.
        seeds: float32 ``[seeds, values]``.
        settings: What is looked for.
        state: Changed in place.
        halted: Asked before every batch.

    Yields:
        After every step, what was done, in words.
    """
    device = network.device
    budget = settings.memory_bytes or default_budget(device)
    memory = min(budget // PART, BATCH[device.type])

    def pulse() -> None:
        if halted():
            raise Halted

    work = _Work(network, goals, domain.to(device), seeds.to(device), settings, memory, pulse)
    steps = {"search": _search, "proofs": _prove, "tighten": _tighten, "baseline": _chance}
    if settings.baseline and "baseline" in state.done and not len(state.random):  # an earlier call was without
        state.done.remove("baseline")
    for name, stage in steps.items():
        if name in state.done:
            continue
        began, before = time.monotonic(), state.seconds
        try:
            for words in stage(work, state):
                state.seconds = before + time.monotonic() - began
                yield words
                pulse()
        except Halted:
            state.seconds = before + time.monotonic() - began
            return
        state.seconds = before + time.monotonic() - began
        if name == "search":
            state.done.append("sweep")
        state.done.append(name)
        yield name


def _search(work: _Work, state: State) -> Iterator[str]:
    """Single changes of the seeds that most neurons are near to, then climbs layer by layer."""
    goals, found, domain = work.goals, state.found, work.domain
    points = corner_points(domain.to(torch.device("cpu"))).to(goals.device)
    base = torch.full((goals.count,), -torch.inf, device=goals.device)
    gain = torch.full((goals.count, KEPT), -torch.inf, device=goals.device)
    ranked = Ranked(gain, torch.full_like(gain, -1, dtype=torch.int32), base)
    chosen = torch.zeros(goals.count, dtype=torch.int64, device=goals.device)
    promise = torch.full_like(base, -torch.inf)
    for place, number in enumerate(_nearest_seeds(work, found)):
        own, queries = sweep(goals, domain, points, work.seeds[number], number, found, work.memory, work.pulse)
        state.queries += queries
        now = own.base + own.gain[:, :NEAR].clamp(min=0).sum(1)
        better = now > promise
        promise = torch.where(better, now, promise)
        chosen = torch.where(better, number, chosen)
        ranked = Ranked(
            torch.where(better[:, None], own.gain, ranked.gain),
            torch.where(better[:, None], own.change, ranked.change),
            torch.where(better, own.base, ranked.base),
        )
        yield f"single changes of seed {place + 1}"
    start = make_start(domain, points, work.seeds, chosen, ranked)
    for target in goals.targets:
        steps = climb(goals, target, start, found, work.memory, min(work.settings.max_l0, domain.groups), work.pulse)
        for step, cost in enumerate(steps, start=2):
            state.queries += cost
            yield f"{target.layer.name}, {step} changes"


@torch.inference_mode()
def _nearest_seeds(work: _Work, found: Found) -> list[int]:
    """The seeds that open neurons are nearest to activation in, most neurons first."""
    goals, seeds = work.goals, work.seeds
    open_ = found.distance > 0
    if not bool(open_.any()):
        return []
    best = torch.full((goals.count,), -torch.inf, device=goals.device)
    nearest = torch.zeros(goals.count, dtype=torch.int64, device=goals.device)
    for number, seed in enumerate(seeds):
        work.pulse()
        value = goals.excess(seed[None])[0]
        nearest = torch.where(value > best, number, nearest)
        best = torch.maximum(best, value)
    votes = torch.bincount(nearest[open_], minlength=len(seeds))
    order = votes.argsort(descending=True, stable=True)[:SWEPT]
    return [int(number) for number in order if votes[number] > 0]


def _prove(work: _Work, state: State) -> Iterator[str]:
    """Which neurons are dead, and how far the others are from every seed, at the least."""
    goals, found, settings = work.goals, state.found, work.settings
    if settings.proofs < 1:
        return
    network, domain = work.network, work.domain
    if network.exact is None:
        state.notes.append(f"nothing is proved: {network.note}")
        return
    prover = make_neuron_prover(network.exact, goals, domain, work.pulse)
    if isinstance(prover, str):
        state.notes.append(f"nothing is proved: {prover}")
        return
    frozen = torch.ones(work.seeds.shape[1], dtype=torch.bool, device=goals.device)
    frozen[domain.members.flatten()] = False
    kinds = work.seeds[:, frozen].unique(dim=0, return_inverse=True)[1].tolist() if bool(frozen.any()) else [0]
    dead = torch.ones_like(state.dead)
    for kind in sorted(set(kinds)):
        dead &= prover.nowhere(work.seeds[kinds.index(kind)])
        yield "dead neurons"
    state.dead |= dead
    for count in range(1, settings.proofs + 1):
        # Only where the best test is farther is there something to prove.
        open_ = (found.distance > count) & (state.lower == count) & ~state.dead
        proved = open_.clone()
        for number in range(len(work.seeds)):
            if not bool(proved.any()):
                break
            proved &= prover.within(work.seeds[number], count)
            yield f"proofs within {count} changes"
        if not bool(proved.any()):
            break
        state.lower[proved] = count + 1
    wrong = (state.dead & (found.distance < FAR)) | (state.lower > found.distance)
    if bool(wrong.any()):
        raise InternalError(
            f"neuron {int(wrong.nonzero()[0])} was proved to be off where a test activates it: nothing was concluded "
            "from it; this is a defect in l0tre, please report it"
        )


def _tighten(work: _Work, state: State) -> Iterator[str]:
    """Restore what tests can do without."""
    for target in work.goals.targets:
        state.queries += tighten(work.goals, target, work.domain, work.seeds, state.found, work.memory, work.pulse)
        yield f"smaller tests of {target.layer.name}"


def _chance(work: _Work, state: State) -> Iterator[str]:
    """The same number of random changes, for comparison."""
    if not work.settings.baseline:
        return
    start = torch.where(state.found.distance == 0, 0, FAR)
    generator = torch.Generator(device=work.goals.device).manual_seed(work.settings.seed)
    state.random = random_distances(
        work.goals,
        work.domain,
        work.seeds,
        start,
        math.ceil(state.queries),
        work.settings.max_l0,
        generator,
        work.memory,
        work.pulse,
    )
    state.random_queries = math.ceil(state.queries)
    yield "random changes"
