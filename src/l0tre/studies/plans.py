"""What a study runs: a plan for each run, and carrying them out one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from l0tre.api.clusters import ClusterChoice, shared_session
from l0tre.api.load import load
from l0tre.api.runs import Watch, go_on, last_of
from l0tre.data import load_data, select
from l0tre.errors import ConfigError, StoreError
from l0tre.evaluation.problem import Settings
from l0tre.store import DATABASE, read_snapshot
from l0tre.studies.runs import KINDS, kind_of

__all__ = ["PlannedRun", "carry_out"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Attributes:
        network: What :func:`l0tre.load` takes.
        kind: ``paper``, ``grid`` or ``certified``, see :data:`l0tre.studies.runs.KINDS`.
        max_t: Largest number of pixels changed together.
        images: How many are drawn from the test set.
        epsilon: Spacing of the grid, in the domain's units.
    """

    network: str
    kind: str
    max_t: int
    images: int
    epsilon: float

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"the kind of run {self.kind!r} is unknown: give one of {', '.join(KINDS)}")

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"{Path(self.network).stem}-{self.kind}"


def carry_out(
    plans: Sequence[PlannedRun],
    out: str | Path,
    *,
    data: str = "mnist",
    data_dir: Path | None = None,
    seed: int = 0,
    device: str = "auto",
    cluster: ClusterChoice = None,
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
        cluster: Who does the work, as for :func:`l0tre.evaluate`.
        time_budget: Seconds for each run; ``None`` for no limit.
        stop: Asked in every step; a yes ends the work after that step.
        watch: Goes through the snapshots of each run.

    Raises:
        L0treError: Before any work, if a network cannot be loaded, two runs have the same name, or a folder holds a
            run of another kind than its name says; before a run, if the data cannot be loaded or the folder holds a
            run that was set up otherwise.
    """
    names = [plan.folder for plan in plans]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two of the runs {', '.join(names)} have the same name: give networks of different names, each kind once"
        )
    networks = {plan.network: load(plan.network, device=device) for plan in plans}
    for plan in plans:
        _check_kind(Path(out) / plan.folder, plan)
    with shared_session(cluster):
        for plan in plans:
            if stop():
                return
            network = networks[plan.network]
            images = load_data(data, input_shape=network.input_shape, data_dir=data_dir, resize=True)
            chosen = select(images, limit=plan.images, shuffle=True, seed=seed)
            guarantee, queries = KINDS[plan.kind]
            settings = Settings(max_t=plan.max_t, epsilon=plan.epsilon, guarantee=guarantee, attack_queries=queries)
            snapshots = go_on(
                Path(out) / plan.folder,
                network,
                chosen,
                settings,
                cluster=cluster,
                time_budget=time_budget,
                stop=stop,
            )
            watch(plan.folder, snapshots)


def _check_kind(folder: Path, plan: PlannedRun) -> None:
    """Refuse a folder whose run is of another kind than its name says."""
    if not (folder / DATABASE).exists():
        return
    kind = kind_of(read_snapshot(folder).config)
    if kind != plan.kind:
        right = f"{Path(plan.network).stem}-{kind}"
        raise StoreError(
            f"{folder} holds a run of the kind {kind}, not {plan.kind}: rename it to {right}, or give another `out`"
        )
