"""Sensitivities from windows (crop) and sums (add) instead of whole forward passes; the same numbers."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from l0tre.exhaustive.grid_scan import Chunk, Level, reduce_points
from l0tre.exhaustive.settled import FIELDS, Work, settled
from l0tre.exhaustive.subsets import unrank
from l0tre.locality.interactions import Pattern, interactions, make_patterns
from l0tre.locality.single_pixels import Locality, PixelEffects, meet, single_changes
from l0tre.locality.windows import Base, base_values, finish
from l0tre.memory import Batcher
from l0tre.model.rounding import Error, RoundOff
from l0tre.objective import Specification
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["WindowScanner", "supports"]


def supports(locality: Locality, t: int, tuning: Tuning = DEFAULT_TUNING) -> bool:
    """Whether level ``t`` can be done this way."""
    most = 3 if locality.domain.groups <= tuning.paired_groups else 2
    return locality.plan.head != "map" and t <= most


@dataclass(frozen=True)
class _Layout:
    """How a range of sets is worked off; the same for all images.

    Attributes:
        members: int64 ``[sets, t]``.
        apart: Rows of sets without any interaction that need no look at single points.
        summed: Rows of sets whose own interaction is zero.
        patterns: The other sets.
        order: Puts the results of the three, one after the other, back in the order of the sets.
    """

    members: Tensor
    apart: Tensor
    summed: Tensor
    patterns: list[Pattern]
    order: Tensor


@dataclass(frozen=True)
class _Tables:
    """What the sets of some images share.

    Attributes:
        singles: Effects of single groups.
        pairs: Interactions of pairs ``[images, 1 + interacting pairs, points ** 2, features]`` at t = 3; row 0 is zero.
        pair_row: int64 ``[groups, groups]``: the row of each pair, 0 for one that does not interact.
    """

    singles: PixelEffects
    pairs: Tensor
    pair_row: Tensor


@dataclass(frozen=True)
class WindowScanner:
    """Scans a level; what does not depend on the images is worked out once and kept.

    Attributes:
        locality: Network and groups.
        level: The search space; see :func:`supports`.
        batcher: For the sets in doubt.
        budget: Bytes that batches may take.
        tuning: Sizes of batches and of what is kept.
        layouts: Ranges of sets seen before.
    """

    locality: Locality
    level: Level
    batcher: Batcher
    budget: int
    tuning: Tuning = DEFAULT_TUNING
    layouts: dict[tuple[int, int, int], _Layout] = field(default_factory=dict, repr=False)

    @property
    def work(self) -> int:
        """Bytes of one batch."""
        return min(self.budget, self.tuning.window_bytes.on(self.locality.grid.device))

    @torch.inference_mode()
    def prepare(
        self, images: Tensor, specification: Specification, *, decide: bool = True
    ) -> Callable[[int, int], Chunk]:
        """Compute what all sets share, for some images.

        Args:
            images: float32 ``[images, values]``, flattened.
            specification: What must hold of each image.
            decide: See ``engine.Scanner``.

        Returns:
            A function from a range of sets to their chunk, as ``scan`` gives it (see ``settled``).
        """

        def make(rounding: RoundOff) -> tuple[Work, Callable[[], Error]]:
            work, base = self._tables(images)
            return work, lambda: self._error(base, rounding)

        return settled(self.batcher, self.level, images, specification, make, decide=decide)

    def _error(self, base: Base, rounding: RoundOff) -> Error:
        """What float32 can do to a score that windows give, from the largest values that were met so far."""
        t = self.level.t
        peaks = {number: float(value) for number, value in base.peaks.values.items()}
        # A value after a set of groups: the image's own, what each does alone, what two leave together.
        for extra, times in ((base.changes, t), (base.rests, t * (t - 1) / 2)):
            for number, value in extra.values.items():
                peaks[number] = peaks.get(number, 0.0) + times * float(value)
        found = rounding.error(peaks, t)
        # Sums over all subsets of a set (see ``interaction``), each with an error of its own.
        return Error(2**t * found.worst, found.likely)

    def _tables(self, images: Tensor) -> tuple[Work, Base]:
        """What the images' sets share, bound to the function that goes through the sets."""
        plan, t = self.locality.plan, self.level.t
        base = base_values(plan, images.reshape(-1, *plan.graph.input_shape))
        singles = single_changes(self.locality, images, base, keep=t > 1, budget=self.work)
        if t == 1:
            return partial(self._scan_singles, singles), base
        tables = self._pairs(singles) if t == 3 else _Tables(singles, torch.empty(0), torch.empty(0))
        return partial(self._scan_sets, tables), base

    def _scan_singles(self, singles: PixelEffects, specification: Specification, start: int, stop: int) -> Chunk:
        images, _, points, features = singles.head.shape
        step = max(1, self.work // (16 * images * points * features))
        parts = []
        for first in range(start, stop, step):
            self.batcher.pulse()
            last = min(first + step, stop)
            head = singles.base.head[:, None, None] + singles.head[:, first:last]
            scores = finish(self.locality.plan, head.reshape(-1, features), singles.base.peaks)
            parts.append(_reduce(scores, specification, (images, last - first, points)))
        return _join(parts, torch.arange(start, stop, device=specification.labels.device))

    def _pairs(self, singles: PixelEffects) -> _Tables:
        """Interactions of all pairs that have one, after a row of zeros."""
        n = self.locality.domain.groups
        a, b = torch.triu_indices(n, n, 1)
        near = meet(self.locality, a, b)
        sets = torch.stack([a[near], b[near]], 1)
        row = torch.zeros(n, n, dtype=torch.int64)
        row[sets[:, 0], sets[:, 1]] = torch.arange(1, len(sets) + 1)
        count, points, features = len(sets), self.locality.grid.shape[1], singles.head.shape[-1]
        table = torch.zeros(len(singles.images), 1 + count, points**2, features, device=singles.head.device)
        for pattern in make_patterns(self.locality, sets, len(singles.images), self.work):
            self.batcher.pulse()
            table[:, 1 + pattern.rows] = interactions(self.locality, singles, pattern)
        return _Tables(singles, table, row.to(table.device))

    def _layout(self, images: int, start: int, stop: int) -> _Layout:
        key = (images, start, stop)
        if key not in self.layouts:
            if sum(len(layout.members) for layout in self.layouts.values()) > self.tuning.layout_sets:
                self.layouts.clear()
            self.layouts[key] = self._make_layout(images, start, stop)
        return self.layouts[key]

    def _make_layout(self, images: int, start: int, stop: int) -> _Layout:
        plan, device = self.locality.plan, self.locality.grid.device
        members = unrank(torch.arange(start, stop), self.level.domain.groups, self.level.t)
        near = torch.stack([meet(self.locality, members[:, a], members[:, b]) for a, b in _couples(self.level.t)])
        together, apart = near.all(0), ~near.any(0)
        if plan.tail < len(plan.graph.operations):
            apart = torch.zeros_like(apart)  # layers after the dense one need every point
        kinds = [kind.nonzero()[:, 0] for kind in (apart, ~apart & ~together, together)]
        patterns = make_patterns(self.locality, members[kinds[2]], images, self.work)
        visited = [*kinds[:2], *(kinds[2][pattern.rows.cpu()] for pattern in patterns)]
        order = torch.cat(visited).argsort()
        return _Layout(members.to(device), kinds[0].to(device), kinds[1].to(device), patterns, order.to(device))

    def _scan_sets(self, tables: _Tables, specification: Specification, start: int, stop: int) -> Chunk:
        """Sets of two or three groups."""
        layout = self._layout(len(specification), start, stop)
        parts = []
        if len(layout.apart):
            parts.append(self._separate(tables, specification, layout.members[layout.apart]))
        features = tables.singles.head.shape[-1]
        step = max(1, self.work // (16 * len(specification) * self.level.points * features))
        parts += [
            self._sum(tables, specification, layout.members[layout.summed[first : first + step]], None)
            for first in range(0, len(layout.summed), step)
        ]
        for pattern in layout.patterns:
            extra = interactions(self.locality, tables.singles, pattern)
            for first in range(0, len(pattern.groups), step):
                some = slice(first, first + step)
                parts.append(self._sum(tables, specification, pattern.groups[some], extra[:, some]))
        return _join(parts, torch.arange(start, stop, device=specification.labels.device), layout.order)

    def _sum(self, tables: _Tables, specification: Specification, members: Tensor, extra: Tensor | None) -> Chunk:
        """Sets from their singles, interacting pairs and, if given, their own interaction."""
        points, t = self.level.grid.shape[1], self.level.t
        images, count, features = len(specification), len(members), tables.singles.head.shape[-1]
        total = tables.singles.base.head.reshape(images, *[1] * (1 + t), features)
        for place in range(t):
            spread = [points if other == place else 1 for other in range(t)]
            total = total + tables.singles.head[:, members[:, place]].reshape(images, count, *spread, features)
        if t == 3:
            for a, b in _couples(t):
                spread = [points if other in (a, b) else 1 for other in range(t)]
                pair = tables.pairs[:, tables.pair_row[members[:, a], members[:, b]]]
                total += pair.reshape(images, count, *spread, features)
        if extra is not None:
            total += extra.reshape(total.shape)
        scores = finish(self.locality.plan, total.reshape(-1, features), tables.singles.base.peaks)
        return _reduce(scores, specification, (images, count, self.level.points))

    def _separate(self, tables: _Tables, specification: Specification, members: Tensor) -> Chunk:
        """Sets without any interaction when the dense layer is the last one: every group takes its own worst value."""
        head, base = (
            tables.singles.head,
            tables.singles.base.head,
        )  # [images, groups, points, classes], [images, classes]
        places = self.level.grid.shape[1] ** torch.arange(self.level.t - 1, -1, -1, device=specification.labels.device)
        labels = specification.labels
        own = labels[:, None, None, None]
        mine = head.gather(3, own.expand(*head.shape[:3], 1))
        low, low_at = mine[..., 0].min(2)  # [images, groups]
        gain, gain_at = (mine - head).min(2)  # [images, groups, classes]
        margin = base.gather(1, labels[:, None]) - base
        margin = margin[:, None] + gain[:, members].sum(2)
        rival = torch.zeros_like(base, dtype=torch.bool).scatter_(1, specification.rivals(base.shape[1]), True)
        margin.masked_fill_(~rival[:, None], float("inf"))
        worst, nearest = margin.min(2)
        chosen = gain_at[:, members].gather(3, nearest[:, :, None, None].expand(-1, -1, members.shape[1], 1))[..., 0]
        return Chunk(
            members[:, 0],
            base.gather(1, labels[:, None]) + low[:, members].sum(2),
            (low_at[:, members] * places).sum(2),
            worst,
            (chosen * places).sum(2),
            torch.zeros_like(worst, dtype=torch.bool),
        )


def _couples(t: int) -> Iterator[tuple[int, ...]]:
    return itertools.combinations(range(t), 2)


def _reduce(scores: Tensor, specification: Specification, shape: tuple[int, int, int]) -> Chunk:
    undecided = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    return reduce_points(scores, specification.repeat(shape[1] * shape[2]), shape, undecided)


def _join(parts: list[Chunk], sets: Tensor, order: Tensor | None = None) -> Chunk:
    """Chunks of different sets side by side, optionally put in order."""

    def cat(values: list[Tensor]) -> Tensor:
        joined = torch.cat(values, 1)
        return joined if order is None else joined[:, order]

    score, score_point, margin, margin_point, safe = (cat([getattr(part, name) for part in parts]) for name in FIELDS)
    return Chunk(sets, score, score_point, margin, margin_point, safe)
