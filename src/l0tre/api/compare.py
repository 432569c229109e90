"""Which of several networks is more robust on the same images, and whether that is certain."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from l0tre.api.clusters import ClusterChoice, shared_session
from l0tre.api.evaluate import begin
from l0tre.api.inputs import Images, Labels, agree, reader
from l0tre.api.runs import Watch, go_on, last_of
from l0tre.data import Dataset
from l0tre.defaults import ATTACK_QUERIES
from l0tre.domain import Domain
from l0tre.errors import ConfigError, DataError, StoreError
from l0tre.evaluation.problem import GuaranteeWish, Settings, spacing
from l0tre.evaluation.results import Snapshot
from l0tre.evaluation.standings import Comparison, Pair, Split, Standing, compare_snapshots
from l0tre.figures.comparison import accuracy_and_robustness
from l0tre.figures.tables import write_csv, write_json
from l0tre.grid import Colours, GridKind
from l0tre.model.network import Network
from l0tre.model.sources import Source
from l0tre.store import DATABASE

__all__ = [
    "Comparison",
    "Entrant",
    "Pair",
    "Split",
    "Standing",
    "compare",
    "compare_entrants",
    "compare_snapshots",
    "name_networks",
    "write_comparison",
]


@dataclass(frozen=True)
class Entrant:
    """A network with the images in its own size, and what may change in them (``None``: all pixels, in [0, 1])."""

    name: str
    network: Network
    data: Dataset
    domain: Domain | None = None


def compare(
    networks: Sequence[Source] | Mapping[str, Source],
    images: Images,
    labels: Labels = None,
    *,
    resize: bool = False,
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
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Evaluate several networks on the same images and say which is more robust.

    Args:
        networks: What :func:`l0tre.load` takes, at least two; a mapping gives them names.
        images: As for :func:`l0tre.evaluate`.
        labels: As for :func:`l0tre.evaluate`.
        resize: Whether to resize the images to each network's height and width. Pixels then differ in size.
        max_t: As for :func:`l0tre.evaluate`, likewise all that follow up to ``memory_bytes``.
        guarantee: What the lower bounds hold for.
        epsilon: Spacing of the grid, in the domain's units.
        points: Grid points of each value instead.
        grid: Kind of grid.
        colours: Values of a pixel with several channels.
        domain: What may change, for networks that all take inputs of its shape.
        attack_queries: Forward and backward passes of the attack on each image.
        sample_ms: Milliseconds for each image in the real-time mode.
        seed: Of the attack and of the random subspaces.
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
        device: Where to compute.
        cluster: Who does the work, as for :func:`evaluate`.
        time_budget: Seconds for each network; ``None`` for no limit.
        out: A folder; every network has its run folder inside. ``None`` keeps nothing.
        resume: Go on with the runs in ``out``; finished ones are not repeated.
        stop: Asked in every step; a yes ends the work after that step.

    Returns:
        The comparison. It is about these images; nothing is claimed about others.

    Raises:
        L0treError: If anything given cannot be used.
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
    sources = list(networks.values()) if isinstance(networks, Mapping) else list(networks)
    read = reader(images, labels, resize=resize, domain=domain)
    pairs = [agree(source, read, device=device) for source in sources]
    names = list(networks) if isinstance(networks, Mapping) else name_networks(network.name for network, _ in pairs)
    entrants = [Entrant(name, network, data, domain) for name, (network, data) in zip(names, pairs, strict=True)]
    return compare_entrants(
        entrants, settings, out=out, resume=resume, cluster=cluster, time_budget=time_budget, stop=stop
    )


def compare_entrants(
    entrants: Sequence[Entrant],
    settings: Settings,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    cluster: ClusterChoice = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    watch: Watch = last_of,
) -> Comparison:
    """As :func:`compare`, for networks and images that are loaded already.

    Args:
        entrants: Networks of different names, each with the same images.
        settings: How to search.
        out: As for :func:`compare`.
        resume: As for :func:`compare`.
        cluster: As for :func:`compare`.
        time_budget: As for :func:`compare`.
        stop: As for :func:`compare`.
        watch: Goes through the snapshots of each run, whose network's name comes first, and returns the last one.

    Returns:
        The comparison of the networks that were begun; with ``out`` it is written there too.
    """
    _check(entrants)
    folder = None if out is None else Path(out)
    if folder is not None and not resume:
        begun = [entrant.name for entrant in entrants if (folder / entrant.name / DATABASE).exists()]
        if begun:
            raise StoreError(f"{folder} holds runs already ({', '.join(begun)}): give `resume=True`, or another `out`")
    if folder is None and resume:
        raise ConfigError("there is nothing to resume without a folder: give the folder of the first call as `out`")
    results: dict[str, Snapshot] = {}
    with shared_session(cluster):
        for entrant in entrants:
            if stop():
                break
            try:
                snapshots = _run(entrant, settings, folder, cluster, time_budget, stop)
            except DataError as error:
                raise DataError(f"{entrant.name}: {error}") from error
            results[entrant.name] = watch(entrant.name, snapshots)
    missing = tuple(entrant.name for entrant in entrants if entrant.name not in results)
    comparison = replace(compare_snapshots(results), missing=missing)
    if folder is not None and results:
        write_comparison(comparison, folder)
    return comparison


def _run(
    entrant: Entrant,
    settings: Settings,
    folder: Path | None,
    cluster: ClusterChoice,
    time_budget: float | None,
    stop: Callable[[], bool],
) -> Iterator[Snapshot]:
    """The snapshots of one network's evaluation."""
    network, data, domain = entrant.network, entrant.data, entrant.domain
    if folder is None:
        return begin(
            network, data, settings=settings, domain=domain, cluster=cluster, time_budget=time_budget, stop=stop
        )
    place = folder / entrant.name
    return go_on(place, network, data, settings, domain=domain, cluster=cluster, time_budget=time_budget, stop=stop)


def write_comparison(comparison: Comparison, folder: Path, name: str = "comparison") -> tuple[Path, ...]:
    """Write ``NAME.json``, ``NAME.csv``, ``NAME-pairs.csv``, ``NAME-splits.csv`` and, with matplotlib, ``NAME.png``.

    Args:
        comparison: What to write.
        folder: Where to.
        name: How the files begin.

    Returns:
        The files written.
    """
    rows = [
        {
            **{key: value for key, value in asdict(standing).items() if not isinstance(value, tuple)},
            "misclassified": len(standing.misclassified),
            "radius_low": standing.radius[0],
            "radius_high": standing.radius[1],
        }
        for standing in comparison.standings
    ]
    pairs = [
        {
            **{key: value for key, value in asdict(pair).items() if not isinstance(value, tuple)},
            **{
                f"{key}_{end}": value
                for key in ("first_radius", "second_radius", "difference")
                for end, value in zip(("low", "high"), getattr(pair, key), strict=True)
            },
            "overlap": pair.overlap,
        }
        for pair in comparison.pairs
    ]
    splits = [
        {
            "first": pair.first,
            "second": pair.second,
            "t": split.t,
            "only_first_fooled": split.first,
            "only_second_fooled": split.second,
            "unknown": split.unknown,
            "chance": split.chance,
            "scope": split.scope,
        }
        for pair in comparison.pairs
        for split in pair.splits
    ]
    return (
        write_json(folder / f"{name}.json", comparison.to_dict()),
        write_csv(folder / f"{name}-pairs.csv", pairs),
        write_csv(folder / f"{name}-splits.csv", splits),
        *accuracy_and_robustness(rows, folder / name),
    )


def name_networks(names: Iterable[str]) -> list[str]:
    """Short names that can be folders: files without folder and suffix, numbered where two are the same."""
    found: list[str] = []
    for name in names:
        tail = name.rpartition(":")[2] if ":" in name else Path(name).name
        plain = re.sub(r"\.(onnx|pt2)$", "", tail)
        short = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip(".-") or "network"
        number = next(n for n in itertools.count(1) if (short if n == 1 else f"{short}-{n}") not in found)
        found.append(short if number == 1 else f"{short}-{number}")
    return found


def _check(entrants: Sequence[Entrant]) -> None:
    if len(entrants) < 2:
        raise ConfigError(f"{len(entrants)} network was given: give at least two to compare")
    names = [entrant.name for entrant in entrants]
    bad = [name for name in names if names.count(name) > 1 or re.fullmatch(r"[A-Za-z0-9._-]*\w", name) is None]
    if bad:
        raise ConfigError(
            f"the name {bad[0]!r} cannot be used: give each network its own name of letters, digits, . _ -"
        )
    if len({entrant.data.indices for entrant in entrants}) > 1:
        raise ConfigError("the networks were given different inputs: give the same inputs to all")
