"""The paper's S(T0, t) and its solution tensor, for users."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.api.inputs import Images, Labels, load_inputs, usual_domain
from l0tre.domain import Domain
from l0tre.errors import ConfigError
from l0tre.exhaustive.grid_scan import make_level, solutions
from l0tre.exhaustive.ranking import empty_ranking, update
from l0tre.exhaustive.scanner import choose_engine, make_scanner
from l0tre.exhaustive.subsets import unrank
from l0tre.grid import Colours, GridKind, make_grid
from l0tre.memory import Batcher, default_budget
from l0tre.model.sources import Source
from l0tre.objective import AllRivals

__all__ = ["Sensitivity", "sensitivity"]


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value to compare by
class Sensitivity:
    """How far the label's score can drop when sets of ``t`` groups change; everything on the CPU.

    Attributes:
        drop: float32 ``[images, sets]``: score of the unchanged input minus the smallest score over the grid.
        groups: int64 ``[images, sets, t]``: the groups of each set, by number (see ``Domain.ids``).
        positions: int64 ``[images, sets, values]``: the values that change, by position in the flattened input.
        values: float32 ``[images, sets, values]``: what they become at the worst grid point.
        unit: What a group is called.
    """

    drop: Tensor
    groups: Tensor
    positions: Tensor
    values: Tensor
    unit: str

    def __repr__(self) -> str:
        images, sets, t = self.groups.shape
        return f"Sensitivity({images} images, {sets} sets of {t} {self.unit}{'' if t == 1 else 's'})"

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
    epsilon: float = 0.25,
    grid: GridKind = "uniform",
    colours: Colours = "grid",
    domain: Domain | None = None,
    memory_bytes: int = 0,
    device: str = "auto",
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
        grid: As for :func:`l0tre.evaluate`.
        colours: As for :func:`l0tre.evaluate`.
        domain: As for :func:`l0tre.evaluate`.
        memory_bytes: As for :func:`l0tre.evaluate`.
        device: As for :func:`l0tre.evaluate`.

    Returns:
        The drops and the inputs that attain them.
    """
    if top is not None and top < 1:
        raise ConfigError(f"top is {top}: give 1 or more")
    net, data = load_inputs(network, images, labels, device, domain)
    where = domain or usual_domain(net, data)
    where.check(data.images, data.indices)
    values = make_grid(where, epsilon, grid, colours).to(net.device)
    level = make_level(where.to(net.device), values, t)
    budget = memory_bytes or default_budget(net.device)
    batcher = Batcher(net, budget)
    scores = batcher.run(len(data.images), lambda a, b: data.images[a:b])
    wanted = scores.argmax(1) if data.labels is None else data.labels.to(net.device)
    before = scores.gather(1, wanted[:, None])
    scanner, most, width = make_scanner(choose_engine(net, level.domain, values), level, batcher, budget)
    kept = min(top or (level.sets if t == 1 else 100), level.sets)
    flat = data.images.flatten(1).to(net.device)
    rankings = []
    for first in range(0, len(flat), most):
        some = slice(first, first + most)
        scan = scanner.prepare(flat[some], AllRivals(wanted[some]), decide=False)
        ranking = empty_ranking(len(flat[some]), kept, net.device)
        step = max(1, width // len(flat[some]))
        for start in range(0, level.sets, step):
            ranking = update(ranking, scan(start, min(start + step, level.sets)), "score")
        rankings.append(ranking)
    lowest, sets, points = (torch.cat([getattr(r, name) for r in rankings]) for name in ("values", "sets", "points"))
    if t == 1 and top is None:  # in the order of the groups, as a map over the image
        order = sets.argsort(1)
        lowest, sets, points = (tensor.gather(1, order) for tensor in (lowest, sets, points))
    groups = unrank(sets.reshape(-1), level.domain.groups, t).reshape(*sets.shape, t)
    _, worst = solutions(level, sets, points)
    positions = level.domain.members[groups]
    return Sensitivity(
        (before - lowest).cpu(),
        level.domain.ids[groups].cpu(),
        positions.flatten(2).cpu(),
        worst.flatten(2).cpu(),
        where.unit,
    )
