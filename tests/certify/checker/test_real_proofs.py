"""Certificates of the prover that goes by cells: the checker accepts them, and none that was tampered with."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import l0tre
from l0tre.certify.checker.certificate import Certificate, read_certificate
from l0tre.certify.checker.check import CheckResult, check
from l0tre.certify.checker.cover import make_tree
from l0tre.domain import make_domain
from l0tre.errors import CertificateError
from l0tre.model.graph import run
from tests.certify.checker.cases import changed
from tests.certify.checker.test_check import duplicated, without
from tests.certify.random_networks import Case, random_case

# Seed 16 with two groups takes the prover a minute.
CASES = [(seed, radius) for seed, radius in itertools.product(range(30), (1, 2)) if (seed, radius) != (16, 2)]


@cache
def proof(seed: int, radius: int) -> Certificate | None:
    """What the prover writes; ``None`` if the case is not safe."""
    case = random_case(seed)
    if radius > case.domain.groups:
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "proof.zip"
        verdict = l0tre.verify(
            case.network,
            case.image,
            case.label,
            radius=radius,
            domain=case.domain,
            certificate=path,
            tuning=l0tre.Tuning(box_sets=0),
        )
        assert verdict.answer in ("safe", "unsafe")
        if verdict.answer == "unsafe":
            return None
        made = read_certificate(path)
        assert isinstance(made, Certificate)
        return made


def accepted(made: Certificate, case: Case) -> CheckResult:
    return check(made, case.network, case.image, case.domain)


def refused(made: Certificate, case: Case, match: str) -> None:
    with pytest.raises(CertificateError, match=match):
        accepted(made, case)


@pytest.mark.family
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "radius"), CASES)
def test_what_the_prover_writes_passes(seed: int, radius: int) -> None:
    case, made = random_case(seed), proof(seed, radius)
    if made is None:
        return
    result = accepted(made, case)
    assert (result.nodes, result.radius, result.label) == (len(made.cells), radius, case.label)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(50):  # the bound holds wherever one looks
        x = case.image.double().flatten().clone()
        for group in torch.randperm(case.domain.groups, generator=generator)[:radius]:
            place = case.domain.members[group]
            share = (torch.rand(len(place), generator=generator) * 3 - 1).clamp(0, 1)
            low, high = case.domain.low[place], case.domain.high[place]
            x[place] = torch.minimum(torch.maximum(low + (high - low) * share, low), high).double()
        assert result.margin <= float(margin(case, x)) + 1e-9


def margin(case: Case, x: torch.Tensor) -> float:
    assert case.network.exact is not None
    scores = run(case.network.exact, x.reshape(1, *case.domain.shape))[0]
    return float(scores[case.label] - torch.cat([scores[: case.label], scores[case.label + 1 :]]).max())


@pytest.mark.slow
def test_there_are_enough_of_them() -> None:
    proofs = [made for made in (proof(*case) for case in CASES) if made is not None]
    assert len(proofs) > 20
    assert sum(bool((made.box >= 0).any()) for made in proofs) > 2
    assert sum(bool((made.box < 0).any() and len(made.cells) > 1) for made in proofs) > 2


MUTATIONS: dict[str, tuple[Callable[[Certificate], Certificate], str]] = {
    "dropped": (lambda c: without(c, len(c.cells) // 2), "choices|covered|gaps|missing"),
    "doubled": (lambda c: duplicated(c, len(c.cells) // 2), "choices|covered|overlap"),
    "label": (lambda c: replace(c, label=0 if c.label else 1), "does not decide class"),
    "radius": (lambda c: replace(c, radius=c.radius + 1), "shape|number of groups"),
    "raised bound": (lambda c: replace(c, bounds=changed(c.bounds, 0, 1e3)), "is said to keep"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_tampered_proofs_are_refused(name: str) -> None:
    mutate, match = MUTATIONS[name]
    for seed, radius in CASES:
        made = proof(seed, radius)
        if made is not None:
            refused(mutate(made), random_case(seed), match)


def widened(made: Certificate) -> Certificate:
    """The same nodes for one group more, from the last cell of each."""
    cells, low, high = (np.concatenate([a, a[:, -1:]], 1) for a in (made.cells, made.low, made.high))
    return replace(made, radius=made.radius + 1, cells=cells, low=low, high=high)


@pytest.mark.slow
def test_a_larger_radius_is_refused_where_it_is_not_safe() -> None:
    tried = 0
    for seed, radius in CASES:
        made = proof(seed, 1)
        if radius == 2 and made is not None and proof(seed, 2) is None:
            refused(widened(made), random_case(seed), "cell|choices|is not proved")
            tried += 1
    assert tried > 3


@pytest.mark.slow
def test_a_cell_replaced_by_its_half_is_noticed() -> None:
    tried = 0
    for seed, radius in CASES:
        made = proof(seed, radius)
        if made is None:
            continue
        tree = make_tree(made, random_case(seed).domain.groups)
        for row, column in itertools.product(range(len(made.cells)), range(radius)):
            cell = int(made.cells[row, column])
            if tree.count[cell] > 1 and 0 < tree.count[2 * cell] < tree.count[cell]:
                cells = np.sort(changed(made.cells, (row, column), 2 * cell), axis=1)
                refused(replace(made, cells=cells), random_case(seed), "cells|choices|covered")
                tried += 1
    assert tried > 20


@pytest.mark.slow
def test_a_moved_face_is_noticed() -> None:
    tried = 0
    for seed, radius in CASES:
        made = proof(seed, radius)
        for row in range(0 if made is None else len(made.low)):
            assert made is not None
            inward = made.low[row, 0, 0] + (made.high[row, 0, 0] - made.low[row, 0, 0]) / 8
            for name, value in (("low", inward), ("high", np.nextafter(made.high[row, 0, 0], -9))):
                wrong = replace(made, **{name: changed(getattr(made, name), (row, 0, 0), value)})
                refused(wrong, random_case(seed), "boxes|a box")
                tried += 1
    assert tried > 20


@pytest.mark.slow
def test_other_subjects_are_noticed() -> None:
    seeds = [seed for seed, radius in CASES if radius == 1 and proof(seed, 1) is not None]
    for seed, other in zip(seeds, seeds[1:] + seeds[:1], strict=True):
        case, made = random_case(seed), proof(seed, 1)
        assert made is not None
        with pytest.raises(CertificateError, match="another network"):
            check(made, random_case(other).network, case.image, case.domain)
        with pytest.raises(CertificateError, match="another input"):
            check(made, case.network, case.image.flip(0) + 1e-3, case.domain)
        with pytest.raises(CertificateError, match="another domain"):
            check(made, case.network, case.image, make_domain(case.domain.shape, low=-9.0, high=9.0))
