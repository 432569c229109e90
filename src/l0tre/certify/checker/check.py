"""Check a certificate without the code that made it: does it cover everything, and does every part of it hold?"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l0tre.certify.checker.certificate import (
    VERSION,
    AnyCertificate,
    Certificate,
    SetCertificate,
    domain_hash,
    image_hash,
)
from l0tre.certify.checker.cover import (
    Regions,
    Tree,
    cover_boxes,
    cover_cells,
    make_regions,
    make_tree,
    ranges,
    whole_ranges,
)
from l0tre.certify.checker.forward import make_forward, with_margins
from l0tre.certify.checker.listed import check_sets
from l0tre.certify.checker.listed_values import check_listed_values
from l0tre.certify.checker.margins import Bounder, lower_margins, make_bounder, own_margin
from l0tre.certify.checker.minimum import Boxes, Cells, Spread
from l0tre.domain import Domain
from l0tre.errors import CertificateError, DataError
from l0tre.model.confirm import check_points, differs
from l0tre.model.graph import Graph
from l0tre.model.network import Network
from l0tre.rules import Rules

__all__ = ["CheckResult", "check", "compare_graph", "spread_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_REGIONS = 2048  # bounded at once
# Bytes of one step that are of use: on a CPU more leaves the caches, and fresh pages cost more than the arithmetic.
USEFUL = {"cpu": 2**26, "cuda": 2**32}
COPIES = 12  # of a region's values that are held at a time
EXTRA = 64  # regions that the checker may make of one node
TOLERANCE = 0.25


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What a successful check found.

    Attributes:
        nodes: Parts of the certificate, all proved again: nodes, or leaves of trees and sets without one.
        boxes: Those of them that are confined to a box of values.
        radius: Number of groups that may change.
        label: The decision that stays.
        margin: Smallest lower bound of the margin that the checker itself found, in scores.
        splits: Regions that the checker had to split.
        seconds: How long it took.
    """

    nodes: int
    boxes: int
    radius: int
    label: int
    margin: float
    splits: int
    seconds: float

    def __repr__(self) -> str:
        facts = f"radius {self.radius}, label {self.label}, {self.nodes} nodes, margin {self.margin:.4g}"
        return f"CheckResult(valid: {facts})"


def check(
    certificate: AnyCertificate,
    network: Network,
    image: Tensor,
    domain: Domain,
    *,
    device: torch.device | str = "cpu",
    memory: int = 2**30,
    compare: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> CheckResult:
    """Establish that no change of at most ``radius`` groups in the domain changes the decision, or say why not.

    A certificate of sets must hold a whole tree for each set that it names; then each leaf and each other set is
    bounded again by other code than the prover's, see ``listed``; in domains with rules see ``listed_values``.

    The nodes of another one must partition all choices of groups and values, and each is bounded again by other code
    than the prover's, in float64 with round-off taken off; a node for which that is not enough is split, a bounded
    number of times. The stored bounds are no part of the proof. They are only compared, to find edited or mixed-up
    certificates; the prover may bound tighter, so they may be above the checker's by a quarter of its bound and of the
    margin at the image, and where they are further above, the node is split too.

    Args:
        certificate: What to check.
        network: The network, with a graph of operations.
        image: float32, of the domain's shape.
        domain: What may change.
        device: Where to bound.
        memory: Bytes that one step of bounding may take, approximately.
        compare: Whether to compare the graph with the source in float64 first; only who has just done so for the same
            network and domain may leave it out.
        progress: Called with the nodes done and the nodes in all.

    Returns:
        What was found.

    Raises:
        CertificateError: If anything does not hold; the message says what.
    """
    begin, device = time.perf_counter(), torch.device(device)
    graph = _check_subject(certificate, network, image, domain, compare=compare)
    useful = min(memory, USEFUL["cuda" if device.type == "cuda" else "cpu"])
    if isinstance(certificate, SetCertificate):
        told = progress or (lambda _, __: None)
        return _check_sets(certificate, graph, image, domain, device, useful, told, begin)
    _check_shapes(certificate, domain)
    tree = make_tree(certificate, domain.groups)
    bounder = make_bounder(graph, image.float(), domain, torch.from_numpy(tree.groups), device, useful)
    own = own_margin(bounder, certificate.label)
    if not own > 0:
        raise _not_decided(certificate, own)
    regions = make_regions(certificate, tree, domain)
    boxed = certificate.box >= 0
    cover_cells(tree, regions.cells, boxed)
    cover_boxes(tree, regions[boxed], domain)
    smallest, splits, done = math.inf, 0, 0
    for part in _batches(regions, tree, bounder):
        # cuDNN may convolve through transforms, whose round-off is not that of sums of products.
        with torch.backends.cudnn.flags(enabled=False):
            bounds, extra = _prove(part, tree, domain, bounder, certificate, own)
        smallest = min(smallest, float(bounds.min()))
        splits += int(extra.sum())
        done += len(part)
        if progress is not None:
            progress(done, len(regions))
    seconds = time.perf_counter() - begin
    return CheckResult(len(regions), int(boxed.sum()), certificate.radius, certificate.label, smallest, splits, seconds)


def _check_sets(
    certificate: SetCertificate,
    graph: Graph,
    image: Tensor,
    domain: Domain,
    device: torch.device,
    memory: int,
    progress: Callable[[int, int], None],
    begin: float,
) -> CheckResult:
    order = torch.arange(domain.groups)
    bounder = make_bounder(with_margins(graph, certificate.label), image.float(), domain, order, device, memory)
    forward = make_forward(bounder)
    own = float(forward.own_least.min())
    if not own > 0:
        raise _not_decided(certificate, own)
    trees, leaves = len(certificate.sets), len(certificate.depths)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        if isinstance(domain.rules, Rules):
            tally, parts = check_listed_values(certificate, graph, image, domain, device, memory, progress)
        else:
            tally = check_sets(certificate, forward, domain.groups, progress)
            parts = math.comb(domain.groups, certificate.radius) - trees + leaves
    seconds = time.perf_counter() - begin
    return CheckResult(parts, leaves, certificate.radius, certificate.label, tally.margin, tally.splits, seconds)


def _not_decided(certificate: AnyCertificate, own: float) -> CertificateError:
    return CertificateError(
        f"the network does not decide class {certificate.label} for this input (margin {own:.6g}): there is nothing to "
        "certify"
    )


def compare_graph(network: Network, images: Tensor, domain: Domain) -> None:
    """Compare the graph with the network's source in float64, on a few points of a domain.

    Raises:
        CertificateError: If they are not the same function.
    """
    reason = differs(network, check_points(*domain.box, images))
    if reason:
        raise CertificateError(f"the graph that is certified is not {network.name}: {reason}")


def _check_subject(
    certificate: AnyCertificate, network: Network, image: Tensor, domain: Domain, *, compare: bool
) -> Graph:
    """Is this certificate of a known form, and for this network, image and domain? Gives the network's graph."""
    if certificate.version != VERSION:
        raise CertificateError(f"the certificate has version {certificate.version}: this is a checker for {VERSION}")
    if network.exact is None:
        raise CertificateError(f"{network.name} has no graph of operations, so nothing can be proved: {network.note}")
    if not network.fingerprint or certificate.fingerprint != network.fingerprint:
        raise CertificateError(f"the certificate is for another network than {network.name}: check it with its own")
    if certificate.image_hash != image_hash(image):
        raise CertificateError("the certificate is for another input: check it with its own")
    if certificate.domain_hash != domain_hash(domain):
        raise CertificateError("the certificate is for another domain (groups, mask or ranges): check it with its own")
    if not 0 <= certificate.label < network.classes:
        raise CertificateError(f"the certificate has label {certificate.label}, there are {network.classes} classes")
    if not 1 <= certificate.radius <= domain.groups:
        raise CertificateError(
            f"the certificate has radius {certificate.radius}: expected 1 to {domain.groups}, the number of groups"
        )
    try:
        domain.check(image[None], (0,))
    except DataError as error:
        raise CertificateError(f"the input does not fit the domain: {error}") from error
    if compare:
        compare_graph(network, image[None], domain)
    return network.exact


def _check_shapes(certificate: Certificate, domain: Domain) -> None:
    nodes, radius, width = len(certificate.cells), certificate.radius, domain.members.shape[1]
    boxes = len(certificate.low)
    for name, kind, shape in (
        ("cells", np.integer, (nodes, radius)),
        ("box", np.integer, (nodes,)),
        ("bounds", np.floating, (nodes,)),
        ("low", np.floating, (boxes, radius, width)),
        ("high", np.floating, (boxes, radius, width)),
    ):
        array = getattr(certificate, name)
        if array.shape != shape or not np.issubdtype(array.dtype, kind):
            raise CertificateError(f"{name} of the certificate has shape {array.shape}, expected {shape}")
        if kind is np.floating and not np.isfinite(array).all():
            raise CertificateError(f"{name} of the certificate holds a number that is not finite")


def _batches(regions: Regions, tree: Tree, bounder: Bounder) -> Iterator[Regions]:
    """All regions, those of a kind together: single groups, then cells by size."""
    sizes = tree.count[regions.cells].max(1)
    place = np.lexsort((*regions.cells.T[::-1], sizes))
    step = max(1, min(MOST_REGIONS, 4 * bounder.memory // (8 * COPIES * bounder.values)))
    for kind in (place[sizes[place] == 1], place[sizes[place] > 1]):
        for start in range(0, len(kind), step):
            yield regions[kind[start : start + step]]


def _prove(
    regions: Regions, tree: Tree, domain: Domain, bounder: Bounder, certificate: Certificate, own: float
) -> tuple[Floats, Ints]:
    """Bound regions, and split those whose bound is not above 0 or far below the stored one.

    Args:
        regions: All of single groups, or none.
        tree: The tree of groups.
        domain: What may change.
        bounder: The network and the image.
        certificate: What the regions are from.
        own: The margin at the image.

    Returns:
        The smallest bound of each region's parts and the number of splits, ``[regions]`` each.

    Raises:
        CertificateError: If a region is not proved by as many parts as are allowed.
    """
    place = {owner: row for row, owner in enumerate(regions.owner.tolist())}
    smallest = np.full(len(regions), np.inf)
    splits, made = np.zeros((2, len(regions)), np.int64)
    pending = [regions]
    while pending:
        part = pending.pop()
        single = (tree.count[part.cells] == 1).all(1)
        if single.any() and not single.all():
            pending += [part[single], part[~single]]
            continue
        bounds = lower_margins(bounder, spread_of(part, tree, domain, bounder), certificate.label).cpu().numpy()
        stored = certificate.bounds[part.owner]
        most = bounds + TOLERANCE * (abs(bounds) + own) + 1e-6 * (1 + abs(bounds))
        proved = np.isfinite(bounds) & (bounds > 0) & (stored <= most)
        rows = np.array([place[owner] for owner in part.owner.tolist()], np.int64)
        np.minimum.at(smallest, rows[proved], bounds[proved])
        parts = []
        for failed in np.flatnonzero(~proved):
            row = rows[failed]
            parts.append(_split(part[failed : failed + 1], tree, domain))
            splits[row] += 1
            made[row] += len(parts[-1])
            if not len(parts[-1]) or made[row] > EXTRA:
                what = f"node {part.owner[failed]}, cells {regions.cells[row].tolist()},"
                where = f"in one of {made[row]} parts that it was split into"
                if bounds[failed] > 0:
                    raise CertificateError(
                        f"{what} is said to keep a margin of {stored[failed]:.6g}, the checker finds "
                        f"{bounds[failed]:.6g} {where}: the certificate was edited or belongs to something else"
                    )
                raise CertificateError(
                    f"{what} is not proved: the margin may be as small as {bounds[failed]:.6g} {where}"
                )
        if parts:
            whole = _joined(parts)
            pending.extend(whole[start : start + len(regions)] for start in range(0, len(whole), len(regions)))
    return smallest, splits


def _joined(parts: list[Regions]) -> Regions:
    columns = ([part.cells, part.low, part.high, part.owner] for part in parts)
    cells, low, high, owner = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Regions(cells, low, high, owner)


def _split(region: Regions, tree: Tree, domain: Domain) -> Regions:
    """Parts of one region: by halves of its largest cell, or of its widest range; none if that is too narrow."""
    cells, low, high = region.cells[0], region.low[0], region.high[0]
    cell = cells[tree.count[cells].argmax()]
    if tree.count[cell] == 1:
        place = np.unravel_index(int((high - low).argmax()), low.shape)
        middle = low[place] + (high[place] - low[place]) / 2
        if not low[place] < middle < high[place]:
            return region[:0]
        pair = region[[0, 0]]
        pair.high[0][place] = pair.low[1][place] = middle
        return pair
    inside = np.flatnonzero(cells == cell)
    first, second = tree.count[2 * cell], tree.count[2 * cell + 1]
    lefts = np.arange(max(0, len(inside) - second), min(len(inside), first) + 1)
    parts = np.repeat(cells[None], len(lefts), 0)
    parts[:, inside] = np.where(np.arange(len(inside)) < lefts[:, None], 2 * cell, 2 * cell + 1)
    return Regions(parts, *whole_ranges(tree, parts, domain), np.repeat(region.owner, len(parts)))


def spread_of(regions: Regions, tree: Tree, domain: Domain, bounder: Bounder) -> Spread:
    """Regions as the bounding code takes them; all of them of single groups, or none."""
    cells, image = regions.cells, bounder.own[0].flatten()
    size = tree.count[cells]
    if (size == 1).all():
        group = tree.groups[tree.start[cells]].reshape(-1)
        used = ranges(domain)[2][group].reshape(len(cells), -1)
        positions = np.where(used, domain.members.cpu().numpy()[group].reshape(used.shape), len(image))
        centre = np.append(image.cpu().numpy(), 0.0)[positions]
        ends = (np.where(used, end.reshape(used.shape) - centre, 0.0) for end in (regions.low, regions.high))
        return Boxes(*(torch.from_numpy(array).to(image.device) for array in (positions, *ends)))
    # A cell that is named twice is one range from which two groups are taken.
    repeated = np.diff(cells, axis=1, prepend=0) == 0
    count = np.where(repeated, 0, (cells[:, :, None] == cells[:, None]).sum(2))
    return Cells(*(torch.from_numpy(array).to(image.device) for array in (tree.start[cells], size, count)))
