"""A network as a module, an ONNX file or an exported program, loaded by l0tre."""

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import l0tre
from fuzz.net import Net
from fuzz.onnx_ops import make_model
from fuzz.torch_ops import TORCH
from fuzz.truth import Normalisation
from l0tre.model.network import Network

__all__ = ["OPSETS", "Source", "UnwritableError", "as_module", "export", "load", "normalised", "write"]

OPSETS = (11, 13, 17)


class UnwritableError(Exception):
    """An exporter of torch cannot write a network."""


class Source(nn.Module):
    """A network as a module: its operations, one after the other."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        for position, op in enumerate(net.ops):
            for name, array in op.constants.items():
                self.register_buffer(f"{name}_{position}", torch.from_numpy(np.array(array, np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of a batch."""
        values = [x]
        for position, op in enumerate(self.net.ops[1:], start=1):
            constants = {name: self.get_buffer(f"{name}_{position}") for name in op.constants}
            values.append(TORCH[op.kind](op.settings, constants, *(values[source] for source in op.inputs)))
        return values[-1]


def as_module(net: Net) -> Source:
    """A network as a module in evaluation mode."""
    return Source(net).eval().requires_grad_(False)


def normalised(normalisation: Normalisation | None, x: Tensor) -> Tensor:
    """A batch as it enters the network, in the precision of the batch."""
    if normalisation is None:
        return x
    mean, std = (torch.from_numpy(np.array(array)).to(x.dtype) for array in (normalisation.mean, normalisation.std))
    return (x - mean) / std


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters have to say about themselves."""
    level, sink = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def export(net: Net, *, core: bool) -> Any:
    """The network as an exported program; ``core`` takes operations apart into those of torch's core set."""
    with _quiet():
        program = torch.export.export(
            as_module(net),
            (torch.zeros(2, *net.shape),),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            strict=False,
        )
        return program.run_decompositions() if core else program


def saved_pt2(net: Net, path: Path, *, core: bool) -> Counter[str]:
    """Write an exported program; gives the operators in it."""
    program = export(net, core=core)
    with _quiet():
        torch.export.save(program, path)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return Counter(
        str(target) if isinstance(target, torch._ops.OpOverload) else f"{target.__module__}.{target.__name__}"
        for target in targets
    )


def save_onnx(net: Net, path: Path, *, exported: bool, opset: int) -> Counter[str]:
    """Write an ONNX file, by torch's exporter or node by node; gives the operators in it."""
    if exported:
        with _quiet():
            torch.onnx.export(
                as_module(net),
                (torch.zeros(2, *net.shape),),
                path,
                input_names=["x"],
                dynamic_axes={"x": {0: "batch"}},
                opset_version=max(opset, 13),
                dynamo=False,
                # Folding would put rounded constants into the file: another function than that of the network.
                do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
            )
        model = onnx.load(path)
    else:
        model = make_model(net, opset)
        onnx.save(model, path)
    return Counter(node.op_type for node in model.graph.node)


def write(net: Net, source: str, path: Path, opset: int) -> Counter[str]:
    """Write a file of one kind of source; gives the operators in it.

    Raises:
        UnwritableError: If torch cannot.
    """
    try:
        if source.startswith("onnx"):
            return save_onnx(net, path, exported=source == "onnx_export", opset=opset)
        return saved_pt2(net, path, core=source == "pt2_core")
    except Exception as error:  # an exporter can raise anything
        raise UnwritableError(f"{type(error).__name__}: {error}") from error


def load(
    net: Net, normalisation: Normalisation | None, source: str, folder: Path, opset: int = OPSETS[-1]
) -> tuple[Network, Counter[str]]:
    """The network as l0tre loads it from one kind of source.

    Args:
        net: What to load.
        normalisation: Given along.
        source: One of ``subjects.SOURCES``.
        folder: For files.
        opset: Of an ONNX file.

    Returns:
        The loaded network, and how often each operator occurs in the file; none for modules.

    Raises:
        L0treError: If l0tre refuses the network.
        UnwritableError: If torch cannot write it.
    """
    mean, std = (
        None if normalisation is None else [float(value) for value in getattr(normalisation, name).reshape(-1)]
        for name in ("mean", "std")
    )
    if source == "module":
        return l0tre.load(as_module(net), mean=mean, std=std, input_shape=net.shape, device="cpu"), Counter()
    path = folder / ("net.onnx" if source.startswith("onnx") else "net.pt2")
    found = write(net, source, path, opset)
    return l0tre.load(path, mean=mean, std=std, device="cpu"), found
