"""Classifiers of scikit-learn and of libraries with its interface: gradient boosting, forests, pipelines."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.errors import ModelError, require
from l0tre.names import Names

__all__ = [
    "estimator_digest",
    "estimator_names",
    "estimator_scores",
    "estimator_shape",
    "is_estimator",
    "refuse_unfitted",
    "thresholds",
]


def is_estimator(source: object) -> bool:
    """Whether something is a fitted classifier with scikit-learn's interface."""
    return (
        hasattr(source, "classes_")
        and (hasattr(source, "predict_proba") or hasattr(source, "decision_function"))
        and not isinstance(source, torch.nn.Module | type)
    )


def estimator_shape(estimator: Any) -> tuple[int, ...] | None:
    """Shape of one input, if the estimator says how many features it was fitted on."""
    count = getattr(estimator, "n_features_in_", None)
    return None if count is None else (int(count),)


def estimator_names(estimator: Any) -> Names:
    """What it calls its features and classes."""
    features = tuple(str(name) for name in getattr(estimator, "feature_names_in_", ()))
    return Names(features=features, classes=tuple(str(name) for name in np.asarray(estimator.classes_).tolist()))


def estimator_scores(estimator: Any, words: Mapping[int, Sequence[str]]) -> Callable[[Tensor], Tensor]:
    """Scores of an estimator: its probabilities, or its decision function where it has none.

    Args:
        estimator: The classifier.
        words: By position of a feature the words that the whole numbers 0, 1, ... stand for; such an estimator, and one
            that was fitted on a table with names, is given a DataFrame.

    Returns:
        A function from float32 ``[batch, features]`` to float32 ``[batch, classes]``.

    Raises:
        MissingExtraError: If it needs a DataFrame and pandas is not installed.
    """
    features = estimator_names(estimator).features
    pandas = require("pandas", "tables") if features or words else None
    method = getattr(estimator, "predict_proba", None) or estimator.decision_function

    def scores(x: Tensor) -> Tensor:
        rows: Any = x.cpu().numpy()
        if pandas is not None:
            columns = features or tuple(f"column {place}" for place in range(rows.shape[1]))
            rows = pandas.DataFrame(
                {name: _cells(rows[:, place], words.get(place)) for place, name in enumerate(columns)}
            )
        result = np.asarray(method(rows), dtype=np.float64)
        if result.ndim == 1:  # one number for two classes: above 0 for the second
            result = np.stack([-result, result], 1)
        return torch.from_numpy(result.astype(np.float32))

    return scores


def _cells(values: np.ndarray, words: Sequence[str] | None) -> Any:
    if words is None:
        return values
    return np.array(words, dtype=object)[np.clip(values.round().astype(int), 0, len(words) - 1)]


def estimator_digest(estimator: Any) -> str:
    """Hash of what it learnt, so that a run is not resumed with another one; empty where that cannot be read."""
    trees = _trees(estimator)
    digest = hashlib.sha256(f"{type(estimator).__name__} {estimator.get_params()}".encode())
    if trees is not None:
        for feature, threshold, value in trees:
            for array in (feature, threshold, value):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
    learnt = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    if not all(isinstance(value, np.ndarray | int | float | str) for value in learnt.values()):
        return ""
    for name, value in sorted(learnt.items()):
        digest.update(name.encode() + (value.tobytes() if isinstance(value, np.ndarray) else str(value).encode()))
    return digest.hexdigest()


def thresholds(estimator: Any) -> tuple[Tensor, ...] | None:
    """For a tree or an ensemble of trees: where its scores can change, by feature.

    Args:
        estimator: The classifier.

    Returns:
        float64 ``[thresholds]`` ascending for each feature: inputs whose values lie between the same thresholds get the
        same scores, a value at a threshold those below it. ``None`` for what is no ensemble of trees, or has trees that
        cannot be read.
    """
    trees, shape = _trees(estimator), estimator_shape(estimator)
    if trees is None or shape is None:
        return None
    found: list[list[np.ndarray]] = [[] for _ in range(math.prod(shape))]
    for feature, threshold, _ in trees:
        for number in np.unique(feature[feature >= 0]):
            found[int(number)].append(threshold[feature == number])
    return tuple(
        torch.from_numpy(np.unique(np.concatenate(parts)).astype(np.float64)) if parts else torch.empty(0).double()
        for parts in found
    )


def _trees(estimator: Any) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None:
    """Features (-1 in leaves), thresholds and values of the nodes of every tree; ``None`` if they are not known.

    Only scikit-learn's own trees are read, which send a value at a threshold to the left and round inputs to float32.
    """
    if not type(estimator).__module__.startswith(("sklearn.ensemble.", "sklearn.tree.")):
        return None
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        return list(_read_trees(estimator))
    return None


def _read_trees(estimator: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    if hasattr(estimator, "tree_"):
        tree = estimator.tree_
        yield tree.feature, tree.threshold, tree.value
    elif hasattr(estimator, "_predictors"):  # HistGradientBoosting
        for predictor in (one for stage in estimator._predictors for one in stage):
            nodes = predictor.nodes
            if bool(nodes["is_categorical"].any()):
                raise ValueError("a split by a set of categories has no threshold")
            feature = np.where(nodes["is_leaf"], -1, nodes["feature_idx"].astype(np.int64))
            yield feature, nodes["num_threshold"], nodes["value"]
    elif type(estimator).__name__ in TREE_ENSEMBLES:
        for one in np.asarray(estimator.estimators_, dtype=object).ravel():
            yield from _read_trees(one)
    else:
        raise ValueError(f"{type(estimator).__name__} is not known to be constant between the thresholds of its trees")


TREE_ENSEMBLES = (
    "RandomForestClassifier",
    "ExtraTreesClassifier",
    "GradientBoostingClassifier",
)


def refuse_unfitted(estimator: Any) -> None:
    """Refuse a classifier that was not fitted, which has no classes.

    Raises:
        ModelError: Always, for such a classifier.
    """
    if hasattr(estimator, "fit") and hasattr(estimator, "get_params") and not hasattr(estimator, "classes_"):
        raise ModelError(f"{type(estimator).__name__} was not fitted: call its fit before")
