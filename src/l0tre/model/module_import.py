"""From a ``torch.nn.Module`` to a :class:`~l0tre.model.graph.Graph`, through ``torch.export``."""

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from l0tre.errors import ModelError
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.calls import Call, Program, Ref, graph_from_calls
from l0tre.model.graph import Graph
from l0tre.model.user_code import user_code

__all__ = ["export_module", "import_module"]


def import_module(module: nn.Module, input_shape: tuple[int, ...]) -> Graph:
    """Turn a module into a graph of what it computes in evaluation mode.

    Args:
        module: The network, in any mode and place; it is copied, never changed.
        input_shape: Shape of one sample, without the batch dimension.

    Returns:
        The graph, for any batch size.

    Raises:
        UnsupportedOperationError: If torch cannot export the module, or it uses an unsupported operation or type.
        ModelError: If the module cannot be copied, or the shapes do not fit.
    """
    return graph_from_calls(export_module(module, input_shape))


def export_module(module: nn.Module, input_shape: tuple[int, ...]) -> Program:
    """The operators that a module calls for float32 inputs in evaluation mode.

    Args:
        module: See :func:`import_module`.
        input_shape: Likewise.

    Returns:
        The program, whose operators need not be supported.

    Raises:
        UnsupportedOperationError: If torch cannot export the module.
        ModelError: If the module cannot be copied.
    """
    if not input_shape or min(input_shape) < 1:
        raise ModelError(f"input shape {tuple(input_shape)} is empty: give that of one sample, such as (1, 28, 28)")
    with user_code(lambda why: f"the module {type(module).__name__} cannot be copied: {why}"):
        frozen = copy.deepcopy(module).cpu().eval()
    frozen.requires_grad_(False)
    with _quiet():

        def failed(why: str) -> UnsupportedOperationError:
            return UnsupportedOperationError(f"torch.export cannot trace {type(module).__name__}: {why}")

        try:
            with user_code(failed):
                exported, batch = _export(frozen, input_shape, None), None
        except UnsupportedOperationError:
            # Some modules name the batch size; for a batch of one they still give the function of one sample.
            with user_code(failed):
                exported, batch = _export(frozen, input_shape, 1), 1
    return _program(exported, tuple(input_shape), batch)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings, log lines and dumps, which are about its own workings."""
    level, sink = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(sink), redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _export(module: nn.Module, shape: tuple[int, ...], batch: int | None) -> ExportedProgram:
    """Export for a fixed batch size, or for any with ``None`` (from an example of two)."""
    example = torch.zeros(batch or 2, *shape)
    dynamic = ({0: torch.export.Dim("batch")},) if batch is None else None
    return torch.export.export(module, (example,), dynamic_shapes=dynamic, strict=False)


def _program(exported: ExportedProgram, shape: tuple[int, ...], batch: int | None) -> Program:
    """The calls of an exported program with one input and one output."""
    signature, constants = exported.graph_signature, {}
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    for spec in signature.input_specs:
        if spec.kind in kinds and spec.target is not None:
            held = exported.state_dict if spec.target in exported.state_dict else exported.constants
            value = held[spec.target]
            if isinstance(value, Tensor):
                constants[spec.arg.name] = value
    inputs = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    outputs = [spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    if len(inputs) != 1:
        raise ModelError(f"the module has {len(inputs)} inputs; a classifier with exactly one is expected")
    if len(outputs) != 1 or not isinstance(outputs[0], TensorArgument):
        raise ModelError(f"the module gives {len(outputs)} results; exactly one tensor of scores is expected")
    calls = [_call(node) for node in exported.graph.nodes if node.op == "call_function"]
    dtypes = {
        node.name: node.meta["val"].dtype for node in exported.graph.nodes if isinstance(node.meta.get("val"), Tensor)
    }
    computed = {call.name for call in calls} | {inputs[0]}
    dtypes = {name: dtype for name, dtype in dtypes.items() if name in computed}
    return Program(calls, constants, inputs[0], shape, batch, outputs[0].name, dtypes)


def _call(node: fx.Node) -> Call:
    target = node.target
    name = str(target) if isinstance(target, torch._ops.OpOverload) else _function_name(target)
    return Call(name, node.name, tuple(map(_value, node.args)), {key: _value(v) for key, v in node.kwargs.items()})


def _function_name(target: object) -> str:
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _value(value: object) -> object:
    """An argument of a node; where a tensor lies in memory does not matter here."""
    if isinstance(value, fx.Node):
        return Ref(value.name)
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    return None if isinstance(value, torch.device | torch.layout | torch.memory_format) else value
