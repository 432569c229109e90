"""The charts of an evaluation, from its bounds."""

from collections import Counter
from collections.abc import Sequence

from l0tre.evaluation.results import ImageBounds, Snapshot
from l0tre.report.blocks import MOST_POINTS, Block, Head, Series, chart
from l0tre.report.words import counted, is_sample, on_grid

__all__ = ["over_time", "radii", "shares", "sorted_bounds", "times"]

LINEAR_TOP = 30  # above this many groups a linear axis would hide the small bounds that matter


def over_time(snapshot: Snapshot) -> Block:
    """Mean lower and upper bound over the seconds of work."""
    points = [(p.seconds, p.lower, p.upper) for p in snapshot.history]
    points.append((snapshot.seconds, snapshot.lower, snapshot.upper))
    if points[0][0] > 0:  # before anything was known
        groups = [image.groups + 1 for image in snapshot.images]
        points.insert(0, (0.0, 0.0, sum(groups) / len(groups)))
    stride = max(1, len(points) // MOST_POINTS)
    points = [*points[:-1:stride], points[-1]]
    marks: list[tuple[float, str]] = []
    level = snapshot.history[0].t if snapshot.history else 0
    for moment in snapshot.history:
        if moment.t > level:
            marks.append((moment.seconds, f"t = {moment.t}"))
            level = moment.t
    note = ""
    if snapshot.without_witness:
        note = f"Without a witness the upper bound counts as {snapshot.images[0].groups + 1:,}."
    return chart(
        "time",
        "Mean bounds over time",
        [("", [p[0] for p in points], _bounds(snapshot, [p[1] for p in points], [p[2] for p in points]))],
        x="seconds of work",
        y=f"{snapshot.unit}s (mean)",
        note=note,
        summary=f"Mean lower and upper bound over {snapshot.seconds:.3g} seconds of work, at the end "
        f"{snapshot.lower:.3f} and {snapshot.upper:.3f} {snapshot.unit}s.",
        band=True,
        log=max(upper for _, _, upper in points) > LINEAR_TOP,
        marks=marks,
    )


def _bounds(snapshot: Snapshot, lower: Sequence[float], upper: Sequence[float | None]) -> list[Series]:
    """The lines of both bounds; a sample has no lower one."""
    line = Series("upper bound", "upper", upper)
    return [line] if is_sample(snapshot) else [Series("lower bound", "lower", lower), line]


def sorted_bounds(snapshot: Snapshot, levels: Sequence[Snapshot]) -> Block:
    """The interval of every image, sorted by upper bound, at the end of each level: the paper's figure."""
    views = [(f"up to t = {number}", level) for number, level in enumerate(levels, 1)] or [("", snapshot)]
    variants, pick = [], []
    for name, view in reversed(views):
        images = sorted(view.images, key=lambda image: (image.witness is None, image.upper, -image.lower))
        lower = [image.lower for image in images]
        upper = [None if image.witness is None else image.upper for image in images]
        variants.append((name, list(range(1, len(images) + 1)), _bounds(snapshot, lower, upper)))
        pick.append([image.index for image in images])
    unknown, drawn = counted_none(snapshot), is_sample(snapshot)
    grid = ", for changes to grid values," if on_grid(snapshot) else ""
    return chart(
        "sorted",
        f"{snapshot.noun.capitalize()}s by upper bound",
        variants,
        x=f"{snapshot.noun}s, sorted by upper bound",
        y=f"{snapshot.unit}s",
        note=unknown
        if drawn
        else f"Each safe radius{grid} lies between the lines, below the upper one. {unknown}".strip(),
        hint=f"A click opens the {snapshot.noun}.",
        summary=f"{'Upper' if drawn else 'Lower and upper'} bound of {counted(len(snapshot.images), snapshot.noun)}, "
        "sorted by upper bound.",
        band=True,
        log=max((i.upper for i in snapshot.images if i.witness is not None), default=1) > LINEAR_TOP,
        pick=pick,
    )


def counted_none(snapshot: Snapshot) -> str:
    """A sentence on images without an upper bound; empty if all have one."""
    unknown = snapshot.without_witness
    verb = "has no witness: it stands" if unknown == 1 else "have no witness: they stand"
    return f"{counted(unknown, snapshot.noun)} {verb} at the right, without an upper bound." if unknown else ""


def shares(snapshot: Snapshot) -> Block:
    """For each number of groups the share of images proved against so many, and of those changed by so many."""
    images, total = snapshot.images, len(snapshot.images)
    most = max([*(i.upper for i in images if i.witness is not None), *(i.lower for i in images)], default=0)
    places = list(range(most + 2)) if most < MOST_POINTS else sorted({0, *_changes(images), most + 1})
    lower = Counter(image.lower for image in images)
    upper = Counter(image.upper for image in images if image.witness is not None)
    proved, kept, safe, left = list[float](), list[float](), total, total
    at, lows, ups = 0, sorted(lower.items()), sorted(upper.items())
    first = 0
    for place in places:
        while at < len(lows) and lows[at][0] < place:
            safe -= lows[at][1]
            at += 1
        while first < len(ups) and ups[first][0] <= place:
            left -= ups[first][1]
            first += 1
        proved.append(safe / total)
        kept.append(left / total)
    lines = [
        Series("proved to keep the decision", "lower", proved),
        Series("no change known to alter it", "upper", kept),
    ][is_sample(snapshot) :]
    between = "below the line" if is_sample(snapshot) else "between the lines"
    grid = " under changes to grid values" if on_grid(snapshot) else ""
    return chart(
        "shares",
        f"Share of {snapshot.noun}s against {snapshot.unit}s that change",
        [
            (
                "",
                places,
                lines,
            )
        ],
        x=f"{snapshot.unit}s that change",
        y=f"{snapshot.noun}s",
        note=f"The share that really keeps its decision{grid} lies {between}."
        + (
            f" Left out: {len(snapshot.excluded)} {snapshot.noun}s, decided wrongly as they are."
            if snapshot.excluded
            else ""
        ),
        summary=f"Share of {snapshot.noun}s, against the number of changed {snapshot.unit}s: "
        + "; ".join(one.name for one in lines)
        + ".",
        band=True,
        log_x=most > LINEAR_TOP,
        share=True,
    )


def _changes(images: Sequence[ImageBounds]) -> set[int]:
    """Where one of the two curves falls, and the place before, so that steps stay steps."""
    falls = {i.lower + 1 for i in images} | {i.upper for i in images if i.witness is not None}
    return falls | {place - 1 for place in falls if place}


def radii(snapshot: Snapshot) -> Block:
    """How many images have each safe radius: known exactly, or proved so far."""
    total = Counter(image.lower for image in snapshot.images)
    exact = Counter(image.lower for image in snapshot.images if image.converged)
    most = max(total, default=0)
    places = list(range(most + 1)) if most <= LINEAR_TOP else sorted(total)
    series = [
        Series("at least so much, not known exactly", "open", [total[place] for place in places], "bars"),
        Series("exactly so much", "lower", [exact[place] for place in places], "bars"),
    ]
    return chart(
        "radii",
        "Histogram of safe radii",
        [("", places, series)],
        x=f"{snapshot.unit}s that can change safely",
        y=f"{snapshot.noun}s",
        summary=f"Number of {snapshot.noun}s for each lower bound: "
        + ", ".join(f"{total[place]} with {place} ({exact[place]} exact)" for place in sorted(total)[:10])
        + ".",
        stacked=True,
        log_x=most > LINEAR_TOP,
    )


def times(levels: Sequence[Snapshot]) -> tuple[list[Head], list[list[float | int]]]:
    """What each level took: headings, and a row for each ``t``: images searched, seconds (sum, mean, most), passes."""
    rows: list[list[float | int]] = []
    before: dict[int, tuple[float, int]] = {}
    for t, level in enumerate(levels, 1):
        spent = {image.index: (image.seconds, image.queries) for image in level.images}
        took = [
            (seconds - before.get(index, (0.0, 0))[0], queries - before.get(index, (0.0, 0))[1])
            for index, (seconds, queries) in spent.items()
            if seconds > before.get(index, (0.0, 0))[0]
        ]
        if took:
            seconds = [one for one, _ in took]
            asked = sum(queries for _, queries in took)
            rows.append([t, len(took), sum(seconds), sum(seconds) / len(took), max(seconds), asked])
        before = spent
    heads: list[Head] = [
        ("t", "number"),
        ("searched", "number"),
        ("seconds, all", "seconds"),
        ("seconds, mean", "seconds"),
        ("seconds, most", "seconds"),
        ("queries", "number"),
    ]
    return heads, rows
