"""Python references: what they find, and that they leave the interpreter as it was."""

import sys
from pathlib import Path

import pytest
from torch import nn

from l0tre.errors import ModelError
from l0tre.model.reference import resolve_reference

TEXT = """
from torch import nn

class Net(nn.Module):
    pass

class Needy(nn.Module):
    def __init__(self, width, *, depth=3):
        super().__init__()

net = Net()

def score(x):
    return x

def score_with_options(x, scale=1.0):
    return x

def make():
    return Net()

def make_with_options(width=3, **options):
    return Net()

class Holder:
    inner = net
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(TEXT)
    return str(tmp_path / "nets.py")


@pytest.mark.parametrize("name", ["Net", "net", "make", "make_with_options", "Holder.inner"])
def test_modules(place: str, name: str) -> None:
    assert isinstance(resolve_reference(f"{place}:{name}"), nn.Module)


@pytest.mark.parametrize("name", ["score", "score_with_options"])
def test_functions_with_a_required_argument_score(place: str, name: str) -> None:
    found = resolve_reference(f"{place}:{name}")
    assert callable(found)
    assert found(3) == 3


def test_a_builtin_is_a_scoring_function() -> None:
    assert resolve_reference("math:sin")(0) == 0


def test_a_class_that_needs_arguments_is_refused(place: str) -> None:
    with pytest.raises(ModelError, match="needs arguments"):
        resolve_reference(f"{place}:Needy")


def test_only_callable_names_are_offered(place: str) -> None:
    with pytest.raises(ModelError, match=r"has no 'nett': it has Net, Needy, net, score, .*Holder$"):
        resolve_reference(f"{place}:nett")
    with pytest.raises(ModelError, match=r", \.\.\.$"):
        resolve_reference("torch:no_such_name")


def test_the_search_path_is_restored(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(place).parent)
    before = list(sys.path)
    resolve_reference(f"{place}:Net")
    with pytest.raises(ModelError):
        resolve_reference("no_such_module_anywhere:f")
    with pytest.raises(ModelError):
        resolve_reference("no_such_file.py:f")
    assert sys.path == before


def test_a_file_named_like_a_package_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("def f(x):\n    return x\n")
    import numpy as np

    resolve_reference(f"{tmp_path / 'numpy.py'}:f")
    assert sys.modules["numpy"] is np


def test_a_file_that_fails_is_not_left_half_imported(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("x = 1\nraise ValueError('no')\n")
    with pytest.raises(ModelError, match="ValueError: no"):
        resolve_reference(f"{tmp_path / 'half.py'}:f")
    assert not any(name.endswith("half") for name in sys.modules)


@pytest.mark.parametrize("text", [":f", "nets.py:", ":", "package.module:"])
def test_half_a_reference(text: str) -> None:
    with pytest.raises(ModelError, match="names no function or network"):
        resolve_reference(text)
