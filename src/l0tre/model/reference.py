"""Python references on the command line: ``package.module:name`` and ``file.py:name``."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from l0tre.errors import ModelError
from l0tre.model.estimator import is_estimator
from l0tre.model.user_code import user_code

__all__ = ["DATA_FILES", "is_reference", "resolve_reference"]

LISTED = 12  # names offered when a wrong one was given
DATA_FILES = (".onnx", ".pt2")


def is_reference(text: str) -> bool:
    """Whether a model's name is a reference to Python code, which runs when it is loaded."""
    return ":" in text and Path(text).suffix.lower() not in DATA_FILES


def resolve_reference(text: str) -> nn.Module | Callable[..., Any]:
    """Import what a reference names. This runs the user's own Python code.

    Args:
        text: ``package.module:name`` or ``path/file.py:name``. The name is an ``nn.Module``, a class of modules or a
            function without required arguments that makes one, or a function from a batch to scores. Modules in the
            current folder, or beside the file, can be imported.

    Returns:
        The module or the scoring function.

    Raises:
        ModelError: If it cannot be imported or is neither.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise ModelError(f"{text!r} names no function or network: give package.module:name or file.py:name")
    from_file = place.endswith(".py")
    with _importable(Path(place).resolve().parent if from_file else Path.cwd()):
        module = _from_file(Path(place)) if from_file else _from_package(place)
        target = _member(module, place, name)
        if not isinstance(target, nn.Module) and callable(target):
            target = _made(target, text)
    if not callable(target) and not is_estimator(target):
        raise ModelError(
            f"{text} is a {type(target).__name__}: expected an nn.Module, a fitted classifier, or a function from "
            "a batch to scores"
        )
    found: nn.Module | Callable[..., Any] = target
    return found


def _member(module: ModuleType, place: str, name: str) -> Any:
    target: Any = module
    for part in name.split("."):
        with user_code(lambda why: f"{place} fails when {name!r} is looked up: {why}"):
            there = hasattr(target, part)
        if not there:
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            listed = ", ".join(known[:LISTED]) + (", ..." if len(known) > LISTED else "")
            raise ModelError(f"{place} has no {name!r}: it has {listed or 'no public functions or classes'}")
        target = getattr(target, part)
    return target


def _made(target: Callable[..., Any], text: str) -> Any:
    """A scoring function as it is; what a class or a function without required arguments makes."""
    if not _is_factory(target):
        if inspect.isclass(target):
            raise ModelError(f"{text} is a class that needs arguments: give an instance, or a function that makes one")
        return target
    with user_code(lambda why: f"{text} requires no argument, so it was called to make a network, and failed: {why}"):
        return target()


def _is_factory(target: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False  # a builtin: take it for a scoring function
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not inspect.Parameter.empty or p.kind in variadic for p in parameters)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules of a folder can be imported inside, as when Python runs a script that lies there."""
    added = str(folder) not in sys.path
    if added:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if added and str(folder) in sys.path:
            sys.path.remove(str(folder))


def _from_package(place: str) -> ModuleType:
    with user_code(lambda why: f"cannot import {place!r}: {why}"):
        return importlib.import_module(place)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"there is no file {path}: give file.py:name")
    spec = importlib.util.spec_from_file_location(f"l0tre_reference_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and others look up the module of a class by its name
    try:
        with user_code(lambda why: f"cannot run {path}: {why}"):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return module
