"""The bounds of a run as they were at the end of each level."""

from dataclasses import replace
from pathlib import Path

from l0tre.evaluation.results import ImageBounds, Snapshot
from l0tre.store.connection import DATABASE, reading
from l0tre.store.rows import read_level_rows, read_witnesses
from l0tre.store.run import snapshot_of

__all__ = ["read_levels"]


def read_levels(folder: Path) -> tuple[Snapshot, ...]:
    """The bounds of every image at the end of each level.

    An image that needs no further level keeps its bounds; one that is still at work in a level counts there with its
    latest bounds. A run that began under format 2 knows no earlier levels: there the latest bounds count too.

    Args:
        folder: The run folder.

    Returns:
        A snapshot for ``t`` = 1, 2, ... up to the run's ``max_t``, or to the level at work. ``ImageBounds.seconds``
        and ``queries`` are what the image took up to then, ``ImageBounds.level`` is the last level that was over.
        ``Snapshot.seconds`` is the work of the whole run until the last change of its means at a level of at most
        ``t``, and ``finished`` says that no image is still at work in it.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    with reading(folder / DATABASE) as stored:
        latest = snapshot_of(stored, folder)
        most = latest.config["settings"]["max_t"] if latest.finished else max(1, latest.t)
        rows = read_level_rows(stored.connection)
        witnesses = [read_witnesses(stored.connection, t) for t in range(1, most + 1)]

    def at(place: int, image: ImageBounds, t: int) -> ImageBounds:
        known = next((rows[place, level] for level in range(t, 0, -1) if (place, level) in rows), None)
        if known is None or t > image.level:
            return image
        return replace(
            image,
            lower=known["lower"],
            upper=known["upper"],
            witness=witnesses[t - 1].get(place),
            level=known["t"],
            blocked=known["blocked"],
            seconds=known["seconds"],
            queries=known["queries"],
        )

    def view(t: int) -> Snapshot:
        history = tuple(point for point in latest.history if point.t <= t)
        done = latest.finished or not any(image.level < t and _at_work(image, t) for image in latest.images)
        return replace(
            latest,
            images=tuple(at(place, image, t) for place, image in enumerate(latest.images)),
            seconds=history[-1].seconds if history and t < most else latest.seconds,
            t=t,
            finished=done,
            level_share=float(done),
            history=history,
        )

    return tuple(view(t) for t in range(1, most + 1))


def _at_work(image: ImageBounds, t: int) -> bool:
    """Whether a level that an image has not closed will still be searched; after a tie no proof is tried."""
    return image.upper > t and not (image.guarantee == "certified" and image.blocked)
