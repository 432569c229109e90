"""Classifiers of scikit-learn and of libraries with its interface: gradient boosting, forests, pipelines."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    kinds = _with_categories(estimator)
    method = getattr(estimator, "predict_proba", None) or estimator.decision_function

    def scores(x: Tensor) -> Tensor:
        rows: Any = x.cpu().numpy()
        if pandas is not None:
            columns = features or tuple(f"column {place}" for place in range(rows.shape[1]))
            rows = pandas.DataFrame(
                {name: _cells(rows[:, place], words.get(place), kinds, pandas) for place, name in enumerate(columns)}
            )
        result = np.asarray(method(rows), dtype=np.float64)
        if result.ndim == 1:  # one number for two classes: above 0 for the second
            result = np.stack([-result, result], 1)
        return torch.from_numpy(result.astype(np.float32))

    return scores


def _with_categories(estimator: Any) -> bool:
    """Whether it takes words as categories of pandas only."""
    kind = type(estimator)
    return kind.__module__.partition(".")[0] in ("lightgbm", "xgboost") or kind.__name__.startswith("HistGradient")


def _cells(values: np.ndarray, words: Sequence[str] | None, categories: bool, pandas: Any) -> Any:
    if words is None:
        return values
    codes = np.clip(values.round().astype(int), 0, len(words) - 1)
    return pandas.Categorical.from_codes(codes, words) if categories else np.array(words, dtype=object)[codes]


def estimator_digest(estimator: Any) -> str:
    """Hash of what it learnt, so that a run is not resumed with another one; empty where that cannot be read."""
    digest = hashlib.sha256()
    try:
        _feed(digest.update, estimator, set())
    except (TypeError, ValueError, AttributeError, RecursionError):
        return ""
    return digest.hexdigest()


WITHOUT_EFFECT = ("n_jobs", "verbose", "verbosity", "random_state", "_random_state")  # on the scores


def _feed(update: Callable[[bytes], None], value: Any, inside: set[int]) -> None:
    """Hash a value by what it holds; what is neither data nor an object with attributes counts by its class."""
    if isinstance(value, np.ndarray) and value.dtype.names is None and value.dtype != object:
        update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        return
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        update(f"{type(value).__name__} {value!r}".encode())
        return
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        update(f"{value.__module__} {value.__qualname__}".encode())
        return
    if id(value) in inside:
        update(b"above")
        return
    inside = {*inside, id(value)}
    update(type(value).__qualname__.encode())
    if isinstance(value, np.ndarray) and value.dtype.names is not None:  # between its fields there may be anything
        parts: Iterable[Any] = [value[name] for name in value.dtype.names]
    elif isinstance(value, np.ndarray | list | tuple):
        parts = list(value)
    elif isinstance(value, set | frozenset):
        parts = sorted(value, key=repr)
    elif isinstance(value, Mapping):
        parts = [part for item in sorted(value.items(), key=lambda item: repr(item[0])) for part in item]
    elif hasattr(value, "model_to_string"):  # LightGBM
        parts = [value.model_to_string()]
    elif hasattr(value, "save_raw"):  # XGBoost
        parts = [bytes(value.save_raw("json"))]
    else:
        parts = _attributes(value)
    for part in parts:
        _feed(update, part, inside)


def _attributes(value: Any) -> list[Any]:
    """What an object keeps when it is copied."""
    state = vars(value) if hasattr(value, "__dict__") else value.__reduce__()[1:]
    if isinstance(state, dict):
        return [(name, part) for name, part in sorted(state.items()) if name not in WITHOUT_EFFECT]
    return [state]


def refuse_unfitted(estimator: Any) -> None:
    """Refuse a classifier that was not fitted, which has no classes.

    Raises:
        ModelError: Always, for such a classifier.
    """
    if hasattr(estimator, "fit") and hasattr(estimator, "get_params") and not hasattr(estimator, "classes_"):
        raise ModelError(f"{type(estimator).__name__} was not fitted: call its fit before")
