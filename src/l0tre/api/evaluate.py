"""The functions that evaluate a set of inputs: evaluate, anytime, begin."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from l0tre.api.certificates import keeper, refuse_uncertified
from l0tre.api.clusters import ClusterChoice, on_cluster
from l0tre.api.inputs import Images, Labels, check_scale, describe_data, fitting_threads, load_inputs, usual_domain
from l0tre.api.sinks import Sink, told
from l0tre.api.steps import before_the_first_step, check_budget, last, recorded, stoppable
from l0tre.defaults import ATTACK_QUERIES
from l0tre.domain import Domain
from l0tre.errors import ConfigError, warn
from l0tre.evaluation.accuracy import doubt
from l0tre.evaluation.driver import MakeExecutor, drive
from l0tre.evaluation.problem import GuaranteeWish, Settings, make_problem, spacing, start
from l0tre.evaluation.results import Snapshot
from l0tre.grid import Colours, GridKind
from l0tre.model.sources import Source
from l0tre.store import Inputs, create_run, refuse_used
from l0tre.threads import using_threads, with_threads
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["anytime", "begin", "evaluate"]


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
    cluster: ClusterChoice = None,
    time_budget: float | None = None,
    out: str | Path | None = None,
    certificates: bool = False,
    stop: Callable[[], bool] = lambda: False,
    extra_config: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    sinks: Sequence[Sink | Callable[[Snapshot], object]] = (),
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
        cluster: Spread the work with Ray (extra ``cluster``): ``local`` for the cores and GPUs of this machine,
            ``ray://host:port`` for an existing cluster, or a :class:`l0tre.Cluster`; ``None`` for this process.
        time_budget: Seconds; ``None`` for no limit.
        out: A new folder for a run that survives a crash and can be resumed.
        certificates: Keep the proof of every level in that folder, for :func:`l0tre.check_run`.
        stop: Asked in every step; a yes ends the evaluation after that step, with what there is.
        extra_config: More entries for the stored configuration.
        progress: Whether to show a bar (extra ``notebook``); ``None`` in notebooks only, where the variable
            ``L0TRE_PROGRESS=0`` switches it off.
        sinks: Who is told the bounds while they improve: :func:`l0tre.tensorboard_sink`, :func:`l0tre.mlflow_sink`, or
            functions of a :class:`Snapshot`.
        tuning: How much is done at a time and for how long; changes speed only, and is not stored.

    Returns:
        The last snapshot, which is the result.

    Raises:
        L0treError: If anything given cannot be used.
    """
    return last(
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
            cluster=cluster,
            time_budget=time_budget,
            out=out,
            certificates=certificates,
            stop=stop,
            extra_config=extra_config,
            progress=progress,
            sinks=sinks,
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
    cluster: ClusterChoice = None,
    time_budget: float | None = None,
    out: str | Path | None = None,
    certificates: bool = False,
    stop: Callable[[], bool] = lambda: False,
    extra_config: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    sinks: Sequence[Sink | Callable[[Snapshot], object]] = (),
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
    steps = begin(
        network,
        images,
        labels,
        settings=settings,
        domain=domain,
        device=device,
        cluster=cluster,
        time_budget=time_budget,
        out=out,
        certificates=certificates,
        stop=stop,
        extra_config=extra_config,
        tuning=tuning,
    )
    return told(steps, sinks, progress)


def begin(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    settings: Settings,
    domain: Domain | None = None,
    device: str = "auto",
    cluster: ClusterChoice = None,
    time_budget: float | None = None,
    out: str | Path | None = None,
    certificates: bool = False,
    stop: Callable[[], bool] = lambda: False,
    extra_config: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> Iterator[Snapshot]:
    """As :func:`anytime`, with how to search gathered in ``settings``, and with who is told what a long level costs."""
    check_budget(time_budget)
    if out is not None:
        refuse_used(Path(out))
    began = time.monotonic()

    def make(make_executor: MakeExecutor | None) -> Iterator[Snapshot]:
        net, data = load_inputs(network, images, labels, device, domain)
        where = domain or usual_domain(net, data)
        check_scale(data, where)
        threads = fitting_threads(net)
        with before_the_first_step(time_budget, stop, tuning) as pulse, using_threads(threads):
            problem = make_problem(
                net,
                data.images,
                data.labels,
                indices=data.indices,
                domain=where,
                settings=settings,
                extra_config={
                    **describe_data(data),
                    **({"certificates": True} if certificates else {}),
                    **(extra_config or {}),
                },
                tuning=tuning,
                pulse=pulse,
            )
        if certificates:
            if out is None:
                raise ConfigError("certificates are kept in a run folder: give `out`")
            refuse_uncertified(problem)
        if data.labels is not None and (reason := doubt(len(problem.indices), len(data.images))):
            warn(reason)
        state = start(problem)
        left = None if time_budget is None else max(0.0, time_budget - (time.monotonic() - began))
        if out is None:
            steps = drive(problem, state, time_budget=left, stop=stop, tell=tell, make_executor=make_executor)
            return with_threads(steps, threads)
        inputs = Inputs(data.images, data.labels, data.indices, problem.domain)
        run = create_run(Path(out), inputs, state, excluded=problem.excluded, config=problem.config)
        keep, ends = keeper(problem, Path(out)) if certificates else None, stoppable(stop, run.folder)
        steps = drive(
            problem,
            state,
            recorder=run,
            time_budget=left,
            stop=ends,
            on_evidence=keep,
            tell=tell,
            make_executor=make_executor,
        )
        return recorded(with_threads(steps, threads), run, inputs, problem.network)

    return on_cluster(cluster, make)
