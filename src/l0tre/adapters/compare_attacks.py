"""Attacks side by side: the same images, the same budget, every result replayed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.adapters.counting import Counting
from l0tre.adapters.peers import PEERS, Peer
from l0tre.api.attack import attack_details
from l0tre.api.inputs import Images, Labels, load_inputs
from l0tre.attacks.attacked import Attacked
from l0tre.defaults import PEER_BUDGET
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError, ModelError
from l0tre.evaluation.problem import Problem, Settings, make_problem
from l0tre.evaluation.results import Excluded
from l0tre.exhaustive.accumulate import changed_groups
from l0tre.model.network import Network, exact_float32, margins
from l0tre.model.sources import Source
from l0tre.rules import Free

__all__ = ["OWN", "AttackComparison", "AttackResult", "compare", "replay_results"]

OWN = "l0tre"  # the name of our own attack
STOPPED = "stopped before the end"
NOISE = 1e-6  # a change below this is a library's rounding, not a change
GRADIENT = 8  # memory of an attack on an image, in forward passes: activations that wait for the backward pass, copies

Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What one attack found on all images.

    Attributes:
        name: The attack's.
        package: Where it comes from.
        adversarial: float32 ``[n, *shape]`` on the CPU; the original where none was found.
        found: bool ``[n]``: the replay of the adversarial input gives another decision.
        pixels: int64 ``[n]``, changed pixels; -1 where none was found.
        features: int64 ``[n]``, changed values; -1 where none was found.
        decisions: int64 ``[n]``, by replay.
        forwards: Samples of forward passes, all images together.
        backwards: Samples of backward passes, likewise.
        seconds: Time for all images.
        error: Why it failed or stopped; images that it did not get to count as not found.
    """

    name: str
    package: str
    adversarial: Tensor
    found: Tensor
    pixels: Tensor
    features: Tensor
    decisions: Tensor
    forwards: int
    backwards: int
    seconds: float
    error: str = ""


@dataclass(frozen=True, eq=False)
class AttackComparison:
    """Several attacks on the same images.

    Attributes:
        results: One for each attack, ours first.
        images: float32 ``[n, *shape]`` on the CPU: those that the network classifies correctly.
        labels: int64 ``[n]``.
        indices: Their positions in the user's data.
        excluded: Images left out, as misclassified.
        unit: What our attack kept few: ``pixel`` or ``feature``.
        budget: Forwards + backwards that each attack was set to, for each image.
        config: Network, domain, device and versions, in words and numbers.
    """

    results: tuple[AttackResult, ...]
    images: Tensor
    labels: Tensor
    indices: tuple[int, ...]
    excluded: tuple[Excluded, ...]
    unit: str
    budget: int
    config: dict[str, Any]


class _StoppedError(BaseException):
    """Ends an attack from inside the network; no library catches it."""


def compare(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    peers: Sequence[str] = (),
    budget: int = PEER_BUDGET,
    seed: int = 0,
    domain: Domain | None = None,
    memory_bytes: int = 0,
    device: str = "auto",
    own: bool = True,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> AttackComparison:
    """Run our attack and some peers.

    Args:
        network: What :func:`l0tre.load` gives or takes.
        images: ``[images, *shape]`` in the domain, or a data set.
        labels: One for each image; without them the network's own decisions count.
        peers: Names from :data:`l0tre.adapters.peers.PEERS`.
        budget: Forwards + backwards for each image, as close as each attack's settings come to it.
        seed: For every attack.
        domain: Pixels or features, their ranges, and a mask. Peers know no own groups, and no mask either: with one
            they get the images one by one, and what they do to values that may not change does nothing.
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
        device: Where to compute, if the network is not loaded yet.
        own: Whether our attack is one of them.
        progress: Given an attack's name and the share of its budget that is spent.
        stop: Asked at every query; true ends the comparison, with what there is so far.

    Returns:
        The comparison; an attack that fails is part of it, with its error.

    Raises:
        ConfigError: If a peer is unknown, or the domain is one that peers do not know.
        MissingExtraError: If the library of a peer is not installed.
        L0treError: If the network or the images cannot be used.
    """
    if budget < 1:
        raise ConfigError(f"the budget is {budget}: give a number of queries for each input, such as 2000")
    for name in peers:
        if name not in PEERS:
            raise ConfigError(f"there is no attack {name!r} to compare with: give some of {', '.join(PEERS)}")
        PEERS[name].load()
    net, data = load_inputs(network, images, labels, device, domain)
    domain = domain or make_domain(net.input_shape)
    _check_domain(domain)
    settings = Settings(max_t=1, epsilon=1e9, memory_bytes=memory_bytes, guarantee="grid", colours="corners")
    problem = make_problem(net, data.images, data.labels, indices=data.indices, domain=domain, settings=settings)
    job = _Job(problem, domain, budget, seed, progress or _silent, stop)
    results: list[AttackResult] = []
    for name in (OWN, *peers) if own else peers:
        if stop() and results:
            break
        results.append(_run(job, name))
    kept = ("model", "domain", "device", "versions")
    return AttackComparison(
        tuple(results),
        problem.images.reshape(-1, *net.input_shape).cpu(),
        problem.labels.cpu(),
        problem.indices,
        problem.excluded,
        domain.unit,
        budget,
        {"data": data.name, "seed": seed, **{key: problem.config[key] for key in kept}},
    )


def _silent(name: str, share: float) -> None:
    """Progress for nobody."""


def _check_domain(domain: Domain) -> None:
    if domain.unit not in ("pixel", "feature") or not isinstance(domain.rules, Free):
        raise ConfigError(
            "other attacks know no own groups and no rules for values: compare with pixels or features (`groups`: "
            "pixel or feature)"
        )
    whole = make_domain(domain.shape, groups="pixel" if domain.unit == "pixel" else "feature")
    if not bool(torch.isin(domain.ids, whole.ids).all()):
        raise ConfigError("other attacks know no own groups: compare with pixels or features (`groups`)")


@dataclass(frozen=True)
class _Job:
    """What all attacks share."""

    problem: Problem
    domain: Domain
    budget: int
    seed: int
    progress: Progress
    stop: Callable[[], bool]


def _run(job: _Job, name: str) -> AttackResult:
    problem, network = job.problem, job.problem.network
    images = problem.images.reshape(-1, *network.input_shape)
    adversarial = images.clone()
    forwards = backwards = 0
    error = ""

    def each(counter: Counting) -> None:
        if name == OWN:  # it tells its progress and asks whether to stop by itself
            return
        spent = counter.forwards + counter.backwards
        job.progress(name, min(1.0, spent / (job.budget * len(images))))
        if job.stop():
            raise _StoppedError

    low, high, scores = _to_unit(job.domain, network)
    counter = Counting(network.forward if name == OWN else scores, network.device, each)
    if name != OWN:
        PEERS[name].warm()
    _synchronise(network.device)
    began = time.monotonic()
    try:
        with exact_float32(network.device):
            if name == OWN:
                done = _run_own(job, replace(network, forward=counter), images)
                adversarial, forwards, backwards = done.adversarial, int(done.forwards.sum()), int(done.backwards.sum())
                error = STOPPED if job.stop() else ""
            else:
                _run_peer(job, PEERS[name], counter, images, (low, high), adversarial)
    except _StoppedError:
        error = STOPPED
    except Exception as failure:  # a library can raise anything; the comparison goes on without it
        error = f"{type(failure).__name__}: {failure}"
    _synchronise(network.device)
    seconds = time.monotonic() - began
    job.progress(name, 1.0)
    changed, found, pixels, features, decisions = replay_results(
        network, job.domain, images, problem.labels, adversarial
    )
    return AttackResult(
        name,
        "l0tre" if name == OWN else PEERS[name].package,
        changed,
        found,
        pixels,
        features,
        decisions,
        # Our attack also computes parts of the network, which no wrapper sees, and counts them itself.
        max(forwards, counter.forwards),
        max(backwards, counter.backwards),
        seconds,
        error,
    )


def _run_own(job: _Job, network: Network, images: Tensor) -> Attacked:
    return attack_details(
        network,
        images.cpu(),
        job.problem.labels.cpu(),
        domain=job.domain,
        budget=job.budget,
        seed=job.seed,
        memory_bytes=job.problem.settings.memory_bytes,
        progress=lambda _, share, __: job.progress(OWN, share),
        stop=job.stop,
    )


def _to_unit(domain: Domain, network: Network) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """The ranges of the values, and the network on inputs that are mapped from [0, 1] to them."""
    low, high = (side.reshape(domain.shape).to(network.device) for side in (domain.low, domain.high))
    if _is_unit(low, high):
        return low, high, network.forward
    return low, high, lambda x: network.forward(low + (high - low) * x)


def _is_unit(low: Tensor, high: Tensor) -> bool:
    return bool((low == 0).all() and (high == 1).all())


def _run_peer(
    job: _Job, peer: Peer, counter: Counting, images: Tensor, ends: tuple[Tensor, Tensor], adversarial: Tensor
) -> None:
    """Attack in batches that fit the memory, in [0, 1]; ``adversarial`` is filled as they are done."""
    network, labels = job.problem.network, job.problem.labels
    if peer.gradients and not _differentiable(network, images[:1]):
        raise ConfigError(f"it needs gradients, which {network.name} does not give")
    low, high = ends
    plain = _is_unit(low, high)
    free = torch.zeros(images[0].numel(), dtype=torch.bool, device=images.device)
    free[job.domain.members.to(images.device)] = True
    masked, free = not bool(free.all()), free.reshape(images.shape[1:])
    width = torch.where(high > low, high - low, 1)
    rows = 1 if masked else max(1, job.problem.settings.memory_bytes // (GRADIENT * network.sample_bytes))
    for start in range(0, len(images), rows):
        part = images[start : start + rows]
        inputs = part if plain else ((part - low) / width).clamp(0, 1)
        model = _Frozen(counter, inputs, free) if masked else counter
        with torch.enable_grad():
            found = peer.run(model, inputs, labels[start : start + rows], job.budget, job.seed).detach()
        found = torch.where(free, found, inputs)
        if not plain:
            # There and back again is not exact: what the attack left alone stays the original.
            found = torch.where((found - inputs).abs() < NOISE, part, low + (high - low) * found)
        adversarial[start : start + rows] = found.to(adversarial)


class _Frozen(nn.Module):
    """A network that sees the original wherever nothing may change.

    Args:
        model: The network.
        image: ``[1, *shape]``.
        free: bool ``[*shape]``, what may change.
    """

    def __init__(self, model: nn.Module, image: Tensor, free: Tensor) -> None:
        super().__init__()
        self.model = model
        self.constants = (image, free)  # buffers would be moved along with the module

    def forward(self, x: Tensor) -> Tensor:
        """The scores of a batch."""
        image, free = self.constants
        scores: Tensor = self.model(torch.where(free, x, image))
        return scores


def _differentiable(network: Network, image: Tensor) -> bool:
    """Whether scores come with a gradient; a function of the user's may refuse inputs that ask for one."""
    try:
        with torch.enable_grad():
            return network.forward(image.clone().requires_grad_()).requires_grad
    except (ModelError, RuntimeError):
        return False


def replay_results(
    network: Network, domain: Domain, images: Tensor, labels: Tensor, adversarial: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Check what an attack returned: inside the domain, and another decision when replayed on the CPU.

    Changes below 1e-6 are undone first.

    Args:
        network: The network.
        domain: Ranges of the values.
        images: The originals ``[n, *shape]``.
        labels: int64 ``[n]``.
        adversarial: ``[n, *shape]``, as returned.

    Returns:
        Adversarial inputs (the original where there is none), found, pixels, features, decisions: the fields of
        :class:`AttackResult`.
    """
    before, after = images.flatten(1).cpu(), adversarial.detach().flatten(1).to("cpu", torch.float32)
    low, high = domain.low.cpu(), domain.high.cpu()
    valid = torch.isfinite(after).all(1) & ((after >= low - NOISE) & (after <= high + NOISE)).all(1)
    after = torch.minimum(torch.maximum(after, low), high)
    after = torch.where((after - before).abs() < NOISE, before, after)
    after = torch.where(valid[:, None], after, before)
    own = labels.cpu()
    scores = torch.stack([network.replay(row.reshape(domain.shape)) for row in after]).float()
    found = valid & (margins(scores, own) < 0)
    after = torch.where(found[:, None], after, before)
    pixels = changed_groups(make_domain(domain.shape), before, after).sum(1).masked_fill(~found, -1)
    features = (before != after).sum(1).masked_fill(~found, -1)
    decisions = torch.where(found, scores.argmax(1), own)
    return after.reshape(images.shape), found, pixels, features, decisions


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
