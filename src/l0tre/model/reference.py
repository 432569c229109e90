"""Python references on the command line: ``package.module:name`` and ``file.py:name``."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from l0tre.errors import ModelError

__all__ = ["resolve_reference"]


def resolve_reference(text: str) -> nn.Module | Callable[..., Any]:
    """Import what a reference names. This runs the user's own Python code.

    Args:
        text: ``package.module:name`` or ``path/file.py:name``. The name is an ``nn.Module``, a class of modules or a
            function without required arguments that makes one, or a function from a batch to scores.

    Returns:
        The module or the scoring function.

    Raises:
        ModelError: If it cannot be imported or is neither.
    """
    place, _, name = text.rpartition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            public = [key for key in vars(module) if not key.startswith("_")]
            raise ModelError(f"{place} has no {name!r}: it has {', '.join(public) or 'nothing public'}")
        target = getattr(target, part)
    if not isinstance(target, nn.Module) and callable(target) and _is_factory(target):
        try:
            target = target()
        except Exception as error:  # the user's own code can raise anything
            raise ModelError(f"{text}() failed: {type(error).__name__}: {error}") from error
    if not callable(target):
        raise ModelError(
            f"{text} is a {type(target).__name__}: expected an nn.Module or a function from a batch to scores"
        )
    return target  # type: ignore[no-any-return]


def _is_factory(target: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False  # a builtin: take it for a scoring function
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not inspect.Parameter.empty or p.kind in variadic for p in parameters)


def _from_package(place: str) -> ModuleType:
    here = str(Path.cwd())
    added = here not in sys.path  # a module beside the user's data is found, as with `python -m`
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except Exception as error:  # the user's own code can raise anything
        raise ModelError(f"cannot import {place!r}: {type(error).__name__}: {error}") from error
    finally:
        if added:
            sys.path.remove(here)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"there is no file {path}: give file.py:name")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code can raise anything
        raise ModelError(f"cannot run {path}: {type(error).__name__}: {error}") from error
    return module
