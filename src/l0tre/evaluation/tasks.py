"""What is handed to a worker and what comes back: stages, tasks for some images, reports."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from l0tre.certify.proof import Proof
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.results import ImageBounds
from l0tre.exhaustive.progress import GridProgress
from l0tre.rules import Rules

__all__ = ["Report", "Stage", "Task", "stages_of"]


@dataclass(frozen=True)
class Stage:
    """What every image goes through, one stage after the other.

    Attributes:
        kind: ``sample`` (the real-time mode), ``look`` (single groups, for upper bounds alone), ``attack``, ``prove``,
            ``list`` (a proof under rules), ``exhaust`` (every grid point).
        t: Number of groups that change together.
    """

    kind: Literal["sample", "look", "attack", "prove", "list", "exhaust"]
    t: int = 1

    @property
    def together(self) -> bool:
        """Whether results depend on which images are treated together: blocks are cut when all images have come."""
        return self.kind == "attack"

    def has_work(self, bounds: ImageBounds) -> bool:
        """Whether a stage can gain anything for an image with such bounds."""
        if self.kind == "attack":
            return not bounds.attacked and not bounds.converged
        if self.kind in ("look", "sample"):
            return bounds.level < self.t
        is_open = bounds.level < self.t and bounds.upper > self.t
        # What is not proved for t - 1 is not for t: an image with a tie is out.
        return is_open and (self.kind == "exhaust" or bounds.lower == self.t - 1)


def stages_of(problem: Problem, *, cheap: bool) -> tuple[Stage, ...]:
    """The stages of an evaluation, in order.

    Trying every single group is for upper bounds alone. Where it costs far more than the attacks it comes last.

    Args:
        problem: What is evaluated.
        cheap: Whether trying every single group costs little.
    """
    settings = problem.settings
    levels = range(1, settings.max_t + 1)
    attack = (Stage("attack"),) if settings.attack_queries else ()
    if settings.sample_ms:
        return (Stage("sample", settings.max_t),)
    if settings.guarantee != "certified" or problem.network.thresholds is not None:
        return (*attack, *(Stage("exhaust", t) for t in levels))
    by_list = isinstance(problem.domain.rules, Rules)
    proofs = tuple(Stage("list" if by_list else "prove", t) for t in levels)
    look = Stage("look")
    return (look, *attack, *proofs) if cheap else (*attack, *proofs, look)


@dataclass(frozen=True)
class Task:
    """One stage for some images, and what is known of them.

    Attributes:
        stage: The stage.
        places: Of the images, in ``Problem.images``.
        bounds: Of each one.
        partials: Their positions inside a level, by place.
        proofs: Likewise how far their proofs have come.
        boxed: Those among them whose cells are too large to bound.
        told: The level of the last recorded step, ``None`` for none.
        turn: How many turns of a proof they had.
        turns: How many they get now; 0 for as many as it takes.
        seconds: After which a search other than a proof is left.
    """

    stage: Stage
    places: Sequence[int]
    bounds: Sequence[ImageBounds]
    partials: Mapping[int, GridProgress] = field(default_factory=dict)
    proofs: Mapping[int, Proof] = field(default_factory=dict)
    boxed: Set[int] = frozenset()
    told: int | None = None
    turn: int = 0
    turns: int = 0
    seconds: float = float("inf")


@dataclass(frozen=True)
class Report:
    """What a step of a task changed; the writer merges it, and nobody else changes a bound of the evaluation.

    Attributes:
        step: Which report of its task it is, from 0.
        places: Images that it may have changed.
        bounds: Of each one, as they are now.
        partials: By place the positions that are kept; none for the others of ``places``.
        proofs: Likewise.
        seconds: Work since the last report.
        t: The level at work.
        share: How much of it is done for the task's images, from 0 to 1.
        closed: What proofs closed, as ``(t, place, closed)``, see ``run_search.OnEvidence``.
        boxed: Images of the task whose cells are too large to bound.
        early: Whether the task ends here with work left.
    """

    step: int
    places: Sequence[int]
    bounds: Sequence[ImageBounds]
    partials: Mapping[int, GridProgress]
    proofs: Mapping[int, Proof]
    seconds: float
    t: int
    share: float
    closed: Sequence[tuple[int, int, object]] = ()
    boxed: Set[int] = frozenset()
    early: bool = False
