"""Comparing attacks: fair counts, replayed results, failures that are shown."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.adapters import compare_attacks as module
from l0tre.adapters.attack_picture import write_picture
from l0tre.adapters.attack_summary import common_images, make_rows, to_dict, write_files
from l0tre.adapters.compare_attacks import OWN, AttackComparison, compare, replay_results
from l0tre.adapters.peers import Peer
from l0tre.domain import make_domain
from l0tre.errors import ConfigError, DataError, MissingExtraError
from tests.adapters.linear import SHAPE, fewest_changes, make_case, make_network

Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def peer(run: object, *, gradients: bool = False) -> Peer:
    return Peer("test", "pixel", gradients, "", "", run, lambda: None)  # type: ignore[arg-type]


def blank(model: nn.Module, images: Tensor, *_: object) -> Tensor:
    """Sets every value to the end that is farther away, after a forward and a backward pass."""
    model(images.clone().requires_grad_()).sum().backward()
    return (images < 0.5).to(images)


def broken(*_: object) -> Tensor:
    raise ValueError("no luck")


def keep(_: nn.Module, images: Tensor, *__: object) -> Tensor:
    return images


@pytest.fixture(name="fakes")
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three peers that do as they are told, in place of the real ones."""
    table = {"blank": peer(blank, gradients=True), "broken": peer(broken), "keep": peer(keep)}
    monkeypatch.setattr(module, "PEERS", table)


@pytest.fixture
def fake_comparison(fakes: None) -> AttackComparison:  # noqa: ARG001  # marks do not apply to fixtures
    model, images, labels = make_case(5)
    return compare(make_network(model), images, labels, peers=["blank", "broken", "keep"], budget=200)


def test_every_attack_has_its_row_and_its_error(fake_comparison: AttackComparison) -> None:
    rows = {row.name: row for row in make_rows(fake_comparison)}
    assert list(rows) == [OWN, "blank", "broken", "keep"]
    assert rows["broken"].error == "ValueError: no luck"
    assert (rows["broken"].found, rows["broken"].at_least_as_good) == (0, None)
    assert (rows["keep"].found, rows["keep"].error, rows["keep"].at_least_as_good) == (0, "", 1.0)
    assert (rows["blank"].forwards, rows["blank"].backwards) == (1.0, 1.0)
    assert rows[OWN].success == 1.0
    assert rows[OWN].at_least_as_good is None


def test_means_are_over_the_images_that_all_attacks_found(fake_comparison: AttackComparison) -> None:
    own, other, *_ = fake_comparison.results
    common = common_images(fake_comparison)
    assert torch.equal(common, own.found & other.found)
    rows = make_rows(fake_comparison)
    assert rows[0].mean_pixels == pytest.approx(float(own.pixels[common].double().mean()))
    assert rows[0].median_pixels == pytest.approx(float(np.median(own.pixels[common].numpy())))
    expected = (own.pixels <= torch.where(other.found, other.pixels, 10**6)).double().mean()
    assert rows[1].at_least_as_good == pytest.approx(float(expected))


def test_our_attack_is_measured_by_replay(fake_comparison: AttackComparison) -> None:
    model, images, labels = make_case(5)
    own = fake_comparison.results[0]
    assert own.forwards > 0
    for row, image in enumerate(images):
        changed = own.adversarial[row]
        assert int(model(changed[None]).argmax()) == int(own.decisions[row]) != int(labels[row])
        assert int((changed != image).sum()) == int(own.pixels[row]) == int(own.features[row])
        assert int(own.pixels[row]) >= fewest_changes(model, image, int(labels[row]))


@pytest.mark.usefixtures("fakes")
def test_misclassified_images_are_left_out() -> None:
    model, images, labels = make_case(4)
    labels = labels.clone()
    labels[1] = (labels[1] + 1) % 3
    result = compare(make_network(model), images, labels, peers=["keep"], budget=50)
    assert result.indices == (0, 2, 3)
    assert [left_out.index for left_out in result.excluded] == [1]
    assert all(len(attack.found) == 3 for attack in result.results)


def test_a_stop_during_our_own_attack_is_said() -> None:
    model, images, labels = make_case(3)
    result = compare(make_network(model), images, labels, peers=["sparse-rs"], budget=200, stop=lambda: True)
    assert [(attack.name, attack.error) for attack in result.results] == [(OWN, "stopped before the end")]


@pytest.mark.usefixtures("fakes")
def test_a_stop_leaves_the_attacks_so_far() -> None:
    model, images, labels = make_case(3)
    seen: list[str] = []
    result = compare(
        make_network(model),
        images,
        labels,
        peers=["blank", "keep"],
        budget=50,
        progress=lambda name, _: seen.append(name),
        stop=lambda: "blank" in seen,
    )
    assert [attack.name for attack in result.results] == [OWN, "blank"]
    assert result.results[1].error == "stopped before the end"
    assert not result.results[1].found.any()
    assert make_rows(result)[0].success == 1.0


def test_other_ranges_are_mapped_and_unchanged_values_stay_exact() -> None:
    model, images, _ = make_case(3)
    images = 5.0 * images - 2.0
    labels = model(images).argmax(1)
    domain = make_domain(SHAPE, low=-2.0, high=3.0)
    result = compare(make_network(model), images, labels, peers=["sparse-rs"], budget=800, domain=domain)
    attack = result.results[1]
    assert attack.found.all()
    changed = attack.adversarial[attack.adversarial != images]
    assert set(changed.tolist()) <= {-2.0, 3.0}
    for row, image in enumerate(images):
        optimum = fewest_changes(model, image, int(labels[row]), -2.0, 3.0)
        assert optimum <= int(attack.pixels[row]) <= optimum + 2


@pytest.mark.parametrize(
    ("change", "found", "pixels"),
    [
        (lambda x: x, False, -1),
        (lambda x: torch.where(x < 0.5, 1.0, 0.0), True, 36),
        (lambda x: torch.where(x < 0.5, 1.0, 0.0) + 5e-7, True, 36),  # beyond the domain by rounding only
        (lambda x: torch.where(x < 0.5, 1.1, -0.1), False, -1),
        (lambda x: torch.where(x < 0.5, 1.0, float("nan")), False, -1),
        (lambda x: x + 5e-7, False, -1),
    ],
)
def test_results_are_judged_by_replay_inside_the_domain(change: object, found: bool, pixels: int) -> None:
    model, images, labels = make_case(1)
    network = make_network(model)
    flips = int(network.replay(torch.where(images[0] < 0.5, 1.0, 0.0)).argmax()) != int(labels[0])
    assert flips, "the case is made so that the farther ends change the decision"
    after, hit, count, features, decision = replay_results(network, make_domain(SHAPE), images, labels, change(images))  # type: ignore[operator]
    assert (bool(hit), int(count), int(features)) == (found, pixels, pixels)
    assert torch.equal(after, images) != found
    assert (int(decision) != int(labels)) == found


def test_noise_of_a_library_is_no_change() -> None:
    model, images, labels = make_case(1)
    farther = torch.where(images < 0.5, 1.0, 0.0)
    farther[0, 0, 0] = images[0, 0, 0] + 4e-7  # six values that were hardly touched
    _, found, pixels, _, _ = replay_results(make_network(model), make_domain(SHAPE), images, labels, farther)
    assert int(pixels) == (30 if found else -1)


def test_channels_count_once_as_pixels() -> None:
    shape = (3, 4, 4)
    model, images, labels = make_case(3, 2, shape)
    result = compare(make_network(model, shape), images, labels, peers=["sparse-rs"], budget=400)
    for attack in result.results:
        changed = attack.adversarial != images
        assert attack.pixels[attack.found].tolist() == changed.any(1).flatten(1).sum(1)[attack.found].tolist()
        assert attack.features[attack.found].tolist() == changed.flatten(1).sum(1)[attack.found].tolist()


@pytest.mark.usefixtures("fakes")
def test_peers_that_need_gradients_say_so_for_a_black_box() -> None:
    model, images, labels = make_case(2)

    def scores(x: np.ndarray) -> np.ndarray:
        return model(torch.from_numpy(np.asarray(x))).numpy()  # type: ignore[no-any-return]

    result = compare(l0tre.load(scores, input_shape=SHAPE), images, labels, peers=["blank", "keep"], budget=100)
    assert result.results[0].found.all()
    assert "needs gradients" in result.results[1].error
    assert result.results[2].error == ""


def test_what_cannot_be_compared_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, labels = make_case(2)
    network = make_network(model)
    with pytest.raises(ConfigError, match=r"no attack 'magic'.*sigma-zero"):
        compare(network, images, labels, peers=["magic"])
    with pytest.raises(ConfigError, match="budget is 0"):
        compare(network, images, labels, budget=0)

    monkeypatch.setitem(sys.modules, "foolbox", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match="extra peers"):
        compare(network, images, labels, peers=["fmn-foolbox"])


def test_the_files_hold_what_was_found(fake_comparison: AttackComparison, tmp_path: Path) -> None:
    files = write_files(fake_comparison, tmp_path / "out")
    assert [file.name for file in files] == [
        "compare.json", "compare.csv", "l0tre.npz", "blank.npz", "broken.npz", "keep.npz"
    ]  # fmt: skip
    stored = json.loads(files[0].read_text())
    assert stored == json.loads(json.dumps(to_dict(fake_comparison)))
    assert [attack["name"] for attack in stored["attacks"]] == [OWN, "blank", "broken", "keep"]
    with files[1].open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4 * 5
    own = fake_comparison.results[0]
    assert [int(line["pixels"]) for line in lines[:5]] == own.pixels.tolist()
    assert all(line["pixels"] == "" for line in lines[10:])
    with np.load(files[2]) as archive:
        assert np.array_equal(archive["x"], own.adversarial.numpy())
        assert archive["index"].tolist() == list(fake_comparison.indices)


def test_the_picture_frames_changed_pixels(fake_comparison: AttackComparison, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    page = np.asarray(image.open(write_picture(fake_comparison, tmp_path / "compare.png")))
    red = (page == (220, 30, 30)).all(2)
    # Of the columns (the original and four attacks) only those of l0tre and blank have changed pixels.
    width = (page.shape[1] - 8) // 5
    columns = [bool(red[:, 8 + i * width : 8 + (i + 1) * width].any()) for i in range(5)]
    assert columns == [False, True, True, False, False]


def test_vectors_cannot_be_drawn(tmp_path: Path) -> None:
    model, images, labels = make_case(2, 0, (7,))
    result = compare(make_network(model, (7,)), images, labels, budget=50)
    with pytest.raises(DataError, match="no pictures"):
        write_picture(result, tmp_path / "compare.png")
