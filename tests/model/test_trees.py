"""Thresholds of tree ensembles: the scores are constant between them, down to neighbouring float32 numbers."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import l0tre
from l0tre.grid import interval_points
from l0tre.model.estimator import estimator_digest, estimator_scores
from l0tre.model.trees import thresholds
from tests.tools import NO_ATTACK

RANDOM = np.random.RandomState(0)
# Coarse values, so that thresholds lie on float32 numbers of the data, zero among them, and between them.
ROWS = np.concatenate([RANDOM.rand(200, 2), RANDOM.randint(-2, 3, (200, 2)) / 2], 1).astype(np.float32)
SIGNED = np.where(ROWS < 0.3, 0, ROWS - 0.65).astype(np.float32)  # thresholds between negative numbers and zero
CLASSES = ((ROWS[:, 0] + ROWS[:, 2] > 0.6) ^ (ROWS[:, 3] > 0)).astype(int)


def lightgbm(**options: Any) -> Any:
    library = pytest.importorskip("lightgbm")
    return library.LGBMClassifier(n_estimators=4, num_leaves=6, min_child_samples=5, n_jobs=1, verbose=-1, **options)


def xgboost(**options: Any) -> Any:
    library = pytest.importorskip("xgboost")
    return library.XGBClassifier(n_estimators=4, max_depth=3, n_jobs=1, **options)


READ: dict[str, Callable[[], Any]] = {
    "tree": lambda: DecisionTreeClassifier(max_depth=5, random_state=0),
    "forest": lambda: RandomForestClassifier(4, max_depth=4, random_state=0),
    "extra trees": lambda: ExtraTreesClassifier(4, max_depth=4, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=4, random_state=0),
    "boosting from zero": lambda: GradientBoostingClassifier(n_estimators=4, init="zero", random_state=0),
    "boosting from the mean": lambda: GradientBoostingClassifier(n_estimators=4, init=DummyClassifier()),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=4, min_samples_leaf=5, random_state=0),
    "lightgbm": lightgbm,
    "lightgbm forest": lambda: lightgbm(boosting_type="rf", subsample=0.7, subsample_freq=1),
    "xgboost": xgboost,
    "xgboost dart": lambda: xgboost(booster="dart", rate_drop=0.5),
}
NOT_READ: dict[str, Callable[[], Any]] = {
    "pipeline": lambda: make_pipeline(StandardScaler(), DecisionTreeClassifier()),
    "linear": LogisticRegression,
    "adaptive": lambda: AdaBoostClassifier(n_estimators=2),
    "boosting from another model": lambda: GradientBoostingClassifier(n_estimators=2, init=LogisticRegression()),
    "histograms of categories": lambda: HistGradientBoostingClassifier(max_iter=1, categorical_features=[3]),
    "lightgbm where zero is missing": lambda: lightgbm(zero_as_missing=True),
    "lightgbm with linear leaves": lambda: lightgbm(linear_tree=True),
    "xgboost where zero is missing": lambda: xgboost(missing=0.0),
    "xgboost of lines": lambda: xgboost(booster="gblinear"),
}


@pytest.mark.filterwarnings("ignore")  # of the libraries, about their options
@pytest.mark.parametrize("name", READ)
def test_every_value_next_to_a_threshold_has_the_scores_of_a_point_that_is_tried(name: str) -> None:
    estimator = READ[name]().fit(ROWS, CLASSES)
    found = thresholds(estimator, 4)
    assert found is not None
    scores, low, high = estimator_scores(estimator, {}), -1.0, 1.0
    changes = 0
    for feature, numbers in enumerate(found):
        at = numbers[(numbers > low) & (numbers < high)].float()
        up, down = (torch.nextafter(at, torch.tensor(end)) for end in (math.inf, -math.inf))
        near = torch.cat([at, up, torch.nextafter(up, torch.tensor(math.inf)), down, torch.tensor([low, 0.0, high])])
        for row in ROWS[:3]:
            tried, asked = (
                {tuple(line) for line in scores(with_values(row, feature, values)).tolist()}
                for values in (interval_points(low, high, numbers), near)
            )
            assert asked <= tried
            changes += len(asked) - 1
    assert changes > 5  # the thresholds matter


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READ)
def test_both_ends_between_two_thresholds_have_the_same_scores(name: str) -> None:
    """The least and the largest float32 number of each part of a range; LightGBM takes tiny ones for zero."""
    estimator = READ[name]().fit(SIGNED, (SIGNED[:, 0] < 0) ^ (SIGNED[:, 1] > 0))
    found = thresholds(estimator, 4)
    assert found is not None
    scores = estimator_scores(estimator, {})
    for feature, numbers in enumerate(found):
        last = torch.cat([numbers, torch.tensor([2.0]).double()])
        largest = last.float()
        largest = torch.where(largest > last, torch.nextafter(largest, torch.tensor(-math.inf)), largest)
        least = torch.cat([torch.tensor([-2.0]), torch.nextafter(largest[:-1], torch.tensor(math.inf))])
        some = least <= largest
        for row in SIGNED[:20]:
            ends = (scores(with_values(row, feature, values[some])) for values in (least, largest))
            assert torch.equal(*ends)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NOT_READ)
def test_what_depends_on_more_than_thresholds_is_not_read(name: str) -> None:
    assert thresholds(NOT_READ[name]().fit(np.abs(ROWS), CLASSES), 4) is None


def with_values(row: np.ndarray, feature: int, values: torch.Tensor) -> torch.Tensor:
    rows = torch.from_numpy(row).repeat(len(values), 1)
    rows[:, feature] = values
    return rows


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lightgbm", "xgboost"])
def test_one_column_of_boosted_trees_is_exact(name: str) -> None:
    estimator = READ[name]().fit(ROWS, CLASSES)
    domain = l0tre.make_domain((4,), low=-1.0, mask=np.array([True, False, False, False]))
    result = l0tre.evaluate(estimator, ROWS[:10], CLASSES[:10], domain=domain, max_t=1, **NO_ATTACK)
    line = np.linspace(-1, 1, 401, dtype=np.float32)
    for image in result:
        assert image.guarantee == "certified"
        rows = with_values(ROWS[image.index], 0, torch.from_numpy(line))
        changed = bool((estimator.predict(rows.numpy()) != CLASSES[image.index]).any())
        assert not (changed and image.lower == 1)
        assert (image.upper == 1) == (image.lower == 0)
    assert 0 < result.lower < 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["forest", "histograms", "lightgbm", "xgboost", "pipeline", "adaptive"])
def test_a_fingerprint_is_of_what_was_learnt(name: str) -> None:
    make = {**READ, **NOT_READ}[name]
    first, other = make().fit(ROWS, CLASSES), make().fit(ROWS[::2], CLASSES[::2])
    assert estimator_digest(first)
    assert estimator_digest(first) == estimator_digest(copy.deepcopy(first))
    assert estimator_digest(first) != estimator_digest(other)
