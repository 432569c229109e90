"""The number types of an ONNX file: which ones can be kept, and the same file in float64."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from l0tre.errors import require
from l0tre.model.call_site import UnsupportedOperationError

__all__ = ["refuse_narrow_types", "widened"]

# TensorProto's codes of the types that computed values may have, with their bits of mantissa.
_FLOAT, _DOUBLE = 1, 11
_BITS: Mapping[int, int] = {_FLOAT: 24, _DOUBLE: 53}


def refuse_narrow_types(nodes: Iterable[Any], source: str, model: Any) -> None:
    """Refuse a file that rounds computed values to a narrower type: as a function of real numbers it is another one.

    A cast of the input itself to float32 is harmless: the ends of a domain are float32, so that every rounded input is
    one of the domain too.

    Args:
        nodes: The nodes that the scores depend on, in order.
        source: Name of the input.
        model: The ModelProto.

    Raises:
        UnsupportedOperationError: Naming the node.
    """
    onnx = require("onnx", "onnx")
    types = {value.name: int(value.type.tensor_type.elem_type) for value in model.graph.input if value.name == source}
    names = dict(zip(onnx.TensorProto.DataType.values(), onnx.TensorProto.DataType.keys(), strict=True))
    if types[source] not in _BITS:
        raise UnsupportedOperationError(
            f"the input {source} is {names[types[source]]}, so that the network rounds all it computes to that type"
        )
    for node in nodes:
        computed = [types[name] for name in node.input if name in types]
        if not computed or node.op_type in ("Shape", "Size"):
            continue
        result = max(computed, key=lambda kind: _BITS[kind])
        if node.op_type == "Cast":
            wanted = next(int(entry.i) for entry in node.attribute if entry.name == "to")
            if "FLOAT" not in names.get(wanted, "FLOAT") and wanted != _DOUBLE:
                continue  # to whole numbers: the importer refuses that
            first = node.input[0] == source and wanted == _FLOAT
            if wanted not in _BITS or (_BITS[wanted] < _BITS[result] and not first):
                label = node.name or node.output[0]
                raise UnsupportedOperationError(
                    f"ONNX node {label} (Cast) turns computed values from {names[result]} into "
                    f"{names.get(wanted, wanted)}, which rounds them"
                )
            result = wanted
        types.update(dict.fromkeys(node.output, result))


def widened(model: Any) -> Any:
    """A copy of a ModelProto that computes in float64 where it computes in float32; its constants keep their values."""
    onnx = require("onnx", "onnx")
    model = copy.deepcopy(model)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == _FLOAT:
            value.type.tensor_type.elem_type = _DOUBLE
    for tensor in model.graph.initializer:
        _widen_tensor(onnx, tensor)
    for node in model.graph.node:
        for entry in node.attribute:
            if node.op_type == "Cast" and entry.name == "to" and entry.i == _FLOAT:
                entry.i = _DOUBLE
            elif node.op_type == "Constant" and entry.name in ("value_float", "value_floats"):
                held = entry.f if entry.name == "value_float" else list(entry.floats)
                tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.np.asarray(held, dtype="float64"))
                entry.CopyFrom(onnx.helper.make_attribute("value", tensor))
            elif entry.HasField("t"):
                _widen_tensor(onnx, entry.t)
        if node.op_type == "ConstantOfShape" and not node.attribute:  # float32 zeros by default
            zero = onnx.helper.make_tensor("value", _DOUBLE, [1], [0.0])
            node.attribute.append(onnx.helper.make_attribute("value", zero))
    return model


def _widen_tensor(onnx: Any, tensor: Any) -> None:
    if tensor.data_type == _FLOAT:
        wide = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype("float64"), tensor.name)
        tensor.CopyFrom(wide)
