"""Load a network from whatever the user has, and check it before anything is claimed about it."""

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.errors import L0treError, ModelError, require
from l0tre.limits import refuse_large
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.calls import check_harmless, graph_from_calls, run_calls
from l0tre.model.confirm import check_points, differs
from l0tre.model.double import double_module
from l0tre.model.estimator import (
    estimator_digest,
    estimator_names,
    estimator_scores,
    estimator_shape,
    is_estimator,
    refuse_unfitted,
    thresholds,
)
from l0tre.model.fingerprint import code_digest, graph_digest, module_digest
from l0tre.model.footprint import sample_bytes
from l0tre.model.graph import Graph, run
from l0tre.model.guarded import black_box, check_shape, guarded
from l0tre.model.module_import import import_module
from l0tre.model.network import Network, exact_float32, pick_device
from l0tre.model.normalise import Normalisation, make_normalisation, prepend
from l0tre.model.onnx_import import import_onnx, onnx_double_scores, onnx_input_shape, onnx_scores
from l0tre.model.pt2_import import read_pt2
from l0tre.model.reference import DATA_FILES, is_reference, resolve_reference
from l0tre.model.rounding import make_round_off
from l0tre.model.simplify import final_softmax, simplify, without_softmax
from l0tre.model.two_classes import append_two_classes, read_single, two_scores
from l0tre.model.user_code import user_code
from l0tre.names import NO_NAMES, Names

__all__ = ["knows_its_shape", "load"]

Numbers = Sequence[float] | float
Source = str | Path | nn.Module | Callable[..., Any] | Network

# Largest difference between two evaluations of a source that float32 may cause, relative to the largest score.
TOLERANCE = 1e-4
POINT_BYTES = 128  # for each value of an input, when a network is compared with its source on some of them


# From the name of a network to its module and the shape of its input.
ByName = Callable[[str], tuple[nn.Module, tuple[int, ...]]]


def _no_names(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    raise ModelError(
        f"cannot load a network from {name!r}: give an .onnx or .pt2 file, package.module:name or file.py:name"
    )


@dataclass(frozen=True)
class _Loaded:
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


def knows_its_shape(source: Source) -> bool:
    """Whether a source says the shape of its input (files and networks of the zoo do, functions do not)."""
    if isinstance(source, str | Path):
        return ":" not in Path(source).name or Path(source).exists()
    return isinstance(source, Network) or estimator_shape(source) is not None


def load(
    source: Source,
    *,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    input_shape: Sequence[int] | None = None,
    device: str = "auto",
    by_name: ByName = _no_names,
    words: Mapping[int, Sequence[str]] | None = None,
    weights: str | Path | None = None,
) -> Network:
    """Load a classifier.

    Args:
        source: An ``.onnx`` or ``.pt2`` file, the name of a network of the zoo (``sdnn``), a reference
            ``package.module:name`` or ``file.py:name``, an ``nn.Module``, a fitted classifier or pipeline with
            scikit-learn's interface, or any function from a batch (torch or numpy) to scores.
        mean: Subtracted from the input inside the model: one number, or one for each channel.
        std: Divides the input inside the model, likewise.
        input_shape: Shape of one input; needed for modules and functions, checked for the others.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:0``.
        by_name: Gives the module and the input shape of a network that is known by name.
        words: For classifiers with scikit-learn's interface that were fitted on a table: by position of a column the
            words that the whole numbers 0, 1, ... in it stand for.
        weights: For a module or a class of modules: a ``.safetensors`` file, or a ``.pth`` or ``.pt`` file of a
            ``state_dict``, of which nothing but tensors is read.

    Returns:
        The network. It was compared with its source on random inputs.

    Raises:
        ModelError: If it cannot be loaded, or gives other scores than its source, or scores that cannot be used.
    """
    if isinstance(source, Network):
        if mean is not None or std is not None:
            raise ModelError("this network is loaded already: give mean and std when you load it")
        return source
    wish = None if input_shape is None else tuple(input_shape)
    if wish is not None and min(wish, default=0) < 1:
        raise ModelError(f"the input shape is {wish}: give the size of every dimension, such as (1, 28, 28)")
    target = pick_device(device)
    if target.type not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is not supported: give auto, cpu, cuda or cuda:0")
    if wish is not None:
        _refuse_large_input(wish, _name(source))
    given = source if weights is None else _with_weights(source, Path(weights))
    loaded = _read(given, wish, by_name, words or {})
    _refuse_large_input(loaded.input_shape, _name(source))
    if wish is not None and wish != loaded.input_shape:
        raise ModelError(f"{_name(source)} takes inputs of shape {loaded.input_shape}, not {wish}")
    network = _finish(loaded, make_normalisation(mean, std, loaded.input_shape), target, _name(source))
    if not isinstance(source, str | Path):
        return network
    origin = {"path": _place(str(source)), "mean": _plain(mean), "std": _plain(std)}
    return replace(network, origin=origin if weights is None else {**origin, "weights": str(Path(weights).resolve())})


def _with_weights(source: Source, path: Path) -> nn.Module:
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
    except Exception as error:  # errors of the file system, pickle, safetensors and torch
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{path} does not hold weights for {_name(source)}: {reason}") from error
    return module


def _refuse_large_input(shape: tuple[int, ...], name: str) -> None:
    try:
        refuse_large(POINT_BYTES * math.prod(shape), f"looking at inputs of shape {shape}")
    except ValueError as error:
        raise ModelError(f"{name} cannot be loaded: {error}") from error


def _place(name: str) -> str:
    """A file's absolute path, so that a run can be resumed from any folder; other names as they are."""
    file, colon, member = name.rpartition(":")
    if file.endswith(".py"):
        return f"{Path(file).resolve()}{colon}{member}"
    return str(Path(name).resolve()) if Path(name).is_file() else name


def _plain(numbers: Numbers | None) -> list[float] | None:
    return None if numbers is None else torch.as_tensor(numbers, dtype=torch.float64).reshape(-1).tolist()


def _name(source: Source) -> str:
    if isinstance(source, str | Path):
        return str(source)
    unnamed = isinstance(source, nn.Module) or is_estimator(source)
    return type(source).__name__ if unnamed else getattr(source, "__name__", repr(source))


def _read(
    source: Source, shape: tuple[int, ...] | None, by_name: ByName, words: Mapping[int, Sequence[str]]
) -> _Loaded:
    if isinstance(source, str | Path):
        return _read_named(str(source), shape, by_name, words)
    refuse_unfitted(source)
    if is_estimator(source):
        return _read_estimator(source, shape, words)
    if shape is None:
        raise ModelError(
            f"{_name(source)} does not say the shape of its input: give `input_shape`, such as (1, 28, 28)"
        )
    if isinstance(source, nn.Module):
        return _read_opaque(source, shape) if _is_opaque(source) else _read_module(source, shape)
    if callable(source):
        scores = guarded(black_box(source, shape, _name(source)), _name(source))
        return _Loaded(scores, None, shape, "", "a function has no graph of operations")
    raise ModelError(f"cannot load a network from {type(source).__name__}: give a file, a module or a function")


def _read_estimator(source: Any, shape: tuple[int, ...] | None, words: Mapping[int, Sequence[str]]) -> _Loaded:
    shape = estimator_shape(source) or shape
    if shape is None:
        raise ModelError(f"{_name(source)} does not say how many features it takes: give `input_shape`, such as (30,)")
    return _Loaded(
        guarded(estimator_scores(source, words), _name(source)),
        None,
        shape,
        estimator_digest(source),
        "a classifier of scikit-learn has no graph of operations",
        thresholds=thresholds(source),
        names=estimator_names(source),
    )


def _read_named(
    name: str, shape: tuple[int, ...] | None, by_name: ByName, words: Mapping[int, Sequence[str]]
) -> _Loaded:
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
        loaded = _read(target, shape, by_name, words)
        return loaded if loaded.fingerprint else replace(loaded, fingerprint=code_digest(target))
    return _read_module(*by_name(name))


def _read_program(path: Path) -> _Loaded:
    program = read_pt2(path)

    def call(x: Tensor) -> Tensor:
        return run_calls(program, x)

    scores = guarded(call, str(path))
    try:
        graph = graph_from_calls(program)
    except UnsupportedOperationError as error:
        check_harmless(program)
        note = f"it is run by torch as it is: {error}"
        return _Loaded(scores, None, program.input_shape, hashlib.sha256(path.read_bytes()).hexdigest(), note)
    return _Loaded(scores, graph, graph.input_shape, graph_digest(graph), double=call)


def _read_onnx(path: Path, shape: tuple[int, ...] | None) -> _Loaded:
    graph, note = None, ""
    try:
        graph = import_onnx(path, shape)  # before anything runs: it refuses constants that no memory holds
    except UnsupportedOperationError as error:
        note = f"it is run by onnxruntime as it is, without gradients: {error}"
    scores = onnx_scores(path, shape)

    def source(x: Tensor) -> Tensor:
        return torch.from_numpy(scores(x.numpy()))

    if graph is None:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return _Loaded(guarded(source, str(path)), None, onnx_input_shape(path, shape), digest, note)
    wide = onnx_double_scores(path, shape)
    return _Loaded(
        source, graph, graph.input_shape, graph_digest(graph), double=lambda x: torch.from_numpy(wide(x.numpy()))
    )


def _is_opaque(module: nn.Module) -> bool:
    """Whether a module is TorchScript or holds quantised weights: it can be run, but not looked into."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    return any(not isinstance(value, Tensor) or value.is_quantized for value in module.state_dict().values())


def _read_opaque(module: nn.Module, shape: tuple[int, ...]) -> _Loaded:
    with user_code(lambda why: f"the module {type(module).__name__} cannot be copied: {why}"):
        frozen = copy.deepcopy(module).cpu().eval()
    note = "TorchScript and quantised modules are run as they are; nothing is known of their operations"
    return _Loaded(guarded(frozen, _name(module)), None, shape, "", note)


def _read_module(module: nn.Module, shape: tuple[int, ...]) -> _Loaded:
    narrow = next((p.dtype for p in module.parameters() if p.is_floating_point() and p.dtype != torch.float32), None)
    if narrow is not None:
        raise ModelError(
            f"{_name(module)} has weights of type {str(narrow).removeprefix('torch.')}, inputs are float32: give it as "
            "module.float()"
        )
    with user_code(lambda why: f"the module {type(module).__name__} cannot be copied: {why}"):
        frozen = copy.deepcopy(module).cpu().eval().requires_grad_(False)
    graph, note, double = None, "", None
    try:
        graph = import_module(frozen, shape)
        double = double_module(frozen)
    except UnsupportedOperationError as error:
        note = str(error)

    def place(device: torch.device) -> Callable[[Tensor], Tensor]:
        return guarded(copy.deepcopy(frozen).to(device), _name(module))

    digest = module_digest(frozen, shape) if graph is None else graph_digest(graph)
    return _Loaded(guarded(frozen, _name(module)), graph, shape, digest, note, place, double)


def _in_rows(source: Callable[[Tensor], Tensor], name: str) -> Callable[[Tensor], Tensor]:
    """A network of two scores or more, which gives that many for every input and not one number for some."""

    def scores(x: Tensor) -> Tensor:
        result = source(x)
        check_shape(result, len(x), name)
        return result

    return scores


def _of_two_classes(loaded: _Loaded, name: str) -> _Loaded:
    """A network that gives one number for two classes as one of two scores; any other one as it is."""
    with user_code(lambda why: f"{name} fails on a batch: {why}"):  # a file can ask torch for anything
        kind = read_single(loaded.source, _unit_points(loaded.input_shape))
    if kind is None:
        whole = loaded.on_device
        return replace(
            loaded,
            source=_in_rows(loaded.source, name),
            on_device=None if whole is None else lambda device: _in_rows(whole(device), name),
        )
    points = _unit_points(loaded.input_shape)
    if loaded.graph is not None and run(loaded.graph, points.double()).shape != (len(points), 1):
        loaded = replace(loaded, graph=None, double=None, note="its only number for each input has no axis of its own")
    place, read = loaded.on_device, kind
    meaning = "a probability (above 0.5: class 1)" if kind == "probability" else "a logit (above 0: class 1)"
    return replace(
        loaded,
        source=two_scores(loaded.source, kind),
        graph=None if loaded.graph is None else append_two_classes(loaded.graph, kind),
        on_device=None if place is None else lambda device: two_scores(place(device), read),
        double=None if loaded.double is None else two_scores(loaded.double, kind),
        reading=f"it gives one number for two classes, read as {meaning}",
    )


def _finish(loaded: _Loaded, normalisation: Normalisation | None, device: torch.device, name: str) -> Network:
    loaded = _of_two_classes(loaded, name)
    source, graph = loaded.source, loaded.graph

    def reference(x: Tensor) -> Tensor:
        return source(x if normalisation is None else normalisation(x))

    forward = reference
    exact: Graph | None = None
    literal: Graph | None = None
    dropped = ""  # an end that the source has and our scores, which are logits, do not
    if graph is not None:
        dropped = final_softmax(graph)
        literal = without_softmax(graph if normalisation is None else prepend(normalisation, graph))
        exact = simplify(literal)
        ready = graph = exact.to(device)

        def forward(x: Tensor) -> Tensor:
            return run(ready, x)

    elif loaded.on_device is not None:
        module = loaded.on_device(device)

        def forward(x: Tensor) -> Tensor:
            return module(x if normalisation is None else normalisation(x))

    else:
        device = torch.device("cpu")  # a function of the user's chooses its own device
    classes = _check(reference, forward, literal, loaded.input_shape, device, name, dropped)
    numbers = "" if normalisation is None else f"{normalisation.mean.tolist()} {normalisation.std.tolist()}"
    fingerprint = hashlib.sha256((loaded.fingerprint + numbers).encode()).hexdigest() if loaded.fingerprint else ""
    cost = sample_bytes(forward, loaded.input_shape, device)
    network = Network(
        forward,
        reference,
        loaded.input_shape,
        classes,
        device,
        graph,
        name,
        fingerprint,
        loaded.note,
        cost,
        exact=exact,
        literal=literal,
        double=_wide_reference(loaded.double, normalisation),
        dropped=dropped,
        thresholds=None if normalisation is not None else loaded.thresholds,
        names=loaded.names,
        reading=loaded.reading,
    )
    reason = "" if exact is None else differs(network, _unit_points(loaded.input_shape))
    return replace(network, exact=None, note=reason) if reason else network


def _wide_reference(
    double: Callable[[Tensor], Tensor] | None, normalisation: Normalisation | None
) -> Callable[[Tensor], Tensor] | None:
    if double is None or normalisation is None:
        return double
    return lambda x: double(normalisation(x))


def _unit_points(shape: tuple[int, ...]) -> Tensor:
    """Points of the usual domain; other domains are looked at when one is given, see ``confirm``."""
    return check_points(torch.zeros(shape), torch.ones(shape))


def _float32_band(literal: Graph, x: Tensor) -> float:
    ends = torch.zeros_like(x[0]), torch.ones_like(x[0])
    band = make_round_off(literal, *ends, None, x.flatten(1)).error({}, 0).band
    return band if math.isfinite(band) else 0.0


@torch.inference_mode()
def _check(
    reference: Callable[[Tensor], Tensor],
    forward: Callable[[Tensor], Tensor],
    literal: Graph | None,
    shape: tuple[int, ...],
    device: torch.device,
    name: str,
    dropped: str,
) -> int:
    """Compare a network with its source, to which the dropped operation belongs; returns the number of classes."""
    x = _unit_points(shape)
    # The file can ask torch for anything.
    with user_code(lambda why: f"{name} fails on a batch of shape {tuple(x.shape)}: {why}"):
        wanted = reference(x)
        check_shape(wanted, len(x), name)
        singles = torch.cat([reference(row[None]) for row in x])
        with exact_float32(device):
            batch, again = forward(x.to(device)).cpu(), forward(x.to(device)).cpu()
        if dropped:
            batch, again = getattr(batch, dropped)(1), getattr(again, dropped)(1)
    usable = torch.isfinite(wanted).all(1)
    # A corner of the domain (all black, say) may be no input for a model; a search that gets there says so.
    if not bool(usable[((x > 0) & (x < 1)).flatten(1).any(1)].all()):
        raise ModelError(
            f"{name} gives NaN or infinite scores for random inputs in [0, 1]: check its weights, and mean and std"
        )
    if not torch.equal(torch.isfinite(batch).all(1), usable):
        raise ModelError(f"{name} was imported with other scores than its source gives (NaN or infinite ones)")
    x, wanted, singles, batch, again = (part[usable] for part in (x, wanted, singles, batch, again))
    size = TOLERANCE * (1 + wanted.abs().max())
    if not bool((batch - again).abs().max() <= size):
        raise ModelError(f"{name} gives different scores for the same input: switch off dropout and other randomness")
    if not bool((wanted - singles).abs().max() <= size):
        raise ModelError(
            f"{name} scores an input differently alone and in a batch: put it in evaluation mode (dynamic "
            "quantisation does so in any mode: use static quantisation, or the network before it)"
        )
    # Folded constants round otherwise than the source does, in a network with large inner values by much.
    band = 0.0 if literal is None else _float32_band(literal, x)
    if not bool((batch - wanted).abs().max() <= max(float(size), band)):
        gap = float((batch - wanted).abs().max())
        raise ModelError(f"{name} was imported with other scores than its source gives (largest difference {gap:.3g})")
    return int(wanted.shape[1])
