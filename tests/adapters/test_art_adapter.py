"""Our attack inside the real ART."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from l0tre.errors import ConfigError
from tests.adapters.linear import SHAPE, fewest_changes, make_case

classification = pytest.importorskip("art.estimators.classification")

from l0tre.adapters.art import L0TREAttack, _network  # noqa: E402  # needs ART


def torch_classifier(model: nn.Module, **options: Any) -> Any:
    given = {"clip_values": (0.0, 1.0), "device_type": "cpu", **options}
    return classification.PyTorchClassifier(model, loss=nn.CrossEntropyLoss(), input_shape=SHAPE, nb_classes=3, **given)


@pytest.mark.parametrize("form", ["numbers", "one-hot", "none"])
def test_it_runs_as_any_attack_of_art(form: str) -> None:
    model, images, labels = make_case(4)
    given = {"numbers": labels.numpy(), "one-hot": np.eye(3)[labels.numpy()], "none": None}[form]
    found = L0TREAttack(torch_classifier(model), budget=1000).generate(images.numpy(), given)
    assert found.dtype == np.float32
    after = torch.from_numpy(found)
    assert bool((model(after).argmax(1) != labels).all())
    for image, changed, label in zip(images, after, labels.tolist(), strict=True):
        optimum = fewest_changes(model, image, label)
        assert optimum <= int((image != changed).sum()) <= optimum + 2


def test_only_a_plain_torch_classifier_is_a_white_box() -> None:
    model, _, _ = make_case(1)
    assert _network(torch_classifier(model), SHAPE).graph is not None
    assert _network(torch_classifier(model, preprocessing=(0.5, 0.5)), SHAPE).graph is None


def test_targets_are_reached_and_must_be_given() -> None:
    model, images, labels = make_case(3)
    targets = ((labels + 1) % 3).numpy()
    attack = L0TREAttack(torch_classifier(model), targeted=True, budget=1000)
    found = torch.from_numpy(attack.generate(images.numpy(), targets))
    assert model(found).argmax(1).tolist() == targets.tolist()
    with pytest.raises(ConfigError, match="target classes"):
        attack.generate(images.numpy())


def test_preprocessing_makes_it_a_black_box_with_the_same_answers() -> None:
    model, images, _ = make_case(2)
    classifier = torch_classifier(model, preprocessing=(0.5, 0.5))
    x = images.numpy()
    labels = classifier.predict(x).argmax(1)
    found = L0TREAttack(classifier, budget=1000).generate(x, labels)
    assert (classifier.predict(found).argmax(1) != labels).all()


def test_classifiers_without_torch_are_attacked_by_their_scores() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(0)
    x = random.random((60, 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 1).astype(int)
    classifier = classification.SklearnClassifier(linear.LogisticRegression().fit(x, y), clip_values=(0.0, 1.0))
    labels = classifier.predict(x[:3]).argmax(1)
    found = L0TREAttack(classifier, budget=500).generate(x[:3], labels)
    assert (classifier.predict(found).argmax(1) != labels).all()
    assert (found != x[:3]).sum(1).max() <= 2


def test_a_classifier_without_a_range_needs_one() -> None:
    model, images, labels = make_case(2)
    classifier = torch_classifier(model, clip_values=None)
    with pytest.raises(ConfigError, match="clip_values"):
        L0TREAttack(classifier).generate(images.numpy(), labels.numpy())
    found = L0TREAttack(classifier, low=0.0, high=1.0, budget=500).generate(images.numpy(), labels.numpy())
    assert bool((model(torch.from_numpy(found)).argmax(1) != labels).all())


def test_a_misspelt_option_is_named_at_once() -> None:
    model, images, _ = make_case(2)
    with pytest.raises(TypeError, match="no option 'sead'"):
        L0TREAttack(torch_classifier(model), sead=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option 'budgte'"):
        L0TREAttack(torch_classifier(model)).generate(images.numpy(), budgte=5)
