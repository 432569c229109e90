"""An evaluation problem: a network, inputs that it classifies correctly, and what may change in them."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from l0tre.certify.proof import ARITHMETIC
from l0tre.certify.relax.supported import unsupported
from l0tre.defaults import ATTACK_QUERIES
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError, DataError, ModelError
from l0tre.evaluation.results import Excluded, ImageBounds
from l0tre.evaluation.scope import EXACT_STEPS
from l0tre.evaluation.state import State
from l0tre.exhaustive.subsets import count_sets
from l0tre.grid import Colours, GridKind, make_grid
from l0tre.layout import noun
from l0tre.memory import Batcher, default_budget
from l0tre.model.confirm import check_points, differs
from l0tre.model.network import Network
from l0tre.objective import LabelMargin, Objective, Specification, specify
from l0tre.rules import Free, Rules
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["GuaranteeWish", "Problem", "Settings", "cannot_certify", "make_problem", "spacing", "start"]

GuaranteeWish = Literal["auto", "certified", "grid", "lipschitz"]
DEFAULT_POINTS = 5
LIPSCHITZ_MOST = 2  # groups that change together: beyond, the constants are too large to prove anything


@dataclass(frozen=True)
class Settings:
    """How an evaluation searches.

    Attributes:
        max_t: Largest number of groups that are changed together exhaustively.
        epsilon: Spacing of the grid, in the domain's units.
        grid: ``uniform`` (end points included, spacing at most ``epsilon``) or ``paper`` (the published code's).
        colours: ``grid`` (all combinations of a pixel's channel values) or ``corners`` (end points only).
        memory_bytes: Bytes that batches may take; 0 for a share of what is free.
        sample_ms: Milliseconds for each image in the real-time mode, which draws random subspaces and proves nothing; 0
            for the exhaustive search.
        seed: Of the random subspaces.
        guarantee: What the lower bounds hold for: ``certified`` (all real values, by linear relaxation and branch and
            bound), ``grid`` (the grid's values), ``lipschitz`` (all real values, by the grid and a Lipschitz bound),
            or ``auto``: certified if the network's operations can be bounded, else grid.
        attack_queries: Forward and backward passes for each image to look for closer adversarial inputs than the
            levels' own search gives (see ``l0tre.attacks``); 0 for none.
        points: So many grid points for each value instead of those that ``epsilon`` asks for; 0 for these.
    """

    max_t: int = 2
    epsilon: float = 0.25
    grid: GridKind = "uniform"
    colours: Colours = "grid"
    memory_bytes: int = 0
    sample_ms: float = 0.0
    seed: int = 0
    guarantee: GuaranteeWish = "auto"
    attack_queries: int = ATTACK_QUERIES
    points: int = 0

    def __post_init__(self) -> None:
        if self.max_t < 1:
            raise ConfigError(f"`max_t` is {self.max_t}: give 1 or more")
        if not 0 < self.epsilon <= 1e9:
            raise ConfigError(f"`epsilon` is {self.epsilon}: give a spacing above 0, for example 0.25")
        for name, kind in (("grid", GridKind), ("colours", Colours), ("guarantee", GuaranteeWish)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"`{name}` {getattr(self, name)!r} is unknown: give {' or '.join(get_args(kind))}")
        if not 0 <= self.sample_ms < 1e12:
            raise ConfigError(f"`sample_ms` is {self.sample_ms} milliseconds: give a time above 0, for example 100")
        if self.attack_queries < 0:
            raise ConfigError(f"`attack_queries` is {self.attack_queries} for each input: give 0 for none, or more")
        if self.points < 0 or self.points == 1:
            raise ConfigError(f"`points` is {self.points} for each value: give 2 or more, or 0 to go by `epsilon`")
        if self.memory_bytes < 0:
            raise ConfigError(
                f"`memory_bytes` is {self.memory_bytes} bytes: give a positive number, or 0 for a share of what is free"
            )


def spacing(domain: Domain | None, epsilon: float | None, points: int | None) -> dict[str, Any]:
    """The settings ``epsilon`` and ``points`` from what the user gave of them.

    One spacing does for values of one scale, such as pixels. For columns of a table it would mean thousands of points
    for one and two for another, so ranges wider than 1 get as many points as a range of 1 gets by default.
    """
    if epsilon is not None and points:
        raise ConfigError("`epsilon` and `points` both say how fine the grid is: give one of them")
    if points is not None or epsilon is not None:
        return {"epsilon": 0.25 if epsilon is None else epsilon, "points": points or 0}
    wide = domain is not None and bool(((domain.high - domain.low)[domain.members] > 1).any())
    return {"epsilon": 0.25, "points": DEFAULT_POINTS if wide else 0}


@dataclass(frozen=True)
class Problem:
    """What is evaluated. Tensors are on the network's device.

    Attributes:
        network: The classifier.
        images: float32 ``[images, values]``, the inputs that it classifies correctly, flattened.
        specification: What must hold of each image.
        indices: Position of each image in the user's data.
        excluded: Inputs that it does not classify correctly.
        domain: Groups and ranges.
        grid: float32 ``[groups, points, width]``.
        settings: How to search.
        config: All of this in words and numbers, for files.
        tuning: How much is done at a time; a matter of this process, so that no file has it.
    """

    network: Network
    images: Tensor
    specification: Specification
    indices: tuple[int, ...]
    excluded: tuple[Excluded, ...]
    domain: Domain
    grid: Tensor
    settings: Settings
    config: Mapping[str, Any]
    tuning: Tuning = DEFAULT_TUNING

    @property
    def labels(self) -> Tensor:
        """The class whose score must stay above its rivals', int64 ``[images]``."""
        return self.specification.labels

    @property
    def noun(self) -> str:
        """What an input is called: ``image``, ``row``, or ``input``."""
        return noun(self.domain.shape, named=bool(self.config.get("names", {}).get("features")))


def make_problem(
    network: Network,
    images: Tensor,
    labels: Tensor | None,
    *,
    indices: Sequence[int] | None = None,
    domain: Domain | None = None,
    settings: Settings | None = None,
    objective: Objective | None = None,
    extra_config: Mapping[str, Any] | None = None,
    tuning: Tuning = DEFAULT_TUNING,
    pulse: Callable[[], None] = lambda: None,
) -> Problem:
    """Check everything and set up an evaluation.

    Args:
        network: The classifier.
        images: float32 ``[images, *network.input_shape]``, in the domain.
        labels: int64 ``[images]``; ``None`` takes the network's own decisions.
        indices: Position of each image in the user's data; default 0, 1, 2, ...
        domain: What may change; default every pixel (image) or feature (vector) in [0, 1].
        settings: How to search.
        objective: What must not change; default the decision for the label.
        extra_config: More entries for ``config``, such as file names.
        tuning: How much is done at a time.
        pulse: Called before every point at which the graph is compared with the model, and before every batch of images
            that are classified; may raise ``Halted``.

    Returns:
        The problem, without the inputs that the network misclassifies.

    Raises:
        DataError: If images or labels cannot be used, or none is classified correctly.
        ModelError: If the network gives NaN for an image.
        ConfigError: If fewer than ``max_t`` groups may change.
    """
    settings = settings or Settings()
    settings = replace(settings, memory_bytes=settings.memory_bytes or default_budget(network.device))
    domain = domain or make_domain(network.input_shape)
    places = tuple(range(len(images)) if indices is None else indices)
    _check_inputs(network, images, labels, domain, places)
    if settings.max_t > domain.groups:
        raise ConfigError(
            f"`max_t` is {settings.max_t}, but only {domain.groups} {domain.unit}s may change: "
            f"give at most {domain.groups}"
        )
    settings, reason = _decide(network, settings, domain, images, pulse)
    if settings.guarantee != "certified":
        count_sets(domain.groups, settings.max_t)  # refuses a space that is too large to number
    scores = Batcher(network, settings.memory_bytes, tuning, pulse).run(len(images), lambda a, b: images[a:b])
    if not torch.isfinite(scores).all():
        bad = int((~torch.isfinite(scores)).any(1).nonzero()[0])
        raise ModelError(f"the network gives NaN or infinite scores for input {places[bad]}: check the model")
    predicted = scores.argmax(1)
    wanted = predicted if labels is None else labels.to(network.device)
    whole = network
    network, specification = specify(whole, objective or LabelMargin(), wanted)
    if network is not whole:  # a view has scores of its own
        scores = Batcher(network, settings.memory_bytes, tuning, pulse).run(len(images), lambda a, b: images[a:b])
        wanted, predicted = specification.labels, scores.argmax(1)
    correct = specification.margins(scores) > 0
    excluded = tuple(
        Excluded(places[i], int(wanted[i]), int(predicted[i])) for i in (~correct).nonzero()[:, 0].tolist()
    )
    if not bool(correct.any()):
        which = "the only input" if len(images) == 1 else f"all {len(images)} inputs"
        raise DataError(
            f"the network misclassifies {which}, so there is no radius: check that labels, order of the "
            "classes (`classes`), normalisation (`mean`, `std`) and scaling belong to this network"
        )
    on_device = domain.to(network.device)
    config = {
        "model": {
            "name": network.name,
            **network.origin,
            "fingerprint": network.fingerprint,
            "input_shape": list(network.input_shape),
            "classes": network.classes,
            **({"reading": network.reading} if network.reading else {}),
        },
        "domain": {"unit": domain.unit, "groups": domain.groups},
        "settings": asdict(settings),
        "guarantee": _describe(settings, reason, network),
        "device": str(network.device),
        "versions": _versions(),
        **(extra_config or {}),
    }
    return Problem(
        network,
        images.to(network.device).flatten(1)[correct],
        specification.pick(correct),
        tuple(places[i] for i in correct.nonzero()[:, 0].tolist()),
        excluded,
        on_device,
        _grid(network, domain, settings).to(network.device),
        settings,
        config,
        tuning,
    )


def start(problem: Problem) -> State:
    """The state before any work: the trivial bounds 0 and ``groups + 1``."""
    groups = problem.domain.groups
    settings = problem.settings
    guarantee = "sampled" if settings.sample_ms else settings.guarantee
    return State(
        [
            ImageBounds(index, label, groups, 0, groups + 1, guarantee)  # type: ignore[arg-type]  # never auto here
            for index, label in zip(problem.indices, problem.labels.tolist(), strict=True)
        ]
    )


def cannot_certify(network: Network) -> str:
    """Why nothing can be proved about a network for all real values; empty if it can."""
    return unsupported(network.exact) if network.exact is not None else network.note or "it has no graph"


def _decide(
    network: Network, settings: Settings, domain: Domain, images: Tensor, pulse: Callable[[], None]
) -> tuple[Settings, str]:
    """Settle the guarantee; the reason says why the network cannot be certified."""
    if settings.sample_ms or settings.guarantee == "grid":
        return replace(settings, guarantee="grid"), ""
    if network.thresholds is not None and settings.guarantee in ("auto", "certified"):
        single = domain.sizes == 1
        if isinstance(domain.rules, Rules):
            single |= domain.rules.counts > 0
        if bool(single.all()):
            return replace(settings, guarantee="certified"), ""
    if settings.guarantee == "lipschitz" and not isinstance(domain.rules, Free):
        raise ConfigError("the lipschitz guarantee is for ranges without lists, whole numbers and directions")
    # When it was loaded, the domain was not known.
    reason = cannot_certify(network) or differs(network, check_points(*domain.box, images), pulse)
    if not reason:
        wish: GuaranteeWish = "certified" if settings.guarantee == "auto" else settings.guarantee
        if wish == "lipschitz" and settings.max_t > LIPSCHITZ_MOST:
            raise ConfigError(
                f"`max_t` is {settings.max_t}, but the lipschitz guarantee is for at most {LIPSCHITZ_MOST} groups that "
                "change together: give a smaller `max_t`, or the certified guarantee"
            )
        return replace(settings, guarantee=wish), ""
    if settings.guarantee == "auto":
        return replace(settings, guarantee="grid"), f"{network.name} cannot be certified: {reason}"
    raise ModelError(
        f"{network.name} cannot have the {settings.guarantee} guarantee: {reason}. Use the grid guarantee "
        "(`guarantee='grid'`), which needs no operations"
    )


def _describe(settings: Settings, reason: str, network: Network) -> dict[str, str]:
    """The guarantee in the stored configuration: kind, soundness in floating point, why not a stronger one."""
    kind = "sampled" if settings.sample_ms else settings.guarantee
    arithmetic = {
        "certified": ARITHMETIC if network.thresholds is None else EXACT_STEPS,
        "lipschitz": "real arithmetic; margins at the grid's points less their float32 errors, or in float64",
        "grid": "float32 as the network's own source computes, ties left open",
        "sampled": "none",
    }
    return {"kind": kind, "arithmetic": arithmetic[kind], **({"note": reason} if reason else {})}


def _grid(network: Network, domain: Domain, settings: Settings) -> Tensor:
    by_thresholds = network.thresholds if settings.guarantee == "certified" else None
    colours = _colours(domain, settings)
    return make_grid(domain, settings.epsilon, settings.grid, colours, points=settings.points, thresholds=by_thresholds)


def _colours(domain: Domain, settings: Settings) -> Colours:
    """Proofs need the grid for upper bounds only: for pixels of several channels their corners do."""
    several = domain.members.shape[1] > 1
    return "corners" if settings.guarantee == "certified" and several else settings.colours


def _check_inputs(
    network: Network, images: Tensor, labels: Tensor | None, domain: Domain, places: tuple[int, ...]
) -> None:
    if len(images) == 0:
        raise DataError("there are no inputs to evaluate: the set is empty")
    if not torch.isfinite(images).all():
        bad = int((~torch.isfinite(images)).flatten(1).any(1).nonzero()[0])
        raise DataError(f"input {places[bad]} holds NaN or infinite values: clean the data first")
    if domain.shape != network.input_shape:
        raise ConfigError(f"the domain is for inputs of shape {domain.shape}, the network takes {network.input_shape}")
    domain.check(images, places)
    if labels is None:
        return
    if len(labels) != len(images):
        raise DataError(f"there are {len(images)} inputs and {len(labels)} labels: give one label for each")
    wrong = (labels < 0) | (labels >= network.classes)
    if wrong.any():
        bad = int(wrong.nonzero()[0])
        raise DataError(
            f"input {places[bad]} has the label {int(labels[bad])}, the network has classes 0 to {network.classes - 1}"
        )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("l0tre", "torch", "numpy", "onnx", "onnxruntime"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
