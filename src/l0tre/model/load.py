"""Load a network from whatever the user has, and check it before anything is claimed about it."""

import copy
import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l0tre.errors import ModelError
from l0tre.limits import refuse_large
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.calls import graph_from_calls, run_calls
from l0tre.model.confirm import check_points, differs
from l0tre.model.double import double_module
from l0tre.model.footprint import sample_bytes
from l0tre.model.graph import Graph, run
from l0tre.model.module_import import import_module
from l0tre.model.network import Network, exact_float32, pick_device
from l0tre.model.normalise import Normalisation, make_normalisation, prepend
from l0tre.model.onnx_import import import_onnx, onnx_double_scores, onnx_input_shape, onnx_scores
from l0tre.model.pt2_import import read_pt2
from l0tre.model.reference import DATA_FILES, is_reference, resolve_reference
from l0tre.model.rounding import make_round_off
from l0tre.model.simplify import final_softmax, simplify, without_softmax
from l0tre.model.user_code import user_code

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


def knows_its_shape(source: Source) -> bool:
    """Whether a source says the shape of its input (files and networks of the zoo do, functions do not)."""
    if isinstance(source, str | Path):
        return ":" not in Path(source).name or Path(source).exists()
    return isinstance(source, Network)


def load(
    source: Source,
    *,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    input_shape: Sequence[int] | None = None,
    device: str = "auto",
    by_name: ByName = _no_names,
) -> Network:
    """Load a classifier.

    Args:
        source: An ``.onnx`` or ``.pt2`` file, the name of a network of the zoo (``sdnn``), a reference
            ``package.module:name`` or ``file.py:name``, an ``nn.Module``, or any function from a batch (torch or numpy)
            to scores.
        mean: Subtracted from the input inside the model: one number, or one for each channel.
        std: Divides the input inside the model, likewise.
        input_shape: Shape of one input; needed for modules and functions, checked for the others.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:0``.
        by_name: Gives the module and the input shape of a network that is known by name.

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
    loaded = _read(source, wish, by_name)
    _refuse_large_input(loaded.input_shape, _name(source))
    if wish is not None and wish != loaded.input_shape:
        raise ModelError(f"{_name(source)} takes inputs of shape {loaded.input_shape}, not {wish}")
    network = _finish(loaded, make_normalisation(mean, std, loaded.input_shape), target, _name(source))
    if not isinstance(source, str | Path):
        return network
    return replace(network, origin={"path": _place(str(source)), "mean": _plain(mean), "std": _plain(std)})


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
    return type(source).__name__ if isinstance(source, nn.Module) else getattr(source, "__name__", repr(source))


def _read(source: Source, shape: tuple[int, ...] | None, by_name: ByName) -> _Loaded:
    if isinstance(source, str | Path):
        return _read_named(str(source), shape, by_name)
    if shape is None:
        raise ModelError(
            f"{_name(source)} does not say the shape of its input: give `input_shape`, such as (1, 28, 28)"
        )
    if isinstance(source, nn.Module):
        return _read_module(source, shape)
    if callable(source):
        scores = _guarded(_black_box(source, shape, _name(source)), _name(source))
        return _Loaded(scores, None, shape, "", "a function has no graph of operations")
    raise ModelError(f"cannot load a network from {type(source).__name__}: give a file, a module or a function")


def _read_named(name: str, shape: tuple[int, ...] | None, by_name: ByName) -> _Loaded:
    path, suffix = Path(name), Path(name).suffix.lower()
    if suffix in DATA_FILES:
        if not path.is_file():
            raise ModelError(f"there is no file {name}: give the path of an .onnx or .pt2 file")
        if suffix == ".onnx":
            return _read_onnx(path)
        program = read_pt2(path)
        graph = graph_from_calls(program)

        def call(x: Tensor) -> Tensor:
            return run_calls(program, x)

        return _Loaded(_guarded(call, name), graph, graph.input_shape, _digest(graph), double=call)
    if suffix in (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".keras", ".tflite"):
        raise ModelError(
            f"{name}: {suffix} files are not read (most are pickles, which can run code when opened): export the "
            "network to .onnx (torch.onnx.export) or .pt2 (torch.export.save), or give file.py:name"
        )
    if is_reference(name):
        target = resolve_reference(name)
        loaded = _read(target, shape, by_name)
        return loaded if loaded.fingerprint else replace(loaded, fingerprint=_code_digest(target))
    return _read_module(*by_name(name))


def _read_onnx(path: Path) -> _Loaded:
    graph, note = None, ""
    try:
        graph = import_onnx(path)  # before anything runs: it refuses constants that no memory holds
    except UnsupportedOperationError as error:
        note = str(error)
    scores = onnx_scores(path)

    def source(x: Tensor) -> Tensor:
        return torch.from_numpy(scores(x.numpy()))

    if graph is None:
        return _Loaded(source, None, onnx_input_shape(path), hashlib.sha256(path.read_bytes()).hexdigest(), note)
    wide = onnx_double_scores(path)
    return _Loaded(source, graph, graph.input_shape, _digest(graph), double=lambda x: torch.from_numpy(wide(x.numpy())))


def _digest(graph: Graph) -> str:
    """Hash of the operations and weights themselves: a file's bytes may leave out weights kept beside it."""
    digest = hashlib.sha256()
    for operation in graph.operations:
        digest.update(
            repr((operation.kind, operation.inputs, operation.shape, sorted(operation.attributes.items()))).encode()
        )
        for key, value in sorted(operation.tensors.items()):
            digest.update(key.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_module(module: nn.Module, shape: tuple[int, ...]) -> _Loaded:
    with user_code(lambda why: f"the module {type(module).__name__} cannot be copied: {why}"):
        frozen = copy.deepcopy(module).cpu().eval().requires_grad_(False)
    graph, note, double = None, "", None
    try:
        graph = import_module(frozen, shape)
        double = double_module(frozen)
    except UnsupportedOperationError as error:
        note = str(error)

    def place(device: torch.device) -> Callable[[Tensor], Tensor]:
        return _guarded(copy.deepcopy(frozen).to(device), _name(module))

    digest = _module_digest(frozen, shape) if graph is None else _digest(graph)
    return _Loaded(_guarded(frozen, _name(module)), graph, shape, digest, note, place, double)


def _module_digest(module: nn.Module, shape: tuple[int, ...]) -> str:
    """Hash of a module that has no graph: its weights, its structure, and the code of its classes."""
    digest = hashlib.sha256(f"{shape} {module}".encode())
    for key, value in module.state_dict().items():
        digest.update(key.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for kind in sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__):
        with suppress(TypeError, OSError):  # defined at a prompt
            digest.update(inspect.getsource(kind).encode())
    return digest.hexdigest()


def _code_digest(function: Any) -> str:
    """Hash of the file that holds a function, so that a run is not resumed with another one; empty if none does."""
    with suppress(TypeError, OSError):
        file = inspect.getsourcefile(function)
        return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return ""


def _guarded(call: Callable[[Tensor], Any], name: str) -> Callable[[Tensor], Tensor]:
    """Wrap the user's own code: it may change what it is given, fail at any input, and return anything."""

    def scores(x: Tensor) -> Tensor:
        with user_code(lambda why: f"{name} fails on a batch of shape {tuple(x.shape)}: {why}"):
            result = call(x.clone())
        if not isinstance(result, Tensor):
            raise ModelError(f"{name} returns a {type(result).__name__}: expected one tensor of scores")
        _check_shape(result, len(x), name)
        return result.to(torch.float32)

    return scores


def _check_shape(scores: Tensor, count: int, name: str) -> None:
    if scores.ndim != 2 or len(scores) != count or scores.shape[1] < 2:
        raise ModelError(
            f"{name} gives scores of shape {tuple(scores.shape)} for a batch of {count}: expected ({count}, classes) "
            "with two classes or more"
        )


def _black_box(function: Callable[..., Any], shape: tuple[int, ...], name: str) -> Callable[[Tensor], Tensor]:
    """Find out what a function takes: it is given torch tensors if it can use them, else numpy arrays."""
    sample = torch.zeros(2, *shape)

    def with_torch(x: Tensor) -> Tensor:
        return _as_scores(function(x.cpu()))

    def with_numpy(x: Tensor) -> Tensor:
        return _as_scores(function(x.cpu().numpy()))

    reasons = []
    for call in (with_torch, with_numpy):
        try:
            with user_code(str):
                call(sample.clone())
        except ModelError as error:
            reasons.append(str(error))
        else:
            return call
    tried = reasons[0] if reasons[0] == reasons[1] else f"with torch, {reasons[0]}; with numpy, {reasons[1]}"
    raise ModelError(f"{name} fails on a batch of shape {tuple(sample.shape)}: {tried}")


def _as_scores(result: Any) -> Tensor:
    """What a function returned as a float32 tensor on the CPU."""
    values = result.cpu() if isinstance(result, Tensor) else torch.as_tensor(_numbers(result))
    if values.is_complex():
        raise TypeError("it returns complex numbers, expected scores")
    return values.to(torch.float32)


def _numbers(result: Any) -> np.ndarray:
    with suppress(ValueError):  # of a ragged sequence
        array = np.asarray(result)
        if array.dtype.kind in "biufc":
            return array
    raise TypeError(f"it returns a {type(result).__name__}, expected an array of scores")


def _finish(loaded: _Loaded, normalisation: Normalisation | None, device: torch.device, name: str) -> Network:
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
        _check_shape(wanted, len(x), name)
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
        raise ModelError(f"{name} scores an input differently alone and in a batch: put it in evaluation mode")
    # Folded constants round otherwise than the source does, in a network with large inner values by much.
    band = 0.0 if literal is None else _float32_band(literal, x)
    if not bool((batch - wanted).abs().max() <= max(float(size), band)):
        gap = float((batch - wanted).abs().max())
        raise ModelError(f"{name} was imported with other scores than its source gives (largest difference {gap:.3g})")
    return int(wanted.shape[1])
