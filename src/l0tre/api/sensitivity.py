"""The paper's S(T0, t) and its solution tensor, for users."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.api.inputs import Images, Labels, fitting_threads, load_inputs, usual_domain
from l0tre.domain import Domain
from l0tre.errors import ConfigError
from l0tre.evaluation.problem import spacing
from l0tre.exhaustive.grid_scan import Level, make_level, solutions
from l0tre.exhaustive.ranking import Ranking, empty_ranking, update
from l0tre.exhaustive.scanner import ForwardScanner, Scanner, choose_engine, make_scanner
from l0tre.grid import Colours, GridKind, make_grid
from l0tre.halting import Halted, felt
from l0tre.memory import Batcher, default_budget
from l0tre.model.sources import Source
from l0tre.objective import AllRivals
from l0tre.threads import using_threads

__all__ = ["Sensitivity", "sensitivity"]


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value to compare by
class Sensitivity:
    """How far the label's score can drop when sets of ``t`` groups change; everything on the CPU.

    Attributes:
        drop: float32 ``[images, sets]``: score of the unchanged input minus the smallest score over the grid; NaN for
            sets that were not looked at because the time was over.
        groups: int64 ``[images, sets, t]``: the groups of each set, by number (see ``Domain.ids``).
        positions: int64 ``[images, sets, values]``: the values that change, by position in the flattened input.
        values: float32 ``[images, sets, values]``: what they become at the worst grid point.
        unit: What a group is called.
        share: Part of all sets of all images that was looked at; below 1 only where the time was over before.
    """

    drop: Tensor
    groups: Tensor
    positions: Tensor
    values: Tensor
    unit: str
    share: float = 1.0

    def __repr__(self) -> str:
        images, sets, t = self.groups.shape
        part = "" if self.share == 1 else f", {self.share:.1%} of the work done"
        return f"Sensitivity({images} inputs, {sets} sets of {t} {self.unit}{'' if t == 1 else 's'}{part})"

    def solution(self, images: Tensor, image: int) -> Tensor:
        """The paper's solution tensor for one image: the worst input of each set, ``[sets, *shape]``."""
        original = images[image].detach().cpu().to(torch.float32)
        count = self.positions.shape[1]
        flat = original.flatten().expand(count, -1).clone()
        return flat.scatter_(1, self.positions[image], self.values[image]).reshape(count, *original.shape)


@torch.inference_mode()
def sensitivity(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    t: int = 1,
    top: int | None = None,
    epsilon: float | None = None,
    points: int | None = None,
    grid: GridKind = "uniform",
    colours: Colours = "grid",
    domain: Domain | None = None,
    memory_bytes: int = 0,
    device: str = "auto",
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Sensitivity:
    """Subspace sensitivities of every set of ``t`` groups.

    Args:
        network: As for :func:`l0tre.evaluate`.
        images: As for :func:`l0tre.evaluate`.
        labels: Whose score drops; default the network's decisions.
        t: Size of a set.
        top: Keep only so many sets of each image, the largest drops first. Default: all, in the order of the groups,
            for ``t = 1``; 100 for larger ``t``.
        epsilon: As for :func:`l0tre.evaluate`.
        points: As for :func:`l0tre.evaluate`.
        grid: As for :func:`l0tre.evaluate`.
        colours: As for :func:`l0tre.evaluate`.
        domain: As for :func:`l0tre.evaluate`.
        memory_bytes: As for :func:`l0tre.evaluate`.
        device: As for :func:`l0tre.evaluate`.
        time_budget: Seconds after which the sets that are left stay out; ``None`` for no limit.
        stop: Asked before every batch; a yes ends the work likewise.

    Returns:
        The drops and the inputs that attain them.
    """
    if top is not None and top < 1:
        raise ConfigError(f"top is {top}: give 1 or more")
    began = time.monotonic()

    def pulse() -> None:
        if stop() or (time_budget is not None and time.monotonic() - began >= time_budget):
            raise Halted

    net, data = load_inputs(network, images, labels, device, domain)
    where = domain or usual_domain(net, data)
    where.check(data.images, data.indices)
    fine = spacing(where, epsilon, points)
    values = make_grid(where, fine["epsilon"], grid, colours, points=fine["points"]).to(net.device)
    level = make_level(where.to(net.device), values, t)
    budget = memory_bytes or default_budget(net.device)
    batcher = Batcher(net, budget)
    threads = fitting_threads(net)
    with using_threads(threads):
        scores = batcher.run(len(data.images), lambda a, b: data.images[a:b])
    wanted = scores.argmax(1) if data.labels is None else data.labels.to(net.device)
    before = scores.gather(1, wanted[:, None])
    batcher.pulse = pulse  # from here on: what the inputs score is needed in any case
    whole_map = t == 1 and top is None  # in the order of the groups, as a map over the image
    kept = min(top or (level.sets if t == 1 else 100), level.sets)
    flat = data.images.flatten(1).to(net.device)
    engine = make_scanner(choose_engine(net, level.domain, values), level, batcher, budget)
    with using_threads(threads):
        best, share = _best_sets(engine, flat, wanted, level, kept, pulse)
    missing = best.sets < 0
    if whole_map:  # sets are looked at in their order, so those that are missing are the last ones
        order = torch.where(missing, level.sets, best.sets).argsort(1)
        best = Ranking(*(tensor.gather(1, order) for tensor in (best.values, best.sets, best.points)))
        missing = best.sets < 0
    places = torch.arange(kept, device=net.device).expand_as(missing) if whole_map else best.sets.clamp(min=0)
    groups, worst = solutions(level, places, best.points.clamp(min=0))
    positions = level.domain.members[groups]
    unchanged = flat.gather(1, positions.flatten(1)).reshape(worst.shape)
    worst = torch.where(missing[..., None, None], unchanged, worst)
    lowest = torch.where(missing, math.nan, best.values)
    return Sensitivity(
        (before - lowest).cpu(),
        level.domain.ids[groups].cpu(),
        positions.flatten(2).cpu(),
        worst.flatten(2).cpu(),
        where.unit,
        share,
    )


def _best_sets(
    engine: tuple[Scanner, int, int],
    flat: Tensor,
    labels: Tensor,
    level: Level,
    kept: int,
    pulse: Callable[[], None],
) -> tuple[Ranking, float]:
    """The sets with the largest drops of each image, and the part of all sets that was looked at in time."""
    scanner, most, width = engine
    if isinstance(scanner, ForwardScanner):  # a batch at a time, so that what is left when the time is over is small
        width = max(1, scanner.batcher.most // level.points)
    rankings, looked, halted = [], 0, False
    for first in range(0, len(flat), most):
        some = flat[first : first + most]
        ranking = empty_ranking(len(some), kept, flat.device)
        step = max(1, width // len(some))
        try:
            if not halted:
                with felt(pulse):
                    scan = scanner.prepare(some, AllRivals(labels[first : first + most]), decide=False)
                    for start in range(0, level.sets, step):
                        ranking = update(ranking, scan(start, min(start + step, level.sets)), "score")
                        looked += (min(start + step, level.sets) - start) * len(some)
        except Halted:
            halted = True
        rankings.append(ranking)
    parts = (torch.cat([getattr(ranking, name) for ranking in rankings]) for name in ("values", "sets", "points"))
    return Ranking(*parts), looked / (level.sets * len(flat))
