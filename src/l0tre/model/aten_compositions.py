"""What the aten operators become that are compositions of others: transposed ones, sequences, resizing, choices."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from l0tre.model import compositions
from l0tre.model.call_site import Arguments, CallSite, Handler, Var
from l0tre.model.compositions import Composer

__all__ = ["COMPOSITIONS", "one_dimensional", "pooling", "separable", "transposed_conv"]


def _composer(site: CallSite) -> Composer:
    return Composer(site.builder, site.name)


def _first(value: object) -> object:
    """A setting for one axis as one for two, of which the first is a single row."""
    return value[0] if isinstance(value, list | tuple) and value else value


def one_dimensional(handler: Handler, settings: Mapping[str, int]) -> Handler:
    """The handler of an operator on maps as one for sequences.

    Args:
        handler: For maps.
        settings: Names of the arguments that are for each axis, with what they are on the row.
    """

    def on_sequences(site: CallSite, a: Arguments) -> object:
        key = "self" if "self" in a else "input"
        source = site.variable(a[key], dims=2)
        changed: dict[str, object] = dict(a)
        for name, on_row in settings.items():
            if name in a and not isinstance(a[name], str) and a[name] not in ([], None):
                changed[name] = [on_row, _first(a[name])]
        if isinstance(a.get("weight"), Tensor):
            changed["weight"] = site.constant(a["weight"]).unsqueeze(2)

        def work(position: int) -> int:
            found = handler(site, {**changed, key: Var(position)})
            return site.variable(found[0] if isinstance(found, tuple) else found)

        return Var(compositions.lifted(_composer(site), source, work))

    return on_sequences


def transposed_conv(site: CallSite, a: Arguments) -> object:
    """A transposed convolution of maps."""
    source, weight = site.variable(a["input"], dims=3), site.constant(a["weight"])
    stride, padding, dilation = (site.pair(a[key]) for key in ("stride", "padding", "dilation"))
    more = site.pair(a["output_padding"])
    (groups,) = site.ints(a["groups"])
    after = (padding[0] - more[0], padding[1] - more[1])
    return Var(
        compositions.transposed_conv(
            _composer(site), source, weight, site.optional(a["bias"]), stride, padding, after, dilation, groups
        )
    )


def pooling(kind: str) -> Handler:
    """The handler of a pooling of maps."""

    def handler(site: CallSite, a: Arguments) -> object:
        source, kernel, padding = site.variable(a["self"], dims=3), site.pair(a["kernel_size"]), site.pair(a["padding"])
        stride = site.pair(a["stride"]) if a["stride"] else kernel
        dilation = site.pair(a.get("dilation", 1))
        extra = (0, 0)
        if a["ceil_mode"]:
            axes = zip(site.sample(source)[1:], kernel, stride, padding, dilation, strict=True)
            below, beside = (compositions.ceil_margins(n, k, s, (p, p), d) for n, k, s, p, d in axes)
            extra = (below, beside)
        composer = _composer(site)
        if kind == "max_pool":
            if any(extra):
                (top, left), (below, beside) = padding, extra
                rows, columns = (top, top + below), (left, left + beside)
                source = compositions.framed_for_maxima(composer, source, rows, columns, dilation)
                padding = (0, 0)
            return site.add(kind, [source], kernel=kernel, stride=stride, padding=padding, dilation=dilation)
        if a.get("divisor_override") is not None:
            raise site.refuse("has a divisor_override, which is not supported")
        include = bool(a["count_include_pad"])
        if any(extra):
            pooled = compositions.ragged_average(
                composer, source, kernel, stride, padding, padding, extra, include=include
            )
            return Var(pooled)
        return site.add(kind, [source], kernel=kernel, stride=stride, padding=padding, count_include_pad=include)

    return handler


def _prelu(site: CallSite, a: Arguments) -> object:
    source, slopes = site.variable(a["self"]), site.constant(a["weight"])
    sample = site.sample(source)
    # prelu has a slope for each channel; its kernel has them in the shape of a batch.
    slopes = slopes[0] if slopes.ndim == len(sample) + 1 else slopes.reshape(-1, *[1] * (len(sample) - 1))
    return Var(compositions.prelu(_composer(site), source, slopes))


def _absolute(site: CallSite, a: Arguments) -> object:
    return Var(compositions.absolute(_composer(site), site.variable(a["self"])))


def _larger(sign: int) -> Handler:
    def handler(site: CallSite, a: Arguments) -> object:
        x, y = (a["self"], a["other"]) if isinstance(a["self"], Var) else (a["other"], a["self"])
        source = site.variable(x)
        if isinstance(y, Var) and len(site.sample(y.position)) != len(site.sample(source)):
            raise site.refuse(f"combines samples of shapes {site.sample(source)} and {site.sample(y.position)}")
        other = y.position if isinstance(y, Var) else site.operand(y, source)
        return Var(compositions.larger(_composer(site), source, other, 1 if sign > 0 else -1))

    return handler


def _asked(site: CallSite, a: Arguments) -> Callable[[Tensor], Tensor]:
    """The operator itself, with its settings, as a function of its input."""
    packet, overload = site.target.removeprefix("aten.").split(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    settings = {key: value for key, value in a.items() if key not in ("self", "input")}
    key = "input" if "input" in a else "self"

    def function(x: Tensor) -> Tensor:
        found: Tensor = operator(**{key: x}, **settings)
        return found

    return function


def separable(site: CallSite, a: Arguments) -> object:
    """An operator on maps that is linear along each axis."""
    source = site.variable(a["input"] if "input" in a else a["self"], dims=3)
    found = compositions.separable(_composer(site), source, _asked(site, a))
    if found is None:
        raise site.refuse("does not work along each axis alone, or on too large a map")
    return Var(found)


def _shuffle(site: CallSite, a: Arguments) -> object:
    (factor,) = site.ints(a["upscale_factor"])
    return Var(compositions.shuffle(_composer(site), site.variable(a["self"], dims=3), factor))


def _unshuffle(site: CallSite, a: Arguments) -> object:
    (factor,) = site.ints(a["downscale_factor"])
    return Var(compositions.unshuffle(_composer(site), site.variable(a["self"], dims=3), factor))


def _sum(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    if not a["dim"]:
        raise site.refuse("works across the samples of a batch")
    dims = [site.dim(dim, source) for dim in site.ints(a["dim"])]
    return Var(compositions.summed(_composer(site), source, dims, keep=bool(a["keepdim"])))


def _top(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"], dims=3)
    if sorted(site.dim(dim, source) for dim in site.ints(a["dim"])) != [1, 2]:
        raise site.refuse("is not over the rows and columns of maps")
    return Var(compositions.top_of_planes(_composer(site), source, keep=bool(a["keepdim"])))


def _taken(site: CallSite, source: int, dim: int, starts: list[int], sizes: list[int]) -> tuple[Var, ...]:
    composer = _composer(site)
    parts = zip(starts, sizes, strict=True)
    return tuple(Var(composer.slice(source, dim, range(start, start + size))) for start, size in parts)


def _split(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    dim = site.dim(a["dim"], source)
    length = site.sample(source)[dim]
    if "split_sizes" in a:
        sizes = site.ints(a["split_sizes"])
    else:
        (size,) = site.ints(a["split_size"] if "split_size" in a else -(-length // site.ints(a["chunks"])[0]))
        sizes = [min(size, length - start) for start in range(0, length, size)]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return _taken(site, source, dim, starts, sizes)


def _select(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    dim, (index,) = site.dim(a["dim"], source), site.ints(a["index"])
    return _unbound(site, source, dim)[index]


def _unbound(site: CallSite, source: int, dim: int) -> tuple[Var, ...]:
    shape = site.sample(source)
    rest = (*shape[:dim], *shape[dim + 1 :])
    if not rest:
        raise site.refuse("leaves a single number of a vector")
    parts = _taken(site, source, dim, list(range(shape[dim])), [1] * shape[dim])
    return tuple(Var(_composer(site).reshape(part.position, *rest)) for part in parts)


def _unbind(site: CallSite, a: Arguments) -> object:
    source = site.variable(a["self"])
    return _unbound(site, source, site.dim(a["dim"], source))


def _stack(site: CallSite, a: Arguments) -> object:
    tensors = a["tensors"]
    sources = [site.variable(tensor) for tensor in tensors] if isinstance(tensors, list | tuple) else []
    rank = len(site.sample(sources[0])) + 2
    (dim,) = site.ints(a["dim"])
    if dim % rank == 0:
        raise site.refuse("works across the samples of a batch")
    place = dim % rank - 1
    composer = _composer(site)
    shapes = [site.sample(source) for source in sources]
    parts = [composer.reshape(s, *h[:place], 1, *h[place:]) for s, h in zip(sources, shapes, strict=True)]
    return site.add("concat", parts, dim=place)


# Settings for each axis, with what they are for the one row of a sequence.
_POOL = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}

COMPOSITIONS: Mapping[str, Handler] = {
    "aten.prelu.default": _prelu,
    "aten._prelu_kernel.default": _prelu,
    "aten.abs.default": _absolute,
    "aten.maximum.default": _larger(1),
    "aten.minimum.default": _larger(-1),
    "aten.max.other": _larger(1),
    "aten.min.other": _larger(-1),
    "aten.conv_transpose2d.input": transposed_conv,
    "aten.conv_transpose1d.default": one_dimensional(
        transposed_conv, {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
    ),
    "aten.max_pool1d.default": one_dimensional(pooling("max_pool"), _POOL),
    "aten.avg_pool1d.default": one_dimensional(pooling("avg_pool"), _POOL),
    "aten.reflection_pad2d.default": separable,
    "aten.replication_pad2d.default": separable,
    "aten.upsample_nearest2d.default": separable,
    "aten.upsample_nearest2d.vec": separable,
    "aten.upsample_bilinear2d.default": separable,
    "aten.upsample_bilinear2d.vec": separable,
    "aten.upsample_bicubic2d.default": separable,
    "aten.upsample_bicubic2d.vec": separable,
    "aten.pixel_shuffle.default": _shuffle,
    "aten.pixel_unshuffle.default": _unshuffle,
    "aten.sum.dim_IntList": _sum,
    "aten.amax.default": _top,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _split,
    "aten.select.int": _select,
    "aten.unbind.int": _unbind,
    "aten.stack.default": _stack,
}
