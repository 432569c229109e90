"""Every peer runs, stays in [0, 1], and never beats the optimum of a linear classifier."""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from l0tre.adapters.counting import Counting
from l0tre.adapters.peers import PEERS, advlib
from l0tre.adapters.peers.peer import import_peer
from l0tre.errors import MissingExtraError
from tests.adapters.linear import fewest_changes, make_case

BUDGET = 1200  # Brendel and Bethge's optimiser is too slow in plain Python for as much
# Found on every image of the linear case, with at most so many changes beyond the optimum.
STRONG = {"sigma-zero": 1, "fmn": 3, "l0tre-paper": 8, "sparse-rs": 2, "fmn-foolbox": 3, "jsma": 12}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Load a peer, or skip the test. Brendel and Bethge's attack asks for numba only by name and version."""

    def use(name: str) -> None:
        try:
            if name == "bb-l0":
                numba = SimpleNamespace(__version__="1.0")
                module = import_peer("foolbox.attacks.brendel_bethge")
                monkeypatch.setattr(module, "NUMBA_IMPORT_ERROR", None)
                monkeypatch.setattr(module, "numba", numba, raising=False)
                monkeypatch.setitem(sys.modules, "numba", numba)
            PEERS[name].load()
        except MissingExtraError as error:
            pytest.skip(str(error))

    return use


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_attacks_a_linear_classifier(name: str, load: Callable[[str], None]) -> None:
    load(name)
    model, images, labels = make_case()
    before, kept = images.clone(), torch.get_rng_state()
    counter = Counting(model, images.device, lambda _: None).eval()
    found = PEERS[name].run(counter, images, labels, 150 if name == "bb-l0" else BUDGET, 0)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), kept)
    assert found.shape == images.shape
    assert bool(((found >= -1e-6) & (found <= 1 + 1e-6)).all())
    found = torch.where((found - images).abs() < 1e-6, images, found)
    flipped = model(found).argmax(1) != labels
    distances = (found != images).flatten(1).sum(1)
    assert counter.forwards > 0
    assert (counter.backwards > 0) == PEERS[name].gradients
    for row in range(len(images)):
        optimum = fewest_changes(model, images[row], int(labels[row]))
        assert not flipped[row] or int(distances[row]) >= optimum
        if name in STRONG:
            assert flipped[row]
            assert int(distances[row]) <= optimum + STRONG[name]


@pytest.mark.parametrize("name", ["sigma-zero", "fmn", "pdpgd", "fmn-foolbox", "sparse-rs", "vfga", "jsma"])
def test_the_budget_is_kept(name: str, load: Callable[[str], None]) -> None:
    load(name)
    model, images, labels = make_case()
    counter = Counting(model, images.device, lambda _: None).eval()
    PEERS[name].run(counter, images, labels, BUDGET, 0)
    spent = (counter.forwards + counter.backwards) / len(images)
    assert spent <= 1.05 * BUDGET
    if name not in ("vfga", "jsma"):  # they end at the first success
        assert spent >= 0.7 * BUDGET


@pytest.mark.parametrize("name", ["pixle", "sparse-rs"])
def test_a_seed_makes_a_random_attack_repeatable(name: str, load: Callable[[str], None]) -> None:
    load(name)
    model, images, labels = make_case(2)
    first, again, other = (PEERS[name].run(_with_device(model), images, labels, 300, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def _with_device(model: torch.nn.Module) -> Counting:
    return Counting(model, torch.device("cpu"), lambda _: None).eval()


def test_a_missing_library_names_the_extra_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(MissingExtraError, match=r"foolbox.*extra peers.*pip install 'l0tre\[peers\]'"):
        import_peer("foolbox")


def test_stand_ins_are_gone_after_the_import(load: Callable[[str], None]) -> None:
    load("sigma-zero")
    assert all(name not in sys.modules or sys.modules[name].__spec__ is not None for name in advlib.NAMES)
