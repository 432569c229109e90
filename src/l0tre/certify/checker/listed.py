"""Check the sets of a level one by one: those with a tree leaf by leaf, all others by the quickest rule that does."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.checker.certificate import SetCertificate
from l0tre.certify.checker.clusters import box_margins
from l0tre.certify.checker.forward import Forward, near
from l0tre.certify.checker.sums import Effects, Sizes, effects_of, frontier, interacting_margins, sizes_of, sum_margins
from l0tre.certify.checker.trees import cover_trees, halves, leaf_boxes, sets_of, whole_boxes
from l0tre.errors import CertificateError
from l0tre.model.graph import Graph, run

__all__ = ["Tally", "check_sets"]

HALVINGS = 4  # of the ranges of what is added
STEPS = (0, 2, 4)  # halvings at which sums of two single groups are tried
FURTHER = 24  # halvings that the checker may make of a leaf by itself
TOGETHER = 2**16  # sets, boxes or leaves that are worked on at a time
MOST_SETS = 2**26
MOST_TRIED = 2**10  # boxes that are not proved whose middle is run through the network


@dataclass
class Tally:
    """What was found so far.

    Attributes:
        margin: The least bound of any part.
        splits: How often the checker halved a box by itself.
    """

    margin: float = math.inf
    splits: int = 0

    def add(self, bounds: Tensor) -> None:
        """Count parts that are proved."""
        if len(bounds):
            self.margin = min(self.margin, float(bounds.min()))


@dataclass(frozen=True)
class _Boxes:
    """Boxes to be proved: groups ``[boxes, t]``, ends, and how often each was halved, also by the checker alone."""

    groups: Tensor
    low: Tensor
    high: Tensor
    level: Tensor
    further: Tensor

    def __getitem__(self, rows: Tensor | slice) -> "_Boxes":
        return _Boxes(*(x[rows] for x in (self.groups, self.low, self.high, self.level, self.further)))

    def __len__(self) -> int:
        return len(self.groups)


def check_sets(
    certificate: SetCertificate, forward: Forward, groups: int, progress: Callable[[int, int], None]
) -> Tally:
    """Establish that every set of a level keeps the decision.

    Args:
        certificate: Which sets have trees, and these.
        forward: The network and the image.
        groups: How many groups there are.
        progress: Called with the parts done and the parts in all.

    Returns:
        What was found.

    Raises:
        CertificateError: If the trees are no cover of their sets, or a part is not proved.
    """
    t, total = certificate.radius, math.comb(groups, certificate.radius)
    if total > MOST_SETS:
        raise CertificateError(f"the certificate is about {total} sets one by one: at most {MOST_SETS} are checked so")
    rows, places = cover_trees(certificate.sets, certificate.depths, total)
    device, parts = forward.device, len(rows) + total - len(certificate.sets)
    tally, done = Tally(), 0
    for start in range(0, len(rows), TOGETHER):
        part = slice(start, start + TOGETHER)
        chosen = sets_of(torch.from_numpy(certificate.sets[rows[part]]).to(device), groups, t)
        depth = torch.from_numpy(certificate.depths[part].astype("i8")).to(device)
        ends = leaf_boxes(forward.bounder.scope, chosen, torch.from_numpy(places[part]).to(device), depth)
        _prove(forward, _Boxes(chosen, *ends, depth, torch.zeros_like(depth)), tally)
        done += len(chosen)
        progress(done, parts)
    whole = _Whole(forward, groups, t)
    listed = torch.from_numpy(certificate.sets).to(device)
    for start in range(0, total, TOGETHER):
        numbers = torch.arange(start, min(start + TOGETHER, total), device=device)
        if len(listed):
            place = torch.searchsorted(listed, numbers).clamp(max=len(listed) - 1)
            numbers = numbers[listed[place] != numbers]
        left = whole.prove(sets_of(numbers, groups, t), tally)
        _prove(forward, left, tally)
        done += len(numbers)
        progress(done, parts)
    return tally


def _boxes(forward: Forward, groups: Tensor) -> _Boxes:
    none = torch.zeros_like(groups[:, 0])
    return _Boxes(groups, *whole_boxes(forward.bounder.scope, groups), none, none)


def _prove(forward: Forward, boxes: _Boxes, tally: Tally) -> None:
    """Bound boxes, and halve those that are not proved, a bounded number of times."""
    pending = [boxes]
    while pending:
        part = pending.pop()
        if len(part) > TOGETHER:
            pending += [part[TOGETHER:], part[:TOGETHER]]
            continue
        bounds = box_margins(forward, part.groups, part.low, part.high)
        safe = bounds > 0  # false for what is not a number
        tally.add(bounds[safe])
        left = part[~safe]
        if not len(left):
            continue
        low, high = whole_boxes(forward.bounder.scope, left.groups)
        sides = high - low
        stuck = (left.further >= FURTHER) | ~(sides > 0).flatten(1).any(1)
        if bool(stuck.any()):
            row = int(stuck.nonzero()[0])
            raise CertificateError(
                f"the set of groups {left.groups[row].tolist()} is not proved: the margin may be as small as "
                f"{float(bounds[~safe][row]):.6g} in a part of its box that was halved {int(left.level[row])} times"
            )
        _refuse_violation(forward, left[:MOST_TRIED])
        tally.splits += len(left)
        low, high = (x.flatten(0, 1) for x in halves(left.low, left.high, sides, left.level))
        pending.append(
            _Boxes(left.groups.repeat(2, 1), low, high, 1 + left.level.repeat(2), 1 + left.further.repeat(2))
        )


def _refuse_violation(forward: Forward, boxes: _Boxes) -> None:
    """Refuse at once where the middle of a box is not safe: no halving would ever prove it."""
    operations, image = forward.bounder.layers.operations, forward.bounder.own[0].flatten()
    changes = image.new_zeros(len(boxes), len(image) + 1)
    changes.scatter_(
        1, forward.bounder.scope.positions[boxes.groups].flatten(1), ((boxes.low + boxes.high) / 2).flatten(1)
    )
    margins = run(Graph(operations), (image + changes[:, :-1]).view(-1, *operations[0].shape)).amin(1)
    if not bool((margins > 0).all()):
        row = int((margins > 0).to(torch.int8).argmin())
        raise CertificateError(
            f"the set of groups {boxes.groups[row].tolist()} is not safe: an input of it has a margin of "
            f"{float(margins[row]):.6g}"
        )


class _Whole:
    """Sets over their whole boxes, by sums of what their parts do; tables are made when they are needed first."""

    def __init__(self, forward: Forward, groups: int, t: int) -> None:
        self.forward, self.t = forward, t
        self.all = torch.arange(groups, device=forward.device)
        self.flat = frontier(forward) == (len(forward.plain) - 1,)
        self.singles: Effects | None = None
        self.hull: Effects | None = None
        self.sizes: Sizes | None = None
        self.pairs: tuple[Tensor, Effects] | None = None

    def prove(self, sets: Tensor, tally: Tally) -> _Boxes:
        """Prove sets ``[sets, t]``; gives what is left as boxes."""
        forward, t = self.forward, self.t
        if t == 1 or not len(sets):
            return _boxes(forward, sets)
        if self.singles is None:
            self.singles = effects_of(forward, self.all[:, None], HALVINGS)
            self.hull = self.singles.hull(1)
        close = torch.stack([near(forward, sets[:, i], sets[:, j]) for i in range(t) for j in range(i + 1, t)], 1)
        kind = close.sum(1)
        left = [_boxes(forward, sets[kind > (1 if t == 3 and self.flat else 0)])]
        left.append(self._far(sets[kind == 0], tally))
        if t == 2:
            left[0] = self._near_pairs(sets[kind == 1], tally)
        elif t == 3 and self.flat:
            left.append(self._two_and_one(sets[kind == 1], close[kind == 1], tally))
        return _Boxes(*(torch.cat([getattr(x, name) for x in left]) for name in _Boxes.__dataclass_fields__))

    def _far(self, sets: Tensor, tally: Tally) -> _Boxes:
        """Sets whose groups are all far from each other."""
        assert self.singles is not None
        forward, t = self.forward, self.t
        parts, level = torch.zeros_like(sets), 0
        for halvings in STEPS if t == 2 and forward.bounder.scope.positions.shape[1] == 1 else STEPS[:1]:
            if halvings > level:
                step = torch.cartesian_prod(*[torch.arange(2 ** (halvings - level), device=sets.device)] * t)
                parts = (parts[:, None] + step * 2**level).flatten(0, 1)
                sets, level = sets.repeat_interleave(len(step), 0), halvings
            table = self.singles.hull(2**level)
            bounds = sum_margins(
                forward,
                len(sets),
                lambda some, table=table, parts=parts, sets=sets: [  # type: ignore[misc]
                    (table, parts[some, k], sets[some, k]) for k in range(t)
                ],
            )
            safe = bounds > 0
            tally.add(bounds[safe])
            sets, parts = sets[~safe], parts[~safe]
            if not len(sets):
                break
        return self._pieces(sets, parts, level)

    def _pieces(self, sets: Tensor, parts: Tensor, halvings: int) -> _Boxes:
        """Boxes of sets where each group's range, of one value, is a part of so many halvings."""
        boxes = _boxes(self.forward, sets)
        low, high = boxes.low, boxes.high
        for level in range(halvings):
            middle, upper = low + (high - low) / 2, ((parts >> level) & 1 == 1)[:, :, None]
            low, high = torch.where(upper, middle, low), torch.where(upper, high, middle)
        return _Boxes(sets, low, high, torch.full_like(boxes.level, halvings * self.t), boxes.further)

    def _near_pairs(self, sets: Tensor, tally: Tally) -> _Boxes:
        """Pairs of near groups, by how much they can interact."""
        if not len(sets):
            return _boxes(self.forward, sets)
        assert self.hull is not None
        if self.sizes is None:
            self.sizes = sizes_of(self.forward, STEPS[1])
        bounds = interacting_margins(self.forward, self.hull, self.sizes, sets)
        safe = bounds > 0
        tally.add(bounds[safe])
        return _boxes(self.forward, sets[~safe])

    def _two_and_one(self, sets: Tensor, close: Tensor, tally: Tally) -> _Boxes:
        """Sets of a near pair and a group far from both, where margins themselves add up."""
        if not len(sets):
            return _boxes(self.forward, sets)
        assert self.hull is not None
        count = len(self.all)
        if self.pairs is None:
            both = torch.combinations(self.all, 2)
            both = both[near(self.forward, both[:, 0], both[:, 1])]
            self.pairs = both @ torch.tensor([count, 1], device=both.device), self._pair_effects(both)
        keys, table = self.pairs
        order = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 2, 0]], device=sets.device)[close.int().argmax(1)]
        arranged = sets.gather(1, order)
        row = torch.searchsorted(keys, arranged[:, 0] * count + arranged[:, 1])
        hull, none = self.hull, torch.zeros_like(row)
        bounds = sum_margins(
            self.forward,
            len(sets),
            lambda some: [(table, none[some], row[some]), (hull, none[some], arranged[some, 2])],
        )
        safe = bounds > 0
        tally.add(bounds[safe])
        return _boxes(self.forward, sets[~safe])

    def _pair_effects(self, pairs: Tensor) -> Effects:
        return effects_of(self.forward, pairs, HALVINGS).hull(1)
