"""Runs in folders: their kinds, reading them, starting or going on with one."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from l0tre.api import anytime, resume_anytime
from l0tre.data import Dataset
from l0tre.errors import StoreError
from l0tre.model.network import Network
from l0tre.problem import ATTACK
from l0tre.results import Snapshot
from l0tre.store import Inputs, read_config, read_inputs, read_levels, read_snapshot
from l0tre.store.database import DATABASE

__all__ = ["KINDS", "RunData", "Watch", "go_on", "kind_of", "last_of", "read_run", "read_runs"]

# Of each kind of run: its guarantee, and the queries of the attack on each image before the levels. The paper's upper
# bounds come from its levels alone, so only runs without an attack can be held against its estimates at t = 1.
KINDS = {"paper": ("grid", 0), "grid": ("grid", ATTACK), "certified": ("certified", ATTACK)}
SCOPES = {"certified": "all real values", "lipschitz": "all real values", "grid": "the grid", "sampled": "nothing"}

# Goes through the snapshots of a run, whose name comes first, and returns the last one.
Watch = Callable[[str, Iterator[Snapshot]], Snapshot]


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
    return "paper" if (guarantee, config["settings"].get("attack")) == KINDS["paper"] else guarantee


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
        raise StoreError(f"{out} holds no run folders: give the folder of an earlier call to --out")
    runs = [read_run(folder) for folder in folders]
    (network, kind), count = Counter((run.network, run.kind) for run in runs).most_common(1)[0]
    if count > 1:
        same = [run.name for run in runs if (run.network, run.kind) == (network, kind)]
        raise StoreError(
            f"{out} holds {count} runs of {network} of the kind {kind} ({', '.join(same)}): move all but one elsewhere"
        )
    ranks = {kind: rank for rank, kind in enumerate(KINDS)}
    return tuple(sorted(runs, key=lambda run: (run.network, ranks.get(run.kind, len(ranks)), run.kind)))


def go_on(
    folder: Path,
    network: Network,
    data: Dataset,
    *,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Iterator[Snapshot]:
    """Start a run folder, or go on with it where it stopped.

    Args:
        folder: The run folder, which need not be there yet.
        network: The network.
        data: The images, already in the network's shape.
        time_budget: Seconds for this call; ``None`` for no limit.
        stop: Asked between two steps.
        options: All other arguments of :func:`l0tre.anytime`.

    Returns:
        The snapshots; of a finished run the stored one alone, and nothing is computed.

    Raises:
        StoreError: If the folder holds a run with another network, other images or other settings.
    """
    if not (folder / DATABASE).exists():
        return anytime(network, data, out=folder, time_budget=time_budget, stop=stop, **options)
    _check_same(folder, network, data, options)
    stored = read_snapshot(folder)
    if stored.finished:
        return iter((stored,))
    return resume_anytime(folder, network, time_budget=time_budget, stop=stop)


def _check_same(folder: Path, network: Network, data: Dataset, options: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was set up otherwise than asked for now."""
    config, inputs = read_config(folder), read_inputs(folder)
    other = "give what it was begun with, or another --out"
    if config["model"]["fingerprint"] != network.fingerprint:
        raise StoreError(
            f"{folder} holds a run of another network than {network.name} (its weights or operations differ): {other}"
        )
    if inputs.indices != data.indices or not torch.equal(inputs.images, data.images):
        raise StoreError(
            f"{folder} holds a run on {len(inputs.indices)} images, not on the {len(data.indices)} asked for: {other}"
        )
    for name, wish in options.items():
        stored = config["settings"].get(name, wish)
        if name != "memory" and stored != wish and (name, wish) != ("guarantee", "auto"):
            raise StoreError(f"{folder} holds a run with {name} {stored}, not {wish}: {other}")


def last_of(_: str, snapshots: Iterator[Snapshot]) -> Snapshot:
    """Watch nothing: go through the snapshots and return the last one."""
    return deque(snapshots, maxlen=1)[0]
