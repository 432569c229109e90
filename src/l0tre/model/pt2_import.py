"""From a ``.pt2`` file (``torch.export.save``) to a :class:`~l0tre.model.graph.Graph`, without running anything in it.

``torch.export.load`` unpickles objects and evaluates strings of the file, so a file could run code. Here the archive
is read as what it is, JSON and raw numbers; tensors that were pickled go through torch's restricted unpickler.
"""

import io
import json
import math
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.model.calls import Call, Program, Ref, graph_from_calls
from l0tre.model.graph import Graph

__all__ = ["import_pt2", "read_pt2"]

_T = TypeVar("_T")

_HINT = 'make one with torch.export.save(torch.export.export(model.eval(), (example,)), "model.pt2")'
_LEGACY = "serialized_exported_program.json"  # torch 2.6 and 2.7
_STRIDED = 7
# Numbers that the format gives to the types of tensors.
_DTYPES: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
_MAX_ELEMENTS = 2**28  # a few bytes can claim to be a tensor of any size (stride 0)


def import_pt2(path: Path) -> Graph:
    """Read an exported program as a graph, see :func:`read_pt2`; ``graph.input_shape`` is the shape of one sample."""
    return graph_from_calls(read_pt2(path))


def read_pt2(path: Path) -> Program:
    """Read an exported program.

    Args:
        path: A file of ``torch.export.save``, with a static or dynamic batch, decomposed or not.

    Returns:
        The program; whether its operators are supported is not looked at.

    Raises:
        ModelError: If the file is no such archive, is damaged, or holds anything but plain data.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            program = _read(_Archive(archive))
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path}: give the path of a .pt2 file, or {_HINT}") from error
    except zipfile.BadZipFile as error:
        raise ModelError(f"{path} is not a .pt2 archive or is damaged ({error}); {_HINT}") from error
    except ModelError as error:
        raise ModelError(f"{path} cannot be used: {error}") from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise ModelError(
            f"{path} is not a readable .pt2 archive ({type(error).__name__}: {reason}); {_HINT}"
        ) from error
    return program


class _Archive:
    """The plain records of a zip file. Only what is not compressed is read, so the size of the file bounds it."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = archive.namelist()
        if len(set(self.names)) != len(self.names):
            raise ModelError(f"it holds two records of the same name; {_HINT}")

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise ModelError(f"it has no record {name}; {_HINT}")
        info = self._archive.getinfo(name)
        plain = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if not plain or info.flag_bits & 1:
            raise ModelError(f"its record {name} is compressed or encrypted, as torch writes none; {_HINT}")
        return self._archive.read(name)

    def parse(self, name: str) -> Any:
        return json.loads(self.read(name))


def _read(archive: _Archive) -> Program:
    if _LEGACY in archive.names:
        held = ("serialized_constants.pt", "serialized_state_dict.pt")
        tensors = [_unpickle(archive.read(name), dict) for name in held]
        return _program(archive.parse(_LEGACY), {**tensors[0], **tensors[1]})
    roots = [name.removesuffix("archive_format") for name in archive.names if name.endswith("/archive_format")]
    if len(roots) != 1 or archive.read(f"{roots[0]}archive_format") != b"pt2":
        pickled = any(name.endswith("/data.pkl") for name in archive.names)
        kind = "a pickled checkpoint or TorchScript, which can run code," if pickled else "some other zip file"
        raise ModelError(f"it is {kind} not an exported program; {_HINT}")
    root = roots[0]
    if f"{root}byteorder" in archive.names and archive.read(f"{root}byteorder").decode() != sys.byteorder:
        raise ModelError("its numbers have the byte order of another machine; export the model on one like this")
    models = [name for name in archive.names if name.startswith(f"{root}models/") and name.endswith(".json")]
    if len(models) != 1:
        raise ModelError(f"it holds {len(models)} exported programs, exactly one is expected; {_HINT}")
    model = models[0].removeprefix(f"{root}models/").removesuffix(".json")
    constants = _payloads(archive, f"{root}data/constants/", model, "constants")
    weights = _payloads(archive, f"{root}data/weights/", model, "weights")
    return _program(archive.parse(models[0]), {**constants, **weights})


def _payloads(archive: _Archive, folder: str, model: str, kind: str) -> Mapping[str, object]:
    """The tensors of a folder by the name that the program gives them."""
    if f"{folder}{model}.pt" in archive.names:  # torch 2.8
        return _unpickle(archive.read(f"{folder}{model}.pt"), dict)
    config = archive.parse(f"{folder}{model}_{kind}_config.json")["config"]
    records: dict[str, bytes] = {}  # tied weights share one
    tensors = {}
    for name, entry in config.items():
        record = f"{folder}{entry['path_name']}"
        if record not in records:
            records[record] = archive.read(record)
        if entry["use_pickle"]:
            tensors[name] = _unpickle(records[record], Tensor)
        else:
            tensors[name] = _raw_tensor(name, records[record], entry["tensor_meta"])
    return tensors


def _unpickle(data: bytes, kind: type[_T]) -> _T:
    """Tensors saved by ``torch.save``; anything that needs more than torch's list of harmless types is refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            for name in _Archive(inner).names:
                _Archive(inner).read(name)  # nothing that grows when torch unpacks it
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"it holds a pickle that is not plain tensors and might run code: {reason}") from error
    if not isinstance(value, kind):
        raise ModelError(f"it holds a {type(value).__name__} where tensors are expected; {_HINT}")
    return value


def _raw_tensor(name: str, data: bytes, meta: Mapping[str, Any]) -> Tensor:
    """A tensor from the bytes of its storage, with all sizes checked against these bytes."""
    dtype = _DTYPES.get(meta["dtype"])
    if dtype is None or meta["layout"] != _STRIDED:
        raise ModelError(f"tensor {name} has type {meta['dtype']} and layout {meta['layout']}, which are not supported")
    sizes, strides = ([_int(item) for item in meta[key]] for key in ("sizes", "strides"))
    offset, count = _int(meta["storage_offset"]), math.prod(sizes)
    steps = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    held, rest = divmod(len(data), dtype.itemsize)
    fits = min([offset, *sizes, *strides]) >= 0 and offset + sum(steps) < held and count <= _MAX_ELEMENTS
    if rest or not (fits or count == 0):
        raise ModelError(f"tensor {name} of {sizes} does not fit the {len(data)} bytes stored for it")
    if count == 0:
        return torch.zeros([max(size, 0) for size in sizes], dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(sizes, strides, offset)


def _int(size: Mapping[str, Any]) -> int:
    value = size["as_int"]
    if not isinstance(value, int):
        raise TypeError("a size is not a whole number")
    return value


def _program(exported: Mapping[str, Any], tensors: Mapping[str, object]) -> Program:
    """The calls of a program in the JSON schema of ``torch.export``."""
    graph, signature = exported["graph_module"]["graph"], exported["graph_module"]["signature"]
    constants: dict[str, Tensor] = {}
    inputs = []
    for spec in signature["input_specs"]:
        ((kind, body),) = spec.items()
        if kind == "user_input":
            inputs.append(body["arg"])
        elif kind in ("parameter", "buffer", "tensor_constant"):
            name, value = _text(body["arg"]["name"]), tensors.get(body[f"{kind}_name"])
            if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
                raise ModelError(f"it holds no plain tensor for {name}; {_HINT}")
            if [_int(size) for size in graph["tensor_values"][name]["sizes"]] != list(value.shape):
                raise ModelError(f"tensor {name} has shape {tuple(value.shape)}, the program expects another")
            constants[name] = value
    kinds = [next(iter(spec)) for spec in signature["output_specs"]]
    if "buffer_mutation" in kinds or "parameter_mutation" in kinds:
        raise ModelError("the program changes its own buffers when it runs; export the model after model.eval()")
    outputs = [spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec]
    for arguments, word in ((inputs, "inputs"), (outputs, "outputs")):
        if len(arguments) != 1 or "as_tensor" not in arguments[0]:
            raise ModelError(f"the program has {len(arguments)} {word}; exactly one tensor is expected")
    name, output = (_text(argument["as_tensor"]["name"]) for argument in (inputs[0], outputs[0]))
    sizes = graph["tensor_values"][name]["sizes"]
    if len(sizes) < 2 or any("as_int" not in size for size in sizes[1:]):
        raise ModelError(
            "the program must take a batch of inputs of one fixed shape: only the first dimension, the batch, may be "
            "dynamic in torch.export.export"
        )
    batch = _int(sizes[0]) if "as_int" in sizes[0] else None
    shape = tuple(_int(size) for size in sizes[1:])
    if min(shape) < 1 or (batch is not None and batch < 1):
        raise ModelError(f"the program takes empty inputs of shape {shape} in batches of {batch}")
    calls = [call for node in graph["nodes"] for call in _calls(node)]
    computed = {call.name for call in calls} | {name}
    dtypes = {key: _DTYPES[meta["dtype"]] for key, meta in graph["tensor_values"].items() if meta["dtype"] in _DTYPES}
    dtypes = {key: dtype for key, dtype in dtypes.items() if key in computed}
    return Program(calls, constants, name, shape, batch, output, dtypes)


def _calls(node: Mapping[str, Any]) -> list[Call]:
    """The call of a node, and the choice of each of its results if there are several."""
    target = node["target"].removeprefix("torch.ops.")
    values = [(item["name"], _value(item["arg"])) for item in node["inputs"]]
    named = target != node["target"]
    args, kwargs = ((), dict(values)) if named else (tuple(value for _, value in values), {})
    names = [name for output in node["outputs"] for name in _names(output)]
    if len(names) == 1 and "as_tensors" not in node["outputs"][0]:
        return [Call(target, names[0], args, kwargs)]
    whole = f"{names[0]}..." if names else ""  # no name of the format's own has dots
    choices = [Call("_operator.getitem", name, (Ref(whole), index)) for index, name in enumerate(names)]
    return [Call(target, whole, args, kwargs), *choices]


def _names(output: Mapping[str, Any]) -> list[str]:
    ((kind, body),) = output.items()
    if kind == "as_tensors":
        return [_text(item["name"]) for item in body]
    if kind == "as_tensor":
        return [_text(body["name"])]
    return [_text(body["as_name"])] if kind.startswith("as_sym") else []


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not a string")
    return value


def _value(argument: Mapping[str, Any]) -> object:
    """An argument; what only says where a tensor lies in memory becomes ``None``."""
    ((kind, body),) = argument.items()
    match kind:
        case "as_tensor":
            return Ref(_text(body["name"]))
        case "as_name":
            return Ref(_text(body))
        case "as_tensors":
            return [Ref(_text(item["name"])) for item in body]
        case "as_optional_tensor" | "as_sym_int" | "as_sym_float" | "as_sym_bool":
            return _value(body)
        case "as_optional_tensors" | "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
            return [_value(item) for item in body]
        case "as_float":
            return float(body)  # infinities are written as words
        case "as_floats":
            return [float(item) for item in body]
        case "as_int" | "as_ints" | "as_bool" | "as_bools" | "as_string" | "as_strings":
            return body
        case "as_scalar_type" if body in _DTYPES:
            return _DTYPES[body]
        case "as_none" | "as_device" | "as_layout" | "as_memory_format":
            return None
    return Ref(f"{kind} {body}"[:60])  # names nothing, so that only a call that is needed fails
