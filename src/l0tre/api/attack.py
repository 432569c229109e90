"""The functions that users call: attack, attack_details."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from l0tre.api.clusters import ClusterChoice, workers_for
from l0tre.api.inputs import Images, Labels, check_scale, fitting_threads, load_inputs
from l0tre.api.steps import before_the_first_step
from l0tre.attacks.attacked import Attacked
from l0tre.attacks.auto import METHODS, usable
from l0tre.attacks.blocks import Block, BlockFound, BlockRunner, Job, cut, make_block_runner, ship, view_of
from l0tre.attacks.drive import Progress, replays
from l0tre.attacks.meter import has_gradients
from l0tre.attacks.task import LEVELS, levels_of, rounded
from l0tre.data import Dataset
from l0tre.defaults import BUDGET, Method, Rounding
from l0tre.domain import Domain, Groups, Range, make_domain
from l0tre.errors import ConfigError, DataError
from l0tre.memory import Batcher, default_budget
from l0tre.model.network import Network, margins, round_off
from l0tre.model.sources import Source
from l0tre.objective import AllRivals
from l0tre.scheduling.executor import StopCondition
from l0tre.scheduling.spread import Failed, spread
from l0tre.threads import using_threads
from l0tre.tuning import PerDevice

__all__ = ["attack", "attack_details", "check_options"]

LOOK = 1  # pass for each image that says what the network takes it for
BLOCK = PerDevice(128, 1024)  # images at the most that are attacked together, and share what some leave of their budget


def attack(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    targeted: bool = False,
    method: Method = "auto",
    unit: Groups | np.ndarray | Tensor = "auto",
    mask: np.ndarray | Tensor | None = None,
    low: Range = 0.0,
    high: Range = 1.0,
    domain: Domain | None = None,
    rounding: Rounding = "none",
    budget: int = BUDGET,
    time_budget: float | None = None,
    lower: Sequence[int] | np.ndarray | Tensor | None = None,
    seed: int = 0,
    memory_bytes: int = 0,
    device: str = "auto",
    cluster: ClusterChoice = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Find inputs with another decision and as few changed groups (pixels) as possible.

    Args:
        network: What :func:`l0tre.load` gives or takes.
        images: ``[images, *shape]`` in the domain.
        labels: The class that each image must leave, or reach if ``targeted``; default the network's decisions.
        targeted: Whether ``labels`` are to be reached.
        method: ``auto``, or one of ``greedy``, ``linear``, ``saliency``, ``local``, ``rank``, ``values``, ``search``,
            ``exact``.
        unit: What counts as one change: ``pixel``, ``feature``, ``auto`` (pixels for images), or group numbers.
        mask: True where values may change, see :func:`l0tre.make_domain`.
        low: Smallest value, likewise.
        high: Largest value, likewise.
        domain: Instead of the last four.
        rounding: ``8bit``: changed values are multiples of 1/255, or whole numbers where values go to 255, so that the
            input survives storage as an image file.
        budget: Queries, which are forward and backward passes, for each image; all images together never spend
            more than their number times this. What images that are finished leave is for the others.
        time_budget: Seconds for all images together; ``None`` for no limit.
        lower: Proved lower bounds, one for each image: an image is finished when its distance is one more. Only bounds
            for all real values of this domain (``certified``) are of use.
        seed: Of all chance.
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
        device: Where to compute, if ``network`` is not loaded yet.
        cluster: Spread blocks of images over workers of Ray: ``local``, ``ray://host:port`` or :class:`l0tre.Cluster`.
        progress: Told the method at work, the share of the budget that is spent, and the mean distance before it; with
            a cluster the number of blocks, the share that is done, and the mean distance so far.
        stop: Asked inside long steps; ends early with what there is.

    Returns:
        float32 ``[images, *shape]``, on the device of ``images``; the original where nothing was found.

    Raises:
        L0treError: If anything given cannot be used.
    """
    result = attack_details(
        network,
        images,
        labels,
        targeted=targeted,
        method=method,
        unit=unit,
        mask=mask,
        low=low,
        high=high,
        domain=domain,
        rounding=rounding,
        budget=budget,
        time_budget=time_budget,
        lower=lower,
        seed=seed,
        memory_bytes=memory_bytes,
        device=device,
        cluster=cluster,
        progress=progress,
        stop=stop,
    ).adversarial
    return result.to(images.device) if isinstance(images, Tensor) else result


@torch.inference_mode(False)  # gradients are needed, whatever the caller's mode
def attack_details(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    targeted: bool = False,
    method: Method = "auto",
    unit: Groups | np.ndarray | Tensor = "auto",
    mask: np.ndarray | Tensor | None = None,
    low: Range = 0.0,
    high: Range = 1.0,
    domain: Domain | None = None,
    rounding: Rounding = "none",
    budget: int = BUDGET,
    time_budget: float | None = None,
    lower: Sequence[int] | np.ndarray | Tensor | None = None,
    seed: int = 0,
    memory_bytes: int = 0,
    device: str = "auto",
    cluster: ClusterChoice = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Attacked:
    """As :func:`attack`, with the same arguments and all that is known about each input.

    Returns:
        The result; every input was replayed by the network's own source on the CPU.
    """
    check_options(method, rounding, budget, time_budget)
    net, data = load_inputs(network, images, labels, device, domain)
    domain = domain or make_domain(net.input_shape, groups=unit, mask=mask, low=low, high=high)
    check_scale(data, domain)
    domain.check(data.images, data.indices)
    levels = 0
    if rounding == "8bit":
        domain, levels = _eight_bits(domain, data)
    began = time.monotonic()
    flat = data.images.flatten(1).to(net.device)
    memory_bytes = memory_bytes or default_budget(net.device)
    threads = fitting_threads(net)
    with before_the_first_step(time_budget, stop) as pulse, using_threads(threads):
        batcher = Batcher(net, memory_bytes, pulse=pulse)
        scores = batcher.run(len(data.images), lambda a, b: data.images[a:b])
        wanted = _labels(net, data, targeted, scores)
    least = _lower(lower, len(flat))
    found = _Found(flat, wanted, scores)
    gradients = has_gradients(net)
    if not gradients and method != "auto" and METHODS[method].gradients:
        raise ConfigError(
            f"the method {method} needs gradients, which {net.name} does not give: use auto, greedy, search or exact"
        )
    job = Job(
        net,
        flat,
        least.to(net.device) + 1,
        domain.to(net.device),
        levels,
        usable(method, gradients),
        budget - LOOK,
        seed,
        memory_bytes,
    )
    blocks: list[Block] = []
    for target, label, rows in _views(wanted, targeted):
        view = view_of(net, target)
        open_ = _undecided(view, flat[rows], wanted[rows], label[rows], scores[rows], targeted)
        found.as_it_is[rows[~open_]] = True
        most = BLOCK.on(net.device)
        blocks += cut(net, rows[open_], label[rows[open_]], target, memory_bytes, most)
    ending = StopCondition(stop, None if time_budget is None else time_budget - (time.monotonic() - began))
    failures = _attack(job, blocks, found, ending, cluster, progress, threads) if blocks else ()
    notes = (*_notes(net, method, gradients), *failures)
    return found.result(net, domain, least, targeted, time.monotonic() - began, notes)


def _attack(
    job: Job,
    blocks: Sequence[Block],
    found: "_Found",
    ending: StopCondition,
    where: ClusterChoice,
    told: Progress | None,
    threads: int,
) -> tuple[str, ...]:
    """Attack all blocks, here or on a cluster; what users should know of those that failed."""
    runner = BlockRunner(job, ending.should_stop, told)
    failures, done = [], 0
    with (
        using_threads(threads),
        workers_for(where, ending, runner, make_block_runner, lambda sharing: ship(job, sharing)) as executor,
    ):
        for place, report in spread(executor, blocks, ending):
            done += 1
            if isinstance(report, Failed):
                failures.append(f"{len(blocks[place].rows)} inputs were left out ({report.reason})")
                continue
            found.add(report)
            if told is not None and where is not None:
                told(f"{done} of {len(blocks)} blocks", done / len(blocks), found.mean(job.domain))
    return tuple(failures)


class _Found:
    """Collects what was found for all images."""

    def __init__(self, images: Tensor, labels: Tensor, scores: Tensor) -> None:
        self.images = images
        self.scores = scores
        self.labels = labels
        self.best = images.clone()
        self.as_it_is = torch.zeros_like(labels, dtype=torch.bool)  # which have the wanted decision unchanged
        self.methods = [""] * len(images)
        self.forwards = torch.full((len(images),), LOOK)
        self.backwards = torch.zeros(len(images), dtype=torch.int64)

    def add(self, block: BlockFound) -> None:
        rows = torch.tensor(block.rows)
        self.best[rows.to(self.best.device)] = torch.tensor(block.best).to(self.best.device)
        for row, method in zip(block.rows, block.methods, strict=True):
            self.methods[row] = method
        self.forwards[rows] = LOOK + torch.tensor(block.forwards)
        self.backwards[rows] = torch.tensor(block.backwards)

    def mean(self, domain: Domain) -> float:
        """Mean number of changed groups so far; NaN if there is none."""
        sizes = (self.best != self.images)[:, domain.members].any(2).sum(1)
        return float(sizes[sizes > 0].double().mean())

    def result(
        self, network: Network, domain: Domain, lower: Tensor, targeted: bool, seconds: float, notes: tuple[str, ...]
    ) -> Attacked:
        adversarial = self.best.cpu().reshape(-1, *network.input_shape)
        labels = self.labels.cpu()
        scores = self.scores.cpu().clone()
        near = margins(scores, labels).abs() <= round_off(scores)
        for row in ((self.best != self.images).any(1).cpu() | near).nonzero()[:, 0].tolist():
            scores[row] = network.replay(adversarial[row])
        lead = margins(scores, labels)
        moved = (self.best != self.images).any(1).cpu()
        found = torch.where(moved, lead > 0 if targeted else lead < 0, self.as_it_is.cpu())
        changed = (self.best != self.images).cpu()[:, domain.members.cpu()].any(2).sum(1)
        distance = torch.where(found, changed, -1)
        return Attacked(
            adversarial,
            found,
            distance,
            labels,
            scores.argmax(1),
            tuple(self.methods),
            found & (distance <= (lower + 1).clamp(min=1)),
            self.forwards,
            self.backwards,
            seconds,
            domain.unit,
            notes,
        )


def check_options(method: str, rounding: str, budget: int, time_budget: float | None) -> None:
    """Refuse what no attack can be made with, before anything is loaded for it."""
    if method != "auto" and method not in METHODS:
        raise ConfigError(f"`method` {method!r} is unknown: give auto, {', '.join(METHODS)}")
    if rounding not in ("none", "8bit"):
        raise ConfigError(f"`rounding` {rounding!r} is unknown: give none or 8bit")
    if budget < 1:
        raise ConfigError(f"the budget is {budget} queries for each input: give 1 or more, for example {BUDGET}")
    if time_budget is not None and not time_budget >= 0:
        raise ConfigError(f"the time budget is {time_budget} seconds: give 0 or more")


def _labels(network: Network, data: Dataset, targeted: bool, scores: Tensor) -> Tensor:
    if data.labels is None:
        if targeted:
            raise DataError("a targeted attack needs the class to reach for each input: give labels")
        return scores.argmax(1)
    wrong = (data.labels < 0) | (data.labels >= network.classes)
    if wrong.any():
        bad = int(wrong.nonzero()[0])
        raise DataError(
            f"input {data.indices[bad]} has the label {int(data.labels[bad])}, the network has classes 0 to "
            f"{network.classes - 1}"
        )
    return data.labels.to(network.device)


def _lower(lower: Sequence[int] | np.ndarray | Tensor | None, count: int) -> Tensor:
    if lower is None:
        return torch.zeros(count, dtype=torch.int64)
    bounds = torch.as_tensor(np.asarray(lower, dtype=np.int64))
    if bounds.shape != (count,) or bool((bounds < 0).any()):
        raise DataError(
            f"lower bounds of shape {tuple(bounds.shape)} for {count} inputs: give one, 0 or more, for each"
        )
    return bounds


def _eight_bits(domain: Domain, data: Dataset) -> tuple[Domain, int]:
    """The domain with its ends at 8-bit values and how many of them a unit holds, if the images are of that kind."""
    levels = levels_of(domain, data.images)
    most = LEVELS // levels
    off = (rounded(data.images.clamp(0, most), levels) != data.images).flatten(1).any(1)
    if off.any():
        bad = data.indices[int(off.nonzero()[0])]
        kind = "whole number" if levels == 1 else "multiple of 1/255"
        raise DataError(
            f"image {bad} is no 8-bit image (a value is not a {kind} from 0 to {most}), so no change of it could "
            "be stored as one: round the images first, or leave the rounding out"
        )
    low = (domain.low.clamp(min=0) * levels).ceil() / levels
    high = (domain.high.clamp(max=most) * levels).floor() / levels
    return replace(domain, low=low, high=high), levels


def _views(labels: Tensor, targeted: bool) -> list[tuple[int | None, Tensor, Tensor]]:
    """Classes to reach, classes to leave in the view of the network, and images: one for all, or one for each class."""
    if not targeted:
        return [(None, labels, torch.arange(len(labels), device=labels.device))]
    leave = torch.zeros_like(labels)
    return [(int(c), leave, (labels == c).nonzero()[:, 0]) for c in labels.unique()]


def _undecided(view: Network, images: Tensor, wanted: Tensor, labels: Tensor, scores: Tensor, targeted: bool) -> Tensor:
    """Which images do not have the wanted decision as they are, bool ``[images]``; the source has the last word.

    Args:
        view: What is attacked: the same, or aimed at one class.
        images: float32 ``[images, values]``.
        wanted: Classes of the network to leave or to reach.
        labels: Classes of the view to leave.
        scores: The whole network's, ``[images, classes]``.
        targeted: Whether ``wanted`` are to be reached.
    """
    lead = margins(scores, wanted)
    close = (-lead if targeted else lead) <= round_off(scores)
    decided = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    for row in close.nonzero()[:, 0].tolist():
        decided[row] = replays(view, images[row], AllRivals(labels[[row]]))
    return ~decided


def _notes(network: Network, method: str, gradients: bool) -> tuple[str, ...]:
    if method == "values":
        return ("the method values improves adversarial inputs of other methods and finds none by itself: use auto",)
    if gradients or method != "auto":
        return ()
    left_out = ", ".join(name for name, entry in METHODS.items() if entry.gradients)
    return (f"{network.name} gives no gradients, so the methods that need them were left out: {left_out}",)
