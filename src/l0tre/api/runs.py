"""Start a run folder, or go on with one, whichever is there."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from l0tre.api.clusters import ClusterChoice
from l0tre.api.evaluate import begin
from l0tre.api.resume import resume_anytime
from l0tre.data import Dataset
from l0tre.domain import Domain, make_domain, same_domain
from l0tre.errors import StoreError
from l0tre.evaluation.problem import Settings
from l0tre.evaluation.results import Snapshot
from l0tre.model.network import Network
from l0tre.store import DATABASE, read_config, read_inputs, read_snapshot

__all__ = ["Watch", "go_on", "last_of", "load_run"]

# Goes through the snapshots of a run, whose name comes first, and returns the last one.
Watch = Callable[[str, Iterator[Snapshot]], Snapshot]


def go_on(
    folder: Path,
    network: Network,
    data: Dataset,
    settings: Settings,
    *,
    domain: Domain | None = None,
    cluster: ClusterChoice = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Snapshot]:
    """Start a run folder, or go on with it where it stopped.

    Args:
        folder: The run folder, which need not be there yet.
        network: The network.
        data: The images, already in the network's shape.
        settings: How to search.
        domain: What may change; default every pixel or feature in [0, 1].
        cluster: Who does the work, as for ``evaluate``.
        time_budget: Seconds for this call; ``None`` for no limit.
        stop: Asked in every step; a yes ends the work after that step.

    Returns:
        The snapshots; of a finished run the stored one alone, and nothing is computed.

    Raises:
        StoreError: If the folder holds a run with another network, other images, another domain or other settings.
    """
    if not (folder / DATABASE).exists():
        return begin(
            network,
            data,
            settings=settings,
            domain=domain,
            out=folder,
            cluster=cluster,
            time_budget=time_budget,
            stop=stop,
        )
    _check_same(folder, network, data, settings, domain or make_domain(network.input_shape))
    stored = read_snapshot(folder)
    if stored.finished:
        return iter((stored,))
    return resume_anytime(folder, network, cluster=cluster, time_budget=time_budget, stop=stop)


def _check_same(folder: Path, network: Network, data: Dataset, settings: Settings, domain: Domain) -> None:
    """Refuse to go on with a run that was set up otherwise than asked for now."""
    config, inputs = read_config(folder), read_inputs(folder)
    other = "give what it was begun with, or another `out`"
    if config["model"]["fingerprint"] != network.fingerprint:
        raise StoreError(
            f"{folder} holds a run of another network than {network.name} (its weights or operations differ): {other}"
        )
    if inputs.indices != data.indices or not torch.equal(inputs.images, data.images):
        raise StoreError(
            f"{folder} holds a run on {len(inputs.indices)} inputs, not on the {len(data.indices)} asked for: {other}"
        )
    if not same_domain(inputs.domain, domain):
        raise StoreError(f"{folder} holds a run in which other values may change than asked for: {other}")
    for name, wish in asdict(settings).items():
        stored = config["settings"].get(name, wish)
        if name != "memory_bytes" and stored != wish and (name, wish) != ("guarantee", "auto"):
            raise StoreError(f"{folder} holds a run with `{name}` {stored}, not {wish}: {other}")


def load_run(folder: str | Path) -> Snapshot:
    """The result of a run folder as last recorded; also while another process goes on with it.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    return read_snapshot(Path(folder))


def last_of(_: str, snapshots: Iterator[Snapshot]) -> Snapshot:
    """Watch nothing: go through the snapshots and return the last one."""
    return deque(snapshots, maxlen=1)[0]
