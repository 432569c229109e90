"""What the aten operators become that move values or compute sizes: views, permutations, padding, choices."""

import math
import operator
from collections.abc import Callable, Mapping

from l0tre.model.aten_compositions import separable
from l0tre.model.call_site import Arguments, CallSite, Handler, Size, Var

__all__ = ["SHAPES"]


def _view(site: CallSite, a: Arguments) -> object:
    return site.reshape(site.variable(a["self"]), site.ints(a["size"] if "size" in a else a["shape"]))


def _flatten(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    full = site.full(source)
    first, last = (site.ints(a[key])[0] % len(full) for key in ("start_dim", "end_dim"))
    return site.reshape(source, [*full[:first], math.prod(full[first : last + 1]), *full[last + 1 :]])


def _unflatten(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    full = site.full(source)
    position = site.dim(a["dim"], source) + 1
    return site.reshape(source, [*full[:position], *site.ints(a["sizes"]), *full[position + 1 :]])


def _squeeze(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    full = site.full(source)
    dims = range(len(full)) if "dim" not in a else [dim % len(full) for dim in site.ints(a["dim"])]
    if 0 in dims and site.batch == 1:
        raise site.refuse("removes the batch dimension, which must stay the first")
    return site.reshape(source, [size for position, size in enumerate(full) if size != 1 or position not in dims])


def _unsqueeze(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    full = site.full(source)
    position = site.ints(a["dim"])[0] % (len(full) + 1)
    return site.reshape(source, [*full[:position], 1, *full[position:]])


def _permute(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    order = list(range(len(site.full(source))))
    if "dims" in a:
        order = [dim % len(order) for dim in site.ints(a["dims"])]
    else:
        first, second = (site.ints(a[key])[0] for key in ("dim0", "dim1"))
        order[first], order[second] = order[second], order[first]
    if order[0] != 0:
        raise site.refuse("moves the batch dimension, which must stay the first")
    return site.add("transpose", [source], permutation=tuple(dim - 1 for dim in order[1:]))


def _cat(site: CallSite, a: Arguments) -> object:
    tensors = a["tensors"]
    sources = [site.variable(tensor) for tensor in tensors] if isinstance(tensors, list | tuple) else []
    return site.add("concat", sources, dim=site.dim(a["dim"], sources[0]))


def _pad(site: CallSite, a: Arguments) -> object:
    source, margins = site.variable(a["self"]), site.ints(a["pad"])
    if a.get("mode", "constant") != "constant" and len(site.sample(source)) == 3 and len(margins) == 4:
        return separable(site, a)
    if a.get("mode", "constant") != "constant" or min(margins, default=0) < 0:
        raise site.refuse("is not a padding with a constant by a positive width")
    if any(margins[2 * len(site.sample(source)) :]):
        raise site.refuse("works across the samples of a batch")
    margins = margins[: 2 * len(site.sample(source))]
    value = 0.0 if a["value"] is None else site.number(a["value"])
    return site.add("pad", [source], padding=tuple(margins), value=value) if any(margins) else Var(source)


def _getitem(site: CallSite, a: Arguments) -> object:
    values, index = a["a"], a["b"]
    if not isinstance(values, tuple) or not isinstance(index, int):
        raise site.refuse("is not the choice of one of several results")
    return values[index]


def _size(site: CallSite, a: Arguments) -> object:
    full = site.full(site.variable(a["self"]))
    dim = site.ints(a["dim"])[0] % len(full)
    return full[dim] if dim else Size(site.batch)


def _arithmetic(function: Callable[[int, int], int]) -> Handler:
    """Whole numbers computed from sizes."""
    return lambda site, a: Size(function(*site.ints([a["a"], a["b"]])))


SHAPES: Mapping[str, Handler] = {
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.reshape.default": _view,
    "aten.flatten.using_ints": _flatten,
    "aten.unflatten.int": _unflatten,
    "aten.squeeze.default": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.permute.default": _permute,
    "aten.transpose.int": _permute,
    "aten.cat.default": _cat,
    "aten.constant_pad_nd.default": _pad,
    "aten.pad.default": _pad,
    "aten.sym_size.int": _size,
    "_operator.getitem": _getitem,
    "_operator.add": _arithmetic(operator.add),
    "_operator.sub": _arithmetic(operator.sub),
    "_operator.mul": _arithmetic(operator.mul),
    "_operator.floordiv": _arithmetic(operator.floordiv),
}
