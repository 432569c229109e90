"""Parts of a certificate as instances of VNN-LIB, for the verifiers of other people."""

import csv
import io
import math
import random
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from l0tre.api.inputs import Image, load_one
from l0tre.certify.checker.certificate import AnyCertificate, Certificate, SetCertificate, read_certificate
from l0tre.certify.checker.cover import make_regions, make_tree, ranges
from l0tre.certify.checker.minimum import make_scope
from l0tre.certify.checker.trees import cover_trees, leaf_boxes, sets_of
from l0tre.data.vnnlib import VnnlibProperty, write_vnnlib
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError
from l0tre.files import write_whole
from l0tre.model.network import Network
from l0tre.model.normalise import make_normalisation
from l0tre.model.sources import Source

__all__ = ["export_vnnlib"]

SECONDS = 300  # that the list of instances allows for each
MOST_PARTS = 10**6  # that are listed to draw a sample from

Floats = NDArray[np.float64]
Box = tuple[tuple[int, ...], Floats, Floats]  # positions of the values, their least and their largest


def export_vnnlib(
    certificate: str | Path | AnyCertificate,
    network: Source,
    image: Image,
    folder: str | Path,
    domain: Domain | None = None,
    *,
    sample: float = 1.0,
    seed: int = 0,
    onnx: str | None = None,
) -> int:
    """Write single boxes of a proof as instances that any verifier of networks can decide: all must be ``unsat``.

    Each file, ``0000.vnnlib`` and so on, is about one set of groups, or a part of their ranges; every other value is
    the image's. ``instances.csv`` lists them as competitions do: network, property, seconds. Inputs are those of the
    network's file, so the normalisation that it was loaded with is done to them; ends are rounded outwards then.

    Args:
        certificate: A file that :func:`l0tre.verify` wrote, or what :func:`l0tre.read_certificate` gives. Nothing is
            checked here.
        network: As for :func:`l0tre.check`.
        image: Likewise.
        folder: Where to write; made if it is not there.
        domain: What may change, as for :func:`l0tre.check`.
        sample: Share of the boxes, from 0 to 1, drawn at random; at least one.
        seed: Of the sample.
        onnx: The network's file in ``instances.csv``; default the one it was loaded from.

    Returns:
        How many were written.

    Raises:
        ConfigError: If the proof has parts that are no boxes, or too many parts.
        L0treError: If a file, the network or the image cannot be used.
    """
    if not 0 < sample <= 1:
        raise ConfigError(f"`sample` is {sample}: give a share above 0 and at most 1, such as 0.05")
    proof = certificate if isinstance(certificate, Certificate | SetCertificate) else read_certificate(certificate)
    net, data = load_one(network, image, None, "cpu")
    domain = (domain or make_domain(net.input_shape)).to(torch.device("cpu"))
    flat = data.images[0].double().flatten().numpy()
    boxes = _boxes_of_sets(proof, domain, flat) if isinstance(proof, SetCertificate) else _boxes_of_nodes(proof, domain)
    chosen = sorted(random.Random(seed).sample(range(len(boxes)), max(1, round(sample * len(boxes)))))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for number, place in enumerate(chosen):
        positions, low, high = boxes[place]
        ends = flat.copy(), flat.copy()
        for end, values in zip(ends, (low, high), strict=True):
            end[list(positions)] = values
        name = f"{number:04d}.vnnlib"
        remark = f"part {place} of {len(boxes)}: values {list(positions)} change"
        write_vnnlib(target / name, VnnlibProperty(*_file_units(net, *ends), proof.label, net.classes), remark)
        rows.writerow([onnx or net.origin.get("path", f"{net.name}.onnx"), name, SECONDS])
    write_whole(target / "instances.csv", lambda path: path.write_text(table.getvalue(), encoding="utf-8"))
    return len(chosen)


def _boxes_of_sets(proof: SetCertificate, domain: Domain, image: Floats) -> list[Box]:
    total = math.comb(domain.groups, proof.radius)
    if total + len(proof.depths) > MOST_PARTS:
        raise ConfigError(f"the proof has {total + len(proof.depths)} parts: at most {MOST_PARTS} are listed")
    rows, places = cover_trees(proof.sets, proof.depths, total)
    whole = np.setdiff1d(np.arange(total), proof.sets)
    numbers = np.concatenate([proof.sets[rows], whole])
    depths, places = (
        np.concatenate([x.astype(np.int64), np.zeros(len(whole), np.int64)]) for x in (proof.depths, places)
    )
    scope = make_scope(domain, torch.arange(domain.groups), torch.from_numpy(image))
    groups = sets_of(torch.from_numpy(numbers), domain.groups, proof.radius)
    low, high = leaf_boxes(scope, groups, torch.from_numpy(places), torch.from_numpy(depths))
    positions = scope.positions[groups].flatten(1).numpy()
    own = np.append(image, 0.0)[positions]
    ends = low.flatten(1).numpy() + own, high.flatten(1).numpy() + own
    real = positions < len(image)
    return [(tuple(p[used].tolist()), a[used], b[used]) for p, a, b, used in zip(positions, *ends, real, strict=True)]


def _boxes_of_nodes(proof: Certificate, domain: Domain) -> list[Box]:
    """The same for nodes of one group; a cell of several groups is a box for each."""
    if proof.radius > 1:
        raise ConfigError("a proof by cells for several changes has parts that are no boxes: only t = 1 can be written")
    tree = make_tree(proof, domain.groups)
    regions = make_regions(proof, tree, domain)
    least, most, used = ranges(domain)
    members, boxes = domain.members.numpy(), list[Box]()
    for cell, low, high in zip(regions.cells[:, 0], regions.low[:, 0], regions.high[:, 0], strict=True):
        groups = tree.groups[tree.start[cell] : tree.start[cell] + tree.count[cell]]
        alone = len(groups) == 1
        for group in groups.tolist():
            real = used[group]
            ends = (low, high) if alone else (least[group], most[group])
            boxes.append((tuple(members[group][real].tolist()), ends[0][real], ends[1][real]))
    return boxes


def _file_units(network: Network, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Inputs as the network's file takes them, after the normalisation that it was loaded with."""
    found = make_normalisation(network.origin.get("mean"), network.origin.get("std"), network.input_shape)
    if found is None:
        return low, high

    def moved(end: Floats, away: float) -> Floats:
        value = (end.reshape(network.input_shape) - found.mean.double().numpy()) / found.std.double().numpy()
        wide: Floats = np.nextafter(np.nextafter(value, away), away).flatten()
        return wide

    return moved(low, -math.inf), moved(high, math.inf)
