"""Errors meant for the user: one line that says what was given, what was expected and how to fix it."""

import importlib
import inspect
import os
import warnings
from types import ModuleType

__all__ = [
    "CertificateError",
    "ConfigError",
    "DataError",
    "InternalError",
    "Interrupted",
    "L0treError",
    "L0treWarning",
    "MissingExtraError",
    "ModelError",
    "OpenShapeError",
    "StoreError",
    "require",
    "warn",
]


# Variables that a package reads when it is imported. onnxruntime would store a device identifier and look up a host;
# its function for switching that off comes too late. Ray would tell its makers of its use.
QUIET = {
    "onnxruntime": {"ORT_DISABLE_TELEMETRY": "1"},
    "ray": {"RAY_USAGE_STATS_ENABLED": "0"},
}


class L0treError(Exception):
    """Base of every error that the user can act on; the command line prints it without a traceback."""


class L0treWarning(UserWarning):
    """What makes figures doubtful though nothing is wrong; the command line prints it with the result."""


class ModelError(L0treError):
    """The network cannot be loaded or gives unusable scores."""


class OpenShapeError(ModelError):
    """The network leaves sizes of its input open, and nobody said what they are."""


class DataError(L0treError):
    """The images or labels cannot be used."""


class ConfigError(L0treError):
    """An option or a combination of options makes no sense."""


class StoreError(L0treError):
    """A run folder cannot be read, written or resumed."""


class CertificateError(L0treError):
    """A certificate cannot be read, or does not prove what it says."""


class InternalError(L0treError):
    """The bookkeeping of a proof contradicts itself, a defect in l0tre: nothing is claimed, the user can report it."""


class Interrupted(BaseException):  # nobody is to catch it as an error
    """The user asked the command line to end at once."""


class MissingExtraError(L0treError):
    """An optional dependency is not installed."""


def warn(message: str) -> None:
    """Give a :class:`L0treWarning` about the line of the user's that called this package."""
    level, frame = 2, inspect.currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "l0tre" and frame.f_back:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, L0treWarning, stacklevel=level)


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: Dotted name of the module, for example ``"onnxruntime"``.
        extra: The extra of this package that installs it, for example ``"onnx"``.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: If it is not installed; the message names the extra.
    """
    package = module.partition(".")[0]
    os.environ.update(QUIET.get(package, {}))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{package} is needed here and cannot be imported ({error}); install it with: pip install 'l0tre[{extra}]'"
        ) from error
