"""Several budgets as curves, and peers under a mask."""

import csv
from pathlib import Path

import pytest
import torch

from l0tre.adapters.attack_curves import write_curves
from l0tre.adapters.compare_attacks import OWN, compare
from l0tre.domain import make_domain
from l0tre.errors import ConfigError
from tests.adapters.linear import SHAPE, make_case, make_network


def test_a_curve_has_a_point_for_each_attack_and_budget(tmp_path: Path) -> None:
    model, images, labels = make_case(3)
    network = make_network(model)
    peers = ["sparse-rs", "sigma-zero-own"]
    both = [compare(network, images, labels, peers=peers, budget=budget) for budget in (20, 60)]
    files = write_curves(both, tmp_path / "curves")
    with files[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["attack"], row["budget"]) for row in rows] == [
        (name, budget) for budget in ("20", "60") for name in (OWN, *peers)
    ]
    own = both[1].results[0]
    last = next(row for row in rows if (row["attack"], row["budget"]) == (OWN, "60"))
    assert float(last["mean"]) == pytest.approx(float(own.pixels.double().mean()))
    assert len(files) == 1 or files[1].stat().st_size > 1000


def test_peers_under_a_mask_change_nothing_else() -> None:
    model, images, labels = make_case(2)
    mask = torch.zeros(SHAPE[1:], dtype=torch.bool)
    mask[1:] = True
    domain = make_domain(SHAPE, mask=mask)
    done = compare(
        make_network(model), images, labels, peers=["sparse-rs", "sigma-zero-own"], budget=100,
        domain=domain,
    )  # fmt: skip
    for attack in done.results:
        assert attack.error == ""
        assert attack.found.any()
        changed = attack.adversarial != images
        assert not changed[:, ~mask.expand(SHAPE)].any()


def test_own_groups_are_refused() -> None:
    model, images, labels = make_case(2)
    groups = torch.arange(36).reshape(6, 6) // 2
    with pytest.raises(ConfigError, match="own groups"):
        compare(make_network(model), images, labels, domain=make_domain(SHAPE, groups=groups))
