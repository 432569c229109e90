"""Where the channels of an image are, for everything that reads shapes."""

__all__ = ["channel_axis", "noun"]

MOST_CHANNELS = 4  # grey, two values, RGB, RGBA; a longer last axis is a width


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Which axis of an image shape holds the channels; ``None`` for vectors and plain ``(H, W)``.

    ``(H, W, C)`` if the last axis is as short as channels are and the first one is not; what could be either is
    ``(C, H, W)``.
    """
    if len(shape) != 3:
        return None
    return 2 if shape[2] <= MOST_CHANNELS < shape[0] else 0


def noun(shape: tuple[int, ...], *, named: bool = False) -> str:
    """What users call one input of a shape: ``image``, ``row`` if its values have names as a table's columns do."""
    if len(shape) == 2 or channel_axis(shape) is not None:
        return "image"
    return "row" if named else "input"
