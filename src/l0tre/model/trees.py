"""Where the scores of tree ensembles can change: the thresholds of their splits, from three libraries.

Between two thresholds of every feature the scores are constant, whatever the leaves hold and however trees are added
up. What is read must therefore be *all* splits, by the features of the input, and nothing else may depend on the input:
an ensemble of which that is not known is refused here, and evaluated on a grid.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["thresholds"]

# LightGBM takes values as near to zero as this for zero, before it compares them.
ZERO = float(np.float32(1e-35))
BELOW_ZERO = float(np.nextafter(np.float32(-ZERO), np.float32(-np.inf)))
FORESTS = ("RandomForestClassifier", "ExtraTreesClassifier")

# Features of the inner nodes of a tree, and the numbers that they compare them with.
Splits = tuple[np.ndarray, np.ndarray]


class _UnknownTreesError(Exception):
    """Trees of which it is not known that only thresholds matter."""


def thresholds(estimator: Any, features: int) -> tuple[Tensor, ...] | None:
    """For a tree or an ensemble of trees: where its scores can change, by feature.

    Args:
        estimator: The fitted classifier, of scikit-learn, LightGBM or XGBoost.
        features: How many features it takes.

    Returns:
        float64 ``[thresholds]`` ascending for each feature: float32 inputs whose values lie between the same thresholds
        get the same scores, a value at a threshold those below it. ``None`` for what is no ensemble of trees, or has
        trees that cannot be read.
    """
    library = type(estimator).__module__.partition(".")[0]
    readers = {"sklearn": _of_sklearn, "lightgbm": _of_lightgbm, "xgboost": _of_xgboost}
    if library not in readers:
        return None
    found: list[list[np.ndarray]] = [[] for _ in range(features)]
    with suppress(_UnknownTreesError, AttributeError, KeyError, IndexError, TypeError, ValueError):
        for feature, threshold in readers[library](estimator):
            for number in np.unique(feature):
                found[int(number)].append(np.asarray(threshold, dtype=np.float64)[feature == number])
        return tuple(
            torch.from_numpy(np.unique(np.concatenate(parts))) if parts else torch.empty(0).double() for parts in found
        )
    return None


def _of_sklearn(estimator: Any) -> Iterator[Splits]:
    """Its trees round inputs to float32 (but for the histogram ones) and send a value at a threshold to the left."""
    name = type(estimator).__name__
    if hasattr(estimator, "tree_"):
        tree = estimator.tree_
        inner = tree.children_left >= 0
        yield tree.feature[inner], tree.threshold[inner]
    elif name == "HistGradientBoostingClassifier":
        # With categorical features its trees see the columns in another order.
        if getattr(estimator, "is_categorical_", None) is not None:
            raise _UnknownTreesError
        for predictor in (one for stage in estimator._predictors for one in stage):
            nodes = predictor.nodes[predictor.nodes["is_leaf"] == 0]
            if bool(nodes["is_categorical"].any()):
                raise _UnknownTreesError
            yield nodes["feature_idx"].astype(np.int64), nodes["num_threshold"]
    elif name in FORESTS or (
        # What its boosting begins with may be any other model.
        name == "GradientBoostingClassifier" and type(estimator.init_).__name__ in ("DummyClassifier", "str")
    ):
        for one in np.asarray(estimator.estimators_, dtype=object).ravel():
            yield from _of_sklearn(one)
    else:
        raise _UnknownTreesError


def _of_lightgbm(estimator: Any) -> Iterator[Splits]:
    """Its trees compare in float64 and send a value at a threshold to the left; tiny values count as zero."""
    model = estimator.booster_.dump_model()
    for tree in model["tree_info"]:
        nodes = list(_inner_nodes(tree["tree_structure"]))
        # Sets of categories have no threshold; where zero means missing it goes a way of its own.
        if any(node["decision_type"] != "<=" or node["missing_type"] == "Zero" for node in nodes):
            raise _UnknownTreesError
        if any("leaf_coeff" in leaf for leaf in _leaves(tree["tree_structure"])):  # linear functions in leaves
            raise _UnknownTreesError
        feature, threshold = _pairs((node["split_feature"], node["threshold"]) for node in nodes)
        threshold = np.where((threshold >= 0) & (threshold < ZERO), ZERO, threshold)
        yield feature, np.where((threshold >= -ZERO) & (threshold < 0), BELOW_ZERO, threshold)


def _inner_nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "split_feature" in node:
        yield node
        for side in ("left_child", "right_child"):
            yield from _inner_nodes(node[side])


def _leaves(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "split_feature" not in node:
        yield node
        return
    for side in ("left_child", "right_child"):
        yield from _leaves(node[side])


def _of_xgboost(estimator: Any) -> Iterator[Splits]:
    """Its trees compare in float32 and send a value at a threshold to the right."""
    learner = json.loads(bytes(estimator.get_booster().save_raw("json")))["learner"]
    booster = learner["gradient_booster"]
    booster = booster.get("gbtree", booster)  # inside dart, which leaves whole trees out
    if booster["name"] != "gbtree" or not np.isnan(estimator.missing):  # a number that means missing goes its own way
        raise _UnknownTreesError
    for tree in booster["model"]["trees"]:
        inner = np.asarray(tree["left_children"]) >= 0
        if bool(np.asarray(tree["split_type"])[inner].any()):
            raise _UnknownTreesError
        first_right = np.asarray(tree["split_conditions"], dtype=np.float32)[inner]
        last_left = np.nextafter(first_right, np.float32(-np.inf))
        yield np.asarray(tree["split_indices"], dtype=np.int64)[inner], last_left.astype(np.float64)


def _pairs(splits: Iterable[tuple[int, float]]) -> Splits:
    found = list(splits)
    return (
        np.array([feature for feature, _ in found], dtype=np.int64),
        np.array([threshold for _, threshold in found], dtype=np.float64),
    )
