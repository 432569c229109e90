"""One case from a seed: draw, calibrate, load, compare."""

import random
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fuzz.calibrate import Target, calibrate, draw_grid
from fuzz.compare import Complaint, Trial, confirmed, try_grid
from fuzz.proofs import try_certified
from fuzz.sources import OPSETS, UnwritableError, as_module, load, normalised
from fuzz.subjects import Subject, make_subject
from fuzz.tally import Tally
from l0tre.errors import DataError, L0treError
from l0tre.model.network import Network

__all__ = ["Result", "Tamper", "run_case"]

Tamper = Callable[[Network, Target], Network]


@dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
        subject: What it was about.
        outcome: ``tested``, or why it was not.
        complaints: What is wrong; nothing if all is well.
    """

    subject: Subject
    outcome: str
    complaints: tuple[Complaint, ...] = ()


def run_case(seed: int, tally: Tally, *, only: Collection[str] = (), tamper: Tamper | None = None) -> Result:
    """Run the case of a seed.

    Args:
        seed: Decides everything.
        tally: Counts.
        only: See ``make_subject``.
        tamper: Puts a mistake into the loaded network, to see whether it is noticed.

    Returns:
        What became of it.
    """
    torch.manual_seed(seed)
    tally.cases += 1
    subject = make_subject(seed, only)
    grid = draw_grid(subject)
    target = calibrate(subject, grid)
    if target is None:
        tally.skipped["the scores hardly depend on the groups"] += 1
        return Result(subject, "skipped")
    with tempfile.TemporaryDirectory() as folder:
        opset = random.Random(seed).choice(OPSETS)
        try:
            network, operators = load(target.net, subject.normalisation, subject.source, Path(folder), opset)
            if tamper is not None:
                network = tamper(network, target)
            if subject.guarantee == "grid":
                target = confirmed(network, _by_module(subject, target), target)
            if not target.flips:
                tally.skipped["no flip is one in float32"] += 1
                return Result(subject, "skipped")
            trial = Trial(subject, target, network, tally, Path(folder))
            complaints = try_certified(trial) if subject.guarantee == "certified" else try_grid(trial, grid)
        except UnwritableError:
            tally.skipped["torch cannot write it"] += 1
            return Result(subject, "skipped")
        except DataError:
            tally.skipped["float32 decides otherwise at the image itself"] += 1
            return Result(subject, "skipped")
        except L0treError as error:
            tally.refuse(error)
            complaints = [Complaint("a report", str(error))] if "please report" in str(error) else []
            return Result(subject, "refused", tuple(complaints))
    tally.guarantees[subject.guarantee] += 1
    tally.sources[subject.source] += 1
    tally.ideas.update(set(subject.ideas))
    tally.operators.update(operators)
    if network.graph is not None:
        tally.operations.update({operation.kind for operation in network.graph.operations[1:]})
    end = subject.net.ops[-1].kind
    tally.operations.update({end} & {"softmax", "log_softmax"})
    return Result(subject, "tested", tuple(complaints))


def _by_module(subject: Subject, target: Target) -> Callable[[Tensor], Tensor]:
    module = as_module(target.net)
    return lambda x: module(normalised(subject.normalisation, x))
