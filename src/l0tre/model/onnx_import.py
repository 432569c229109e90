"""Reading a classifier from an ONNX file, and the scores that onnxruntime gives for it as a reference."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l0tre.errors import ModelError, OpenShapeError, require
from l0tre.model.call_site import UnsupportedOperationError
from l0tre.model.graph import Graph, GraphBuilder
from l0tre.model.onnx_call import Array, OnnxCall, Value
from l0tre.model.onnx_limits import refuse_hostile, refuse_large_fold, refuse_large_values
from l0tre.model.onnx_operators import FOLDED, OPERATORS
from l0tre.model.onnx_reference import corrected_operators
from l0tre.model.onnx_types import refuse_narrow_types, widened
from l0tre.model.refusals import reason

__all__ = ["import_onnx", "onnx_double_scores", "onnx_input_shape", "onnx_scores", "onnx_session"]

_OLDEST_OPSET = 7
# TensorProto's codes of the types that an input may have.
_FLOAT_TYPES: Mapping[int, type[np.number[Any]]] = {1: np.float32, 2: np.uint8, 10: np.float16, 11: np.float64}


@dataclass(frozen=True)
class _Input:
    """The images that a file asks for: ``batch`` is the written size or 0, ``shape`` that of one sample."""

    name: str
    dtype: type[np.number[Any]]
    batch: int
    shape: tuple[int, ...]


def import_onnx(path: Path, shape: tuple[int, ...] | None = None) -> Graph:
    """Read the network in an ONNX file.

    The first dimension of the input is taken for the batch, whatever size is written there; the graph has no
    batch size in it. Constants keep their values; what is computed from constants alone is computed in float64.

    Args:
        path: The file; its external data, if any, must lie in the same folder or below.
        shape: Of one input, where the file leaves sizes open.

    Returns:
        The network, with one output vector ``(classes,)`` per sample.

    Raises:
        UnsupportedOperationError: If it computes in a type narrower than float32, or by an operator that is not
            supported.
        ModelError: If the file cannot be read, is inconsistent or needs something that is not supported.
    """
    onnx = require("onnx", "onnx")
    model = _load(path)
    _without_maps(model)
    source, output = _image_input(model, path, shape), _score_output(model, path)
    if source.dtype is np.uint8:
        raise UnsupportedOperationError(f"{path} takes whole numbers of 0 to 255, between which it is not defined")
    nodes = _needed(model.graph.node, output)
    _refuse_unsupported(nodes)
    opset = _opset(model, path)
    try:
        for value in model.graph.output:
            # The checker asks for a shape, which many files leave out of their outputs and nothing here needs.
            value.type.tensor_type.shape.SetInParent()
        onnx.checker.check_model(model)
        refuse_narrow_types(nodes, source.name, model)
        model = widened(model)
        values: dict[str, Value] = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    except ModelError:
        raise
    except Exception as error:  # errors of onnx, protobuf and numpy
        raise _unreadable(path, error) from error

    nodes = _needed(model.graph.node, output)
    builder = GraphBuilder(source.shape, source.name)
    values[source.name] = 0
    for node in nodes:
        found = _import_node(node, values, builder, opset, max(source.batch, 1))
        values.update(zip(node.output, found if isinstance(found, tuple) else (found,), strict=False))
    last = values.get(output)
    if not isinstance(last, int):
        raise ModelError(f"{path} has an output {output} that does not depend on its input; export the whole network")
    if len(builder.shape(last)) != 1:
        last = builder.add("reshape", (last,), name=output, shape=(math.prod(builder.shape(last)),))
    return builder.build(last)


def onnx_scores(
    path: Path, shape: tuple[int, ...] | None = None
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """The scores that onnxruntime gives (on one thread of the processor), to compare with.

    Args:
        path: The ONNX file. Where its batch size is fixed, or where it does not run on several samples at once,
            samples are given to it in portions that fit.
        shape: Of one input, where the file leaves sizes open.

    Returns:
        A function from images ``[batch, *input shape]`` to scores ``[batch, classes]``, both float32. It raises
        :class:`ModelError` if onnxruntime fails.
    """
    model = _load(path)
    mapped = _without_maps(model)
    source, output = _image_input(model, path, shape), _score_output(model, path)
    try:
        session = onnx_session(_open_batch(model) or (model.SerializeToString() if mapped else str(path)))
    except Exception as error:  # onnxruntime's errors have no common base
        raise _unreadable(path, error) from error

    def portion(images: Array) -> Array:
        try:
            # Whole numbers are rounded to, not cut off.
            given = images.round().clip(0, 255) if source.dtype is np.uint8 else images
            scores: Array = session.run([output], {source.name: given.astype(source.dtype)})[0]
            return scores.astype(np.float32).reshape(len(images), -1)
        except Exception as error:  # as above, and numpy's when the output has no batch dimension
            raise ModelError(f"{path} does not run in onnxruntime: {_one_line(error)}") from error

    fixed = source.batch or int(_single_only(portion, source.shape))

    def scores(images: NDArray[np.float32]) -> NDArray[np.float32]:
        size = fixed or max(len(images), 1)
        parts = []
        for start in range(0, max(len(images), 1), size):
            part = images[start : start + size]
            # A fixed batch takes full portions only: fill up with zeros and drop their scores below.
            filling = np.zeros((size - len(part), *images.shape[1:]), dtype=np.float32)
            parts.append(portion(np.concatenate([part, filling])))
        joined: NDArray[np.float32] = np.concatenate(parts)[: len(images)]
        return joined

    return scores


def onnx_session(content: bytes | str) -> Any:
    """A session of onnxruntime on one thread of the processor, for a model or its path."""
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def onnx_double_scores(
    path: Path, shape: tuple[int, ...] | None = None
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """The scores that onnx's own reference evaluator gives in float64, which shares nothing with the importer.

    Args:
        path: The ONNX file. All its float32 values become float64.
        shape: Of one input, where the file leaves sizes open.

    Returns:
        A function from images ``[batch, *input shape]`` to scores ``[batch, classes]``, both float64. It raises
        :class:`ModelError` if the evaluator fails.
    """
    reference = require("onnx.reference", "onnx")
    model = _load(path)
    _without_maps(model)
    source, output = _image_input(model, path, shape), _score_output(model, path)
    try:
        _open_batch(model)
        evaluator = reference.ReferenceEvaluator(widened(model), new_ops=corrected_operators(_opset(model, path)))
    except Exception as error:  # errors of onnx and numpy
        raise ModelError(f"{path} does not run in onnx's reference evaluator: {_one_line(error)}") from error
    size = source.batch or 1

    def scores(images: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = []
        for start in range(0, len(images), size):
            part = images[start : start + size]
            filling = np.zeros((size - len(part), *images.shape[1:]))
            try:
                with np.errstate(all="ignore"):
                    (found,) = evaluator.run([output], {source.name: np.concatenate([part, filling])})
                parts.append(np.asarray(found, dtype=np.float64).reshape(size, -1)[: len(part)])
            except Exception as error:  # errors of numpy and of the evaluator's own
                raise ModelError(f"{path} does not run in onnx's reference evaluator: {_one_line(error)}") from error
        return np.concatenate(parts)

    return scores


def onnx_input_shape(path: Path, shape: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Shape of one input of an ONNX file; ``shape`` where the file leaves sizes open."""
    return _image_input(_load(path), path, shape).shape


def onnx_takes_bytes(path: Path, shape: tuple[int, ...] | None = None) -> bool:
    """Whether the input of an ONNX file is of whole numbers of 0 to 255."""
    return _image_input(_load(path), path, shape).dtype is np.uint8


def _single_only(portion: Callable[[Array], Array], shape: Sequence[int]) -> bool:
    """Whether a network with an open batch size has 1 written inside, as in a reshape to (1, -1)."""
    try:
        portion(np.zeros((2, *shape), dtype=np.float32))
    except ModelError:
        return True
    return False


def _open_batch(model: Any) -> bytes | None:
    """The model with the batch left open if it is written as 0, which onnxruntime takes for a size."""
    changed = False
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim[:1]:
            if dim.HasField("dim_value") and dim.dim_value == 0:
                dim.Clear()
                changed = True
    del model.graph.value_info[:]
    return model.SerializeToString() if changed else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _unreadable(path: Path, error: Exception) -> ModelError:
    if "NOT_IMPLEMENTED" in str(error):
        return ModelError(
            f"{path} cannot be run: onnxruntime has no such operator for the type that it computes in "
            f"({_one_line(error)}); export the network as float32 (module.float())"
        )
    return ModelError(f"{path} is not a readable ONNX model ({_one_line(error)}); export it again")


def _load(path: Path) -> Any:
    """The ModelProto of a file, its functions inlined and its external data loaded from its own folder only."""
    onnx = require("onnx", "onnx")
    require("onnx.inliner", "onnx")
    if not path.is_file():
        raise ModelError(f"{path} is not a file; give the path of an ONNX model")
    try:
        model = onnx.load(str(path), load_external_data=False)
        refuse_hostile(model, path)
        model = onnx.inliner.inline_local_functions(model) if model.functions else model
    except ModelError:
        raise
    except Exception as error:  # errors of onnx and protobuf
        raise _unreadable(path, error) from error
    folder = path.resolve().parent
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    for tensor in (*model.graph.initializer, *(attribute.t for attribute in attributes)):
        for entry in tensor.external_data:
            if entry.key == "location" and not (folder / entry.value).resolve().is_relative_to(folder):
                raise ModelError(f"{path} keeps weights in {entry.value}, outside its own folder; put them beside it")
            if entry.key == "location" and not (folder / entry.value).is_file():  # nor a device, which has no end
                raise _unreadable(path, FileNotFoundError(f"it keeps weights in {entry.value}, which is no file"))
        if tensor.external_data:
            try:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                # Loaded now; the tensor must not be looked up a second time when it is serialised.
                tensor.data_location = onnx.TensorProto.DEFAULT
                del tensor.external_data[:]
            except Exception as error:  # errors of onnx and of the file system
                raise _unreadable(path, error) from error
    refuse_large_values(model, path)
    return model


def _without_maps(model: Any) -> bool:
    """Put the matrix of probabilities in place of the dictionaries that converters of scikit-learn make of it."""
    changed = False
    onnx = require("onnx", "onnx")
    for node in [node for node in model.graph.node if node.op_type == "ZipMap"]:
        for place, output in enumerate(model.graph.output):
            if output.name == node.output[0]:
                matrix = onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, [None, None])
                model.graph.output[place].CopyFrom(matrix)
                model.graph.node.remove(node)
                changed = True
    return changed


def _image_input(model: Any, path: Path, shape: tuple[int, ...] | None) -> _Input:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise ModelError(f"{path} has {len(inputs)} inputs ({names}); expected one, the images")
    name, kind = str(inputs[0].name), inputs[0].type.tensor_type
    if kind.elem_type not in _FLOAT_TYPES:
        raise ModelError(f"{path} has an input {name} that is not a float tensor; export it with float32")
    sizes = tuple(max(int(dim.dim_value), 0) for dim in kind.shape.dim)
    if shape is not None and len(shape) == len(sizes) - 1:
        sizes = (sizes[0], *(size or wish for size, wish in zip(sizes[1:], shape, strict=True)))
    if len(sizes) < 2 or 0 in sizes[1:]:
        written = ", ".join(dim.dim_param or str(dim.dim_value) for dim in kind.shape.dim)
        raise OpenShapeError(
            f"{path} has an input {name} of shape ({written}); expected (batch, ...) with every size but the batch "
            "fixed: give `input_shape`, or export it again with a fixed height and width"
        )
    return _Input(name, _FLOAT_TYPES[kind.elem_type], sizes[0], sizes[1:])


def _score_output(model: Any, path: Path) -> str:
    """The name of the output that holds the scores: the only one, or the only matrix (of floats)."""
    outputs = list(model.graph.output)
    matrices = [value for value in outputs if len(value.type.tensor_type.shape.dim) == 2]
    floats = [value for value in outputs if value.type.tensor_type.elem_type in _FLOAT_TYPES]
    for choice in (outputs, matrices, floats):
        if len(choice) == 1:
            return str(choice[0].name)
    names = ", ".join(value.name for value in outputs) or "none"
    raise ModelError(f"{path} has {len(outputs)} outputs ({names}); export it with the scores only")


def _opset(model: Any, path: Path) -> int:
    versions = [int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions or versions[0] < _OLDEST_OPSET:
        raise ModelError(f"{path} uses ONNX operator set {versions}; export it with {_OLDEST_OPSET} or newer")
    return versions[0]


def _needed(nodes: Sequence[Any], output: str) -> list[Any]:
    """The nodes that an output depends on, in order."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def _refuse_unsupported(nodes: Iterable[Any]) -> None:
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or not (node.op_type in OPERATORS or node.op_type in FOLDED):
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            why = reason(node.op_type)
            if why:
                raise UnsupportedOperationError(f"ONNX operator {operator} (node {_label(node)}) {why}")
            known, constant = ", ".join(sorted(OPERATORS)), ", ".join(sorted(FOLDED - set(OPERATORS)))
            raise UnsupportedOperationError(
                f"ONNX operator {operator} (node {_label(node)}) is not supported; supported are {known}, and between "
                f"constants also {constant}"
            )


def _label(node: Any) -> str:
    """A name for messages; the name of a node is optional, that of its output is not."""
    return str(node.name or next(iter(node.output), "without output"))


def _import_node(
    node: Any, values: Mapping[str, Value], builder: GraphBuilder, opset: int, batch: int
) -> Value | tuple[Value, ...]:
    """The value of a node's first output, or of all, after adding what they need to the builder."""
    onnx = require("onnx", "onnx")
    missing = [name for name in node.input if name and name not in values]
    if missing:
        raise ModelError(f"ONNX node {_label(node)} ({node.op_type}) reads {missing[0]}, which is not available")
    inputs = {name: values[name] for name in node.input if name}
    constants = {name: value for name, value in inputs.items() if not isinstance(value, int)}
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    given = [inputs.get(name) for name in node.input]
    call = OnnxCall(builder, node.op_type, _label(node), given, attributes, opset, batch, len(node.output))
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused when it gets into the graph
            if len(constants) == len(inputs) and node.op_type in FOLDED:
                refuse_large_fold(node.op_type, [constants[name] for name in node.input if name])
                return _evaluate(node, constants, opset)
            if node.op_type not in OPERATORS:
                raise call.refuse("works on values computed from the input; only constants are supported there")
            return OPERATORS[node.op_type](call)
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise call.refuse(f"does not fit its inputs: {_one_line(error)}") from error


def _evaluate(node: Any, constants: Mapping[str, Array], opset: int) -> Array:
    """Compute a node that reads constants only."""
    onnx = require("onnx", "onnx")
    reference = require("onnx.reference", "onnx")
    inputs = [onnx.ValueInfoProto(name=name) for name in constants]
    graph = onnx.helper.make_graph([node], "constant", inputs, [onnx.ValueInfoProto(name=node.output[0])])
    graph.node[0].domain = ""
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return np.asarray(reference.ReferenceEvaluator(model).run(None, dict(constants))[0])
