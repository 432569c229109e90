"""Many runs in one folder: start what is missing, go on with what was stopped, read what is there."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from l0tre.api import anytime, resume_anytime
from l0tre.data import Dataset, load_data, select
from l0tre.errors import ConfigError, StoreError
from l0tre.model.load import load
from l0tre.model.network import Network
from l0tre.problem import ATTACK
from l0tre.results import Snapshot
from l0tre.store import Inputs, read_config, read_inputs, read_levels, read_snapshot
from l0tre.store.database import DATABASE

__all__ = ["Plan", "RunData", "Watch", "carry_out", "go_on", "last_of", "read_run", "read_runs"]

# Goes through the snapshots of a run, whose name comes first, and returns the last one.
Watch = Callable[[str, Iterator[Snapshot]], Snapshot]


@dataclass(frozen=True)
class Plan:
    """One run of a study.

    Attributes:
        network: What :func:`l0tre.load` takes.
        guarantee: ``grid`` or ``certified``.
        max_t: Largest number of pixels changed together.
        images: How many are drawn from the test set.
        epsilon: Spacing of the grid, in the domain's units.
    """

    network: str
    guarantee: str
    max_t: int
    images: int
    epsilon: float

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"{Path(self.network).stem}-{self.guarantee}"


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
        """What its lower bounds hold for."""
        return str(self.latest.config["guarantee"]["kind"])


def read_run(folder: str | Path) -> RunData:
    """Read a run folder, finished or not.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    folder = Path(folder)
    return RunData(folder.resolve().name, read_snapshot(folder), read_levels(folder), read_inputs(folder))


def read_runs(out: str | Path) -> tuple[RunData, ...]:
    """Read all run folders inside a folder, in the order of their networks, the paper's guarantee ``grid`` first.

    Raises:
        StoreError: If there is none.
    """
    folders = sorted(path.parent for path in Path(out).glob(f"*/{DATABASE}"))
    if not folders:
        raise StoreError(f"{out} holds no run folders: give the folder of an earlier call to --out")
    runs = [read_run(folder) for folder in folders]
    return tuple(sorted(runs, key=lambda run: (run.network, run.guarantee != "grid")))


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
        raise StoreError(f"{folder} holds a run of another network than {network.name} (its weights differ): {other}")
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


def carry_out(
    plans: Sequence[Plan],
    out: str | Path,
    *,
    data: str = "mnist",
    data_dir: Path | None = None,
    seed: int = 0,
    device: str = "auto",
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    watch: Watch = last_of,
) -> None:
    """Carry out the runs of a study one after the other; what is finished is not repeated.

    Args:
        plans: The runs.
        out: Folder of the run folders.
        data: What :func:`l0tre.load_data` takes; its test images are used, resized to each network.
        data_dir: Where data sets known by name are.
        seed: Of the choice of images.
        device: Where to compute.
        time_budget: Seconds for each run; ``None`` for no limit.
        stop: Asked between two steps.
        watch: Goes through the snapshots of each run.

    Raises:
        L0treError: Before any work, if a network or the data cannot be loaded.
    """
    names = [plan.folder for plan in plans]
    if len(set(names)) < len(names):
        raise ConfigError(f"two of the runs {', '.join(names)} have the same name: give networks of different names")
    networks = {plan.network: load(plan.network, device=device) for plan in plans}
    for plan in plans:
        if stop():
            return
        network = networks[plan.network]
        images = load_data(data, input_shape=network.input_shape, data_dir=data_dir, resize=True)
        chosen = select(images, limit=plan.images, shuffle=True, seed=seed)
        snapshots = go_on(
            Path(out) / plan.folder,
            network,
            chosen,
            time_budget=time_budget,
            stop=stop,
            max_t=plan.max_t,
            epsilon=plan.epsilon,
            guarantee=plan.guarantee,
            # The paper's upper bounds come from its levels alone; beside certified bounds ours are wanted.
            attack=0 if plan.guarantee == "grid" else ATTACK,
        )
        watch(plan.folder, snapshots)
