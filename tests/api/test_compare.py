"""Which network is more robust: the order is certain exactly when the bounds allow no other."""

import csv
import itertools
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import l0tre
from l0tre.api.compare import compare_entrants, name_networks
from l0tre.errors import ConfigError, StoreError
from l0tre.evaluation.problem import Settings
from l0tre.evaluation.results import Excluded, Guarantee, ImageBounds, Snapshot
from l0tre.evaluation.standings import Comparison, Split, compare_snapshots
from l0tre.store import read_snapshot
from tests.tools import plain_network, tiny_module

GROUPS = 3
FEW: dict[str, Any] = {"attack_queries": 40}  # of attacks, which are not what is tested


def snapshot(
    bounds: dict[int, tuple[int, int]], guarantee: Guarantee = "certified", *, finished: bool = True, images: int = 4
) -> Snapshot:
    """An evaluation of images 0, 1, ... with the lower and upper bounds given; the others are misclassified."""
    return Snapshot(
        tuple(ImageBounds(index, 0, GROUPS, low, high, guarantee) for index, (low, high) in sorted(bounds.items())),
        tuple(Excluded(index, 0, 1) for index in range(images) if index not in bounds),
        1.0,
        2,
        "pixel",
        finished,
        config={"settings": {"max_t": 2}},
    )


bounds_of_image = st.tuples(st.integers(0, GROUPS), st.integers(1, GROUPS + 1)).filter(lambda pair: pair[0] < pair[1])
bounds_of_network = st.dictionaries(st.integers(0, 3), bounds_of_image, min_size=1, max_size=3)


def possible_differences(a: Snapshot, b: Snapshot) -> list[Fraction]:
    """Every difference of mean safe radii that the bounds allow, on the images of both, by trying all radii."""
    first, second = ({image.index: image for image in each.images} for each in (a, b))
    common = sorted(first.keys() & second.keys())

    def sums(images: dict[int, ImageBounds]) -> set[int]:
        ranges = [range(images[index].lower, images[index].upper) for index in common]
        return {sum(radii) for radii in itertools.product(*ranges)}

    return [Fraction(x - y, len(common)) for x in sums(first) for y in sums(second)] if common else []


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(bounds_of_network, bounds_of_network)
def test_the_order_is_what_all_possible_radii_agree_on(
    a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]]
) -> None:
    first, second = snapshot(a), snapshot(b)
    (pair,) = compare_snapshots({"a": first, "b": second}).pairs
    differences = possible_differences(first, second)
    assert pair.common == len(a.keys() & b.keys())
    if not differences:
        assert pair.order == "open"
        return
    wanted = (
        "more"
        if min(differences) > 0
        else "less"
        if max(differences) < 0
        else "equal"
        if set(differences) == {0}
        else "open"
    )
    assert pair.order == wanted
    assert pair.difference == pytest.approx((float(min(differences)), float(max(differences))))
    assert (pair.scope == "") == (wanted == "open") == (pair.settle != "")


@given(bounds_of_network, bounds_of_network)
def test_a_pair_turned_says_the_same(a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]]) -> None:
    results = {"a": snapshot(a), "b": snapshot(b)}
    turned = compare_snapshots(dict(reversed(results.items()))).pair("a", "b")
    straight = compare_snapshots(results).pair("a", "b")
    assert replace(turned, settle="") == replace(straight, settle="")
    assert turned.overlap == straight.overlap
    assert turned.words == straight.words or straight.order in ("open", "equal")


@settings(max_examples=120, deadline=None)
@given(bounds_of_network, bounds_of_network)
def test_a_split_counts_what_holds_for_all_possible_radii(
    a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]]
) -> None:
    (pair,) = compare_snapshots({"a": snapshot(a), "b": snapshot(b)}).pairs
    common = a.keys() & b.keys()
    assert [split.t for split in pair.splits] == ([1, 2] if common else [])
    for split in pair.splits:
        counts = {"first": 0, "second": 0, "unknown": 0, "same": 0}
        for index in common:
            possible = {
                (mine < split.t, theirs < split.t)  # a radius below t: t groups change the decision
                for mine in range(*a[index])
                for theirs in range(*b[index])
            }
            names = {(True, False): "first", (False, True): "second", (True, True): "same", (False, False): "same"}
            counts[names[possible.pop()] if len(possible) == 1 else "unknown"] += 1
        assert (split.first, split.second, split.unknown) == (counts["first"], counts["second"], counts["unknown"])
        assert split.scope == "all real values"


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3))
def test_chance_is_the_share_of_splits_as_uneven(first: int, second: int, unknown: int) -> None:
    def share(a: int, b: int) -> Fraction:
        """By all ways to give each image to one side or the other."""
        ways = [abs(2 * sum(sides) - a - b) for sides in itertools.product((0, 1), repeat=a + b)]
        return Fraction(sum(way >= abs(a - b) for way in ways), len(ways))

    worst = max(  # whatever the unknown images are: of one side, of the other, or of neither
        share(first + i, second + j) for i in range(unknown + 1) for j in range(unknown + 1 - i)
    )
    assert Split(1, first, second, unknown, "the grid").chance == float(worst)


def test_a_split_says_where_it_was_checked_on_a_grid_only() -> None:
    certified, grid = snapshot({0: (1, 2), 1: (0, 1)}), snapshot({0: (1, 2), 1: (0, 1)}, "grid")
    (pair,) = compare_snapshots({"a": certified, "b": grid}).pairs
    assert [split.scope for split in pair.splits] == ["the grid", "all real values"]  # all are fooled by two
    assert pair.splits[0].words("a", "b", "pixel") == (
        "1 pixel fools only a on 0 inputs, only b on 0 (on the grid; p = 1)"
    )
    (pair,) = compare_snapshots({"a": snapshot({0: (2, 3), 1: (2, 4)}), "b": snapshot({0: (0, 1), 1: (0, 4)})}).pairs
    assert pair.splits[1].words("a", "b", "column") == (
        "2 columns fool only a on 0 inputs, only b on 1, not known on 1 (p = 1)"
    )


def test_many_images_are_no_trouble_for_chance() -> None:
    assert Split(1, 3000, 0, 0, "the grid").chance == 0  # below what a float can hold
    assert Split(1, 1500, 1500, 0, "the grid").chance == 1
    assert 0.9 < Split(1, 2501, 2499, 0, "the grid").chance < 1


@pytest.mark.parametrize(
    ("winner", "loser", "scope"),
    [
        ("certified", "certified", "all real values"),
        (
            "certified",
            "grid",
            "all real values",
        ),  # the loser's upper bounds are witnesses whatever its lower bounds are
        ("lipschitz", "certified", "all real values"),
        ("grid", "grid", "the grid"),
        ("grid", "certified", "the grid"),
    ],
)
def test_the_order_holds_for_what_the_winner_s_lower_bounds_hold_for(
    winner: Guarantee, loser: Guarantee, scope: str
) -> None:
    results = {"a": snapshot({0: (2, 3)}, winner), "b": snapshot({0: (0, 2)}, loser)}
    (pair,) = compare_snapshots(results).pairs
    assert (pair.order, pair.scope) == ("more", scope)
    assert pair.words == f"a is more robust than b: certain{'' if scope == 'all real values' else ' on the grid'}"


def test_an_open_order_tells_what_would_settle_it() -> None:
    loose, tight = {0: (0, 4)}, {0: (1, 2)}
    (pair,) = compare_snapshots({"a": snapshot(loose), "b": snapshot(tight)}).pairs
    assert (pair.order, pair.settle, pair.overlap) == ("open", "a larger max_t than 2 for a", 0.0)
    (pair,) = compare_snapshots({"a": snapshot(loose, finished=False), "b": snapshot(loose)}).pairs
    assert (pair.settle, pair.overlap) == ("more time for a", 3.0)


def test_a_standing_counts_misclassified_images() -> None:
    comparison = compare_snapshots({"a": snapshot({0: (1, 2), 2: (0, 3), 3: (1, 2)})})
    (standing,) = comparison.standings
    assert (standing.accuracy, standing.misclassified, standing.images) == (0.75, (1,), 3)
    assert standing.exact == pytest.approx(2 / 3)
    assert standing.radius == pytest.approx((2 / 3, 4 / 3))
    assert comparison.pairs == ()


def test_images_of_different_sizes_are_told() -> None:
    small = snapshot({0: (0, 1)})
    large = replace(small, images=(replace(small.images[0], groups=12),))
    assert not compare_snapshots({"small": small, "large": large}).same_groups
    assert compare_snapshots({"a": small, "b": small}).same_groups


def test_names_can_be_folders_and_differ() -> None:
    given_names = ["nets/a.onnx", "a.pt2", "dnn-3", "file.py:net", "odd name!.onnx", "v1.5"]
    assert name_networks(given_names) == ["a", "a-2", "dnn-3", "net", "odd-name", "v1.5"]


def two_networks() -> tuple[dict[str, l0tre.Network], torch.Tensor]:
    found = {}
    for name, seed in (("one", 3), ("two", 5)):
        module, shape = tiny_module("conv1", seed)
        found[name] = plain_network(module, shape)
    torch.manual_seed(1)
    return found, torch.rand(5, *shape)


def essence(comparison: Comparison) -> object:
    return [replace(standing, seconds=0.0) for standing in comparison.standings], comparison.pairs


@pytest.mark.slow
def test_compare_is_evaluate_for_each_network(tmp_path: Path) -> None:
    networks, images = two_networks()
    comparison = l0tre.compare(networks, images, guarantee="grid", out=tmp_path / "out", max_t=1, **FEW)
    for name, standing in zip(networks, comparison.standings, strict=True):
        alone = l0tre.evaluate(networks[name], images, guarantee="grid", max_t=1, **FEW)
        assert (standing.network, standing.lower, standing.upper) == (name, alone.lower, alone.upper)
        assert read_snapshot(tmp_path / "out" / name).finished
    stored = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert stored == json.loads(json.dumps(comparison.to_dict()))
    rows = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open()))
    assert [row["network"] for row in rows] == list(networks)
    assert essence(l0tre.compare(networks, images, guarantee="grid", max_t=1, **FEW)) == essence(comparison)


@pytest.mark.slow
def test_stopped_comparisons_go_on_and_finished_networks_are_not_repeated(tmp_path: Path) -> None:
    networks, images = two_networks()
    options: dict[str, Any] = {"guarantee": "grid", "max_t": 2, **FEW}
    whole = l0tre.compare(networks, images, **options)
    out = tmp_path / "out"
    begun: list[str] = []

    def stop() -> bool:
        begun.append("asked")
        return len(begun) > 2

    part = l0tre.compare(networks, images, out=out, stop=stop, **options)
    assert part.missing == ("two",)
    assert [standing.finished for standing in part.standings] == [False]
    with pytest.raises(StoreError, match="`resume=True`"):
        l0tre.compare(networks, images, out=out, **options)
    assert essence(l0tre.compare(networks, images, out=out, resume=True, **options)) == essence(whole)
    before = (out / "one" / "run.db").read_bytes()
    assert essence(l0tre.compare(networks, images, out=out, resume=True, **options)) == essence(whole)
    assert (out / "one" / "run.db").read_bytes() == before


@pytest.mark.slow
def test_another_question_does_not_resume_the_runs(tmp_path: Path) -> None:
    networks, images = two_networks()
    out = tmp_path / "out"
    l0tre.compare(networks, images, out=out, guarantee="grid", max_t=1, **FEW)
    changes: tuple[dict[str, Any], ...] = ({"max_t": 2}, {"epsilon": 0.5}, {"guarantee": "certified"})
    for changed in changes:
        with pytest.raises(StoreError, match=next(iter(changed))):
            l0tre.compare(networks, images, out=out, resume=True, **{"guarantee": "grid", "max_t": 1, **FEW, **changed})
    with pytest.raises(StoreError, match="5 inputs, not on the 3"):
        l0tre.compare(networks, images[:3], out=out, resume=True, guarantee="grid", max_t=1, **FEW)
    other = {"one": replace(networks["one"], fingerprint="other"), "two": networks["two"]}
    with pytest.raises(StoreError, match="another network"):
        l0tre.compare(other, images, out=out, resume=True, guarantee="grid", max_t=1, **FEW)


def test_images_are_resized_for_each_network_and_keep_their_indices() -> None:
    torch.manual_seed(0)
    small = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    large = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    networks = {"small": plain_network(small, (1, 2, 2)), "large": plain_network(large, (1, 4, 4))}
    data = l0tre.Dataset(torch.rand(3, 1, 4, 4), None, (7, 2, 5), "three")
    comparison = l0tre.compare(networks, data, resize=True, guarantee="grid", max_t=1, **FEW)
    assert [standing.groups for standing in comparison.standings] == [4, 16]
    assert not comparison.same_groups
    assert comparison.pairs[0].common == 3
    with pytest.raises(l0tre.L0treError, match="shape"):
        l0tre.compare(networks, data, guarantee="grid", max_t=1, **FEW)


def test_what_cannot_be_compared_is_refused() -> None:
    networks, images = two_networks()
    with pytest.raises(ConfigError, match="at least two"):
        l0tre.compare([networks["one"]], images)
    with pytest.raises(ConfigError, match="folder"):
        l0tre.compare(networks, images, resume=True)
    with pytest.raises(ConfigError, match="name"):
        l0tre.compare({"a": networks["one"], "../b": networks["two"]}, images)
    with pytest.raises(ConfigError, match="at least two"):
        compare_entrants([], Settings())
