"""Read what the user has: files, references, modules, estimators, functions."""

import copy
import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.errors import L0treError, ModelError, require
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.calls import check_harmless, graph_from_calls, run_calls
from l0tre.model.double import double_module
from l0tre.model.estimator import (
    estimator_digest,
    estimator_names,
    estimator_scores,
    estimator_shape,
    is_estimator,
    refuse_unfitted,
)
from l0tre.model.fingerprint import code_digest, graph_digest, module_digest
from l0tre.model.graph import Graph
from l0tre.model.guarded import black_box, guarded
from l0tre.model.module_import import import_module
from l0tre.model.network import Network
from l0tre.model.onnx_import import import_onnx, onnx_double_scores, onnx_input_shape, onnx_scores, onnx_takes_bytes
from l0tre.model.pt2_import import read_pt2
from l0tre.model.reference import DATA_FILES, is_reference, resolve_reference
from l0tre.model.trees import thresholds
from l0tre.model.user_code import user_code
from l0tre.names import NO_NAMES, Names

__all__ = ["ByName", "Loaded", "Source", "knows_its_shape", "name_of", "read_source", "unknown_name", "with_weights"]

Source = str | Path | nn.Module | Callable[..., Any] | Network


# From the name of a network to its module and the shape of its input.
ByName = Callable[[str], tuple[nn.Module, tuple[int, ...]]]


def unknown_name(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Know no network by name."""
    raise ModelError(
        f"cannot load a network from {name!r}: give an .onnx or .pt2 file, package.module:name or file.py:name"
    )


@dataclass(frozen=True)
class Loaded:
    """A source before normalisation, device and checks."""

    source: Callable[[Tensor], Tensor]
    graph: Graph | None
    input_shape: tuple[int, ...]
    fingerprint: str
    note: str = ""
    on_device: Callable[[torch.device], Callable[[Tensor], Tensor]] | None = None
    double: Callable[[Tensor], Tensor] | None = None
    thresholds: tuple[Tensor, ...] | None = None
    names: Names = NO_NAMES
    reading: str = ""
    takes_bytes: bool = False


def knows_its_shape(source: Source) -> bool:
    """Whether a source says the shape of its input (files and networks of the zoo do, functions do not)."""
    if isinstance(source, str | Path):
        return ":" not in Path(source).name or Path(source).exists()
    return isinstance(source, Network) or estimator_shape(source) is not None


def name_of(source: Source) -> str:
    """What messages and tables call a source."""
    if isinstance(source, str | Path):
        return str(source)
    unnamed = isinstance(source, nn.Module) or is_estimator(source)
    return type(source).__name__ if unnamed else getattr(source, "__name__", repr(source))


def with_weights(source: Source, path: Path) -> nn.Module:
    """A module with the weights of a file."""
    module = resolve_reference(str(source)) if isinstance(source, str | Path) and ":" in str(source) else source
    if not isinstance(module, nn.Module):
        raise ModelError(f"weights {path} are for modules: give file.py:Class, package.module:name or an nn.Module")
    try:
        if path.suffix == ".safetensors":
            state = require("safetensors.torch", "zoo").load_file(str(path))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        module = copy.deepcopy(module)
        module.load_state_dict(state)
    except L0treError:
        raise
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path}: give a .safetensors file or a .pth of a state_dict") from error
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} holds more than tensors, as a whole model or a checkpoint does, and could run code when opened: "
            "save its weights alone (torch.save(model.state_dict(), FILE), or safetensors)"
        ) from error
    except Exception as error:  # errors of the file system, safetensors and torch
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{path} does not hold weights for {name_of(source)}: {reason}") from error
    return module


def read_source(
    source: Source, shape: tuple[int, ...] | None, by_name: ByName, words: Mapping[int, Sequence[str]]
) -> Loaded:
    """Read a source as it is: scores, and where it has one that we know, its graph of operations."""
    if isinstance(source, str | Path):
        return _read_named(str(source), shape, by_name, words)
    refuse_unfitted(source)
    if is_estimator(source):
        return _read_estimator(source, shape, words)
    if type(source).__name__ == "Booster":
        raise ModelError(
            "a Booster has no classes: give the classifier around it (LGBMClassifier, XGBClassifier), or a function of "
            "a NumPy batch that returns a probability for each class"
        )
    if shape is None:
        raise ModelError(
            f"{name_of(source)} does not say the shape of its input: give `input_shape`, such as (1, 28, 28)"
        )
    if isinstance(source, nn.Module):
        return _read_opaque(source, shape) if _is_opaque(source) else _read_module(source, shape)
    if callable(source):
        scores = guarded(black_box(source, shape, name_of(source)), name_of(source))
        return Loaded(scores, None, shape, "", "a function has no graph of operations")
    raise ModelError(f"cannot load a network from {type(source).__name__}: give a file, a module or a function")


def _read_estimator(source: Any, shape: tuple[int, ...] | None, words: Mapping[int, Sequence[str]]) -> Loaded:
    shape = estimator_shape(source) or shape
    if shape is None:
        raise ModelError(
            f"{name_of(source)} does not say how many features it takes: give `input_shape`, such as (30,)"
        )
    return Loaded(
        guarded(estimator_scores(source, words), name_of(source)),
        None,
        shape,
        estimator_digest(source),
        "a classifier with scikit-learn's interface has no graph of operations",
        thresholds=thresholds(source, shape[0]) if len(shape) == 1 else None,
        names=estimator_names(source),
    )


def _read_named(
    name: str, shape: tuple[int, ...] | None, by_name: ByName, words: Mapping[int, Sequence[str]]
) -> Loaded:
    path, suffix = Path(name), Path(name).suffix.lower()
    if suffix in DATA_FILES:
        if not path.is_file():
            raise ModelError(f"there is no file {name}: give the path of an .onnx or .pt2 file")
        if suffix == ".onnx":
            return _read_onnx(path, shape)
        return _read_program(path)
    if suffix in (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".keras", ".tflite"):
        raise ModelError(
            f"{name}: {suffix} files are not read (most are pickles, which can run code when opened): export the "
            "network to .onnx (torch.onnx.export) or .pt2 (torch.export.save), or give file.py:name"
        )
    if is_reference(name):
        target = resolve_reference(name)
        loaded = read_source(target, shape, by_name, words)
        return loaded if loaded.fingerprint else replace(loaded, fingerprint=code_digest(target))
    return _read_module(*by_name(name))


def _read_program(path: Path) -> Loaded:
    program = read_pt2(path)

    def call(x: Tensor) -> Tensor:
        return run_calls(program, x)

    scores = guarded(call, str(path))
    try:
        graph = graph_from_calls(program)
    except UnsupportedOperationError as error:
        check_harmless(program)
        note = f"it is run by torch as it is: {_briefly(error)}"
        return Loaded(scores, None, program.input_shape, hashlib.sha256(path.read_bytes()).hexdigest(), note)
    return Loaded(scores, graph, graph.input_shape, graph_digest(graph), double=call)


def _read_onnx(path: Path, shape: tuple[int, ...] | None) -> Loaded:
    graph, note = None, ""
    try:
        graph = import_onnx(path, shape)  # before anything runs: it refuses constants that no memory holds
    except UnsupportedOperationError as error:
        note = f"it is run by onnxruntime as it is, without gradients: {_briefly(error)}"
    scores = onnx_scores(path, shape)

    def source(x: Tensor) -> Tensor:
        return torch.from_numpy(scores(x.numpy()))

    if graph is None:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        of_bytes = onnx_takes_bytes(path, shape)
        own = onnx_input_shape(path, shape)
        return Loaded(guarded(source, str(path)), None, own, digest, note, takes_bytes=of_bytes)
    wide = onnx_double_scores(path, shape)
    return Loaded(
        source, graph, graph.input_shape, graph_digest(graph), double=lambda x: torch.from_numpy(wide(x.numpy()))
    )


def _briefly(error: UnsupportedOperationError) -> str:
    """Why a source is run as it is, without the list of what would be supported."""
    return str(error).partition("; supported are ")[0].partition("; rewrite the model with these: ")[0]


def _is_opaque(module: nn.Module) -> bool:
    """Whether a module is TorchScript or holds quantised weights: it can be run, but not looked into."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    return any(not isinstance(value, Tensor) or value.is_quantized for value in module.state_dict().values())


def _read_opaque(module: nn.Module, shape: tuple[int, ...]) -> Loaded:
    with user_code(lambda why: f"the module {type(module).__name__} cannot be copied: {why}"):
        frozen = copy.deepcopy(module).eval()
        if any(value.device.type != "cpu" for value in (*frozen.parameters(), *frozen.buffers())):
            frozen = frozen.cpu()  # not otherwise: torch warns about the parameters of copies of TorchScript
    note = "TorchScript and quantised modules are run as they are; nothing is known of their operations"
    return Loaded(guarded(frozen, name_of(module)), None, shape, "", note)


def _read_module(module: nn.Module, shape: tuple[int, ...]) -> Loaded:
    narrow = next((p.dtype for p in module.parameters() if p.is_floating_point() and p.dtype != torch.float32), None)
    if narrow is not None:
        raise ModelError(
            f"{name_of(module)} has weights of type {str(narrow).removeprefix('torch.')}, inputs are float32: give it "
            "as module.float()"
        )
    with user_code(lambda why: f"the module {type(module).__name__} cannot be copied: {why}"):
        frozen = copy.deepcopy(module).cpu().eval().requires_grad_(False)
    graph, note, double = None, "", None
    try:
        graph = import_module(frozen, shape)
        double = double_module(frozen)
    except UnsupportedOperationError as error:
        note = _briefly(error)

    def place(device: torch.device) -> Callable[[Tensor], Tensor]:
        return guarded(copy.deepcopy(frozen).to(device), name_of(module))

    digest = module_digest(frozen, shape) if graph is None else graph_digest(graph)
    return Loaded(guarded(frozen, name_of(module)), graph, shape, digest, note, place, double)
