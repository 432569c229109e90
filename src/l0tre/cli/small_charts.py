"""Charts of a few characters, for terminals."""

import math
from collections import Counter
from collections.abc import Sequence

from l0tre.evaluation.results import HistoryPoint, Snapshot

__all__ = ["bar", "line", "small_charts"]

EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = "▁▂▃▄▅▆▇█"
WIDTH = 30  # characters of the longest bar
ROWS = 8  # bars
FAR = 10  # so many times the smallest value is far from it


def small_charts(result: Snapshot) -> list[str]:
    """How many images have each bound, and the mean bounds over time, in lines of at most 80 characters.

    A sample has no lower bounds: its images are counted by their upper ones.
    """
    if len(result.images) < 2:
        return []
    sampled = all(image.guarantee == "sampled" for image in result.images)
    if sampled:
        counts = Counter(image.upper for image in result.images if image.witness is not None)
        if not counts:
            return []
    else:
        counts = Counter(image.lower for image in result.images)
    lines = [f"  {result.noun}s by {'upper' if sampled else 'lower'} bound"]
    exact = Counter(image.upper if sampled else image.lower for image in result.images if image.converged)
    shown = sorted(counts)[:ROWS]
    most = max(counts.values())
    wide = max(len(f"{bound:,}") for bound in shown)
    for bound in shown:
        note = f"{counts[bound]:,}, {exact[bound]:,} exact"
        lines.append(f"    {bound:>{wide},}  {bar(counts[bound] / most, WIDTH)} {note}")
    if len(counts) > ROWS:
        rest = sum(counts[bound] for bound in sorted(counts)[ROWS:])
        lines.append(f"    more: {rest:,}")
    if len(result.history) > 2:
        for name in ("upper",) if sampled else ("lower", "upper"):
            values = [getattr(point, name) for point in _even(result, WIDTH)]
            lines.append(f"  {name} over time {line(values)} {values[0]:.3g} to {values[-1]:.3g}")
    return lines


def bar(share: float, width: int) -> str:
    """A bar for 0 to 1, in eighths of a character; something for whatever is above 0."""
    parts = max(round(share * width * 8), 1 if share > 0 else 0)
    whole, rest = divmod(parts, 8)
    return f"{'█' * whole}{EIGHTHS[rest] if rest else ''}".ljust(width)


def line(values: Sequence[float]) -> str:
    """Values as heights between the smallest and the largest one, by their logarithms if these are far apart."""
    if min(values) > 0 and max(values) > FAR * min(values):
        values = [math.log(value) for value in values]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(HEIGHTS[round((value - low) / span * (len(HEIGHTS) - 1))] for value in values)


def _even(result: Snapshot, count: int) -> list[HistoryPoint]:
    """Points of the history at even times."""
    end = result.seconds or 1.0
    found, place = [], 0
    for step in range(count):
        moment = end * step / (count - 1)
        while place + 1 < len(result.history) and result.history[place + 1].seconds <= moment:
            place += 1
        found.append(result.history[place])
    return found
