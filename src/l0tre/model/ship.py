"""A loaded network as bytes, for another process of the same version of this package."""

import io
import pickle
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from l0tre.errors import ModelError, require
from l0tre.model.graph import run
from l0tre.model.network import Network
from l0tre.model.onnx_import import onnx_session

__all__ = ["moved", "pack", "unpack"]

BY_FILE = "l0tre_reference_"  # modules that were read from a file, see ``reference.py``; no other process finds them


def pack(value: Any, name: str) -> bytes:
    """A network, or what holds one, as bytes, with the code of functions and modules that nobody else could import.

    Args:
        value: What to pack.
        name: What messages call it.

    Raises:
        ModelError: If something in it cannot leave this process.
    """
    cloudpickle = require("ray.cloudpickle", "cluster")
    session = getattr(sys.modules.get("onnxruntime"), "InferenceSession", None)

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[name-defined, misc]  # known when it runs
        def reducer_override(self, value: Any) -> Any:
            if session is not None and isinstance(value, session):
                return onnx_session, (_content(value),)
            return super().reducer_override(value)

    for name, module in list(sys.modules.items()):
        if name.startswith(BY_FILE):
            cloudpickle.register_pickle_by_value(module)
    buffer = io.BytesIO()
    try:
        Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:  # whatever a user's object raises when it is pickled
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{name} cannot be sent to other processes: {reason}") from error
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """What :func:`pack` made bytes of, in a process that its maker started."""
    return pickle.loads(packed)  # noqa: S301  # a cluster runs what its driver sends anyway


def moved(network: Network, device: torch.device) -> Network:
    """A network that computes on another device, if it has a graph; any other stays where it is."""
    if network.graph is None or network.device.type == device.type:
        return network
    graph = network.graph.to(device)

    def forward(x: Tensor) -> Tensor:
        return run(graph, x)

    return replace(network, graph=graph, forward=forward, device=device)


def _content(session: Any) -> bytes:
    """The model of a session of onnxruntime, its external data inside."""
    content = session._model_bytes
    return bytes(require("onnx", "onnx").load(session._model_path).SerializeToString() if content is None else content)
