"""Files that appear whole or not at all."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

__all__ = ["write_all_whole", "write_whole"]


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Write beside the target, then rename: a crash leaves the old file, an error nothing else."""
    return write_all_whole({path: write})[0]


def write_all_whole(
    writes: Mapping[Path, Callable[[Path], object]], while_renaming: AbstractContextManager[object] | None = None
) -> tuple[Path, ...]:
    """Write several files beside their targets, then rename them all.

    Args:
        writes: What writes each file.
        while_renaming: Entered when all are written; if it raises, no target is touched.

    Returns:
        The files.
    """
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in writes}
    try:
        for path, write in writes.items():
            write(temporaries[path])
        with while_renaming or nullcontext():
            for path, temporary in temporaries.items():
                temporary.replace(path)
    except BaseException:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
        raise
    return tuple(writes)
