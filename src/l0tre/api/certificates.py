"""Certificates of what was proved: put together from a proof's closed parts, and kept in a run folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l0tre.certify.checker.certificate import (
    AnyCertificate,
    Certificate,
    make_certificate,
    make_set_certificate,
    write_certificate,
)
from l0tre.certify.proof import ARITHMETIC
from l0tre.certify.regions.leaves import ClosedNodes, ClosedSets, trees_of
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.regions.tree import make_tree
from l0tre.errors import ConfigError, warn
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.run_search import OnEvidence
from l0tre.files import write_whole
from l0tre.rules import Rules

__all__ = ["FOLDER", "certificate_of", "certificate_path", "keeper", "refuse_uncertified"]

FOLDER = "certificates"
TOO_LARGE = "its proof has too many parts to be kept (more than 8 million)"


def refuse_uncertified(problem: Problem) -> None:
    """Refuse certificates where proofs leave none.

    Raises:
        ConfigError: Naming the kind of proof.
    """
    if problem.settings.guarantee != "certified":
        why = problem.config["guarantee"].get("note", f"the guarantee is {problem.settings.guarantee}")
        raise ConfigError(f"there is no certificate without a certified proof ({why}): leave certificates out")
    if problem.network.thresholds is not None:
        raise ConfigError("certificates are for networks, not for ensembles of trees: leave them out")


def certificate_path(folder: Path, index: int, t: int) -> Path:
    """Where a run folder keeps the certificate of a level of an image."""
    return folder / FOLDER / f"{index:05d}-t{t}.l0cert"


def keeper(problem: Problem, folder: Path) -> OnEvidence:
    """What writes the certificate of every proved level into a run folder, before the level is recorded."""

    def keep(t: int, place: int, closed: object) -> None:
        index = problem.indices[place]
        path = certificate_path(folder, index, t)
        certificate = certificate_of(problem, place, t, closed)
        if certificate is None:
            path.unlink(missing_ok=True)
            warn(f"the level t = {t} of input {index} leaves no certificate: {TOO_LARGE}")
            return
        path.parent.mkdir(exist_ok=True)
        write_whole(path, lambda temporary: write_certificate(temporary, certificate))

    return keep


def certificate_of(
    problem: Problem, place: int, t: int, closed: object, about: Mapping[str, Any] | None = None
) -> AnyCertificate | None:
    """The certificate of a proved level.

    Args:
        problem: What was proved about.
        place: Of the image.
        t: The level.
        closed: What the proof closed, see ``certify.proof``.
        about: More remarks.

    Returns:
        The certificate; ``None`` if the proof is too large to be kept.
    """
    cpu = torch.device("cpu")
    domain, network = problem.domain.to(cpu), problem.network
    image, label = problem.images[place].cpu().reshape(domain.shape), int(problem.labels[place])
    remarks = {
        "model": network.name,
        "index": problem.indices[place],
        "unit": domain.unit,
        "versions": problem.config["versions"],
        **(about or {}),
    }
    if isinstance(domain.rules, Rules):
        closed = ClosedSets()  # the claim alone: the checker finds the changed inputs by itself
    if isinstance(closed, ClosedSets):
        sets, depths = trees_of(closed)
        return make_set_certificate(
            network,
            image,
            domain,
            label=label,
            radius=t,
            sets=sets,
            depths=depths,
            arithmetic=ARITHMETIC,
            about=remarks,
        )
    if not isinstance(closed, ClosedNodes):
        return None
    order = make_tree(domain, network.exact).order.numpy()
    return _of_nodes(
        closed,
        lambda **parts: make_certificate(
            network, image, domain, label=label, order=order, arithmetic=ARITHMETIC, about=remarks, **parts
        ),
    )


def _of_nodes(closed: ClosedNodes, make: Callable[..., Certificate]) -> Certificate:
    """Nodes of cells first, then those of boxes."""
    cells, bounds, low, high = [], [], [], []
    for boxes in (False, True):
        for nodes, certain in closed.parts:
            if isinstance(nodes, BoxNodes) != boxes:
                continue
            order = nodes.cells.argsort(dim=1, stable=True)
            cells.append(nodes.cells.gather(1, order))
            bounds.append(certain)
            if isinstance(nodes, BoxNodes):
                wide = order[:, :, None].expand_as(nodes.low)
                low.append(nodes.low.gather(1, wide))
                high.append(nodes.high.gather(1, wide))
    boxed = sum(len(values) for values in low)
    total = sum(len(numbers) for numbers in cells)
    return make(
        cells=torch.cat(cells).numpy(),
        bounds=torch.cat(bounds).numpy(),
        box=np.concatenate([np.full(total - boxed, -1), np.arange(boxed)]),
        low=torch.cat(low).numpy() if low else None,
        high=torch.cat(high).numpy() if high else None,
    )
