"""The checker: what it accepts is true, and it accepts nothing that was tampered with."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.certify.checker import check as check_module
from l0tre.certify.checker.certificate import Certificate, read_certificate, write_certificate
from l0tre.certify.checker.check import check
from l0tre.certify.checker.cover import make_tree
from l0tre.certify.checker.margins import make_bounder
from l0tre.domain import make_domain
from l0tre.errors import CertificateError
from l0tre.model.graph import Graph, GraphBuilder
from tests.certify.checker.cases import (
    KINDS,
    Case,
    accepted,
    as_network,
    certify,
    changed,
    grid_margin,
    make_case,
    refused,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("radius", [1, 2])
def test_honest_certificates_pass(kind: str, radius: int, tmp_path: Any) -> None:
    case = make_case(kind, 3, lead=4.0)
    made = certify(case, radius, radius)
    write_certificate(tmp_path / "c.zip", made)
    calls: list[tuple[int, int]] = []
    result = check(
        read_certificate(tmp_path / "c.zip"),
        case.network,
        case.image,
        case.domain,
        memory=2**16,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert (result.nodes, result.radius, result.label) == (len(made.cells), radius, case.label)
    assert result.boxes == len(made.low)
    assert 0 < result.margin <= grid_margin(case, radius, 3) + 1e-6
    assert calls[-1] == (result.nodes, result.nodes)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_whole_domain_in_one_node_and_masked_groups() -> None:
    mask = torch.tensor([[[True, False], [True, True]]] * 3)
    mask[0, 0, 0] = False  # a pixel with two of its three channels
    case = make_case("colour", 5, lead=6.0, mask=mask)
    assert sorted(case.domain.sizes.tolist()) == [2, 3, 3]
    for seed in range(3):
        accepted(certify(case, 2, seed, stop=1.0), case)
        accepted(certify(case, 3, seed), case)


@pytest.mark.family
@pytest.mark.parametrize("seed", range(12))
def test_what_is_accepted_is_true(seed: int) -> None:
    """Random networks near the edge: every certificate is complete, so only the bounds decide."""
    case = make_case(KINDS[seed % len(KINDS)], seed, lead=0.3 * (seed % 4))
    for radius in (1, 2):
        truth = grid_margin(case, radius, 3)
        try:
            result = accepted(certify(case, radius, seed), case)
        except CertificateError as error:
            reason, margin = str(error), truth
        else:
            reason, margin = "", result.margin
        assert not reason or "is not proved" in reason
        assert bool(reason) or 0 < margin <= truth + 1e-6


def test_splits_by_the_checker_prove_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate with one node for everything, which only splits can prove."""
    for seed in range(40):
        case = make_case("grey", seed, lead=0.8)
        made = certify(case, 2, seed, stop=1.0)
        try:
            result = accepted(made, case)
        except CertificateError:
            continue
        if result.splits:
            break
    else:
        pytest.fail("no network needs splits")
    assert result.margin <= grid_margin(case, 2, 3) + 1e-6
    monkeypatch.setattr(check_module, "EXTRA", 0)
    refused(made, case, "is not proved")


def planted(seed: int) -> Case:
    """Class 0 unless two certain pixels are both nearly 1: the sum exceeds 1.9 and the other class wins."""
    rng = np.random.default_rng(seed)
    pair = rng.permutation(6)[:2]
    builder = GraphBuilder((1, 3, 2))
    flat = builder.add("reshape", [0], shape=(6,))
    weight = torch.zeros(1, 6)
    weight[0, pair] = 1.0
    hidden = builder.add("relu", [builder.add("linear", [flat], {"weight": weight, "bias": torch.tensor([-1.9])})])
    out = {"weight": torch.tensor([[0.0], [100.0]]), "bias": torch.tensor([1.0, 0.0])}
    graph = builder.build(builder.add("linear", [hidden], out)).to("cpu")
    image = torch.zeros(1, 3, 2)
    return Case(as_network(graph, f"planted {seed}"), image, make_domain((1, 3, 2)), 0)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(0.05, 1.0))
@settings(max_examples=10, deadline=None)
def test_a_planted_flip_is_never_certified(seed: int, stop: float) -> None:
    case = planted(seed)
    accepted(certify(case, 1, seed, stop), case)
    whole = certify(case, 2, seed, max(stop, 0.3))
    refused(whole, case, "is not proved")
    for row in range(len(whole.cells)):  # the node that holds the flip may be any one: leave each of them out
        with pytest.raises(CertificateError):
            accepted(without(whole, row), case)


def without(certificate: Certificate, row: int) -> Certificate:
    """The certificate without a node, its boxes renumbered."""
    keep = np.arange(len(certificate.cells)) != row
    box, rows = certificate.box[keep], certificate.box[keep & (certificate.box >= 0)]
    return replace(
        certificate,
        cells=certificate.cells[keep],
        bounds=certificate.bounds[keep],
        box=np.where(box >= 0, np.cumsum(box >= 0) - 1, -1).astype(np.int32),
        low=certificate.low[rows],
        high=certificate.high[rows],
    )


CASE = make_case("colour", 3, lead=8.0)
WHOLE = certify(CASE, 2, 15, stop=0.25)


def test_the_certificate_to_tamper_with_has_every_kind_of_node() -> None:
    accepted(WHOLE, CASE)
    assert (WHOLE.box >= 0).sum() > 2
    assert (WHOLE.box < 0).sum() > 2


def duplicated(certificate: Certificate, row: int) -> Certificate:
    boxed = certificate.box[row] >= 0
    again = certificate.box[[row]]
    return replace(
        certificate,
        cells=np.concatenate([certificate.cells, certificate.cells[[row]]]),
        bounds=np.concatenate([certificate.bounds, certificate.bounds[[row]]]),
        box=np.append(certificate.box, len(certificate.low) if boxed else -1).astype(np.int32),
        low=np.concatenate([certificate.low, certificate.low[again]]) if boxed else certificate.low,
        high=np.concatenate([certificate.high, certificate.high[again]]) if boxed else certificate.high,
    )


@pytest.mark.parametrize("row", range(len(WHOLE.cells)))
def test_a_dropped_or_doubled_node_is_noticed(row: int) -> None:
    for wrong in (without(WHOLE, row), duplicated(WHOLE, row)):
        refused(wrong, CASE, "missing|covered|gaps|overlap")


def test_a_cell_replaced_by_its_child_or_parent_is_noticed() -> None:
    tried = 0
    for row, column in itertools.product(range(len(WHOLE.cells)), range(2)):
        cell = int(WHOLE.cells[row, column])
        for other in (2 * cell, 2 * cell + 1, cell // 2, cell ^ 1):
            cells = np.sort(changed(WHOLE.cells, (row, column), other), axis=1)
            wrong = replace(WHOLE, cells=cells)
            same = other < 2 * len(WHOLE.order) and same_groups(cell, other)
            if not same:
                refused(wrong, CASE, "cells|choices|boxes")
                tried += 1
    assert tried > 20


def same_groups(cell: int, other: int) -> bool:
    """Whether two cells hold the same groups, as a cell and its only filled half do."""
    tree = make_tree(WHOLE, CASE.domain.groups)
    return bool(tree.count[cell] == tree.count[other] and tree.start[cell] == tree.start[other])


@pytest.mark.slow
def test_every_moved_face_of_a_box_is_noticed() -> None:
    used = CASE.domain.members.shape[1]
    for row, group, column in itertools.product(range(len(WHOLE.low)), range(2), range(used)):
        place = (row, group, column)
        low, high = WHOLE.low[place], WHOLE.high[place]
        for name, value in (
            ("low", np.nextafter(low, 2)),
            ("low", np.nextafter(low, -2)),
            ("high", np.nextafter(high, 2)),
            ("high", np.nextafter(high, -2)),
            ("high", low),
            ("low", high + 1),
        ):
            wrong = replace(WHOLE, **{name: changed(getattr(WHOLE, name), place, value)})
            refused(wrong, CASE, "boxes|a box")


SINGLE = int((WHOLE.box >= 0).argmax())
MUTATIONS: dict[str, tuple[Callable[[Certificate], Certificate], str]] = {
    "version": (lambda c: replace(c, version=1), "version 1"),
    "network": (lambda c: replace(c, fingerprint="other"), "another network"),
    "image": (lambda c: replace(c, image_hash="0" * 64), "another input"),
    "domain": (lambda c: replace(c, domain_hash="0" * 64), "another domain"),
    "label": (lambda c: replace(c, label=(c.label + 1) % 3), "does not decide class"),
    "no such label": (lambda c: replace(c, label=3), "3 classes"),
    "radius": (lambda c: replace(c, radius=3), "shape"),
    "radius and cells": (
        lambda c: replace(c, radius=1, cells=c.cells[:, :1], low=c.low[:, :1], high=c.high[:, :1]),
        "choices|covered",
    ),
    "radius 0": (lambda c: replace(c, radius=0, cells=c.cells[:, :0]), "radius 0"),
    "no nodes": (
        lambda c: replace(c, cells=c.cells[:0], box=c.box[:0], bounds=c.bounds[:0], low=c.low[:0], high=c.high[:0]),
        "hold 0 choices",
    ),
    "order twice": (lambda c: replace(c, order=changed(c.order, c.order == 0, 1)), "once"),
    "order empty": (lambda c: replace(c, order=changed(c.order, c.order == 0, -1)), "once"),
    "order -2": (lambda c: replace(c, order=changed(c.order, c.order == 0, -2)), "once"),
    "depth": (lambda c: replace(c, depth=c.depth + 1), "depth"),
    "cell 0": (lambda c: replace(c, cells=changed(c.cells, (0, 0), 0)), "no such cell"),
    "cell beyond": (lambda c: replace(c, cells=changed(c.cells, (0, 1), 2 * len(c.order))), "no such cell"),
    "negative cell": (lambda c: replace(c, cells=changed(c.cells, (0, 0), -1)), "no such cell"),
    "cells turned round": (lambda c: replace(c, cells=np.ascontiguousarray(c.cells[:, ::-1])), "ascending"),
    "no box": (lambda c: replace(c, box=changed(c.box, SINGLE, -1)), "one node each"),
    "box -2": (lambda c: replace(c, box=changed(c.box, 0, -2)), "one node each"),
    "shared box": (lambda c: replace(c, box=changed(c.box, SINGLE, c.box.max())), "one node each"),
    "raised bound": (lambda c: replace(c, bounds=changed(c.bounds, 1, 50.0)), "is said to keep"),
    "bound NaN": (lambda c: replace(c, bounds=changed(c.bounds, 1, np.nan)), "not finite"),
    "bound infinite": (lambda c: replace(c, bounds=changed(c.bounds, 1, np.inf)), "not finite"),
    "face NaN": (lambda c: replace(c, low=changed(c.low, (0, 0, 0), np.nan)), "not finite"),
    "float cells": (lambda c: replace(c, cells=c.cells.astype(np.float64)), "cells"),
    "fewer bounds": (lambda c: replace(c, bounds=c.bounds[1:]), "bounds"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_refused(name: str) -> None:
    mutate, match = MUTATIONS[name]
    refused(mutate(WHOLE), CASE, match)


def test_swapped_groups_are_noticed_when_they_matter() -> None:
    """Another order is another partition: boxes of one group then stand for another."""
    case = make_case("colour", 3, lead=8.0, low=torch.zeros(3, 2, 2), high=torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    made = certify(case, 1, 15, stop=0.2)
    assert (made.box >= 0).any()
    swapped = made.order[::-1].copy()
    assert (swapped != made.order).any()
    with pytest.raises(CertificateError):
        accepted(replace(made, order=swapped), case)


def test_other_subjects_are_refused() -> None:
    other = make_case("colour", 4, lead=8.0)
    with pytest.raises(CertificateError, match="another network"):
        check(WHOLE, other.network, CASE.image, CASE.domain)
    with pytest.raises(CertificateError, match="another input"):
        check(WHOLE, CASE.network, other.image, CASE.domain)
    with pytest.raises(CertificateError, match="another domain"):
        check(WHOLE, CASE.network, CASE.image, make_domain((3, 2, 2), groups="feature"))
    with pytest.raises(CertificateError, match="no graph"):
        check(WHOLE, replace(CASE.network, exact=None, note="black box"), CASE.image, CASE.domain)
    nameless = replace(CASE.network, fingerprint="")
    with pytest.raises(CertificateError, match="another network"):
        check(replace(WHOLE, fingerprint=""), nameless, CASE.image, CASE.domain)
    outside = CASE.image + 1
    with pytest.raises(CertificateError, match="outside the domain"):
        accepted(certify(replace(CASE, image=outside), 1, 0), replace(CASE, image=outside))
    unknown = torch.full_like(CASE.image, math.nan)
    with pytest.raises(CertificateError):
        accepted(certify(replace(CASE, image=unknown), 1, 0), replace(CASE, image=unknown))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308])
def test_a_network_that_is_not_finite_is_refused(value: float) -> None:
    graph = CASE.network.exact
    assert graph is not None
    nodes = list(graph.operations)
    place = next(i for i, node in enumerate(nodes) if node.kind == "conv")
    weight = nodes[place].tensors["weight"].clone()
    weight[0, 0, 0, 0] = value
    nodes[place] = replace(nodes[place], tensors={**nodes[place].tensors, "weight": weight})
    odd = Graph(tuple(nodes))
    refused(WHOLE, replace(CASE, network=replace(CASE.network, exact=odd)), "different scores")
    order = torch.arange(CASE.domain.groups)
    with pytest.raises(CertificateError, match="not finite"):
        make_bounder(odd, CASE.image, CASE.domain, order, torch.device("cpu"), 2**20)


@pytest.mark.parametrize("op", ["mul", "softmax", "leaky_relu"])
def test_operations_without_lines_are_named(op: str) -> None:
    builder = GraphBuilder((5,))
    options: dict[str, dict[str, Any]] = {"mul": {}, "softmax": {"dim": 0}, "leaky_relu": {"slope": -0.1}}
    top = builder.add(op, [0, 0] if op == "mul" else [0], name="here", **options[op])
    graph = builder.build(builder.add("linear", [top], {"weight": torch.ones(2, 5)})).to("cpu")
    case = Case(as_network(graph), torch.rand(5), make_domain((5,)), 0)
    refused(certify(case, 1, 0), case, rf"{op} \(here\)")
