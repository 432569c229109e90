"""Generation, step by step: seeds, single changes, climbs, many changes, smaller tests, proofs; chance to compare."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from l0tre.coverage.neurons import Layer
from l0tre.defaults import MAX_L0, PROOFS
from l0tre.domain import Domain
from l0tre.errors import InternalError
from l0tre.halting import Halted
from l0tre.memory import default_budget
from l0tre.model.network import Network
from l0tre.testgen.ascent import ascend
from l0tre.testgen.bounds import CLOSE_HALVINGS
from l0tre.testgen.climb import climb
from l0tre.testgen.found import FAR, Found
from l0tre.testgen.goals import Goals, make_goals
from l0tre.testgen.sweep import KEPT, Ranked, corner_points, sweep
from l0tre.testgen.tighten import tighten
from l0tre.testgen.transfer import transfer
from l0tre.testgen.units import Bench, Desk

__all__ = ["STAGES", "SuiteSettings", "SuiteState", "begin", "generate", "make_bench"]

STAGES = ("sweep", "search", "tighten", "proofs", "baseline")
SWEPT = 16  # seeds that climbs start from: those from which most neurons seem near
NEAR = 3  # changes that a seed is judged by
TELLING = 64  # neurons of a layer that show whether proofs of so many changes are worth their time
ALWAYS = -100.0  # what goes into an activation is above that for almost any input
PART = 8  # of the memory budget that a batch of inputs may take is one part in so many
BATCH = {"cpu": 2**28, "cuda": 2**34}  # bytes beyond which batches are no faster


@dataclass(frozen=True)
class SuiteSettings:
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
class SuiteState:
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


def begin(network: Network, layers: Sequence[Layer], thresholds: Tensor, seeds: Tensor) -> tuple[Goals, SuiteState]:
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
    state = SuiteState(found, lower, torch.zeros_like(lower, dtype=torch.bool), nothing)
    on = ", ".join(layer.name for layer in layers if bool((goals.limits[layer.place] <= ALWAYS).all()))
    if on:
        state.notes.append(f"almost any value of {on} is above the threshold: a higher one tells more")
    return goals, state


def make_bench(
    network: Network,
    goals: Goals,
    domain: Domain,
    seeds: Tensor,
    settings: SuiteSettings,
    pulse: Callable[[], None],
    device: str = "",
) -> Bench:
    """What all steps share.

    Args:
        network: As in :func:`begin`.
        goals: Likewise.
        domain: What may change.
        seeds: float32 ``[seeds, values]``.
        settings: What is looked for.
        pulse: Felt before every batch; may raise ``Halted``.
        device: Where workers compute, empty for the network's device.
    """
    own = network.device
    budget = settings.memory_bytes or default_budget(own)
    memory = min(budget // PART, BATCH[device or own.type])
    points = corner_points(domain.to(torch.device("cpu"))).to(own)
    most, seed = settings.max_l0, settings.seed
    return Bench(network, goals, domain.to(own), points, seeds.to(own), most, memory, seed, pulse)


def generate(bench: Bench, desk: Desk, settings: SuiteSettings, state: SuiteState) -> Iterator[str]:
    """Go on until everything is done or somebody asks to stop.

    Args:
        bench: See :func:`make_bench`.
        desk: Has units of work done.
        settings: What is looked for.
        state: Changed in place.

    Yields:
        After every step, what was done, in words.
    """
    steps = {"search": _search, "tighten": _tighten, "proofs": _prove, "baseline": _chance}
    if settings.baseline and "baseline" in state.done and not len(state.random):  # an earlier call was without
        state.done.remove("baseline")
    for name, stage in steps.items():
        if name in state.done:
            continue
        began, before = time.monotonic(), state.seconds
        try:
            for words in stage(bench, desk, settings, state):
                state.seconds = before + time.monotonic() - began
                yield words
                bench.pulse()
        except Halted:
            state.seconds = before + time.monotonic() - began
            return
        state.seconds = before + time.monotonic() - began
        if name == "search":
            state.done.append("sweep")
        state.done.append(name)
        yield name


def _search(bench: Bench, desk: Desk, _: SuiteSettings, state: SuiteState) -> Iterator[str]:
    """Single changes of the seeds that most neurons are near to, then climbs layer by layer."""
    goals = bench.goals
    base = torch.full((goals.count,), -torch.inf, device=goals.device)
    gain = torch.full((goals.count, KEPT), -torch.inf, device=goals.device)
    ranked = Ranked(gain, torch.full_like(gain, -1, dtype=torch.int32), base)
    chosen = torch.zeros(goals.count, dtype=torch.int64, device=goals.device)
    promise = torch.full_like(base, -torch.inf)
    numbers = _nearest_seeds(bench, state.found)
    sweeps = desk.values("single changes of a seed", len(numbers), lambda place: (sweep, numbers[place]))
    for place, (number, value) in enumerate(zip(numbers, sweeps, strict=True)):
        if value is None:
            continue
        own, queries = value
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
    for layer, target in enumerate(goals.targets):
        for step, cost in enumerate(climb(desk, bench, layer, chosen, ranked), start=2):
            state.queries += cost
            yield f"{target.layer.name}, {step} changes"
    for layer, target in enumerate(goals.targets):
        for look in (transfer, ascend, transfer):
            if bool((state.found.distance[target.layer.place] >= FAR).any()):
                state.queries += look(desk, bench, layer, chosen)
                yield f"{target.layer.name}, many changes"


@torch.inference_mode()
def _nearest_seeds(bench: Bench, found: Found) -> list[int]:
    """The seeds that open neurons are nearest to activation in, most neurons first."""
    goals, seeds = bench.goals, bench.seeds
    open_ = found.distance > 0
    if not bool(open_.any()):
        return []
    best = torch.full((goals.count,), -torch.inf, device=goals.device)
    nearest = torch.zeros(goals.count, dtype=torch.int64, device=goals.device)
    for number, seed in enumerate(seeds):
        bench.pulse()
        value = goals.excess(seed[None])[0]
        nearest = torch.where(value > best, number, nearest)
        best = torch.maximum(best, value)
    votes = torch.bincount(nearest[open_], minlength=len(seeds))
    order = votes.argsort(descending=True, stable=True)[:SWEPT]
    return [int(number) for number in order if votes[number] > 0]


def _prove(bench: Bench, desk: Desk, settings: SuiteSettings, state: SuiteState) -> Iterator[str]:
    """Which neurons are dead, and how far the others are from every seed, at the least."""
    goals, found = bench.goals, state.found
    if settings.proofs < 1:
        return
    if isinstance(bench.prover, str):
        state.notes.append(f"nothing is proved: {bench.prover}")
        return
    missed = found.distance >= FAR
    if bool(missed.any()):
        frozen = torch.ones(bench.seeds.shape[1], dtype=torch.bool, device=goals.device)
        frozen[bench.domain.members.flatten()] = False
        kinds = bench.seeds[:, frozen].unique(dim=0, return_inverse=True)[1].tolist() if bool(frozen.any()) else [0]
        firsts, dead = [kinds.index(kind) for kind in sorted(set(kinds))], missed.clone()
        for own in desk.values("dead neurons", len(firsts), lambda place: (_nowhere, firsts[place], missed)):
            dead &= _all_of(own, dead)
            yield "dead neurons"
        state.dead |= dead
    hopeless = torch.zeros_like(state.dead)
    for count in range(1, settings.proofs + 1):
        # Only where the best test is farther is there something to prove.
        open_ = (found.distance > count) & (state.lower == count) & ~state.dead & ~hopeless
        proved, words = open_.clone(), f"proofs within {count} changes"
        for own in desk.values(words, len(bench.seeds) * bool(open_.any()), partial(_proof, count, open_)):
            proved &= _all_of(own, proved)
            yield words
            if not bool(proved.any()):
                break
        state.lower[proved] = count + 1
        for target in goals.targets if count > 1 else ():
            if not bool(proved[target.layer.place].any()):  # more changes can only do more
                hopeless[target.layer.place] = True
    wrong = (state.dead & (found.distance < FAR)) | (state.lower > found.distance)
    if bool(wrong.any()):
        raise InternalError(
            f"neuron {int(wrong.nonzero()[0])} was proved to be off where a test activates it: nothing was concluded "
            "from it; this is a defect in l0tre, please report it"
        )


def _all_of(proved: Tensor | None, like: Tensor) -> Tensor:
    """What was proved; nothing by a proof that failed."""
    return torch.zeros_like(like) if proved is None else proved


def _proof(count: int, open_: Tensor, seed: int) -> tuple[object, ...]:
    return _within, seed, count, open_


def _nowhere(bench: Bench, _: Found, seed: int, open_: Tensor) -> Tensor:
    assert not isinstance(bench.prover, str)
    return bench.prover.nowhere(bench.seeds[seed], open_)


def _within(bench: Bench, found: Found, seed: int, count: int, open_: Tensor) -> Tensor:
    bench.pulse()
    assert not isinstance(bench.prover, str)
    own = bench.seeds[seed]
    if count == 1:
        proved = bench.prover.alone(own, open_)
        return proved | bench.prover.alone(own, open_ & ~proved & (found.distance >= FAR), CLOSE_HALVINGS)
    proved = bench.prover.together(own, open_) if count == 2 else torch.zeros_like(open_)
    for target in bench.goals.targets:
        layer = torch.zeros_like(open_)
        layer[target.layer.place] = open_[target.layer.place]
        asked = layer & ~proved
        if bool(asked.any()):
            proved = proved | bench.prover.within(own, count, asked)
        if int(layer.sum()) >= TELLING and not bool((proved & layer).any()):
            break  # ranges of later layers rest on this one's: they take longest, and tell hardly more
    return proved


def _tighten(bench: Bench, desk: Desk, _: SuiteSettings, state: SuiteState) -> Iterator[str]:
    """Restore what tests can do without."""
    for number, target in enumerate(bench.goals.targets):
        state.queries += tighten(desk, bench, number)
        yield f"smaller tests of {target.layer.name}"


def _chance(bench: Bench, desk: Desk, settings: SuiteSettings, state: SuiteState) -> Iterator[str]:
    """The same number of random changes, for comparison."""
    if not settings.baseline:
        return
    distance = torch.where(state.found.distance == 0, 0, FAR)
    queries = math.ceil(state.queries)
    batches = math.ceil(queries / bench.chance.rows)
    for own in desk.values("random changes", batches, lambda number: (_batch, number, queries)):
        if own is not None:
            distance = torch.minimum(distance, own)
    state.random, state.random_queries = distance, queries
    yield "random changes"


def _batch(bench: Bench, found: Found, number: int, queries: int) -> Tensor:
    bench.pulse()
    return bench.chance.distances(found, number, queries)
