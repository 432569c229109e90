"""Files that appear whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Write beside the target, then rename: a crash leaves the old file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    temporary.replace(path)
    return path
