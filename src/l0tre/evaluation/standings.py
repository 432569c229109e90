"""What is known of several networks, and for every two of them which is certainly more robust on the same images."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import comb
from typing import TYPE_CHECKING, Any, Literal

from l0tre.errors import require
from l0tre.evaluation.results import ImageBounds, Snapshot
from l0tre.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "Pair", "Split", "Standing", "compare_snapshots", "what_settles"]

Order = Literal["more", "less", "equal", "open"]
Interval = tuple[float, float]
COMMON = "inputs that both classify correctly"  # what two networks lack that share none


@dataclass(frozen=True)
class Standing:
    """What is known of one network, on the images that it classifies correctly; bounds in groups.

    Attributes:
        network: Its name.
        unit: What a group is called.
        groups: Number of groups that may change in an image.
        images: Number of images that it classifies correctly.
        misclassified: Positions in the data of those that it does not (ties among them).
        accuracy: Share of the images that it classifies correctly.
        lower: Mean lower bound.
        upper: Mean upper bound.
        estimate: The paper's ``U_c``, centre of the two.
        radius: The mean safe radius lies in it: mean lower bound, mean upper bound less one.
        exact: Share of the images whose safe radius is known.
        guarantee: What the lower bounds hold for.
        max_t: Largest number of groups changed together.
        finished: Whether the search is complete up to ``max_t``.
        seconds: Work so far.
    """

    network: str
    unit: str
    groups: int
    images: int
    misclassified: tuple[int, ...]
    accuracy: float
    lower: float
    upper: float
    estimate: float
    radius: Interval
    exact: float
    guarantee: str
    max_t: int
    finished: bool
    seconds: float


@dataclass(frozen=True)
class Split:
    """On how many images a change of at most ``t`` groups changes the decision of one of two networks only.

    Attributes:
        t: Number of groups.
        first: Images on which it changes the first network's decision and not the second's.
        second: Images on which it changes the second's and not the first's.
        unknown: Images for which it is not known of one network or the other.
        scope: What "not" holds for: ``all real values``, or ``the grid`` where it was checked on a grid only.
    """

    t: int
    first: int
    second: int
    unknown: int
    scope: str

    @property
    def chance(self) -> float:
        """How often a split as uneven as this, or more, comes by chance if neither network tends to be the weaker one.

        The p-value of the two-sided sign test (McNemar's exact test), for images drawn at random. Unknown images count
        for the rarer side, so it is never too small.
        """
        few, many = sorted((self.first, self.second))
        few = min(few + self.unknown, many)
        tail = sum(comb(few + many, k) for k in range(few + 1))
        return min(1.0, float(Fraction(2 * tail, 1 << (few + many))))

    def words(self, first: str, second: str, unit: str) -> str:
        """It in one sentence, with the networks' names and what a group is called."""
        many = f"{self.t} {unit}s fool" if self.t > 1 else f"1 {unit} fools"
        images = "1 input" if self.first == 1 else f"{self.first} inputs"
        open_ = f", not known on {self.unknown}" if self.unknown else ""
        scope = "on the grid; " if self.scope == "the grid" else ""
        return f"{many} only {first} on {images}, only {second} on {self.second}{open_} ({scope}p = {self.chance:.2g})"


@dataclass(frozen=True)
class Pair:
    """Two networks on the images that both classify correctly.

    Attributes:
        first: Name of one network.
        second: Name of the other.
        common: Number of images that both classify correctly.
        first_radius: The first network's mean safe radius lies in it: mean lower bound, mean upper bound less one.
        second_radius: Likewise the second's.
        difference: First less second lies in it.
        order: ``more``: the first is certainly more robust on these images, ``less``: the second is, ``equal``: their
            means are certainly equal, ``open``: the bounds do not tell.
        scope: What the order holds for: ``all real values``, or ``the grid`` where a lower bound that it rests on is
            checked on a grid only; empty if it is open.
        settle: What would settle an open order, else empty.
        same_groups: Whether both networks' images have as many groups; if not, a pixel is not the same thing to both.
        splits: For each number of groups up to the largest ``max_t``: whose decisions so many changes change.
    """

    first: str
    second: str
    common: int
    first_radius: Interval
    second_radius: Interval
    difference: Interval
    order: Order
    scope: str
    settle: str
    same_groups: bool
    splits: tuple[Split, ...] = ()

    @property
    def overlap(self) -> float:
        """Width of what both intervals share, in groups; 0 if they are apart or touch."""
        ends = zip(self.first_radius, self.second_radius, strict=True)
        low, high = (pick(pair) for pick, pair in zip((max, min), ends, strict=True))
        return max(0.0, high - low)

    @property
    def words(self) -> str:
        """The order in one sentence."""
        names = {"more": (self.first, self.second), "less": (self.second, self.first)}
        own = "" if self.same_groups else ", counted in each network's own units"
        certain = ("certain" if self.scope == "all real values" else f"certain on {self.scope}") + own
        if self.order in names:
            better, worse = names[self.order]
            return f"{better} is more robust than {worse}: {certain}"
        if self.order == "equal":
            return f"{self.first} and {self.second} are equally robust: {certain}"
        return f"{self.first} or {self.second}: open"


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Several networks on the same images.

    Attributes:
        standings: The networks, in the order given.
        pairs: Every two of them.
        missing: Networks that were not begun because the work was stopped.
    """

    standings: tuple[Standing, ...]
    pairs: tuple[Pair, ...]
    missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(standing.network for standing in self.standings) or "no networks"
        known = "; ".join(pair.words for pair in self.pairs[:3]) + ("; ..." if len(self.pairs) > 3 else "")
        return f"Comparison({names}{': ' if known else ''}{known})"

    @property
    def same_groups(self) -> bool:
        """Whether a pixel is the same thing to all networks."""
        return all(pair.same_groups for pair in self.pairs)

    def pair(self, first: str, second: str) -> Pair:
        """Two networks by name, turned so that ``first`` is first.

        Raises:
            KeyError: If they were not compared.
        """
        for pair in self.pairs:
            if (pair.first, pair.second) == (first, second):
                return pair
            if (pair.second, pair.first) == (first, second):
                return _turned(pair)
        raise KeyError(f"{first} and {second} were not compared")

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for each network, in the order given.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        rows = [
            {**asdict(standing), "radius_low": standing.radius[0], "radius_high": standing.radius[1]}
            for standing in self.standings
        ]
        table = require("pandas", "tables").DataFrame(rows)
        return table.drop(columns=["radius", "misclassified"], errors="ignore")

    def to_dict(self) -> dict[str, Any]:
        """The exported JSON."""
        pairs = [
            {
                **asdict(pair),
                "overlap": pair.overlap,
                "words": pair.words,
                "splits": [{**asdict(split), "chance": split.chance} for split in pair.splits],
            }
            for pair in self.pairs
        ]
        standings = [asdict(standing) for standing in self.standings]
        return {"networks": standings, "pairs": pairs, "missing": self.missing, "same_groups": self.same_groups}


def compare_snapshots(results: Mapping[str, Snapshot]) -> Comparison:
    """Compare evaluations of the same images, finished or not.

    Args:
        results: The snapshots by the networks' names.

    Returns:
        The comparison; images are matched by their position in the data.
    """
    standings = {name: _standing(name, snapshot) for name, snapshot in results.items()}
    pairs = [
        _compare(standings[a], standings[b], results[a], results[b]) for a, b in itertools.combinations(results, 2)
    ]
    return Comparison(tuple(standings.values()), tuple(pairs))


def _standing(name: str, snapshot: Snapshot) -> Standing:
    count = len(snapshot.images)
    low, high = _sums(snapshot.images)
    return Standing(
        name,
        snapshot.unit,
        snapshot.images[0].groups,
        count,
        tuple(sorted(left_out.index for left_out in snapshot.excluded)),
        count / (count + len(snapshot.excluded)),
        snapshot.lower,
        snapshot.upper,
        snapshot.estimate,
        (low / count, high / count),
        snapshot.converged / count,
        ", ".join(sorted({image.guarantee for image in snapshot.images})),
        snapshot.config["settings"]["max_t"],
        snapshot.finished,
        snapshot.seconds,
    )


def _compare(a: Standing, b: Standing, first: Snapshot, second: Snapshot) -> Pair:
    """Compare two networks on the images that both classify correctly, in whole numbers until the very end."""
    others = {image.index: image for image in second.images}
    both = [(image, others[image.index]) for image in first.images if image.index in others]
    mine, theirs = [image for image, _ in both], [image for _, image in both]
    same = a.groups == b.groups
    if not both:
        vacuous = ((0.0, float(a.groups)), (0.0, float(b.groups)), (-float(b.groups), float(a.groups)))
        return Pair(a.network, b.network, 0, *vacuous, "open", "", COMMON, same)
    (low_a, high_a), (low_b, high_b) = _sums(mine), _sums(theirs)
    order: Order = "open"
    rests_on: Iterable[ImageBounds] = ()
    if low_a > high_b:
        order, rests_on = "more", mine
    elif low_b > high_a:
        order, rests_on = "less", theirs
    elif low_a == high_a == low_b == high_b:
        order, rests_on = "equal", (*mine, *theirs)
    grid = any(_on_grid(image) for image in rests_on)
    count = len(both)
    return Pair(
        a.network,
        b.network,
        count,
        (low_a / count, high_a / count),
        (low_b / count, high_b / count),
        ((low_a - high_b) / count, (high_a - low_b) / count),
        order,
        "" if order == "open" else "the grid" if grid else "all real values",
        what_settles(a, b) if order == "open" else "",
        same,
        tuple(_split(t, both) for t in range(1, min(max(a.max_t, b.max_t), a.groups, b.groups) + 1)),
    )


def _split(t: int, both: Sequence[tuple[ImageBounds, ImageBounds]]) -> Split:
    first = second = unknown = 0
    grid = False
    for mine, theirs in both:
        known = all(image.upper <= t or image.lower >= t for image in (mine, theirs))
        unknown += not known
        first += known and mine.upper <= t <= theirs.lower
        second += known and theirs.upper <= t <= mine.lower
        grid |= any(_on_grid(image) and image.lower >= t for image in (mine, theirs))
    return Split(t, first, second, unknown, "the grid" if grid else "all real values")


def _on_grid(image: ImageBounds) -> bool:
    """Whether an image's lower bound says something, and that about a grid only."""
    return image.guarantee in ("grid", "sampled") and image.lower > 0


def _sums(images: Sequence[ImageBounds]) -> tuple[int, int]:
    """Between which sums the safe radii add up."""
    return sum(image.lower for image in images), sum(image.upper - 1 for image in images)


def what_settles(*standings: Standing) -> str:
    """What would tell networks apart whose bounds do not: more time, or a larger ``max_t``."""
    at_work = [standing.network for standing in standings if not standing.finished]
    if at_work:
        return f"more time for {_listed(at_work)}"
    loose = [standing for standing in standings if standing.exact < 1]
    if not loose:
        return COMMON
    most = max(standing.max_t for standing in loose)
    return f"a larger max_t than {most} for {_listed([standing.network for standing in loose])}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def _turned(pair: Pair) -> Pair:
    low, high = pair.difference
    turned: dict[Order, Order] = {"more": "less", "less": "more", "equal": "equal", "open": "open"}
    return replace(
        pair,
        first=pair.second,
        second=pair.first,
        first_radius=pair.second_radius,
        second_radius=pair.first_radius,
        difference=(-high, -low),
        order=turned[pair.order],
        splits=tuple(replace(split, first=split.second, second=split.first) for split in pair.splits),
    )
