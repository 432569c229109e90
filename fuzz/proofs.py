"""Put certified proofs to the test: whole runs, searches, parts of the search space around flips, certificates."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import l0tre
from fuzz.calibrate import Flip
from fuzz.compare import MEMORY, SECONDS, Complaint, Trial, evaluated, muted, words
from fuzz.regions import Space, box_nodes, cell_nodes, held
from l0tre.certify.boxes.margin_errors import proved
from l0tre.certify.cells.cell_search import CellSearch
from l0tre.certify.checker.certificate import make_certificate
from l0tre.certify.checker.check import spread_of
from l0tre.certify.checker.clusters import box_margins
from l0tre.certify.checker.cover import make_regions
from l0tre.certify.checker.cover import make_tree as make_checked_tree
from l0tre.certify.checker.forward import make_forward, with_margins
from l0tre.certify.checker.margins import lower_margins, make_bounder
from l0tre.certify.prover import Prover, make_prover
from l0tre.certify.regions.leaves import ClosedNodes
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes
from l0tre.certify.relax.bounds import bound
from l0tre.errors import CertificateError
from l0tre.evaluation.driver import drive
from l0tre.evaluation.problem import Settings, make_problem, start
from l0tre.memory import Batcher
from l0tre.objective import AllRivals, Specification

__all__ = ["try_certified"]

CPU = torch.device("cpu")
WORK = 400  # operations times steps that a search goes on for, whatever it finds
PROBED = 6  # flips whose surroundings are bounded


def try_certified(trial: Trial) -> list[Complaint]:
    """Everything that is proved for all real values."""
    trial = replace(trial, network=muted(trial.network, trial.target.label))
    complaints = evaluated(trial, trial.network, "certified")
    prover = make_prover(trial.network, trial.subject.domain, Batcher(trial.network, MEMORY), MEMORY)
    space = Space(prover.tree, trial.subject.domain, trial.subject.image)
    lower, found = _route(trial)
    complaints += [*_look(trial, space, found, "parts of a run"), *trial.claim(lower, "certified by cells")]
    for t in sorted({len(flip.groups) for flip in trial.target.flips}):
        flips = [flip for flip in trial.target.flips if len(flip.groups) == t][:PROBED]
        search = prover.search_cells(t, *_image(trial), [None])
        complaints += _look(trial, space, _walk(search), "parts of a search")
        complaints += _probe_prover(trial, space, search, flips, t)
        if prover.can_use_boxes(t):
            trial.tally.clustered += 1
            complaints += _probe_clusters(trial, prover, space, flips, t)
        complaints += _probe_checker(trial, space, flips, t)
    return complaints + (_certificate(trial, lower) if lower else [])


def _image(trial: Trial) -> tuple[Tensor, Specification]:
    return trial.subject.image.flatten()[None], AllRivals(torch.tensor([trial.target.label]))


def _route(trial: Trial) -> tuple[int, list[Nodes]]:
    """The lower bound of a run, and every node that it proved on the way."""
    subject = trial.subject
    settings = Settings(max_t=trial.most, guarantee="certified", attack_queries=0, memory_bytes=MEMORY)
    labels = torch.tensor([trial.target.label])
    problem = make_problem(trial.network, subject.image[None], labels, domain=subject.domain, settings=settings)
    found: list[Nodes] = []
    lower = 0

    def keep(_t: int, _image: int, closed: object) -> None:
        if isinstance(closed, ClosedNodes):
            found.extend(nodes for nodes, _ in closed.parts)

    steps = drive(problem, start(problem), time_budget=SECONDS, on_evidence=keep)
    for snapshot in steps:
        lower = snapshot.images[0].lower
    return lower, found


def _walk(search: CellSearch) -> list[Nodes]:
    """What a search proves if nothing that it finds stops it."""
    found = []
    for _ in range(max(4, WORK // len(search.instance.plan.graph.operations))):
        if not search.open():
            break
        found.append(search.step().proved)
    return found


def _look(trial: Trial, space: Space, parts: Sequence[Nodes], check: str) -> list[Complaint]:
    """Complain of proved nodes that hold a flip."""
    for nodes in parts:
        trial.tally.parts += len(nodes)
        for row, flip in held(space, nodes, trial.target.flips):
            return [Complaint(check, f"the cells {nodes.cells[row].tolist()} are proved, {words(flip)}")]
    return []


def _around(space: Space, flips: Sequence[Flip], t: int) -> list[Nodes]:
    """Parts of the search space that all hold a flip: boxes, and cells where groups are not alone."""
    return [nodes for nodes in (box_nodes(space, flips, t), cell_nodes(space, flips, t)) if nodes is not None]


def _probe_prover(trial: Trial, space: Space, search: CellSearch, flips: Sequence[Flip], t: int) -> list[Complaint]:
    for nodes in _around(space, flips, t):
        trial.tally.probes += len(nodes)
        with torch.inference_mode():
            proved = bound(search.instance, nodes, search.row_bytes).proved
        if bool(proved.any()):
            return [_complaint("prover's bounds", space, nodes.pick(proved), flips)]
    return []


def _probe_clusters(trial: Trial, prover: Prover, space: Space, flips: Sequence[Flip], t: int) -> list[Complaint]:
    nodes = box_nodes(space, flips, t)
    if nodes is None:
        return []
    for share in (1.0, 0.0):  # in windows where there are any, and by forms of whole layers
        trial.tally.probes += len(nodes)
        tuned = replace(prover, tuning=replace(prover.tuning, meeting_share=share))
        bounder = tuned.search_boxes(t, *_image(trial), [None]).bounder
        with torch.inference_mode():
            safe = proved(bounder.bound(nodes)[0])
        if bool(safe.any()):
            return [_complaint(f"{type(bounder).__name__}'s bounds", space, nodes.pick(safe), flips)]
    return []


def _complaint(check: str, space: Space, nodes: Nodes, flips: Sequence[Flip]) -> Complaint:
    row, flip = next(held(space, nodes, flips))
    kind = "the cells" if isinstance(nodes, CellNodes) else "a box of the cells"
    return Complaint(check, f"{kind} {nodes.cells[row].tolist()} can be proved, {words(flip)}")


def _probe_checker(trial: Trial, space: Space, flips: Sequence[Flip], t: int) -> list[Complaint]:
    """Bound parts around flips with the checker's own code."""
    for nodes in _around(space, flips, t):
        trial.tally.probes += len(nodes)
        try:
            proved, ordered = _checked(trial, space, nodes)
            if bool(proved.any()):
                return [_complaint("checker's bounds", space, ordered.pick(proved), flips)]
            if isinstance(nodes, BoxNodes):
                proved = _checked_by_forms(trial, space, nodes)
                if bool(proved.any()):
                    return [_complaint("checker's forms", space, nodes.pick(proved), flips)]
        except CertificateError:  # the network has numbers that the checker does not take
            return []
    return []


def _checked(trial: Trial, space: Space, nodes: Nodes) -> tuple[Tensor, Nodes]:
    """Which nodes the checker proves, and the nodes in the order of a certificate, which sorts them."""
    assert trial.network.exact is not None
    domain, label, image = trial.subject.domain, trial.target.label, trial.subject.image
    low, high = (nodes.low.numpy(), nodes.high.numpy()) if isinstance(nodes, BoxNodes) else (None, None)
    certificate = make_certificate(
        trial.network,
        image,
        domain,
        label=label,
        order=space.tree.order.numpy(),
        cells=nodes.cells.numpy(),
        bounds=np.zeros(len(nodes)),
        arithmetic="",
        box=None if low is None else np.arange(len(nodes)),
        low=low,
        high=high,
    )
    tree = make_checked_tree(certificate, domain.groups)
    regions = make_regions(certificate, tree, domain)
    bounder = make_bounder(trial.network.exact, image, domain, torch.from_numpy(tree.groups), CPU, MEMORY)
    found = lower_margins(bounder, spread_of(regions, tree, domain, bounder), label)
    proved, cells = torch.isfinite(found) & (found > 0), torch.from_numpy(regions.cells)
    if low is None:
        return proved, CellNodes(nodes.image, cells)
    least, most = (torch.from_numpy(end) for end in (regions.low, regions.high))
    return proved, BoxNodes(nodes.image, cells, least, most, torch.zeros_like(nodes.image))


def _checked_by_forms(trial: Trial, space: Space, nodes: BoxNodes) -> Tensor:
    """Which boxes the checker proves by bounds carried forwards."""
    assert trial.network.exact is not None
    domain = trial.subject.domain
    graph, order = with_margins(trial.network.exact, trial.target.label), torch.arange(domain.groups)
    bounder = make_bounder(graph, trial.subject.image, domain, order, CPU, MEMORY)
    forward = make_forward(bounder)
    groups = space.tree.order[nodes.cells - space.tree.slots]
    place = bounder.scope.positions[groups]
    own = torch.nn.functional.pad(bounder.own[0].flatten(), (0, 1))[place]
    real = place < len(bounder.scope.low) - 1
    low, high = ((end - own).where(real, 0.0) for end in (nodes.low, nodes.high))
    return box_margins(forward, groups, low, high) > 0


def _certificate(trial: Trial, radius: int) -> list[Complaint]:
    """Write a proof to a file and check it; where a flip is inside, the checker must not accept it."""
    subject, path = trial.subject, trial.folder / "proof.l0cert"
    verdict = l0tre.verify(
        trial.network,
        subject.image,
        trial.target.label,
        radius=radius,
        domain=subject.domain,
        certificate=path,
        time_budget=SECONDS,
        memory_bytes=MEMORY,
        guarantee="certified",
    )
    if verdict.answer != "safe":
        trial.tally.certificates["none written"] += 1
        return []
    try:
        l0tre.check(l0tre.read_certificate(path), trial.network, subject.image, subject.domain)
    except CertificateError:
        trial.tally.certificates["not confirmed"] += 1
        return []
    trial.tally.certificates["confirmed"] += 1
    return trial.claim(radius, "accepted certificate")
