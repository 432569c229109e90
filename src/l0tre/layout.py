"""Where the channels of an image are, for everything that reads shapes."""

__all__ = ["channel_axis"]

MOST_CHANNELS = 4  # grey, two values, RGB, RGBA; a longer last axis is a width


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Which axis of an image shape holds the channels; ``None`` for vectors and plain ``(H, W)``.

    ``(H, W, C)`` if the last axis is as short as channels are and the first one is not; what could be either is
    ``(C, H, W)``.
    """
    if len(shape) != 3:
        return None
    return 2 if shape[2] <= MOST_CHANNELS < shape[0] else 0
