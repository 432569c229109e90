"""Our attack inside the real foolbox."""

import pytest
import torch
from torch import Tensor, nn

from l0tre.errors import ConfigError
from tests.adapters.linear import fewest_changes, make_case

foolbox = pytest.importorskip("foolbox")

from l0tre.adapters.foolbox import L0TREAttack  # noqa: E402  # needs foolbox


def wrapped(model: nn.Module, **options: object) -> object:
    return foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu", **options)


def test_it_runs_as_any_attack_of_foolbox() -> None:
    model, images, labels = make_case(4)
    raw, clipped, found = L0TREAttack(budget=1000)(wrapped(model), images, labels, epsilons=None)
    assert torch.equal(raw, clipped)
    assert bool(found.all())
    assert bool((model(raw).argmax(1) != labels).all())
    for image, changed, label in zip(images, raw, labels.tolist(), strict=True):
        optimum = fewest_changes(model, image, label)
        assert optimum <= int((image != changed).sum()) <= optimum + 2
    assert torch.equal(foolbox.distances.l0(images, raw), (images != raw).flatten(1).sum(1).float())


def test_targets_are_reached() -> None:
    model, images, labels = make_case(3)
    targets = (labels + 1) % 3
    goal = foolbox.criteria.TargetedMisclassification(targets)
    raw, _, found = L0TREAttack(budget=1000)(wrapped(model), images, goal, epsilons=None)
    assert bool(found.all())
    assert torch.equal(model(raw).argmax(1), targets)


def test_bounds_and_preprocessing_of_the_model_count() -> None:
    linear, images, _ = make_case(3)
    shifted = {"mean": 0.25, "std": 2.0}
    model = foolbox.PyTorchModel(linear, bounds=(-1, 3), device="cpu", preprocessing=shifted)

    def scores(x: Tensor) -> Tensor:
        return linear((x - 0.25) / 2.0)  # type: ignore[no-any-return]

    images = 4 * images - 1
    labels = scores(images).argmax(1)
    raw, _, found = L0TREAttack(budget=1000)(model, images, labels, epsilons=None)
    assert bool(found.all())
    assert bool((scores(raw).argmax(1) != labels).all())
    assert float(raw.min()) >= -1
    assert float(raw.max()) <= 3
    assert bool(((raw < 0) | (raw > 1))[raw != images].any()), "values outside [0, 1] belong to this model's bounds"


def test_other_criteria_and_arguments_are_refused() -> None:
    model, images, labels = make_case(1)
    with pytest.raises(TypeError, match="frob"):
        L0TREAttack().run(wrapped(model), images, labels, frob=1)
    with pytest.raises(TypeError, match="no option 'budgte'"):
        L0TREAttack(budgte=5)  # type: ignore[call-arg]

    class Other(foolbox.criteria.Criterion):  # type: ignore[misc, name-defined]
        def __repr__(self) -> str:
            return "other"

        def __call__(self, *_: object) -> object:
            raise AssertionError

    with pytest.raises(ConfigError, match="criterion other"):
        L0TREAttack().run(wrapped(model), images, Other())
