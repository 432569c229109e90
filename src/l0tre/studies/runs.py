"""The runs of a study: their kinds, and reading them from their folders."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0tre.defaults import ATTACK_QUERIES
from l0tre.errors import StoreError
from l0tre.evaluation.problem import GuaranteeWish
from l0tre.evaluation.results import Snapshot
from l0tre.store import DATABASE, Inputs, read_inputs, read_levels, read_snapshot

__all__ = ["KINDS", "RunData", "kind_of", "read_run", "read_runs"]

# Of each kind of run: its guarantee, and the queries of the attack on each image before the levels. The paper's upper
# bounds come from its levels alone, so only runs without an attack can be held against its estimates at t = 1.
KINDS: dict[str, tuple[GuaranteeWish, int]] = {
    "paper": ("grid", 0),
    "grid": ("grid", ATTACK_QUERIES),
    "certified": ("certified", ATTACK_QUERIES),
}
SCOPES = {"certified": "all real values", "lipschitz": "all real values", "grid": "the grid", "sampled": "nothing"}


@dataclass(frozen=True)
class RunData:
    """A run folder as read.

    Attributes:
        name: Name of the folder.
        latest: Its bounds as last recorded.
        levels: Its bounds at the end of ``t`` = 1, 2, ... up to the level at work.
        inputs: Its images.
    """

    name: str
    latest: Snapshot
    levels: tuple[Snapshot, ...]
    inputs: Inputs

    @property
    def network(self) -> str:
        """The network's name without folders and suffix."""
        return Path(self.latest.config["model"]["name"]).stem

    @property
    def guarantee(self) -> str:
        """The guarantee of its lower bounds."""
        return str(self.latest.config["guarantee"]["kind"])

    @property
    def kind(self) -> str:
        """Its kind, see :data:`KINDS`."""
        return kind_of(self.latest.config)

    @property
    def words(self) -> str:
        """Its kind for titles, which should also name the guarantee."""
        return f"paper: {self.guarantee}, no attack" if self.kind == "paper" else self.kind

    @property
    def scope(self) -> str:
        """What its lower bounds hold for, in words."""
        return SCOPES[self.guarantee]


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of a run by its stored configuration.

    Args:
        config: As in :attr:`Snapshot.config`.

    Returns:
        A key of :data:`KINDS`, or the guarantee of a run that no study makes. Runs that were begun before there were
        attacks do not say that they have none, and resuming them attacks: they are no ``paper`` runs.
    """
    guarantee = str(config["guarantee"]["kind"])
    return "paper" if (guarantee, config["settings"].get("attack_queries")) == KINDS["paper"] else guarantee


def read_run(folder: str | Path) -> RunData:
    """Read a run folder, finished or not.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    folder = Path(folder)
    return RunData(folder.resolve().name, read_snapshot(folder), read_levels(folder), read_inputs(folder))


def read_runs(out: str | Path) -> tuple[RunData, ...]:
    """Read all run folders inside a folder, in the order of their networks, then of :data:`KINDS`.

    Raises:
        StoreError: If there is none, or there are two of the same network and kind.
    """
    folders = sorted(path.parent for path in Path(out).glob(f"*/{DATABASE}"))
    if not folders:
        raise StoreError(f"{out} holds no run folders: give the folder of an earlier call as `out`")
    runs = [read_run(folder) for folder in folders]
    (network, kind), count = Counter((run.network, run.kind) for run in runs).most_common(1)[0]
    if count > 1:
        same = [run.name for run in runs if (run.network, run.kind) == (network, kind)]
        raise StoreError(
            f"{out} holds {count} runs of {network} of the kind {kind} ({', '.join(same)}): move all but one elsewhere"
        )
    ranks = {kind: rank for rank, kind in enumerate(KINDS)}
    return tuple(sorted(runs, key=lambda run: (run.network, ranks.get(run.kind, len(ranks)), run.kind)))
