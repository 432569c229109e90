"""What every operation is in real arithmetic: on arrays of decimal numbers of 80 digits, one sample at a time.

This is the truth that proofs are compared with. It shares no code with l0tre, nor with the sources that l0tre reads.
"""

import decimal
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["EXACT", "Constants", "Decimals", "decimals", "real_arithmetic"]

Decimals = NDArray[np.object_]
Settings = Mapping[str, Any]
Constants = Mapping[str, Decimals]

DIGITS = 80


def real_arithmetic() -> Any:
    """A context in which decimal numbers are as good as real ones."""
    return decimal.localcontext(decimal.Context(prec=DIGITS, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX))


def decimals(array: NDArray[np.floating[Any]]) -> Decimals:
    """Binary numbers as decimal ones, exactly."""
    result = np.empty(array.size, dtype=object)
    result[:] = [Decimal(float(value)) for value in array.reshape(-1)]
    return result.reshape(array.shape)


def _map(function: Callable[[Decimal], Decimal], x: Decimals) -> Decimals:
    """A function of every value by itself."""
    spread: Any = np.frompyfunc(function, 1, 1)
    found: Decimals = spread(x)
    return found


def _each(function: Callable[[Decimal], Decimal]) -> Callable[..., Decimals]:
    """An operation on every value by itself."""
    return lambda _s, _c, x: _map(function, x)


def _padded(x: Decimals, pads: tuple[int, ...], value: Decimal) -> Decimals:
    """Images ``[channels, height, width]`` with values around them; pads are top, left, bottom, right."""
    top, left, bottom, right = pads
    channels, height, width = x.shape
    result = np.empty((channels, top + height + bottom, left + width + right), dtype=object)
    result[:] = value
    result[:, top : top + height, left : left + width] = x
    return result


def _windows(x: Decimals, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Decimals:
    """What each output sees, ``[channels, rows, columns, *kernel]``."""
    places = []
    for size, k, s, d in zip(x.shape[1:], kernel, stride, dilation, strict=True):
        starts = np.arange(0, size - d * (k - 1), s)
        places.append(starts[:, None] + d * np.arange(k))
    rows, columns = places
    found: Decimals = x[:, rows[:, None, :, None], columns[None, :, None, :]]
    return found


def _conv(s: Settings, c: Constants, x: Decimals) -> Decimals:
    weight, groups = c["weight"], s["groups"]
    out, _, *kernel = weight.shape
    seen = _windows(_padded(x, s["pads"], Decimal(0)), (kernel[0], kernel[1]), s["stride"], s["dilation"])
    parts = []
    for rows, part in zip(np.split(weight, groups), np.split(seen, groups), strict=True):
        patches = part.transpose(0, 3, 4, 1, 2).reshape(-1, part.shape[1] * part.shape[2])
        parts.append(rows.reshape(out // groups, -1) @ patches)
    result: Decimals = np.concatenate(parts).reshape(out, *seen.shape[1:3])
    return result + c["bias"][:, None, None] if "bias" in c else result


def _linear(s: Settings, c: Constants, x: Decimals) -> Decimals:
    product: Decimals = x @ c["weight"].T * Decimal(s["alpha"])
    return product + c["bias"] * Decimal(s["beta"]) if "bias" in c else product


def _batch_norm(s: Settings, c: Constants, x: Decimals) -> Decimals:
    shape = (-1, *[1] * (x.ndim - 1))
    root = _map(Decimal.sqrt, c["variance"] + Decimal(s["eps"]))
    result: Decimals = (x - c["mean"].reshape(shape)) / root.reshape(shape)
    if "weight" in c:
        result = result * c["weight"].reshape(shape)
    return result + c["bias"].reshape(shape) if "bias" in c else result


def _operand(s: Settings, c: Constants) -> Any:
    return c["value"] if "value" in c else Decimal(s["value"])


def _max_pool(s: Settings, _: Constants, x: Decimals) -> Decimals:
    padded = _padded(x, s["pads"], Decimal("-Infinity"))
    found: Decimals = _windows(padded, s["kernel"], s["stride"], s["dilation"]).max((3, 4))
    return found


def _avg_pool(s: Settings, _: Constants, x: Decimals) -> Decimals:
    ones = np.full(x.shape, Decimal(1), dtype=object)
    outside = Decimal(1 if s["include"] else 0)
    total, count = (
        _windows(_padded(values, s["pads"], edge), s["kernel"], s["stride"], (1, 1)).sum((3, 4))
        for values, edge in ((x, Decimal(0)), (ones, outside))
    )
    result: Decimals = total / count
    return result


def _mean(s: Settings, _: Constants, x: Decimals) -> Decimals:
    dims = tuple(s["dims"])
    result: Decimals = x.sum(dims, keepdims=s["keepdim"]) / Decimal(math.prod(x.shape[dim] for dim in dims))
    return result


def _round(s: Settings, _: Constants, x: Decimals) -> Decimals:
    found = torch.from_numpy(x.astype(np.float64)).to(getattr(torch, s["to"]))
    return decimals(found.double().numpy())


def _pad(s: Settings, _: Constants, x: Decimals) -> Decimals:
    # From the last dimension to the first.
    pairs = list(zip(s["padding"][::2], s["padding"][1::2], strict=True))
    around = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return np.pad(x, around, constant_values=Decimal(s["value"]))  # type: ignore[call-overload, no-any-return]


def _clip(s: Settings, _: Constants, x: Decimals) -> Decimals:
    low, high = Decimal(s["low"]), Decimal(s["high"])
    return _map(lambda value: min(max(value, low), high), x)


def _leaky_relu(s: Settings, _: Constants, x: Decimals) -> Decimals:
    slope = Decimal(s["slope"])
    return _map(lambda value: value if value > 0 else value * slope, x)


def _elu(s: Settings, _: Constants, x: Decimals) -> Decimals:
    alpha = Decimal(s["alpha"])
    return _map(lambda value: value if value > 0 else alpha * (value.exp() - 1), x)


def _pi() -> Decimal:
    """By Machin's formula."""

    def inverse_tangent(whole: int) -> Decimal:
        total, term, n = Decimal(0), 1 / Decimal(whole), 0
        while abs(term) > Decimal(10) ** -DIGITS:
            total += term / (2 * n + 1)
            term, n = -term / whole**2, n + 1
        return total

    return 16 * inverse_tangent(5) - 4 * inverse_tangent(239)


def _erf(x: Decimal) -> Decimal:
    """By a series without cancellation."""
    if abs(x) > 14:  # nearer to 1 than 80 digits tell
        return Decimal(1).copy_sign(x)
    total, term, n = Decimal(0), x, 0
    while abs(term) > Decimal(10) ** -DIGITS * (1 + abs(total)):
        total += term
        n += 1
        term *= 2 * x * x / (2 * n + 1)
    return 2 * total * (-x * x).exp() / _pi().sqrt()


def _gelu_tanh(x: Decimal) -> Decimal:
    inner = (2 / _pi()).sqrt() * (x + Decimal("0.044715") * x**3)
    return x / (1 + (-2 * inner).exp())


def _softmax(s: Settings, _: Constants, x: Decimals) -> Decimals:
    powers = _map(Decimal.exp, x)
    result: Decimals = powers / powers.sum(s["dim"], keepdims=True)
    return result


# Softmaxes are here for those inside a network; that at its end is left out, see ``truth.Truth``.
EXACT: Mapping[str, Callable[..., Decimals]] = {
    "conv": _conv,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "scale": lambda s, c, x: x * _operand(s, c),
    "shift": lambda s, c, x: x + _operand(s, c) * Decimal(s["alpha"]),
    "minus": lambda s, c, x: x - _operand(s, c) * Decimal(s["alpha"]),
    "reverse": lambda s, c, x: _operand(s, c) - x,
    "divide": lambda s, c, x: x / _operand(s, c),
    "negate": lambda _s, _c, x: -x,
    "relu": _each(lambda value: max(value, Decimal(0))),
    "leaky_relu": _leaky_relu,
    "sigmoid": _each(lambda value: 1 / (1 + (-value).exp())),
    "tanh": _each(lambda value: 1 - 2 / (1 + (2 * value).exp())),
    "elu": _elu,
    "softplus": _each(lambda value: (1 + value.exp()).ln()),
    "silu": _each(lambda value: value / (1 + (-value).exp())),
    "gelu": _each(lambda value: value * (1 + _erf(value / Decimal(2).sqrt())) / 2),
    "gelu_tanh": _each(_gelu_tanh),
    "hard_swish": _each(lambda value: value * min(max(value + 3, Decimal(0)), Decimal(6)) / 6),
    "slice": lambda s, _c, x: x[tuple(slice(*cut) for cut in s["cuts"])],
    "clip": _clip,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "mean": _mean,
    "pad": _pad,
    "round": _round,
    "reshape": lambda s, _c, x: x.reshape(s["shape"]),
    "transpose": lambda s, _c, x: x.transpose(s["order"]),
    "nothing": lambda _s, _c, x: x,
    "add": lambda s, _c, x, y: x + y * Decimal(s["alpha"]),
    "sub": lambda s, _c, x, y: x - y * Decimal(s["alpha"]),
    "mul": lambda _s, _c, x, y: x * y,
    "concat": lambda s, _c, *xs: np.concatenate(xs, s["dim"]),
    "softmax": _softmax,
    "log_softmax": lambda s, c, x: _map(Decimal.ln, _softmax(s, c, x)),
}
