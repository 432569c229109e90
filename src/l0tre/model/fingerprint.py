"""Hashes of networks, so that a run is not resumed with another one."""

import hashlib
import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l0tre.model.graph import Graph

__all__ = ["code_digest", "graph_digest", "module_digest"]


def graph_digest(graph: Graph) -> str:
    """Hash of the operations and weights themselves: a file's bytes may leave out weights kept beside it."""
    digest = hashlib.sha256()
    for operation in graph.operations:
        digest.update(
            repr((operation.kind, operation.inputs, operation.shape, sorted(operation.attributes.items()))).encode()
        )
        for key, value in sorted(operation.tensors.items()):
            digest.update(key.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def module_digest(module: nn.Module, shape: tuple[int, ...]) -> str:
    """Hash of a module that has no graph: its weights, its structure, and the code of its classes."""
    digest = hashlib.sha256(f"{shape} {module}".encode())
    for key, value in module.state_dict().items():
        digest.update(key.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for kind in sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__):
        with suppress(TypeError, OSError):  # defined at a prompt
            digest.update(inspect.getsource(kind).encode())
    return digest.hexdigest()


def code_digest(function: Any) -> str:
    """Hash of the file that holds a function, so that a run is not resumed with another one; empty if none does."""
    with suppress(TypeError, OSError):
        file = inspect.getsourcefile(function)
        return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return ""
