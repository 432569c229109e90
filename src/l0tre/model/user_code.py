"""Running the user's own code: a model file, a function, a module. It can raise anything, also to end the process."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from l0tre.errors import Interrupted, L0treError, ModelError

__all__ = ["said", "user_code"]

MOST = 500  # characters of what the code says


@contextmanager
def user_code(failed: Callable[[str], Exception | str]) -> Iterator[None]:
    """Turn whatever the user's code raises into an error, so that it is never taken for an answer of ours.

    Args:
        failed: Gives the error, or the message of a :class:`ModelError`, from the name and message of what was raised.

    Raises:
        L0treError: In place of any other exception, ``SystemExit`` included. Running out of memory on a device and a
            Ctrl-C stay as they are.
    """
    try:
        yield
    except (L0treError, Interrupted, torch.OutOfMemoryError):
        raise
    except BaseException as error:
        # Only Python's own handler makes a KeyboardInterrupt of Ctrl-C; with any other one the code raised it.
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise
        given = failed(said(error))
        raise (ModelError(given) if isinstance(given, str) else given) from error


def said(error: BaseException) -> str:
    """Name and message of an exception in one line; the message is code of the user's, too."""
    try:
        text = " ".join(str(error).split())
    except BaseException as worse:
        text = f"its message raises {type(worse).__name__}"
    return f"{type(error).__name__}: {text if len(text) <= MOST else f'{text[:MOST]} ...'}"
