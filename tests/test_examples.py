"""The examples run as written, and what they print are bounds that can be true."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import l0tre
from l0tre.data import select

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits_at(places: list[int]) -> tuple[Tensor, Tensor]:
    digits = select(l0tre.load_data("mnist5k", input_shape=(1, 14, 14), resize=True), indices=places)
    assert digits.labels is not None
    return digits.images, digits.labels


def check_bounds(result: l0tre.Snapshot, max_t: int) -> None:
    assert result.finished
    assert result.images
    for bounds in result.images:
        assert 0 <= bounds.lower < bounds.upper <= bounds.groups + 1
        assert bounds.lower <= max_t
        # The search is complete, so an image that is still open was safe at every level, or met a tie.
        assert bounds.converged or bounds.blocked or bounds.lower == max_t
        if bounds.witness is not None:
            assert bounds.witness.distance == bounds.upper
            assert bounds.witness.label != bounds.label
            assert bounds.witness.margin < 0
    assert result.lower == pytest.approx(sum(b.lower for b in result.images) / len(result.images))
    assert result.upper == pytest.approx(sum(b.upper for b in result.images) / len(result.images))


NAMES = [
    "attack",
    "attack_adapters",
    "black_box",
    "breast_cancer",
    "certify",
    "evaluate_module",
    "german_credit",
    "mixed_table",
    "tabular",
]


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 70


def test_evaluate_module(capsys: pytest.CaptureFixture[str]) -> None:
    result = load_example("evaluate_module").main()
    check_bounds(result, max_t=2)
    printed = capsys.readouterr().out
    assert f"mean: lower {result.lower:.2f}, upper {result.upper:.2f}; {result.converged} converged" in printed
    assert printed.count("safe up to") == len(result.images)
    assert len(result.images) + len(result.excluded) == 10
    # It has learnt the digits, and enough changed pixels change any of its decisions.
    assert len(result.images) >= 7
    assert result.without_witness == 0


def test_tabular(capsys: pytest.CaptureFixture[str]) -> None:
    module = load_example("tabular")
    result = module.main()
    check_bounds(result, max_t=3)
    printed = capsys.readouterr().out
    assert f"mean over {len(result.images)} rows" in printed
    assert result.unit == "feature"
    assert {bounds.groups for bounds in result.images} == {12}
    assert all(bounds.index % 12 == 0 for bounds in result.images)
    # The frozen column is the last one and never part of a witness.
    assert module.FROZEN not in printed
    assert all(12 not in bounds.witness.groups for bounds in result.images if bounds.witness is not None)


def test_black_box(capsys: pytest.CaptureFixture[str]) -> None:
    result = load_example("black_box").main()
    check_bounds(result, max_t=2)
    printed = capsys.readouterr().out
    assert f"({result.queries:,} queries)" in printed
    assert printed.count("left out") == len(result.excluded)
    assert len(result.images) + len(result.excluded) == 20
    # Moving a few of 64 pixels all the way must move some digit to another mean.
    assert result.without_witness == 0


def test_certify(capsys: pytest.CaptureFixture[str]) -> None:
    verdict, result = load_example("certify").main()
    printed = capsys.readouterr().out
    assert verdict.answer == "safe"
    assert verdict.guarantee == "certified"
    assert verdict.lower >= 2
    assert verdict.witness is None
    assert "safe for 2 pixels (guarantee: certified)" in printed
    # The checker established the same claim, with a bound of its own.
    assert (result.radius, result.label) == (2, 0)
    assert result.margin > 0
    assert result.nodes >= 1
    assert f"{result.nodes:,} parts cover every set of 2 pixels" in printed


def test_attack(capsys: pytest.CaptureFixture[str]) -> None:
    module = load_example("attack")
    module.BUDGET = 200  # type: ignore[attr-defined]  # does, and takes a fifth of the time
    result, aimed = module.main()
    printed = capsys.readouterr().out
    network = l0tre.load("sdnn")
    images, labels = digits_at([0, 1000, 2000, 3000, 4000])
    assert result.found.all()
    assert torch.equal(result.labels, labels)
    assert torch.equal(network.scores(result.adversarial).argmax(1), result.decisions)
    assert (result.decisions != labels).all()
    # The bundled network gives way to few pixels; each pixel is one value here.
    assert torch.equal((result.adversarial != images).flatten(1).sum(1), result.distance)
    assert int(result.distance.max()) < 10
    assert printed.count("->") == int(result.distance[0])
    assert f"the network says {int(result.decisions[0])}" in printed
    assert f"mean {result.mean:.2f}" in printed
    assert (aimed.decisions[aimed.found] == module.TARGET).all()
    assert aimed.found.all()
    assert f"to class {module.TARGET}: {aimed.distance.tolist()} pixels" in printed


def test_attack_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("foolbox")
    pytest.importorskip("art")
    module = load_example("attack_adapters")
    module.BUDGET = 100  # type: ignore[attr-defined]
    by_foolbox, by_art = module.main()
    printed = capsys.readouterr().out
    network = l0tre.load("sdnn")
    images, labels = digits_at([0, 1500, 3000])
    for found in (by_foolbox, by_art):
        assert (network.scores(found).argmax(1) != labels).all()
        assert str((found != images).flatten(1).sum(1).tolist()) in printed
    assert "3 of 3 found" in printed


def test_breast_cancer(tmp_path: Path) -> None:
    results = load_example("breast_cancer").main(tmp_path)
    for name, result in results.items():
        assert (tmp_path / name / "report.html").is_file()
        assert {image.guarantee for image in result} == {"certified"}
        assert 0 <= result.lower < result.upper
        assert "worst area" in result.config["names"]["features"]


def test_mixed_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = load_example("mixed_table")
    result = example.main(tmp_path / "run")
    check_bounds(result, max_t=2)
    assert (tmp_path / "run" / "report.html").is_file()
    assert {image.guarantee for image in result} == {"certified"}
    assert " unless " in capsys.readouterr().out
    rows, _ = example.people(600)
    for image in result:
        if image.witness is not None:
            before, after = rows[image.index], image.witness.apply(rows[image.index])
            assert after[5:].sort().values.tolist() == [0, 0, 0, 1]
            assert bool((after[:2] >= before[:2]).all())
            assert torch.equal(after[:3], after[:3].round())
            assert after[4] == before[4]


def test_german_credit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    months, owns = torch.randint(4, 60, (100,)).tolist(), torch.randint(3, (100,)).tolist()
    kinds = ("own", "rent", "for free")
    lines = [f"{m},{kinds[k]},{'good' if m < 40 - 15 * k else 'bad'}" for m, k in zip(months, owns, strict=True)]
    table = tmp_path / "credit.csv"
    table.write_text("\n".join(["duration,housing,class", *lines]))
    result = load_example("german_credit").main(table, tmp_path / "run")
    check_bounds(result, max_t=2)
    assert {image.guarantee for image in result} == {"certified"}
    assert " unless " in capsys.readouterr().out
    for image in result:
        if image.witness is not None:
            words = torch.eye(3)[owns[image.index]]
            after = image.witness.apply(torch.cat([torch.tensor([float(months[image.index])]), _in_order(words)]))
            assert after[0] == after[0].round()
            assert after[1:].sort().values.tolist() == [0, 0, 1]


def _in_order(words: Tensor) -> Tensor:
    """Columns of ``own``, ``rent``, ``for free`` as pandas orders them: ``for free``, ``own``, ``rent``."""
    return words[[2, 0, 1]]
