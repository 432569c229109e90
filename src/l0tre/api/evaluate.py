"""The functions that users call: evaluate, anytime, resume, resume_anytime."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from l0tre.api.inputs import Images, Labels, check_scale, describe_data, fitting_threads, load_inputs
from l0tre.api.load import load
from l0tre.defaults import ATTACK_QUERIES
from l0tre.domain import Colours, Domain, GridKind
from l0tre.errors import ConfigError, StoreError, warn
from l0tre.evaluation.accuracy import doubt
from l0tre.evaluation.driver import drive
from l0tre.evaluation.exports import export_writes
from l0tre.evaluation.problem import GuaranteeWish, Settings, make_problem, spacing, start
from l0tre.evaluation.results import Snapshot
from l0tre.halting import Clock, Halted
from l0tre.model.load import Source
from l0tre.model.network import Network
from l0tre.model.reference import is_reference
from l0tre.names import names_of
from l0tre.store import Inputs, Run, create_run, open_run, read_config, read_inputs, score_writes
from l0tre.threads import with_threads
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["anytime", "before_the_first_step", "begin", "evaluate", "resume", "resume_anytime"]


def evaluate(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    max_t: int = 2,
    guarantee: GuaranteeWish = "auto",
    epsilon: float | None = None,
    points: int | None = None,
    grid: GridKind = "uniform",
    colours: Colours = "grid",
    domain: Domain | None = None,
    attack_queries: int = ATTACK_QUERIES,
    sample_ms: float = 0.0,
    seed: int = 0,
    memory_bytes: int = 0,
    device: str = "auto",
    time_budget: float | None = None,
    out: str | Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    extra_config: Mapping[str, Any] | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> Snapshot:
    """Evaluate a set of inputs and return the final bounds.

    Args:
        network: What :func:`l0tre.load` gives or takes.
        images: ``[images, *shape]`` in the domain, or a data set from :func:`l0tre.load_data`.
        labels: One for each image; without them the network's own decisions count.
        max_t: Largest number of groups that are changed together exhaustively.
        guarantee: What the lower bounds hold for: ``certified`` (all real values), ``grid``, ``lipschitz`` (all real
            values, ``max_t`` at most 2), or ``auto``: certified where the network's operations allow it, else grid.
        epsilon: Largest spacing of the grid, in the domain's units; default 0.25 where ranges are at most 1 wide.
        points: Grid points of each value instead, whatever its range; default 5 where ranges are wider.
        grid: ``uniform`` (end points included, spacing at most ``epsilon``) or ``paper`` (the published code's).
        colours: ``grid`` (all combinations of a pixel's channel values) or ``corners`` (end points only).
        domain: What may change, see :func:`l0tre.make_domain`; default every pixel or feature in [0, 1].
        attack_queries: Forward and backward passes for each image to look for closer adversarial inputs (see
            :func:`l0tre.attack`), beyond what the search gives anyway; 0 for none.
        sample_ms: Milliseconds for each image in the real-time mode: random subspaces of ``max_t`` groups instead of
            all, upper bounds only, guarantee ``sampled``; 0 for the exhaustive search.
        seed: Of the attack and of the random subspaces.
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
        device: Where to compute, if ``network`` is not loaded yet.
        time_budget: Seconds; ``None`` for no limit.
        out: A new folder for a run that survives a crash and can be resumed.
        stop: Asked in every step; a yes ends the evaluation behind that step, with what there is.
        extra_config: More entries for the stored configuration.
        tuning: How much is done at a time and for how long; changes speed only, and is not stored.

    Returns:
        The last snapshot, which is the result.

    Raises:
        L0treError: If anything given cannot be used.
    """
    return _last(
        anytime(
            network,
            images,
            labels,
            max_t=max_t,
            guarantee=guarantee,
            epsilon=epsilon,
            points=points,
            grid=grid,
            colours=colours,
            domain=domain,
            attack_queries=attack_queries,
            sample_ms=sample_ms,
            seed=seed,
            memory_bytes=memory_bytes,
            device=device,
            time_budget=time_budget,
            out=out,
            stop=stop,
            extra_config=extra_config,
            tuning=tuning,
        )
    )


def anytime(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    max_t: int = 2,
    guarantee: GuaranteeWish = "auto",
    epsilon: float | None = None,
    points: int | None = None,
    grid: GridKind = "uniform",
    colours: Colours = "grid",
    domain: Domain | None = None,
    attack_queries: int = ATTACK_QUERIES,
    sample_ms: float = 0.0,
    seed: int = 0,
    memory_bytes: int = 0,
    device: str = "auto",
    time_budget: float | None = None,
    out: str | Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    extra_config: Mapping[str, Any] | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> Iterator[Snapshot]:
    """Evaluate a set of inputs, giving out the bounds after every step; stop whenever you like.

    The arguments are those of :func:`evaluate`. What cannot be used is refused at once, before the first snapshot.

    Yields:
        A :class:`Snapshot` after every step; the last one is the result.
    """
    settings = Settings(
        max_t=max_t,
        **spacing(domain, epsilon, points),
        grid=grid,
        colours=colours,
        memory_bytes=memory_bytes,
        sample_ms=sample_ms,
        seed=seed,
        guarantee=guarantee,
        attack_queries=attack_queries,
    )
    return begin(
        network,
        images,
        labels,
        settings=settings,
        domain=domain,
        device=device,
        time_budget=time_budget,
        out=out,
        stop=stop,
        extra_config=extra_config,
        tuning=tuning,
    )


def begin(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    settings: Settings,
    domain: Domain | None = None,
    device: str = "auto",
    time_budget: float | None = None,
    out: str | Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    extra_config: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> Iterator[Snapshot]:
    """As :func:`anytime`, with how to search gathered in ``settings``, and with who is told what a long level costs."""
    _check_budget(time_budget)
    began = time.monotonic()
    net, data = load_inputs(network, images, labels, device)
    if domain is not None:
        check_scale(data, domain)
    with before_the_first_step(time_budget, stop, tuning) as pulse:
        problem = make_problem(
            net,
            data.images,
            data.labels,
            indices=data.indices,
            domain=domain,
            settings=settings,
            extra_config={**describe_data(data), **(extra_config or {})},
            tuning=tuning,
            pulse=pulse,
        )
    if data.labels is not None and (reason := doubt(len(problem.indices), len(data.images))):
        warn(reason)
    state = start(problem)
    if time_budget is not None:
        time_budget = max(0.0, time_budget - (time.monotonic() - began))
    if out is None:
        steps = drive(problem, state, time_budget=time_budget, stop=stop, tell=tell)
        return with_threads(steps, fitting_threads(problem.network))
    inputs = Inputs(data.images, data.labels, data.indices, problem.domain)
    run = create_run(Path(out), inputs, state, excluded=problem.excluded, config=problem.config)
    steps = drive(problem, state, recorder=run, time_budget=time_budget, stop=stop, tell=tell)
    return _recorded(with_threads(steps, fitting_threads(problem.network)), run, inputs, problem.network)


def _recorded(snapshots: Iterator[Snapshot], run: Run, inputs: Inputs, network: Network) -> Iterator[Snapshot]:
    """Pass snapshots on; however the caller ends, write the exports of the last one and close the database."""
    last: Snapshot | None = None

    def export(*, ask: bool = False) -> None:
        if last is None:
            return
        writes = export_writes(run.folder, last, inputs.images, inputs.indices)
        if ask:
            originals = dict(zip(inputs.indices, inputs.images, strict=True))
            writes |= score_writes(run.folder, last, originals, network.scores)
        run.export(writes)

    with closing(run):
        try:
            for snapshot in snapshots:
                last = replace(snapshot, state=run.state.name)
                yield last
        except StoreError:  # the run belongs to another process by now, or cannot be written
            raise
        except BaseException:
            export()
            raise
        export(ask=True)


def resume(
    folder: str | Path,
    network: Source | None = None,
    *,
    max_t: int | None = None,
    device: str = "auto",
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
        time_budget: Seconds for this call; ``None`` for no limit.
        stop: Asked in every step; a yes ends the work behind that step.
        trust_run: Import the Python code that the run names, without your naming it again. Code inside the run folder
            is never imported.
        tuning: As for :func:`evaluate`.

    Returns:
        The last snapshot, seconds and queries counted from the run's very start.

    Raises:
        StoreError: If the folder is not a run, is damaged, or the network is another one.
    """
    return _last(
        resume_anytime(
            folder,
            network,
            max_t=max_t,
            device=device,
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
        time_budget: Seconds.
        stop: Asked between two batches.
        tell: Takes sentences such as what a long level will cost; default a warning in the log.
        trust_run: Whether to import the Python code that the run names.
        tuning: How much is done at a time.

    Yields:
        A snapshot after every step.
    """
    _check_budget(time_budget)
    folder = Path(folder)
    config, inputs = read_config(folder), read_inputs(folder)
    raised = max_t is not None and _raised(config, max_t)
    if raised:
        config = {**config, "settings": {**config["settings"], "max_t": max_t}}
    model = config["model"]
    if network is None:
        network = _named_by(folder, model, trust_run)
    if isinstance(network, str | Path):
        _refuse_code_inside(folder, str(network))
        shape = tuple(model["input_shape"])
        network = load(
            network,
            mean=model.get("mean"),
            std=model.get("std"),
            input_shape=shape,
            device=device,
            weights=model.get("weights"),
            words=names_of(config)[0].words,
        )
    net = load(network, input_shape=tuple(inputs.images.shape[1:]), device=device)
    if net.fingerprint != model["fingerprint"]:
        raise StoreError(
            f"the network {net.name} is not the one that the run in {folder} began with "
            "(its weights or operations differ)"
        )
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
            raise StoreError(f"{folder} holds other images than the network classifies correctly now: start a new run")
        if raised:
            run.set_config(config)
            state.finished = False
    except BaseException:
        run.close()
        raise
    steps = drive(problem, state, recorder=run, time_budget=time_budget, stop=stop, tell=tell)
    return _recorded(with_threads(steps, fitting_threads(problem.network)), run, inputs, problem.network)


@contextmanager
def before_the_first_step(
    time_budget: float | None, stop: Callable[[], bool], tuning: Tuning = DEFAULT_TUNING
) -> Iterator[Callable[[], None]]:
    """While inputs are classified, which comes before all bounds: a pulse that feels the time and the wish to stop.

    Raises:
        ConfigError: If the time is over before all are classified.
        KeyboardInterrupt: If somebody stops it.
    """
    began = time.monotonic()

    def over() -> bool:
        return stop() or (time_budget is not None and time.monotonic() - began >= time_budget)

    try:
        yield Clock(over, tuning.grace_seconds).pulse
    except Halted as error:
        if stop():
            raise KeyboardInterrupt from error
        raise ConfigError(
            f"the time (`time_budget` {time_budget:g} s) was over before the network had classified all inputs: give "
            "more time or fewer inputs (`limit`)"
        ) from error


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


def _check_budget(seconds: float | None) -> None:
    """Refuse a time that is none before any work, and before a folder is made for it."""
    if seconds is not None and not seconds >= 0:
        raise ConfigError(f"`time_budget` is {seconds} seconds: give 0 or more")


def _last(snapshots: Iterator[Snapshot]) -> Snapshot:
    return deque(snapshots, maxlen=1)[0]
