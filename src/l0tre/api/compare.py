"""Which of several networks is more robust on the same images, and whether that is certain."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from l0tre.api.evaluate import anytime
from l0tre.api.inputs import Images, Labels
from l0tre.api.load import load
from l0tre.api.runs import Watch, go_on, last_of
from l0tre.data import Dataset, from_arrays
from l0tre.domain import Domain
from l0tre.errors import ConfigError, DataError, StoreError
from l0tre.evaluation.results import Snapshot
from l0tre.evaluation.standings import Comparison, Pair, Split, Standing, compare_snapshots
from l0tre.figures.comparison import accuracy_and_robustness
from l0tre.figures.tables import write_csv, write_json
from l0tre.model.load import Source, knows_its_shape
from l0tre.model.network import Network
from l0tre.store.database import DATABASE

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
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Comparison:
    """Evaluate several networks on the same images and say which is more robust.

    Args:
        networks: What :func:`l0tre.load` takes, at least two; a mapping gives them names.
        images: As for :func:`l0tre.evaluate`.
        labels: As for :func:`l0tre.evaluate`.
        resize: Whether to resize the images to each network's height and width. Pixels then differ in size.
        device: Where to compute.
        out: A folder; every network has its run folder inside. ``None`` keeps nothing.
        resume: Go on with the runs in ``out``; finished ones are not repeated.
        time_budget: Seconds for each network; ``None`` for no limit.
        stop: Asked between two steps.
        options: Further arguments of :func:`l0tre.anytime`: ``max_t``, ``epsilon``, ``guarantee``, ...

    Returns:
        The comparison. It is about these images; nothing is claimed about others.

    Raises:
        L0treError: If anything given cannot be used.
    """
    sources = list(networks.values()) if isinstance(networks, Mapping) else list(networks)
    data = images if isinstance(images, Dataset) else from_arrays(images, labels)
    if isinstance(images, Dataset) and labels is not None:
        raise ConfigError("the data set has its own labels: give labels only with arrays")
    shape = tuple(data.images.shape[1:])
    loaded = [load(s, input_shape=None if knows_its_shape(s) else shape, device=device) for s in sources]
    names = list(networks) if isinstance(networks, Mapping) else name_networks(network.name for network in loaded)
    entrants = [Entrant(name, net, _fit(data, net, resize)) for name, net in zip(names, loaded, strict=True)]
    return compare_entrants(entrants, out=out, resume=resume, time_budget=time_budget, stop=stop, **options)


def compare_entrants(
    entrants: Sequence[Entrant],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    time_budget: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    watch: Watch = last_of,
    **options: Any,
) -> Comparison:
    """As :func:`compare`, for networks and images that are loaded already.

    Args:
        entrants: Networks of different names, each with the same images.
        out: As for :func:`compare`.
        resume: As for :func:`compare`.
        time_budget: As for :func:`compare`.
        stop: As for :func:`compare`.
        watch: Goes through the snapshots of each run, whose network's name comes first, and returns the last one.
        options: As for :func:`compare`.

    Returns:
        The comparison of the networks that were begun; with ``out`` it is written there too.
    """
    _check(entrants)
    folder = None if out is None else Path(out)
    if folder is not None and not resume:
        begun = [entrant.name for entrant in entrants if (folder / entrant.name / DATABASE).exists()]
        if begun:
            raise StoreError(f"{folder} holds runs already ({', '.join(begun)}): give --resume, or another --out")
    if folder is None and resume:
        raise ConfigError("there is nothing to resume without a folder: give the folder of the first call to --out")
    results: dict[str, Snapshot] = {}
    for entrant in entrants:
        if stop():
            break
        arguments = {**options, "domain": entrant.domain, "time_budget": time_budget, "stop": stop}
        try:
            if folder is None:
                snapshots = anytime(entrant.network, entrant.data, **arguments)
            else:
                snapshots = go_on(folder / entrant.name, entrant.network, entrant.data, **arguments)
        except DataError as error:
            raise DataError(f"{entrant.name}: {error}") from error
        results[entrant.name] = watch(entrant.name, snapshots)
    missing = tuple(entrant.name for entrant in entrants if entrant.name not in results)
    comparison = replace(compare_snapshots(results), missing=missing)
    if folder is not None and results:
        write_comparison(comparison, folder)
    return comparison


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


def _fit(data: Dataset, network: Network, resize: bool) -> Dataset:
    """The data in a network's own size."""
    fitted = from_arrays(data.images, data.labels, input_shape=network.input_shape, name=data.name, resize=resize)
    return replace(fitted, indices=data.indices)


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
        raise ConfigError("the networks were given different images: give the same images to all")
