"""Checking a run: what holds is remembered, and nothing holds once a file of the folder is another one."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import l0tre
from l0tre.certify.checker.certificate import read_certificate, write_certificate
from l0tre.certify.checker.witness import check_witness
from l0tre.errors import CertificateError, ConfigError
from l0tre.model.network import Network

SHAPE = (1, 3, 3)


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)).eval().requires_grad_(False)
    return l0tre.load(module, input_shape=SHAPE, device="cpu")


@pytest.fixture(scope="module")
def images(network: Network) -> torch.Tensor:
    """Images whose decision no single pixel changes."""
    torch.manual_seed(2)
    some = torch.rand(200, *SHAPE)
    some = torch.cat([some, some.round()])
    gaps = network.scores(some).topk(2, 1).values
    return some[(gaps[:, 0] - gaps[:, 1]).argsort(descending=True)[:4]]


@pytest.fixture(scope="module")
def made(network: Network, images: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    result = l0tre.evaluate(network, images, max_t=2, attack_queries=40, certificates=True, out=folder)
    assert [image.lower > 0 for image in result] == [True] * 4
    assert any(image.witness is not None for image in result)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A run that nothing was checked of, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def files_of(run: Path) -> list[Path]:
    """The certificates of the lower bounds, image by image."""
    return [run / "certificates" / f"{image.index:05d}-t{image.lower}.l0cert" for image in l0tre.load_run(run)]


def remarks(run: Path) -> list[bool]:
    return [image.checked for image in l0tre.load_run(run)]


def test_what_holds_is_remembered_and_left_out_the_next_time(run: Path, network: Network) -> None:
    said: list[tuple[int, int, str]] = []
    assert remarks(run) == [False] * 4
    found = l0tre.check_run(run, network, progress=lambda *words: said.append(words))
    assert (found.valid, len(found.images), found.before, found.left) == (True, 4, 0, 0)
    assert found.witnesses == sum(image.witness is not None for image in l0tre.load_run(run))
    assert all(image.parts > 0 for image in found.images)
    assert [done for done, _, _ in said] == sorted(done for done, _, _ in said)
    assert any("100%" in what for _, _, what in said)
    assert remarks(run) == [True] * 4
    assert (l0tre.check_run(run, network).images, l0tre.check_run(run, network).before) == ((), 4)
    assert len(l0tre.check_run(run, network, again=True).images) == 4


def test_a_check_that_was_stopped_goes_on_where_it_was(run: Path, network: Network) -> None:
    asked = iter(range(100))
    first = l0tre.check_run(run, network, stop=lambda: next(asked) >= 4)
    assert 0 < len(first.images) < 4
    assert first.left == 4 - len(first.images)
    assert first.valid
    assert sum(remarks(run)) == len(first.images)
    rest = l0tre.check_run(run, network)
    assert (rest.before, len(rest.images), rest.left) == (len(first.images), first.left, 0)
    assert remarks(run) == [True] * 4


def test_a_proof_is_left_in_its_middle(run: Path, network: Network) -> None:
    within: list[str] = []

    def note(_: int, __: int, what: str) -> None:
        if "%" in what:
            within.append(what)

    found = l0tre.check_run(run, network, stop=lambda: bool(within), progress=note, memory_bytes=1)
    assert ([len(found.images), found.left], remarks(run), len(within)) == ([0, 4], [False] * 4, 1)


def test_nothing_goes_on_after_the_time(run: Path, network: Network) -> None:
    found = l0tre.check_run(run, network, time_budget=0.0)
    assert (len(found.images), found.left) == (0, 4)

    def slow(_: int, __: int, what: str) -> None:
        time.sleep(0.2 if "%" in what else 0.0)

    found = l0tre.check_run(run, network, time_budget=0.1, progress=slow, memory_bytes=1)
    assert found.left >= 3  # left within an image


def test_a_sample_that_is_checked_again_forgets_nothing_of_the_others(run: Path, network: Network) -> None:
    found = l0tre.check_run(run, network, sample=0.5)
    assert (len(found.images), sum(remarks(run))) == (2, 2)
    assert l0tre.check_run(run, network, sample=0.5).before == 2
    l0tre.check_run(run, network)
    assert len(l0tre.check_run(run, network, sample=0.25, again=True).images) == 1
    assert remarks(run) == [True] * 4
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="share above 0"):
            l0tre.check_run(run, network, sample=share)


def test_the_remark_goes_with_another_bound_or_network(run: Path, network: Network) -> None:
    l0tre.check_run(run, network)
    path = run / "checked.json"
    known = json.loads(path.read_text())
    first, second, third, _ = sorted(known, key=int)
    known[first]["lower"] += 1
    known[second]["label"] += 1
    known[third]["fingerprint"] = "x"
    path.write_text(json.dumps(known))
    assert remarks(run) == [False, False, False, True]
    for text in ("no json", "[1]", '{"0": 1}'):
        path.write_text(text)
        assert remarks(run) == [False] * 4
    assert l0tre.check_run(run, network).valid


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewritten(path: Path, **changes: object) -> None:
    write_certificate(path, replace(read_certificate(path), **changes))  # type: ignore[arg-type]


CHANGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "of another image": (lambda path, other: shutil.copy(other, path), "another image|is about"),
    "damaged": (lambda path, _: damage(path), "damaged or no certificate"),
    "empty": (lambda path, _: path.write_bytes(b""), "damaged or no certificate"),
    "of fewer changes": (lambda path, _: rewritten(path, radius=read_certificate(path).radius - 1), "the run says"),
    "of another class": (lambda path, _: rewritten(path, label=read_certificate(path).label ^ 1), "the run says"),
    "of another network": (lambda path, _: rewritten(path, fingerprint="x"), "another network"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_certificate_does_not_hold(name: str, run: Path, network: Network) -> None:
    change, match = CHANGES[name]
    l0tre.check_run(run, network)
    first, other, *_ = files_of(run)
    change(first, other)
    found = l0tre.check_run(run, network, again=True)
    assert not found.valid
    assert [image.index for image in found.refused] == [0]
    with pytest.raises(CertificateError, match=match):
        raise CertificateError(found.refused[0].reason)
    assert remarks(run) == [False, True, True, True]


def test_a_bound_without_certificate_is_named(run: Path, network: Network) -> None:
    files_of(run)[2].unlink()
    found = l0tre.check_run(run, network)
    assert ([image.index for image in found.missing], found.refused, found.valid) == ([2], (), False)
    assert remarks(run) == [True, True, False, True]


def test_witnesses_are_what_the_run_says(made: Path, network: Network, images: torch.Tensor) -> None:
    result, domain = l0tre.load_run(made), l0tre.make_domain(SHAPE)
    bounds = next(image for image in result if image.witness is not None)
    assert bounds.witness is not None
    image = images[bounds.index]
    changed = bounds.witness.apply(image)
    check_witness(network, image, changed, domain, bounds.label, bounds.upper)
    narrow = l0tre.make_domain(SHAPE, high=0.5 * float(changed.max()), low=-1.0)
    masked = l0tre.make_domain(SHAPE, mask=(changed == image).numpy())
    for other, place, label, upper, match in (
        (changed, domain, bounds.label, bounds.upper - 1, "groups, not"),
        (changed, domain, int(network.scores(changed[None]).argmax()), bounds.upper, "decides class"),
        (changed, masked, bounds.label, bounds.upper, "may not change"),
        (changed, narrow, bounds.label, bounds.upper, "leaves the domain"),
        (torch.full_like(changed, float("nan")), domain, bounds.label, 9, "decides class"),
    ):
        with pytest.raises(CertificateError, match=match):
            check_witness(network, image, other, place, label, upper)
