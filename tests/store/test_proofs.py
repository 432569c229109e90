"""Proofs left in the middle: gone on with under the tree they belong to, dropped where they cannot be right."""

import hashlib
import itertools
import sqlite3
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import l0tre
from l0tre.certify import prover as prover_module
from l0tre.certify.proof import Proof
from l0tre.certify.regions.nodes import shares
from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.domain import make_domain
from l0tre.errors import StoreError
from l0tre.store import open_run, read_snapshot
from l0tre.tuning import PerDevice, Tuning
from tests.store.editing import edit, make_old

SIZE, PLACE, WIDTH = 8, 0.37, 0.02
# Every batch is a recorded step, so that a proof of milliseconds can be left in its middle.
TUNING = Tuning(record_seconds=0.0, box_step_seconds=0.0, boxes=PerDevice(3, 3))
BY_CELLS = replace(TUNING, box_values=0)
ASKED: dict[str, Any] = {"max_t": 1, "guarantee": "certified", "attack_queries": 0}
OPTIONS: dict[str, Any] = {**ASKED, "tuning": TUNING}


def spotted(feature: int, *, image: bool = False) -> l0tre.Network:
    """A network that one feature alone can flip, near one value only; the others hardly matter."""
    bends, scores = nn.Linear(SIZE, 3 * SIZE), nn.Linear(3 * SIZE, 2)
    heights = torch.full((SIZE,), 1e-4)
    heights[feature] = 1.0
    bends.weight.data = torch.eye(SIZE).repeat(3, 1)  # all singular values are equal
    bends.bias.data = -torch.tensor([PLACE - WIDTH, PLACE, PLACE + WIDTH]).repeat_interleave(SIZE)
    rise = torch.cat([heights, -2 * heights, heights]) / WIDTH
    scores.weight.data = torch.stack([torch.zeros(3 * SIZE), rise])
    scores.bias.data = torch.tensor([0.5, 0.0])
    layers = [bends, nn.ReLU(), scores]
    shape = (1, 2, SIZE // 2) if image else (SIZE,)
    module = nn.Sequential(nn.Flatten(), *layers) if image else nn.Sequential(*layers)
    return l0tre.load(module.eval(), input_shape=shape, device="cpu")


def image_of(network: l0tre.Network) -> torch.Tensor:
    return torch.full((1, *network.input_shape), 0.9)


def turned(domain: l0tre.Domain, graph: Any = None) -> Tree:
    """The tree of another machine: the halves of the root are the other way round."""
    tree = make_tree(domain, graph)
    return Tree(tree.depth, tree.order.roll(tree.slots // 2), tree.sizes, tree.heights)


def leave(folder: Path, network: l0tre.Network, tuning: Tuning = TUNING) -> Proof:
    """A run that stops when something is proved but not all; gives the proof that it leaves."""
    l0tre.evaluate(network, image_of(network), [0], out=folder, time_budget=0.0, tuning=tuning, **ASKED)
    while not any(proof.proved for proof in stored(folder).values()):
        assert not l0tre.resume(folder, network, time_budget=0.0, tuning=tuning).finished
    (proof,) = stored(folder).values()
    return proof


def stored(folder: Path) -> dict[int, Proof]:
    """The proofs that a resumed run would go on with."""
    run = open_run(folder)
    try:
        return run.load_state().proofs
    finally:
        run.close()


def open_share(proof: Proof, tree: Tree) -> Fraction:
    return sum((shares(tree, part)[0] for part in proof.fronts), Fraction(0))


@pytest.mark.parametrize(("image", "tuning"), [(False, BY_CELLS), (False, TUNING), (True, TUNING)])
def test_a_proof_is_gone_on_with_under_its_own_tree(image: bool, tuning: Tuning, tmp_path: Path) -> None:
    """By cells and by boxes; no node is bounded again."""
    network = spotted(0, image=image)
    tree = make_tree(make_domain(network.input_shape), network.exact)
    whole = l0tre.evaluate(network, image_of(network), [0], tuning=tuning, **ASKED).images[0]
    proof = leave(tmp_path / "run", network, tuning)
    assert proof.boxed == (tuning is TUNING)
    assert 0 < proof.proved < proof.total == SIZE
    assert proof.proved + open_share(proof, tree) == proof.total
    assert proof.tree == hashlib.sha256(struct.pack(f"<{tree.slots}q", *tree.order.tolist())).hexdigest()
    resumed = l0tre.resume(tmp_path / "run", network, tuning=tuning).images[0]
    assert (resumed.lower, resumed.upper) == (0, 1)
    # What was open is cut into batches of three anew, so the flip is met a part of a batch sooner or later.
    assert abs(resumed.queries - whole.queries) < (3 if tuning is TUNING else 1)
    assert (whole.lower, whole.upper) == (0, 1)


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_a_proof_is_kept_whenever_somebody_asks_to_stop(asked: int, tmp_path: Path) -> None:
    """Boxes are kept only where a run is left, so the step that learns of it must be the last one."""
    network, folder = spotted(0, image=True), tmp_path / "run"
    whole = l0tre.evaluate(network, image_of(network), [0], **OPTIONS).images[0]
    result = l0tre.evaluate(network, image_of(network), [0], out=folder, time_budget=0.0, **OPTIONS)
    kept = 0
    for _ in range(100):
        if result.finished:
            break
        answers = (number == asked for number in itertools.count(1))  # yes, but only once
        result = l0tre.resume(folder, network, stop=answers.__next__, tuning=TUNING)
        kept += sum(proof.nodes > 0 for proof in stored(folder).values())
    assert result.finished
    assert kept > 0
    assert result.images[0].queries == whole.queries


@pytest.mark.slow
@pytest.mark.parametrize("image", [False, True])
def test_under_another_tree_the_level_begins_anew(image: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the feature that flips would be among the proved ones by one tree, and not among the open ones by the other.

    A BLAS that orders features differently, on another machine or with more threads, is stood for by another tree.
    """
    for feature in (0, SIZE // 2 - 1, SIZE // 2, SIZE - 1):  # both ends of both halves
        network, folder = spotted(feature, image=image), tmp_path / str(feature)
        before = leave(folder, network)
        with monkeypatch.context() as patch:
            patch.setattr(prover_module, "make_tree", turned)
            l0tre.resume(folder, network, time_budget=0.0, tuning=TUNING)
            after = stored(folder).get(0)
            if after is not None:
                tree = turned(make_domain(network.input_shape), network.exact)
                assert after.tree == tree.digest != before.tree
                assert after.nodes <= before.nodes  # from nothing
                assert after.proved + open_share(after, tree) == after.total
            result = l0tre.resume(folder, network)
        assert result.finished
        assert (result.images[0].lower, result.images[0].upper) == (0, 1)


def test_the_digest_of_a_tree_is_that_of_its_order() -> None:
    tree, other = (make(make_domain((5,))) for make in (make_tree, turned))
    assert tree.digest == make_tree(make_domain((1, 1, 5))).digest != other.digest
    assert tree.digest == tree.to(torch.device("cpu")).digest


@pytest.mark.parametrize("format_", [2, 3])
def test_proofs_of_older_formats_begin_their_level_anew(format_: int, tmp_path: Path) -> None:
    """Nobody knows their tree; all else of the run is kept."""
    network, folder = spotted(0), tmp_path / "run"
    leave(folder, network)
    spent = read_snapshot(folder).images[0].queries
    # A count that would be a proof with the next step, had it been right.
    edit(folder, "UPDATE proofs SET proved = '15/2'")
    make_old(folder, format_)
    assert read_snapshot(folder).images[0].queries == spent
    result = l0tre.resume(folder, network)
    whole = l0tre.evaluate(network, image_of(network), [0], **OPTIONS)
    assert (result.images[0].lower, result.images[0].upper) == (0, 1)
    assert spent < whole.images[0].queries < result.images[0].queries
    connection = sqlite3.connect(folder / "run.db")
    assert connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == ("6",)
    connection.close()


@pytest.mark.parametrize("proved", ["9", "8", "-1", "-1/2", "1000000"])
def test_counts_that_cannot_be_are_never_trusted(proved: str, tmp_path: Path) -> None:
    """More than all, all of them beside open nodes, less than none."""
    network, folder = spotted(0), tmp_path / "run"
    leave(folder, network)
    edit(folder, f"UPDATE proofs SET proved = '{proved}'")
    assert stored(folder) == {}
    result = l0tre.resume(folder, network).images[0]
    assert (result.lower, result.upper) == (0, 1)


@pytest.mark.parametrize("proved", ["7", "15/2", "0"])
def test_counts_that_do_not_add_up_are_never_trusted(proved: str, tmp_path: Path) -> None:
    """With the open nodes they are not all sets: the level begins anew, so that more is bounded in all."""
    network, folder = spotted(0), tmp_path / "run"
    whole = l0tre.evaluate(network, image_of(network), [0], **OPTIONS).images[0]
    before = leave(folder, network)
    edit(folder, f"UPDATE proofs SET proved = '{proved}'")
    assert stored(folder)[0].proved == Fraction(proved) != before.proved
    result = l0tre.resume(folder, network).images[0]
    assert (result.lower, result.upper) == (0, 1)
    assert result.queries > whole.queries


def test_a_proof_without_open_nodes_is_not_in_its_middle(tmp_path: Path) -> None:
    """It would never end."""
    network, folder = spotted(0), tmp_path / "run"
    leave(folder, network)
    run = open_run(folder)
    state = run.load_state()
    state.proofs[0] = Proof(1, Fraction(3), SIZE, (), 5, state.proofs[0].tree)
    run.record(state, [0], None)
    run.close()
    assert stored(folder) == {}
    result = l0tre.resume(folder, network)
    assert result.finished
    assert (result.images[0].lower, result.images[0].upper) == (0, 1)


@pytest.mark.parametrize(
    "damage",
    ["proved = '1/0'", "proved = 'much'", "total = '0.5'", "fronts = x'00'", "fronts = x''", "fronts = x'504b'"],
)
def test_a_damaged_proof_is_one_clear_error(damage: str, tmp_path: Path) -> None:
    network, folder = spotted(0), tmp_path / "run"
    leave(folder, network)
    edit(folder, f"UPDATE proofs SET {damage}")
    with pytest.raises(StoreError, match="restore it from a copy") as caught:
        l0tre.resume(folder, network)
    assert "\n" not in str(caught.value)


def test_a_run_is_not_gone_on_with_by_other_operations(tmp_path: Path) -> None:
    """The same weights with another activation are another network."""
    torch.manual_seed(0)
    bounded, plain = (
        nn.Sequential(nn.Linear(6, 8), middle, nn.Linear(8, 2)) for middle in (nn.Hardtanh(-0.01, 0.01), nn.Identity())
    )
    plain.load_state_dict(bounded.state_dict())
    first, second = (l0tre.load(module, input_shape=(6,), device="cpu") for module in (bounded, plain))
    x = torch.full((1, 6), 0.5)
    l0tre.evaluate(first, x, max_t=1, guarantee="certified", out=tmp_path / "run")
    with pytest.raises(StoreError, match="operations differ"):
        l0tre.resume(tmp_path / "run", second)


def test_modules_without_a_graph_differ_by_their_code() -> None:
    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x, 1).values[:, :2]

    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x, 1).values[:, 1:3]

    found = [l0tre.load(kind(), input_shape=(4,), device="cpu") for kind in (One, Two, One)]
    assert all(network.graph is None for network in found)
    assert found[0].fingerprint == found[2].fingerprint != found[1].fingerprint
