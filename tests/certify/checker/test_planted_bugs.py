"""Mistakes in the prover's rules make it claim what is not true: the checker refuses each such certificate.

On real networks: ``python -m benchmarks.planted_bugs``.
"""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.domain import Domain
from l0tre.model.network import Network, margins
from tests.certify.checker.planted_bugs import BUGS, Bug, claimed

# Each with an image for which the mistake makes a wrong claim.
CLAIMS: dict[str, int] = {}


@cache
def network(seed: int, *, hidden: bool) -> Network:
    torch.manual_seed(seed)
    head: list[nn.Module] = [nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3)] if hidden else [nn.LazyLinear(3)]
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), *head
    ).eval()
    module(torch.zeros(1, 1, 12, 12))
    for parameter in module.parameters():
        parameter.data *= 1.5
    return l0tre.load(module, input_shape=(1, 12, 12), device="cpu")


def question(bug: Bug, seed: int) -> tuple[Network, Tensor, int, Domain]:
    """A network, an image, its label and a few pixels, of which as many as the mistake is about change the decision."""
    found = network(seed, hidden=bug.hidden)
    generator = torch.Generator().manual_seed(seed)
    corners = [(3, 3), (4, 4)] if bug.near else [(2, 2), (9, 9)] if bug.near is False else [(3, 3), (4, 4), (8, 7)]
    mask = torch.zeros(1, 12, 12, dtype=torch.bool)
    for row, column in corners:
        mask[0, row, column] = True
    domain = l0tre.make_domain((1, 12, 12), mask=mask)
    for _ in range(200):
        image = torch.rand(1, 12, 12, generator=generator)
        label = int(found.scores(image[None])[0].argmax())
        if loss(found, image, label, corners, 1) < 0 if bug.t == 1 else two_are_needed(found, image, label, corners):
            return found, image, label, domain
    raise AssertionError("no image is fooled")


def two_are_needed(found: Network, image: Tensor, label: int, corners: list[tuple[int, int]]) -> bool:
    return loss(found, image, label, corners, 1) > 0 > loss(found, image, label, corners, 2)


def loss(found: Network, image: Tensor, label: int, corners: list[tuple[int, int]], changes: int) -> float:
    """The least margin where one or both of two pixels take some values."""
    values = torch.linspace(0, 1, 11)
    rows = []
    for first, (a, b) in enumerate(corners):
        if changes == 1:
            x = image.repeat(11, 1, 1)[:, None]
            x[:, 0, a, b] = values
            rows.append(x)
        for c, d in corners[first + 1 :] if changes == 2 else ():
            x = image.repeat(121, 1, 1)[:, None]
            x[:, 0, a, b], x[:, 0, c, d] = torch.cartesian_prod(values, values).T
            rows.append(x)
    x = torch.cat(rows)
    return float(margins(found.scores(x), torch.full((len(x),), label)).min())


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_wrong_claims_are_refused(name: str) -> None:
    found, image, label, domain = question(BUGS[name], CLAIMS[name])
    claim, error = claimed(BUGS[name], found, image, label, domain, 60.0)
    assert claim
    assert error is not None
