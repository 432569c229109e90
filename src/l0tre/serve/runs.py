"""Which run folders are below a folder; nothing else in it is ever read."""

import os
from collections.abc import Iterator
from pathlib import Path

from l0tre.store import DATABASE, INPUTS

__all__ = ["Runs"]

DEPTH = 4  # folders below the root: `compare` and `reproduce` keep theirs that deep
MOST = 2_000  # runs
# Of a run, those that are read: none may lead out of its folder.
FILES = {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", INPUTS, "scores.npz", "maps.npz", "checked.json", "bounds.csv"}


class Runs:
    """Run folders by name, their path below the root.

    Attributes:
        root: The folder that is served. If it is a run itself, that run is the only one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.single = (self.root / DATABASE).is_file()

    def names(self) -> list[str]:
        """Names of all runs, sorted."""
        return sorted(self._found())

    def folder(self, name: str) -> Path:
        """The folder of a run.

        A name is looked up among the runs that there are, never joined to a path: nothing outside can be named.

        Raises:
            KeyError: If there is no such run.
        """
        return self._found()[name]

    def _found(self) -> dict[str, Path]:
        if self.single:
            return {self.root.name or "run": self.root}
        return dict(self._below())

    def _below(self) -> Iterator[tuple[str, Path]]:
        count = 0
        for place, folders, files in os.walk(self.root):  # links to folders are not followed
            here = Path(place)
            depth = len(here.relative_to(self.root).parts)
            folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < DEPTH else []
            linked = any((here / name).is_symlink() for name in FILES.intersection(files))
            if DATABASE in files and depth and not linked:
                yield here.relative_to(self.root).as_posix(), here
                count += 1
                folders.clear()
            if count >= MOST:
                return
