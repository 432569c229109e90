"""Put a guarantee to the test: no lower bound may reach a known flip."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import l0tre
from fuzz.calibrate import Flip, Grid, Target
from fuzz.subjects import Subject
from fuzz.tally import Tally
from l0tre.evaluation.problem import GuaranteeWish
from l0tre.model.network import Network, margins

__all__ = ["MEMORY", "SECONDS", "Complaint", "Trial", "confirmed", "evaluated", "muted", "try_grid", "words"]

MEMORY = 2**26  # bytes: what is free on a machine must not decide what happens
SECONDS = 4.0  # for one run; what is not done by then is not compared


@dataclass(frozen=True)
class Complaint:
    """A proof that a known flip contradicts, or anything else that must not be: what noticed it, and what it is."""

    check: str
    text: str


@dataclass(frozen=True)
class Trial:
    """A calibrated network, loaded.

    Attributes:
        subject: Image and domain.
        target: The flips; all of them are ones for certain.
        network: What l0tre made of the source.
        tally: Counts what is compared.
        folder: For files.
    """

    subject: Subject
    target: Target
    network: Network
    tally: Tally
    folder: Path

    @property
    def nearest(self) -> int:
        """The fewest groups that are known to change the decision."""
        return min(len(flip.groups) for flip in self.target.flips)

    @property
    def most(self) -> int:
        """The most groups of a known flip."""
        return max(len(flip.groups) for flip in self.target.flips)

    def claim(self, lower: int, check: str) -> list[Complaint]:
        """Complain of a lower bound that a known flip contradicts."""
        self.tally.flips += len(self.target.flips)
        if lower > 0:
            self.tally.proved[check] += 1
        if lower < self.nearest:
            return []
        flip = min(self.target.flips, key=lambda flip: (len(flip.groups), flip.margin))
        return [Complaint(check, f"the lower bound is {lower}, {words(flip)}")]


def words(flip: Flip) -> str:
    """A flip in words that continue a sentence."""
    return f"but changing groups {list(flip.groups)} gives a margin of {flip.margin:.3g}"


def muted(network: Network, label: int) -> Network:
    """The network with a source that never confirms a witness, so that none can hide a wrong proof."""

    def reference(x: Tensor) -> Tensor:
        scores = torch.zeros(len(x), network.classes)
        scores[:, label] = 1.0
        return scores

    return replace(network, reference=reference)


def confirmed(network: Network, module: Callable[[Tensor], Tensor], target: Target) -> Target:
    """The target with those flips alone that both the loaded source and the module confirm, in float32."""
    flips = []
    label = torch.tensor([target.label])
    with torch.inference_mode():
        for flip in target.flips:
            x = torch.from_numpy(flip.x).float().reshape(1, *network.input_shape)
            found = [float(margins(source(x), label)[0]) for source in (network.reference, module)]
            if max(found) < 0:
                flips.append(replace(flip, margin=max(found)))
    return replace(target, flips=tuple(flips))


def evaluated(trial: Trial, network: Network, guarantee: GuaranteeWish, **options: Any) -> list[Complaint]:
    """Complaints about the lower bound of a whole run."""
    subject = trial.subject
    snapshot = l0tre.evaluate(
        network,
        subject.image[None],
        [trial.target.label],
        domain=subject.domain,
        max_t=trial.most,
        guarantee=guarantee,
        attack_queries=0,
        memory_bytes=MEMORY,
        time_budget=SECONDS,
        **options,
    )
    trial.tally.stopped += not snapshot.finished
    return trial.claim(snapshot.images[0].lower, guarantee)


def try_grid(trial: Trial, grid: Grid) -> list[Complaint]:
    """The guarantees ``grid`` and ``lipschitz``, whose search may ask the source about close points."""
    options = {"epsilon": grid.epsilon, "grid": grid.grid, "colours": grid.colours}
    return evaluated(trial, trial.network, cast("GuaranteeWish", trial.subject.guarantee), **options)
