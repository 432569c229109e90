"""Geometry of the two charts: step lines of the lower and upper bound with the area between them.

Only numbers and labels are made here; the template turns them into SVG.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from l0tre.evaluation.results import ImageBounds, Snapshot

__all__ = ["BOTTOM", "HEIGHT", "LEFT", "RIGHT", "TOP", "WIDTH", "Chart", "bounds_over_time", "sorted_images"]

# The view box, and the plotting area inside it, in SVG units. Small, so that the labels stay readable on a phone.
WIDTH, HEIGHT = 420, 264
LEFT, RIGHT, TOP, BOTTOM = 56.0, 410.0, 14.0, 216.0

# Above this many groups a linear axis would hide the small bounds that matter.
LINEAR_TOP = 30
# Steps closer than this cannot be told apart; it also limits the size of a chart with thousands of points.
RESOLUTION = 0.5
SHORTEST = 0.001  # seconds; the axis of a run that took no time
MARK_GAP = 36.0  # room for one "t = 12"

Point = tuple[float, float]
Tick = tuple[float, str]


@dataclass(frozen=True)
class Chart:
    """One chart, in SVG units.

    Attributes:
        lower: Points of the line of the lower bound.
        upper: Points of the line of the upper bound.
        x_ticks: Place and label of the marks on the horizontal axis.
        y_ticks: The same for the vertical axis.
        marks: Place and label of vertical guide lines.
        x_title: What the horizontal axis shows, with its unit.
        y_title: What the vertical axis shows, with its unit.
        summary: The chart in words, for those who cannot see it.
    """

    lower: tuple[Point, ...]
    upper: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Tick, ...]
    x_title: str
    y_title: str
    summary: str

    @property
    def area(self) -> tuple[Point, ...]:
        """The polygon between the two lines."""
        return self.lower + self.upper[::-1]


def bounds_over_time(snapshot: Snapshot) -> Chart:
    """Mean lower and upper bound over the seconds of work; each value holds until the next one.

    Args:
        snapshot: The run; without a history its present bounds make a single point.

    Returns:
        The chart.
    """
    points = [(p.seconds, p.lower, p.upper) for p in snapshot.history]
    points.append((snapshot.seconds, snapshot.lower, snapshot.upper))
    end = max(seconds for seconds, _, _ in points)
    span = max(end, SHORTEST)
    x = _linear(span, LEFT, RIGHT)
    y, y_ticks, logarithmic = _vertical(max(upper for _, _, upper in points))
    marks: list[Tick] = []
    level = snapshot.history[0].t if snapshot.history else 0
    for moment in snapshot.history:
        place = round(x(moment.seconds), 1)
        if moment.t > level and (not marks or place - marks[-1][0] > MARK_GAP) and place < RIGHT - MARK_GAP:
            marks.append((place, f"t = {moment.t}"))
        level = max(level, moment.t)
    return Chart(
        _steps([(x(seconds), y(lower)) for seconds, lower, _ in points], x(end)),
        _steps([(x(seconds), y(upper)) for seconds, _, upper in points], x(end)),
        _placed(x, _ticks(span)),
        y_ticks,
        tuple(marks),
        "seconds of work",
        _y_title(f"mean {snapshot.unit}s", logarithmic),
        f"Mean lower and upper bound over {end:.3g} seconds of work, at the end {snapshot.lower:.3f} and "
        f"{snapshot.upper:.3f} {snapshot.unit}s.",
    )


def sorted_images(snapshot: Snapshot) -> Chart:
    """The interval from lower to upper bound of every image, sorted by upper bound.

    Images without a witness come last; their upper bound is drawn at the top of the chart, at a mark called "none".

    Args:
        snapshot: The run.

    Returns:
        The chart.
    """
    # Larger lower bounds first among equals: where images are too many to be told apart, the lowest one is drawn.
    images = sorted(snapshot.images, key=lambda image: (image.witness is None, image.upper, -image.lower))
    count = len(images)
    shown = [image.upper for image in images if image.witness is not None]
    x = _linear(count, LEFT, RIGHT)
    top = max([*shown, *(image.lower for image in images), 1])
    y, y_ticks, logarithmic = _vertical(top, room=bool(snapshot.without_witness))
    if snapshot.without_witness:
        y_ticks = (*y_ticks, (TOP, "none"))

    def upper(image: ImageBounds) -> float:
        return TOP if image.witness is None else y(image.upper)

    return Chart(
        _steps([(x(place), y(image.lower)) for place, image in enumerate(images)], x(count)),
        _steps([(x(place), upper(image)) for place, image in enumerate(images)], x(count)),
        _placed(x, _ticks(count, whole=True)),
        y_ticks,
        (),
        "images, sorted by upper bound",
        _y_title(f"{snapshot.unit}s", logarithmic),
        f"Lower and upper bound of {count} images sorted by upper bound; the known upper bounds reach from "
        f"{min(shown)} to {max(shown)} {snapshot.unit}s."
        if shown
        else f"Lower bounds of {count} images; none has a known upper bound.",
    )


def _y_title(what: str, logarithmic: bool) -> str:
    return f"{what} (log scale)" if logarithmic else what


def _linear(end: float, start_at: float, end_at: float) -> Callable[[float], float]:
    """Maps 0 to ``start_at`` and ``end`` to ``end_at``."""
    return lambda value: start_at + (end_at - start_at) * value / end


def _vertical(top: float, *, room: bool = False) -> tuple[Callable[[float], float], tuple[Tick, ...], bool]:
    """The vertical axis from 0 to at least ``top``.

    Args:
        top: Largest value to be drawn, in groups.
        room: Leave space above for values that are not known.

    Returns:
        From value to place, the ticks, and whether the scale is logarithmic (in value + 1, so that 0 has a place).
    """
    highest = TOP + 18.0 if room else TOP
    logarithmic = top > LINEAR_TOP
    values: list[Tick]
    if logarithmic:
        digits = [digit * 10**power for power in range(math.ceil(math.log10(top)) + 1) for digit in (1, 2, 5)]
        end = next(value for value in digits if value >= top)
        values = [(value, f"{value:,}") for value in (0, *digits) if value <= end]
        scale = _linear(math.log1p(end), BOTTOM, highest)
        place: Callable[[float], float] = lambda value: scale(math.log1p(value))  # noqa: E731 (one of two maps)
    else:
        values = _ticks(top, beyond=True)
        place = _linear(values[-1][0], BOTTOM, highest)
    return place, _placed(place, values), logarithmic


def _ticks(end: float, *, whole: bool = False, beyond: bool = False) -> list[Tick]:
    """Round values from 0 to ``end``, at most seven.

    Args:
        end: Largest value, above 0.
        whole: Only whole numbers.
        beyond: Go on to the first round value that is not below ``end``.

    Returns:
        Values with their labels.
    """
    size = 10.0 ** math.floor(math.log10(end / 5))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * 5 >= end * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    count = math.ceil(end / step - 1e-9) if beyond else math.floor(end / step + 1e-9)
    return [(number * step, f"{number * step:,.6g}") for number in range(count + 1)]


def _placed(place: Callable[[float], float], ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    return tuple((round(place(value), 1), label) for value, label in ticks)


def _steps(points: Sequence[Point], end: float) -> tuple[Point, ...]:
    """A step line: each value holds until the next point, the last one until ``end``."""
    kept: list[Point] = []
    for x, y in _thinned(points):
        if kept:
            kept.append((x, kept[-1][1]))
        kept.append((x, y))
    kept.append((end, kept[-1][1]))
    return tuple((round(x, 1), round(y, 1)) for x, y in kept)


def _thinned(points: Iterable[Point]) -> list[Point]:
    """Drop points that do not move the line, and all but the last of those too close to be told apart."""
    kept: list[Point] = []
    for x, y in points:
        if len(kept) > 1 and x - kept[-1][0] < RESOLUTION:
            kept[-1] = (kept[-1][0], y)
        elif not kept or y != kept[-1][1]:
            kept.append((x, y))
    return kept
