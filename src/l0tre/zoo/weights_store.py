"""Where the weights of the zoo lie, and how they are written and read: ``NAME.safetensors`` and ``NAME.json``."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from l0tre.errors import ModelError, require

__all__ = ["Status", "bundled_folder", "find", "pack", "read_record", "read_weights", "status", "user_folder", "write"]


@dataclass(frozen=True)
class Status:
    """Where a network's weights are.

    Attributes:
        state: ``bundled`` with the package, ``trained`` by the user, ``damaged`` (the record cannot be read), or
            ``missing``.
        folder: The folder that holds them, or None.
        accuracy: Share of test images they classify correctly, from 0 to 1, as recorded; None if it is not known.
    """

    state: Literal["bundled", "trained", "damaged", "missing"]
    folder: Traversable | None = None
    accuracy: float | None = None


def bundled_folder() -> Traversable:
    """The weights that come with the package."""
    return files("l0tre.zoo").joinpath("weights")


def user_folder() -> Path:
    """Where trained networks go: what the variable L0TRE_ZOO names, else the user's folder for data."""
    if os.environ.get("L0TRE_ZOO"):
        return Path(os.environ["L0TRE_ZOO"]).expanduser()
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "l0tre" / "zoo"


def find(name: str) -> Traversable | None:
    """The folder that holds the weights of a network: the bundled ones, else the user's; None if it has none."""
    folders: tuple[Traversable, ...] = (bundled_folder(), user_folder())
    return next((folder for folder in folders if folder.joinpath(f"{name}.safetensors").is_file()), None)


def status(name: str) -> Status:
    """Whether a network is trained, without reading its weights."""
    folder = find(name)
    if folder is None:
        return Status("missing")
    try:
        accuracy = read_record(name, folder).get("accuracy_test")
    except ModelError:
        return Status("damaged", folder)
    known = accuracy if isinstance(accuracy, float) else None
    return Status("bundled" if folder == bundled_folder() else "trained", folder, known)


def pack(module: nn.Module, *, half: bool) -> dict[str, Tensor]:
    """The state of a network on the CPU.

    Args:
        module: The network.
        half: Whether the weights of convolutions and dense layers are rounded to float16; all else (batch
            normalisation, the normalisation of the input) stays as it is.

    Returns:
        A value for each key of ``module.state_dict()``.
    """
    state = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    if half:
        for prefix, part in module.named_modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                keys = [f"{prefix}.{key}" for key, _ in part.named_parameters()]
                state |= {key: state[key].to(torch.float16) for key in keys}
    return state


def write(name: str, state: Mapping[str, Tensor], record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write the weights and the record of a network.

    Args:
        name: Of the network.
        state: From :func:`pack`.
        record: How the weights were made.
        folder: Where to; made if need be.

    Returns:
        The record with the checksum of the weights, as written.

    Raises:
        ModelError: If the folder cannot be written.
    """
    weights: bytes = require("safetensors.torch", "zoo").save(dict(state))
    full = {**record, "sha256": hashlib.sha256(weights).hexdigest()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.safetensors").write_bytes(weights)
        (folder / f"{name}.json").write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{name} cannot be stored in {folder} ({error}); give another folder (`out`)") from error
    return full


def read_record(name: str, folder: Traversable) -> dict[str, Any]:
    """How the weights of a network were made.

    Raises:
        ModelError: If the record is missing or damaged.
    """
    try:
        record = json.loads(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))
        if not isinstance(record["sha256"], str):
            raise TypeError("sha256 is no text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the record of {name} cannot be read from {folder} ({error!r}); {_again(name)}") from error
    return dict(record)


def read_weights(name: str, module: nn.Module, folder: Traversable) -> None:
    """Put the stored weights of a network into a module, as float32.

    Raises:
        ModelError: If they are missing, damaged or of another network.
        MissingExtraError: If safetensors is not installed.
    """
    recorded = read_record(name, folder)["sha256"]
    try:
        weights = folder.joinpath(f"{name}.safetensors").read_bytes()
    except OSError as error:
        raise ModelError(f"the weights of {name} cannot be read from {folder} ({error!r}); {_again(name)}") from error
    found = hashlib.sha256(weights).hexdigest()
    if found != recorded:
        raise ModelError(
            f"{name}.safetensors in {folder} is damaged: its sha256 is {found}, {name}.json says {recorded}; "
            f"{_again(name)}"
        )
    parse, unparsable = require("safetensors.torch", "zoo").load, require("safetensors", "zoo").SafetensorError
    try:
        module.load_state_dict(parse(weights))
    except (RuntimeError, unparsable) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{name}.safetensors in {folder} does not fit {name}: {reason}; {_again(name)}") from error


def _again(name: str) -> str:
    return f"reinstall l0tre or run: l0tre zoo train {name}"
