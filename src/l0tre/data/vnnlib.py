"""VNN-LIB properties of classifiers: a box of inputs, and the class that must win in it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l0tre.errors import DataError

__all__ = ["VnnlibProperty", "read_vnnlib", "write_vnnlib"]

TOKEN = re.compile(r"\(|\)|[^\s()]+")
VARIABLE = re.compile(r"([XY])_(\d+)")


@dataclass(frozen=True)
class VnnlibProperty:
    """A classification property.

    Attributes:
        low: float64 ``[values]``, smallest inputs.
        high: Largest inputs.
        label: The class whose score must exceed all others.
        classes: Number of classes.
    """

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    label: int
    classes: int


def read_vnnlib(path: Path) -> VnnlibProperty:
    """Read a property: bounds of every input, and as what would violate it that another class wins.

    Args:
        path: The file: ``(assert (<= X_0 1))`` and the like, and one assertion that some ``Y_j`` is at least
            ``Y_label``, for every other class ``j``.

    Raises:
        DataError: If it cannot be read or is another kind of property.
    """
    try:
        text = re.sub(r";[^\n]*", "", path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as VNN-LIB ({error})") from error
    bounds: dict[str, dict[int, float]] = {"<=": {}, ">=": {}}
    beats: list[tuple[int, int]] = []  # (j, label): class j at least as high as the label violates
    declared = {"X": 0, "Y": 0}
    for form in _forms(text, path):
        if form and form[0] == "declare-const":
            kind, number = _variable(form[1], path)
            declared[kind] = max(declared[kind], number + 1)
        elif form and form[0] == "assert" and len(form) == 2:
            before = len(beats)
            _take(form[1], bounds, beats, path)
            if before and len(beats) > before:
                raise DataError(f"{path}: asserts two things about scores; expected one disjunction")
    count = declared["X"]
    missing = [place for place in range(count) if place not in bounds["<="] or place not in bounds[">="]]
    if not count or missing:
        raise DataError(f"{path}: input X_{missing[0] if missing else 0} has no bounds on both sides; expected a box")
    labels = {label for _, label in beats}
    rivals = {rival for rival, _ in beats}
    if len(labels) != 1 or rivals | labels != set(range(declared["Y"])) or rivals & labels:
        raise DataError(
            f"{path}: is no classification property; expected that one class loses to any of all the others, as in "
            "(assert (or (and (>= Y_0 Y_2)) (and (>= Y_1 Y_2))))"
        )
    low, high = (np.array([bounds[sign][place] for place in range(count)]) for sign in (">=", "<="))
    return VnnlibProperty(low, high, labels.pop(), declared["Y"])


def _forms(text: str, path: Path) -> Iterator[Any]:
    """The expressions in brackets, as nested lists."""
    stack: list[list[Any]] = [[]]
    for token in TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) < 2:
                raise DataError(f"{path}: a bracket is closed that was not opened")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1:
        raise DataError(f"{path}: a bracket is not closed")
    yield from (form for form in stack[0] if isinstance(form, list))


def _variable(token: object, path: Path) -> tuple[str, int]:
    match = VARIABLE.fullmatch(token) if isinstance(token, str) else None
    if match is None:
        raise DataError(f"{path}: {token!r} is no variable; expected X_0, X_1, ... and Y_0, Y_1, ...")
    return match[1], int(match[2])


def _take(form: Any, bounds: dict[str, dict[int, float]], beats: list[tuple[int, int]], path: Path) -> None:
    """Sort an assertion into bounds of inputs and comparisons of scores."""
    if not isinstance(form, list) or not form:
        raise DataError(f"{path}: {form!r} is asserted; expected a comparison")
    if form[0] == "or":
        for part in form[1:]:
            if isinstance(part, list) and part[:1] == ["and"] and len(part) == 2:
                part = part[1]
            beats.append(_comparison(part, path))
        return
    if form[0] not in bounds or len(form) != 3:
        raise DataError(f"{path}: asserts {form[0]!r}; expected <=, >= or one disjunction of comparisons of scores")
    if isinstance(form[2], str) and VARIABLE.fullmatch(form[2]):
        beats.append(_comparison(form, path))
        return
    kind, number = _variable(form[1], path)
    try:
        value = float(form[2])
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: {form[2]!r} is no number") from error
    if kind != "X":
        raise DataError(f"{path}: bounds a score by a number; expected comparisons of scores with each other")
    tighter = min if form[0] == "<=" else max
    bounds[form[0]][number] = tighter(bounds[form[0]].get(number, value), value)


def _comparison(form: Any, path: Path) -> tuple[int, int]:
    """Two scores, the one that is at least as high first."""
    if not isinstance(form, list) or len(form) != 3 or form[0] not in ("<=", ">="):
        raise DataError(f"{path}: {form!r} is no comparison of two scores")
    (first, a), (second, b) = (_variable(token, path) for token in form[1:])
    if (first, second) != ("Y", "Y"):
        raise DataError(f"{path}: mixes inputs and scores in one comparison")
    return (a, b) if form[0] == ">=" else (b, a)


def write_vnnlib(path: Path, wanted: VnnlibProperty, remark: str = "") -> None:
    """Write a property, so that it is violated (``sat``) where another class is at least as high as the label.

    Args:
        path: The file to make or to replace.
        wanted: The property; its numbers are written exactly.
        remark: A comment of one line.
    """
    names = [*(f"X_{place}" for place in range(len(wanted.low))), *(f"Y_{place}" for place in range(wanted.classes))]
    lines = [f"; {remark}", *(f"(declare-const {name} Real)" for name in names)]
    for place, (low, high) in enumerate(zip(wanted.low.tolist(), wanted.high.tolist(), strict=True)):
        lines += [f"(assert (>= X_{place} {_exact(low)}))", f"(assert (<= X_{place} {_exact(high)}))"]
    rivals = (place for place in range(wanted.classes) if place != wanted.label)
    lines += ["(assert (or", *(f"  (and (>= Y_{rival} Y_{wanted.label}))" for rival in rivals), "))", ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def _exact(value: float) -> str:
    """A number with all its decimals and no exponent, which some readers do not know."""
    return format(Decimal(value), "f")
