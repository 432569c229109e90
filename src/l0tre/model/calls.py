"""From a list of aten calls, as ``torch.export`` writes them, to a :class:`~l0tre.model.graph.Graph`."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.model.aten import CONSTANT_ONLY, OPERATORS, same
from l0tre.model.call_site import CallSite, Missing, Size, UnsupportedOperationError, Var
from l0tre.model.graph import Graph, GraphBuilder
from l0tre.model.refusals import reason

__all__ = ["Call", "Program", "Ref", "check_harmless", "graph_from_calls", "run_calls"]

# Stands for a dynamic batch; a prime, so that no product of ordinary sizes equals it by chance.
_DYNAMIC_BATCH = 2_147_483_647
# Largest constant that may be computed while importing (a file could ask for any size).
_MAX_ELEMENTS = 2**28
_CASTS = frozenset(("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device"))
HARMLESS_FUNCTIONS = frozenset(("getitem", "add", "sub", "mul", "floordiv", "mod", "neg", "truediv"))
# A file is input from others: operators that touch more than tensors, or read memory unchecked.
BARRED = frozenset(("from_file", "set", "set_", "segment_reduce", "initial_seed"))
# Of torch's own operators, whose arguments its public ones check, those that exported programs hold.
PRIVATE = frozenset(
    (
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "_cdist_forward",
        "_fft_c2c",
        "_fft_c2r",
        "_fft_r2c",
        "_log_softmax",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "_pdist_forward",
        "_prelu_kernel",
        "_safe_softmax",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_softmax",
        "_to_copy",
        "_trilinear",
        "_unsafe_index",
        "_unsafe_view",
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "_weight_norm_interface",
    )
)
_VIEWS = frozenset(("aten.view.default", "aten._unsafe_view.default"))
_LAYOUT = frozenset(("device", "layout", "memory_format", "pin_memory"))


@dataclass(frozen=True)
class Ref:
    """A reference to the value of an earlier call, to a constant or to the input."""

    name: str


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes:
        target: ``"aten.<operator>.<overload>"``, or ``"_operator.<function>"`` for numbers and tuples.
        name: Name of the result.
        args: Positional arguments: :class:`Ref`, numbers, strings, dtypes, ``None`` and lists of these.
        kwargs: Arguments by the name that the operator's schema gives them.
    """

    target: str
    name: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A network as calls in execution order.

    Attributes:
        calls: All calls; those that the output does not need are ignored.
        constants: Parameters, buffers and constant tensors by name.
        input_name: Name of the one input.
        input_shape: Shape of one sample.
        batch: Batch size that the program is fixed to, ``None`` if it takes any.
        output_name: Name of the one output.
        dtypes: Types of the results by name, as far as the program tells.
    """

    calls: Sequence[Call]
    constants: Mapping[str, Tensor]
    input_name: str
    input_shape: tuple[int, ...]
    batch: int | None
    output_name: str
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)


def _references(value: object) -> Iterator[str]:
    """The names that an argument refers to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _references(item)


def _reads(call: Call) -> list[str]:
    return list(_references([*call.args, *call.kwargs.values()]))


def _in_place(call: Call) -> bool:
    namespace, _, operator = call.target.partition(".")
    return namespace == "aten" and operator.partition(".")[0].endswith("_")


def _needed(program: Program) -> list[Call]:
    """The calls that the output needs; those that change a tensor in place may matter through any name."""
    needed, kept = {program.output_name}, []
    for call in reversed(program.calls):
        if call.name in needed or _in_place(call):
            kept.append(call)
            needed.update(_reads(call))
    return kept[::-1]


def _unsupported(target: str) -> UnsupportedOperationError:
    why = reason(target.split(".")[1]) if target.startswith("aten.") else ""
    if why:
        return UnsupportedOperationError(f"operation {target} {why}")
    names = sorted({key.split(".")[1] for key in OPERATORS if not key.startswith(("_", "aten._", "aten.sym_"))})
    return UnsupportedOperationError(
        f"operation {target} is not supported; rewrite the model with these: {', '.join(names)}"
    )


def _operator(target: str) -> Any:
    """The torch operator of a target that is known to be in a table of :mod:`l0tre.model.aten`."""
    _, name, overload = target.split(".")
    try:
        return getattr(getattr(torch.ops.aten, name), overload)
    except AttributeError as error:
        raise _unsupported(target) from error


def _bind(call: Call) -> dict[str, object]:
    """All arguments of a call by name, in the order of the operator's schema and with its defaults."""
    if call.target.startswith("_operator."):
        return dict(zip(("a", "b"), call.args, strict=True))
    arguments = _operator(call.target)._schema.arguments
    given = {**dict(zip([a.name for a in arguments], call.args, strict=False)), **call.kwargs}
    bound = {a.name: given.pop(a.name, a.default_value) for a in arguments if a.name in given or a.has_default_value()}
    if given:
        raise TypeError(f"has unknown arguments {', '.join(given)}")
    return bound


def _fold(target: str, arguments: Mapping[str, object]) -> object:
    """Compute a call on constants with torch, after a look at the size of its result."""
    function = _operator(target)

    def run(move: bool) -> object:
        def moved(value: object) -> object:
            if isinstance(value, list | tuple):
                return [moved(item) for item in value]
            return value.to("meta") if move and isinstance(value, Tensor) else value

        return function(**{name: moved(_widened(value, torch.float64)) for name, value in arguments.items()})

    blank = run(move=True)
    sizes = [part.numel() for part in (blank if isinstance(blank, tuple) else (blank,)) if isinstance(part, Tensor)]
    if max(sizes, default=0) > _MAX_ELEMENTS:
        raise ValueError(f"computes a constant of {max(sizes)} elements")
    return run(move=False)


def _widened(value: object, dtype: torch.dtype) -> Any:
    """float32 tensors, and float32 where it is asked for, as another type; everything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)(_widened(item, dtype) for item in value)
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype == torch.float32 else value
    return dtype if value is torch.float32 else value


def _check_precision(site: CallSite, program: Program, call: Call) -> None:
    """Refuse results that are rounded to a narrower type: the graph of real numbers would be another function.

    A cast of the input itself to float32 is harmless: the ends of a domain are float32, so that every rounded input is
    one of the domain too.
    """
    found = program.dtypes.get(call.name)
    if found is None or not found.is_floating_point:
        return
    if torch.finfo(found).eps > torch.finfo(torch.float32).eps:
        raise site.refuse(f"computes in {found}, which rounds values; only float32 and float64 are supported")
    read = [program.dtypes.get(name) for name in _reads(call) if name != program.input_name]
    wider = [
        dtype for dtype in read if dtype is not None and dtype.is_floating_point and dtype.itemsize > found.itemsize
    ]
    if wider:
        raise site.refuse(f"turns computed values from {wider[0]} into {found}, which rounds them")


class _Scope:
    """Values by name. A change in place is seen through every name of the tensor, so these are tracked."""

    def __init__(self, program: Program, calls: Sequence[Call]) -> None:
        # In float64, so that what is computed from constants alone is not rounded to float32.
        constants = {name: _widened(value.detach(), torch.float64) for name, value in program.constants.items()}
        self.values: dict[str, object] = {**constants, program.input_name: Var(0)}
        self.owner: dict[str, str] = {}  # result of an in-place call -> the name that holds its value
        self.storage: dict[str, str] = {}  # name -> name of the tensor that it shares (or may share) memory with
        self.last_use = {name: position for position, call in enumerate(calls) for name in _reads(call)}
        self.last_use[program.output_name] = len(calls)

    def find(self, name: str) -> object:
        """The value that a name has now."""
        return self.values.get(self.owner.get(name, name), Missing())

    def resolve(self, value: object) -> object:
        """An argument with the values in place of the references."""
        if isinstance(value, Ref):
            found = self.find(value.name)
            if isinstance(found, Missing):
                raise ValueError(f"reads {value.name}, which l0tre does not compute")
            return found
        return [self.resolve(item) for item in value] if isinstance(value, list | tuple) else value

    def share(self, name: str, source: str) -> None:
        """Note that ``name`` may be a view of ``source``."""
        self.storage[name] = self.storage.get(source, source)

    def assign(self, name: str, target: str, result: object, position: int) -> None:
        """Bind the result of an in-place call at ``position`` on ``target``."""
        owner = self.owner.get(target, target)
        storage = self.storage.get(owner, owner)
        if result is not self.values[owner]:
            if isinstance(self.values[owner], Tensor):
                raise ValueError(f"changes the constant {owner} in place")
            for other in [*self.storage, storage]:
                shared = self.storage.get(other, other) == storage and self.owner.get(other, other) != owner
                if shared and self.last_use.get(other, -1) > position:
                    raise ValueError(f"changes {owner} in place while {other}, a view of it, is used later")
        self.values[owner] = result
        self.owner[name] = owner
        self.storage[name] = storage


def _views(target: str) -> bool:
    """Whether the result may share memory with the first argument."""
    if not target.startswith("aten."):
        return False
    returned = _operator(target)._schema.returns
    # dropout gives its input itself at inference, which its schema does not say
    return "dropout" in target or any(value.alias_info is not None for value in returned)


def _perform(site: CallSite, program: Program, scope: _Scope, call: Call, position: int) -> None:
    """Add the operations of one call, or compute it if it has only constants, and bind its result."""
    in_place = _in_place(call)
    target = call.target.replace("_.", ".", 1) if in_place else call.target
    handler = OPERATORS.get(target)
    if handler is None and target not in CONSTANT_ONLY:
        raise _unsupported(call.target)
    bound = _bind(call)
    arguments = {name: scope.resolve(value) for name, value in bound.items()}
    variable = any(isinstance(scope.resolve(Ref(name)), Var | Size) for name in _reads(call))
    if variable or handler is same or not target.startswith("aten."):
        if handler is None:
            raise _unsupported(call.target)
        result = handler(site, arguments)
        if isinstance(result, Var):
            _check_precision(site, program, call)
    else:
        result = _fold(target, arguments)
    first = next(iter(bound.values()))
    if in_place and isinstance(first, Ref):
        scope.assign(call.name, first.name, result, position)
    else:
        scope.values[call.name] = result
        if isinstance(first, Ref) and _views(target):
            scope.share(call.name, first.name)


def graph_from_calls(program: Program) -> Graph:
    """Turn a program into a graph.

    Args:
        program: The calls with their constants. Calls on constants alone are computed here.

    Returns:
        The graph, for any batch size.

    Raises:
        UnsupportedOperationError: If a call has no counterpart; the message names it.
        ModelError: If the shapes do not fit together or the output does not depend on the input.
    """
    builder, calls = GraphBuilder(program.input_shape, program.input_name), _needed(program)
    scope = _Scope(program, calls)
    batch = _DYNAMIC_BATCH if program.batch is None else program.batch
    for position, call in enumerate(calls):
        site = CallSite(builder, batch, call.target, call.name)
        try:
            _perform(site, program, scope, call, position)
        except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise site.refuse(f"cannot be used: {reason}") from error
    output = scope.find(program.output_name)
    if not isinstance(output, Var):
        raise ModelError("the output of the network does not depend on its input, or is not a tensor of scores")
    return builder.build(output.position)


def check_harmless(program: Program) -> None:
    """Refuse a program that is to be run as it is if it names anything but pure operators on tensors.

    Raises:
        UnsupportedOperationError: Naming the operator.
    """
    for call in _needed(program):
        namespace, _, rest = call.target.partition(".")
        if namespace == "_operator":
            if rest not in HARMLESS_FUNCTIONS:
                raise _unsupported(call.target)
            continue
        if namespace != "aten" or rest.count(".") != 1:
            raise _unsupported(call.target)
        schema, name = _operator(call.target)._schema, rest.partition(".")[0]
        barred = name in BARRED or (name.startswith("_") and name not in PRIVATE)
        if schema.is_mutable or barred or not schema.returns:
            raise _unsupported(call.target)


def run_calls(program: Program, x: Tensor) -> Tensor:
    """Evaluate a program by torch's own operators, which share nothing with the table of :mod:`l0tre.model.aten`.

    Args:
        program: One that :func:`graph_from_calls` or :func:`check_harmless` accepts, so that it names harmless
            operators only.
        x: ``[samples, *input_shape]`` on the CPU. In float64 everything that is float32 in the program is float64.

    Returns:
        ``[samples, classes]``, of the same type.
    """
    size = len(x) if program.batch is None else program.batch
    parts = []
    for first in range(0, len(x), size):
        part = x[first : first + size]
        filling = x.new_zeros(size - len(part), *x.shape[1:])
        parts.append(_run_batch(program, torch.cat([part, filling]))[: len(part)])
    return torch.cat(parts)


def _run_batch(program: Program, x: Tensor) -> Tensor:
    values: dict[str, Any] = {name: _widened(value, x.dtype) for name, value in program.constants.items()}
    values[program.input_name] = x

    def resolve(value: object) -> Any:
        if isinstance(value, Ref):
            return values[value.name]
        return [resolve(item) for item in value] if isinstance(value, list | tuple) else _widened(value, x.dtype)

    for call in _needed(program):
        if call.target.startswith("_operator."):
            function = getattr(operator, call.target.removeprefix("_operator."))
            values[call.name] = function(*map(resolve, call.args))
            continue
        bound = {name: resolve(value) for name, value in _bind(call).items()}
        if call.target in _CASTS:
            # Where a tensor lies is left out of a program, only its type counts.
            values[call.name] = bound["self"].to(bound.get("dtype") or bound["self"].dtype)
            continue
        # ``None`` also stands for places and layouts that were left out.
        given = {name: value for name, value in bound.items() if value is not None or name not in _LAYOUT}
        if call.target in _VIEWS:
            # Where memory formats are left out, a view may not fit any more.
            values[call.name] = given["self"].reshape(given["size"])
        else:
            values[call.name] = _operator(call.target)(**given)
    return cast(Tensor, values[program.output_name])
