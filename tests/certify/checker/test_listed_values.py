"""Certificates in domains with lists, whole numbers and directions: the true ones are accepted, no others."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.certify.checker.certificate import SetCertificate, make_set_certificate
from l0tre.certify.checker.check import CheckResult, check
from l0tre.domain import Domain
from l0tre.errors import CertificateError
from l0tre.model.network import Network
from l0tre.rules import Rules

JOB, LEVEL, AGE, YEARS, REST = [0, 1, 2], [3], 4, 5, [6, 7]  # one-hot, listed, only upwards, whole numbers, free


@dataclass(frozen=True)
class Table:
    """A network, a row and what may change in it."""

    network: Network
    row: Tensor
    label: int
    domain: Domain

    def claim(self, t: int) -> SetCertificate:
        """What a forger writes: the claim needs nothing but itself."""
        none = np.zeros(0, np.int64), np.zeros(0, np.uint8)
        return make_set_certificate(
            self.network,
            self.row,
            self.domain,
            label=self.label,
            radius=t,
            sets=none[0],
            depths=none[1],
            arithmetic="",
        )

    def checked(self, made: SetCertificate) -> CheckResult:
        return check(made, self.network, self.row, self.domain)


def table(seed: int, firm: float) -> Table:
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3)).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    row = torch.rand(8, generator=generator)
    row[JOB] = torch.eye(3)[seed % 3]
    row[LEVEL], row[YEARS] = 0.5, 2.0
    label = int(module(row[None])[0].argmax())
    last = module[2]
    assert isinstance(last, nn.Linear)
    last.bias[label] += firm
    numbers = torch.tensor([0, 0, 0, 1, 2, 3, 4, 5])
    high = torch.ones(8)
    high[YEARS] = 4.0
    domain = l0tre.restrict(
        l0tre.make_domain((8,), groups=numbers, high=high),
        listed={0: torch.eye(3), 1: torch.tensor([-1.0, 0.0, 0.5, 2.0])},
        whole=[YEARS],
        upwards=[AGE],
    )
    return Table(l0tre.load(module, input_shape=(8,), device="cpu"), row, label, domain)


def inputs(case: Table, t: int) -> Tensor:
    """Many rows that the table could hold, with at most ``t`` groups changed."""
    values: list[list[list[float]]] = [
        torch.eye(3).tolist(),
        [[-1.0], [0.0], [0.5], [2.0]],
        [[v] for v in torch.linspace(float(case.row[AGE]), 1, 5).tolist()],
        [[v] for v in (0.0, 1.0, 2.0, 3.0, 4.0)],
        [[0.0], [0.37], [1.0]],
        [[0.0], [0.61], [1.0]],
    ]
    places = [JOB, LEVEL, [AGE], [YEARS], [REST[0]], [REST[1]]]
    rows = []
    for groups in itertools.combinations(range(6), t):
        for chosen in itertools.product(*(values[group] for group in groups)):
            row = case.row.clone()
            for group, given in zip(groups, chosen, strict=True):
                row[places[group]] = torch.tensor(given)
            rows.append(row)
    return torch.stack(rows)


def least(case: Table, t: int) -> float:
    scores = case.network.scores(inputs(case, t)).double()
    gaps = scores[:, [case.label]] - scores
    gaps[:, case.label] = torch.inf
    return float(gaps.min())


@pytest.mark.parametrize("t", [1, 2, 3])
def test_what_is_accepted_is_true_and_what_is_not_is_refused(t: int) -> None:
    accepted = refused = 0
    for seed in range(12):
        case = table(seed, [1.0, 4.0, 8.0, 14.0][seed % 4])
        if (truth := least(case, t)) < 0.05:
            with pytest.raises(CertificateError, match=r"not safe|not proved|does not decide"):
                case.checked(case.claim(t))
            refused += 1
        else:
            assert 0 < case.checked(case.claim(t)).margin <= truth + 1e-4
            accepted += 1
    assert accepted > 1
    assert refused > 1


def test_what_the_prover_says_is_accepted(tmp_path: Path) -> None:
    file, safe = tmp_path / "row.l0cert", 0
    for seed, t in itertools.product(range(8), (1, 2)):
        case = table(seed, [1.0, 4.0, 8.0, 14.0][seed % 4])
        verdict = l0tre.verify(case.network, case.row, case.label, radius=t, domain=case.domain, certificate=file)
        if verdict.answer == "safe":
            assert l0tre.check(file, case.network, case.row, case.domain).radius == t
            safe += 1
    assert safe > 3


def test_a_run_keeps_its_proofs(tmp_path: Path) -> None:
    case = table(3, 14.0)
    rows = torch.stack([case.row, case.row.clone().index_fill_(0, torch.tensor(AGE), 0.1)])
    out = tmp_path / "run"
    l0tre.evaluate(case.network, rows, domain=case.domain, max_t=2, attack_queries=0, certificates=True, out=out)
    found = l0tre.check_run(tmp_path / "run", case.network)
    assert found.valid
    assert [image.lower for image in found.images] == [2, 2]


@pytest.mark.parametrize("part", ["vectors", "whole", "direction", "counts"])
def test_other_rules_are_another_domain(part: str) -> None:
    case = table(3, 14.0)
    made, rules = case.claim(1), case.domain.rules
    assert isinstance(rules, Rules)
    other = getattr(rules, part).clone()
    place = (1, 0) if part == "vectors" else (1,) if part == "counts" else (6,)
    other[place] = 3.0 if part == "vectors" else 3 if part == "counts" else 1
    domain = replace(case.domain, rules=replace(rules, **{part: other}))
    with pytest.raises(CertificateError, match="another domain"):
        check(made, case.network, case.row, domain)
    with pytest.raises(CertificateError, match="another domain"):
        check(made, case.network, case.row, l0tre.make_domain((8,)))


def test_trees_and_what_is_unsafe_as_it_is_are_refused() -> None:
    case = table(3, 14.0)
    made = replace(case.claim(1), sets=np.array([0]), depths=np.array([1, 1], np.uint8))
    with pytest.raises(CertificateError, match="has trees"):
        case.checked(made)
    with pytest.raises(CertificateError, match="does not decide"):
        case.checked(replace(case.claim(1), label=(case.label + 1) % 3))


@pytest.mark.parametrize("group", [0, 1, 2, 3, 4, 5])
def test_a_flip_in_any_group_is_found(group: int) -> None:
    """A network whose decision changes for one value of one group alone."""
    case = table(0, 0.0)
    place, value = [(1, 1.0), (3, 2.0), (AGE, 0.97), (YEARS, 4.0), (6, 0.03), (7, 0.98)][group]
    row = case.row.clone()
    row[JOB], row[AGE], row[6], row[7] = torch.tensor([1.0, 0.0, 0.0]), 0.4, 0.5, 0.5
    hidden, head = nn.Linear(8, 2), nn.Linear(2, 2)
    module = nn.Sequential(hidden, nn.ReLU(), head).requires_grad_(False)
    for parameter in module.parameters():
        parameter.zero_()
    hidden.weight[0, place], hidden.weight[1, place] = 1.0, -1.0
    hidden.bias[0], hidden.bias[1] = -value, value  # how far the value is from the chosen one
    head.weight[0] = 1.0
    head.bias[1] = 0.02
    network = l0tre.load(module.eval(), input_shape=(8,), device="cpu")
    planted = Table(network, row, 0, case.domain)
    assert least(planted, 1) < 0 or group in (2, 4, 5)
    with pytest.raises(CertificateError, match=r"not safe|not proved"):
        planted.checked(planted.claim(1))
