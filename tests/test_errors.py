"""Errors that the user can act on, and optional dependencies."""

import math
import sys
from typing import Any

import pytest
import torch

import l0tre
from l0tre import errors
from l0tre.errors import ConfigError, DataError, L0treError, MissingExtraError, require


def test_every_error_has_the_one_base() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is errors.Interrupted:  # nothing that handles errors is to catch it
            assert not issubclass(kind, Exception)
        elif isinstance(kind, type):
            assert issubclass(kind, L0treError | errors.L0treWarning)
    assert not issubclass(L0treError, ValueError | OSError)


def test_require_gives_the_module() -> None:
    assert require("math", "cli") is math
    assert require("os.path", "cli") is sys.modules["os.path"]


@pytest.mark.parametrize("module", ["onnx", "onnx.reference"])
def test_require_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"^onnx is needed here .*pip install 'l0tre\[onnx\]'$"):
        require(module, "onnx")


def test_an_installed_package_that_cannot_be_imported_says_why(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_extra.py").write_text("raise ImportError('libfoo.so is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"libfoo\.so is missing"):
        require("broken_extra", "data")


def test_an_error_inside_an_extra_is_not_hidden(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_extra.py").write_text("raise ZeroDivisionError\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        require("raising_extra", "data")


def first_two(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)[:, :2]


@pytest.mark.parametrize(
    ("images", "labels", "options", "kind"),
    [
        (torch.rand(2, 3), [0], {}, DataError),
        (torch.rand(2, 3), [0, 2], {}, DataError),
        (torch.rand(2, 3), [0, -1], {}, DataError),
        (torch.rand(2, 3), [0, 0.5], {}, DataError),
        (torch.rand(0, 3), None, {}, DataError),
        (torch.rand(2, 3) + 2, None, {}, DataError),
        (torch.full((2, 3), torch.nan), None, {}, DataError),
        (torch.rand(2, 3), None, {"max_t": 0}, ConfigError),
        (torch.rand(2, 3), None, {"max_t": 4}, ConfigError),
        (torch.rand(2, 3), None, {"epsilon": 0.0}, ConfigError),
        (torch.rand(2, 3), None, {"epsilon": math.nan}, ConfigError),
        (torch.rand(2, 3), None, {"grid": "round"}, ConfigError),
        (torch.rand(2, 3), None, {"colours": "pink"}, ConfigError),
        (torch.rand(2, 3), None, {"memory_bytes": -1}, ConfigError),
    ],
)
def test_everything_is_refused_before_the_first_step(
    images: torch.Tensor, labels: list[int] | None, options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        l0tre.anytime(first_two, images, labels, **options)  # not even iterated over
    assert "\n" not in str(caught.value)
