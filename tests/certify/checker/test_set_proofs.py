"""Certificates of sets, as the prover writes them: accepted, and never once they are about something else."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import l0tre
from l0tre.certify.checker.certificate import SetCertificate, read_certificate, write_certificate
from l0tre.certify.checker.check import CheckResult, check
from l0tre.domain import make_domain
from l0tre.errors import CertificateError
from tests.certify.random_networks import Case, random_case

CASES = [(seed, radius) for seed in range(13) for radius in (1, 2)]


@cache
def proof(seed: int, radius: int) -> SetCertificate | None:
    """What the prover writes where it goes set by set; ``None`` if the case is not safe or goes by cells."""
    case = random_case(seed)
    if radius > case.domain.groups:
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "proof.l0cert"
        verdict = l0tre.verify(
            case.network,
            case.image,
            case.label,
            radius=radius,
            domain=case.domain,
            certificate=path,
            tuning=l0tre.Tuning(hopeless=10.0),
        )
        made = read_certificate(path) if verdict.answer == "safe" else None
        return made if isinstance(made, SetCertificate) else None


def accepted(made: SetCertificate, case: Case) -> CheckResult:
    return check(made, case.network, case.image, case.domain)


@pytest.mark.slow
def test_what_the_prover_writes_passes() -> None:
    proofs = [(case, made) for case in CASES if (made := proof(*case)) is not None]
    assert len(proofs) > 8
    assert sum(len(made.sets) > 0 for _, made in proofs) > 1
    for (seed, radius), made in proofs:
        result = accepted(made, random_case(seed))
        assert (result.radius, result.boxes) == (radius, len(made.depths))
        assert result.margin > 0


@cache
def with_trees(seed: int) -> SetCertificate | None:
    """A proof of one group, some boxes of which were halved further than was needed."""
    made, case = proof(seed, 1), random_case(seed)
    if made is None or case.domain.groups < 3:
        return None
    return replace(
        made, sets=np.array([0, case.domain.groups - 1]), depths=np.array([1, 2, 3, 3, 2, 2, 2, 3, 3], np.uint8)
    )


@pytest.mark.slow
def test_trees_of_any_depth_are_accepted() -> None:
    made = [(seed, found) for seed in range(12) if (found := with_trees(seed)) is not None]
    assert len(made) > 3
    for seed, found in made:
        assert accepted(found, random_case(seed)).boxes == 9


def merged(made: SetCertificate) -> SetCertificate:
    """The first two leaves that are halves of one box, as that box: wider parts."""
    deepest = int(made.depths.argmax())
    rest = np.delete(made.depths, deepest)
    rest[deepest] -= 1
    return replace(made, depths=rest)


FORGERIES: dict[str, tuple[Callable[[SetCertificate], SetCertificate], str]] = {
    "dropped leaf": (lambda c: replace(c, depths=np.delete(c.depths, len(c.depths) // 2)), "gap|tree"),
    "doubled leaf": (lambda c: replace(c, depths=np.repeat(c.depths, 1 + (np.arange(len(c.depths)) == 0))), "gap|tree"),
    "dropped set": (lambda c: replace(c, sets=c.sets[1:]), "trees for"),
    "doubled set": (lambda c: replace(c, sets=np.repeat(c.sets, 2)), "ascending"),
    "moved set": (lambda c: replace(c, sets=c.sets - 10**6), "ascending"),
    "deeper leaves": (lambda c: replace(c, depths=c.depths + np.uint8(1)), "gap|tree"),
    "bottomless leaves": (lambda c: replace(c, depths=np.full_like(c.depths, 255)), "deeper than"),
    "label": (lambda c: replace(c, label=0 if c.label else 1), "does not decide class"),
    "no such label": (lambda c: replace(c, label=99), "there are"),
    "version": (lambda c: replace(c, version=1), "version 1"),
    "no radius": (lambda c: replace(c, radius=0), "radius 0"),
    "huge radius": (lambda c: replace(c, radius=10**6), "radius"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_refused(name: str) -> None:
    forge, match = FORGERIES[name]
    tried = 0
    for seed in range(12):
        made = with_trees(seed)
        if made is not None:
            tried += 1
            with pytest.raises(CertificateError, match=match):
                accepted(forge(made), random_case(seed))
    assert tried > 3


@pytest.mark.slow
def test_wider_parts_are_proved_as_they_are() -> None:
    for seed in range(12):
        made = with_trees(seed)
        if made is not None:
            result = accepted(merged(made), random_case(seed))
            assert result.nodes == accepted(made, random_case(seed)).nodes - 1
            assert result.margin > 0


@pytest.mark.slow
def test_other_subjects_and_a_radius_that_is_not_safe_are_refused() -> None:
    tried = 0
    for seed, radius in CASES:
        made, case = proof(seed, radius), random_case(seed)
        if made is None:
            continue
        with pytest.raises(CertificateError, match="another network"):
            check(replace(made, fingerprint="x"), case.network, case.image, case.domain)
        with pytest.raises(CertificateError, match="another input"):
            check(made, case.network, case.image.flip(0) + 1e-3, case.domain)
        with pytest.raises(CertificateError, match="another domain"):
            check(made, case.network, case.image, make_domain(case.domain.shape, low=-9.0, high=9.0))
        if radius == 1 and case.domain.groups > 1 and unsafe(seed):
            tried += 1
            none = np.zeros(0, np.int64), np.zeros(0, np.uint8)
            with pytest.raises(CertificateError, match=r"not safe|not proved"):
                accepted(replace(made, radius=2, sets=none[0], depths=none[1]), case)
    assert tried > 1


@cache
def unsafe(seed: int) -> bool:
    case = random_case(seed)
    verdict = l0tre.verify(case.network, case.image, case.label, radius=2, domain=case.domain, time_budget=5)
    return verdict.answer == "unsafe"


@pytest.mark.slow
def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    made = next(made for seed in range(12) if (made := with_trees(seed)) is not None)
    path = tmp_path / "c.l0cert"
    write_certificate(path, made)
    content = path.read_bytes()
    again = read_certificate(path)
    assert isinstance(again, SetCertificate)
    assert (again.sets == made.sets).all()
    assert (again.depths == made.depths).all()
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
        with pytest.raises(CertificateError, match="digest"):
            read_certificate(path)


@pytest.mark.slow
def test_no_graph_of_other_weights_passes_for_the_network() -> None:
    seed, radius = next(case for case in CASES if proof(*case) is not None)
    made, case = proof(seed, radius), random_case(seed)
    assert made is not None
    assert case.network.exact is not None
    last = case.network.exact.operations[-1]
    changed = replace(last, tensors={k: v + 1e-3 * torch.randn_like(v) for k, v in last.tensors.items()})
    graph = replace(case.network.exact, operations=(*case.network.exact.operations[:-1], changed))
    with pytest.raises(CertificateError, match="is not"):
        check(made, replace(case.network, exact=graph), case.image, case.domain)
