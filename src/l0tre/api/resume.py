"""The functions that go on with a run folder: resume, resume_anytime."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from l0tre.api.certificates import keeper
from l0tre.api.clusters import ClusterChoice, on_cluster
from l0tre.api.inputs import fitting_threads
from l0tre.api.load import load
from l0tre.api.steps import check_budget, last, recorded, stoppable
from l0tre.errors import ConfigError, StoreError
from l0tre.evaluation.driver import MakeExecutor, drive
from l0tre.evaluation.problem import Settings, make_problem
from l0tre.evaluation.results import Snapshot
from l0tre.model.network import Network
from l0tre.model.reference import is_reference
from l0tre.model.sources import Source
from l0tre.names import names_of
from l0tre.store import clear_stop, open_run, read_config, read_inputs
from l0tre.threads import with_threads
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["network_of", "resume", "resume_anytime"]


def resume(
    folder: str | Path,
    network: Source | None = None,
    *,
    max_t: int | None = None,
    device: str = "auto",
    cluster: ClusterChoice = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    trust_run: bool = False,
    tuning: Tuning = DEFAULT_TUNING,
) -> Snapshot:
    """Go on with a run folder where it stopped, to its end; no finished step is repeated.

    Args:
        folder: The run folder.
        network: The network, if it did not come from a model file or a name of the zoo; it must be the same one. A
            name or a file is loaded with the mean and the standard deviation of the run.
        max_t: A larger number of groups changed together than the run began with; ``None`` for that one.
        device: Where to compute.
        cluster: Who does the work, as for :func:`evaluate`; not what the run began with.
        time_budget: Seconds for this call; ``None`` for no limit.
        stop: Asked in every step; a yes ends the work after that step.
        trust_run: Import the Python code that the run names, without your naming it again. Code inside the run folder
            is never imported.
        tuning: As for :func:`evaluate`.

    Returns:
        The last snapshot, seconds and queries counted from the run's very start.

    Raises:
        StoreError: If the folder is not a run, is damaged, or the network is another one.
    """
    return last(
        resume_anytime(
            folder,
            network,
            max_t=max_t,
            device=device,
            cluster=cluster,
            time_budget=time_budget,
            stop=stop,
            trust_run=trust_run,
            tuning=tuning,
        )
    )


def resume_anytime(
    folder: str | Path,
    network: Source | None = None,
    *,
    max_t: int | None = None,
    device: str = "auto",
    cluster: ClusterChoice = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] | None = None,
    trust_run: bool = False,
    tuning: Tuning = DEFAULT_TUNING,
) -> Iterator[Snapshot]:
    """As :func:`resume`, giving out the bounds after every step.

    Args:
        folder: As for :func:`resume`, likewise all that follow but ``tell``.
        network: The network.
        max_t: Most groups changed together.
        device: Where to compute.
        cluster: Who does the work.
        time_budget: Seconds.
        stop: Asked between two batches.
        tell: Takes sentences such as what a long level will cost; default a warning in the log.
        trust_run: Whether to import the Python code that the run names.
        tuning: How much is done at a time.

    Yields:
        A snapshot after every step.
    """
    check_budget(time_budget)
    folder = Path(folder)

    def make(make_executor: MakeExecutor | None) -> Iterator[Snapshot]:
        config, inputs = read_config(folder), read_inputs(folder)
        raised = max_t is not None and _raised(config, max_t)
        if raised:
            config = {**config, "settings": {**config["settings"], "max_t": max_t}}
        net = network_of(folder, config, tuple(inputs.images.shape[1:]), network, device, trust_run=trust_run)
        problem = make_problem(
            net,
            inputs.images,
            inputs.labels,
            indices=inputs.indices,
            domain=inputs.domain,
            settings=Settings(**config["settings"]),
            extra_config=config,
            tuning=tuning,
        )
        run = open_run(folder)
        try:
            state = run.load_state()
            if [bounds.index for bounds in state.bounds] != list(problem.indices):
                raise StoreError(
                    f"{folder} holds other inputs than the network classifies correctly now: start a new run"
                )
            if raised:
                run.set_config(config)
                state.finished = False
        except BaseException:
            run.close()
            raise
        clear_stop(folder)
        keep, ends = keeper(problem, folder) if config.get("certificates") else None, stoppable(stop, folder)
        steps = drive(
            problem,
            state,
            recorder=run,
            time_budget=time_budget,
            stop=ends,
            on_evidence=keep,
            tell=tell,
            make_executor=make_executor,
        )
        return recorded(with_threads(steps, fitting_threads(problem.network)), run, inputs, problem.network)

    return on_cluster(cluster, make)


def network_of(
    folder: Path,
    config: Mapping[str, Any],
    shape: tuple[int, ...],
    network: Source | None,
    device: str,
    *,
    trust_run: bool,
) -> Network:
    """The network of a run, loaded from what the run names unless it is given.

    Raises:
        StoreError: If it cannot be told, or is another one.
    """
    model = config["model"]
    if network is None:
        network = _named_by(folder, model, trust_run)
    if isinstance(network, str | Path):
        _refuse_code_inside(folder, str(network))
        network = load(
            network,
            mean=model.get("mean"),
            std=model.get("std"),
            input_shape=tuple(model["input_shape"]),
            device=device,
            weights=model.get("weights"),
            words=names_of(config)[0].words,
        )
    net = load(network, input_shape=shape, device=device)
    if net.fingerprint != model["fingerprint"]:
        raise StoreError(
            f"the network {net.name} is not the one that the run in {folder} began with "
            "(its weights or operations differ)"
        )
    return net


def _raised(config: Mapping[str, Any], max_t: int) -> bool:
    """Whether a run is to go further than it began with."""
    before, sampled = config["settings"]["max_t"], config["settings"].get("sample_ms", 0)
    if max_t < before or (sampled and max_t != before):
        why = "its sets of groups are of one size" if sampled else "what is done is not undone"
        raise ConfigError(
            f"`max_t` is {max_t}, the run began with {before}, and {why}: give {before} or more, or leave it"
        )
    return bool(max_t > before)


def _named_by(folder: Path, model: Mapping[str, Any], trust_run: bool) -> str:
    """The model that a run names. Its word is not enough to run code: a run folder may be somebody else's."""
    if "path" not in model:
        raise StoreError(f"the run in {folder} used a network given from Python: pass the network to resume it")
    name = str(model["path"])
    if is_reference(name) and not trust_run:
        raise StoreError(
            f"the run in {folder} names a model that is Python code, {name}, and resuming would run it: name the model "
            f"again (`network='{name}'`), or trust the folder (`trust_run`)"
        )
    return name


def _refuse_code_inside(folder: Path, name: str) -> None:
    """Nothing inside a run folder is imported, whoever names it: it holds what others wrote there, too."""
    if not is_reference(name):
        return
    place = name.rpartition(":")[0]
    # A package is looked for in the current folder, too.
    where = Path(place).resolve() if place.endswith(".py") else Path.cwd() / place.partition(".")[0]
    if where.is_relative_to(folder.resolve()):
        raise StoreError(f"{name} would be imported from inside the run folder {folder}: move the model elsewhere")
