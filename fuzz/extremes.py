"""Networks that strain the digits of floating point, or hide a flip where a search rarely looks."""

import math
from typing import Any

import numpy as np

from fuzz.layers import affine, leaky_relu, normalise, relu
from fuzz.net import Draft

__all__ = ["cancel", "chain", "division", "powers", "replicate", "spot", "uncentred"]

AWKWARD = (3.0, 5.0, 7.0, 10.0, 11.0, 49.0)  # whose reciprocals no binary number holds
HUGE = (1e5, 1e6, 1e7, 2.0**24, 3e7)
PLAIN: dict[str, Any] = {"how": "linear", "alpha": 1.0, "beta": 1.0}  # a dense layer


def uncentred(d: Draft) -> None:
    """A batch normalisation of a large mean and a small variance, as of data far from zero."""
    if abs(d.values().mean()) < 100:
        d.add("shift", value=1000.0, alpha=1.0)
    normalise(d, 10 ** d.uniform(-5, -2, d.shape[0]))


def division(d: Draft) -> None:
    """A quotient of large numbers whose digits matter behind it."""
    d.add("divide", value=d.draw.choice(AWKWARD))
    d.add("minus", value=float(np.float32(d.values().mean())), alpha=1.0)
    d.add("scale", value=2.0 ** d.draw.randint(0, 12))


def cancel(d: Draft) -> None:
    """A large number that is added, kept by a ReLU and taken away again: float32 loses the digits in between."""
    if d.draw.random() < 0.3:
        affine(d)
    by = float(np.float32(d.draw.choice(HUGE) * d.draw.choice([1, 1, d.draw.uniform(0.7, 1.3)])))
    biases = d.draw.random() < 0.7
    _add(d, by, as_bias=biases)
    d.draw.choice([relu, relu, leaky_relu])(d)
    _add(d, -by, as_bias=biases)


def _add(d: Draft, by: float, *, as_bias: bool) -> None:
    """The same number to every value, as the bias of a layer that changes nothing else or by itself."""
    n = d.shape[0] if len(d.shape) == 3 else d.shape[-1]
    constants = {"weight": np.eye(n, dtype=np.float32), "bias": np.full(n, by, np.float32)}
    if not as_bias:
        d.add("shift", value=by, alpha=1.0)
    elif len(d.shape) == 3:
        constants["weight"] = constants["weight"][:, :, None, None]
        d.add("conv", constants=constants, groups=1, how="plain", pads=(0,) * 4, dilation=(1, 1), stride=(1, 1))
    else:
        d.add("linear", constants=constants, **PLAIN)


def powers(d: Draft) -> None:
    """Tiny and huge weights that make up for each other."""
    affine(d)
    by = float(np.float32(d.draw.choice([2.0**20, 2.0**60, 2.0**-60, 1e10, 1e-10, 1e-30])))
    d.add("scale", value=by)
    if d.draw.random() < 0.7:
        relu(d)
    rest = d.number(0.5, 2.0)
    if d.draw.random() < 0.5:
        d.add("divide", value=float(np.float32(by * rest)))
    else:
        d.add("scale", value=float(np.float32(rest / by)))


def chain(d: Draft) -> None:
    """Through numbers so small that float64 has few digits left for them, and up again."""
    affine(d)
    relu(d)
    rest = float(np.float32(d.number(1.0, 4.0) * 2.0**-66))
    for factor in (*[2.0**-126] * 8, rest, *[2.0**126] * 8, 2.0**66):
        d.add("scale", value=factor)
        relu(d)


def replicate(d: Draft) -> None:
    """Many copies of the same few neurons, summed up again with weights that nearly cancel."""
    if len(d.shape) == 3:
        d.add("reshape", how="flatten", shape=(math.prod(d.shape),))
    inputs, few, times = d.shape[-1], 2, d.draw.choice([8, 32, 64])
    rows = np.repeat(d.normal(few, inputs), times, 0)
    d.add("linear", constants={"weight": rows, "bias": np.repeat(d.normal(few), times)}, **PLAIN)
    relu(d)
    signs = np.tile(np.where(np.arange(times) % 2, -1.0, 1.0), few)
    size = d.draw.choice([1.0, 1e3, 1e6])
    back = d.normal(few, few * times) + np.float32(size) * signs.astype(np.float32)
    d.add("linear", constants={"weight": back, "bias": d.normal(few)}, **PLAIN)


def spot(d: Draft) -> None:
    """A decision that changes only where some values are near chosen ones at once."""
    size = math.prod(d.shape)
    if len(d.shape) > 1:
        d.add("reshape", how="flatten", shape=(size,))
    count = d.draw.randint(1, min(3, len(d.room)))
    places = d.draw.sample(sorted(d.room), count)
    ranges = [d.room[place] for place in places]
    values = [float(np.float32(low + d.draw.uniform(0.05, 0.95) * (high - low))) for low, high in ranges]
    wide = min(high - low for low, high in ranges)
    weight, bias = np.zeros((2 * count, size), np.float32), np.zeros(2 * count, np.float32)
    for number, (place, value) in enumerate(zip(places, values, strict=True)):
        weight[2 * number, place], weight[2 * number + 1, place] = 1.0, -1.0
        bias[2 * number], bias[2 * number + 1] = -value, value
    d.add("linear", constants={"weight": weight, "bias": bias}, **PLAIN)
    relu(d)
    radius = np.float32(wide * d.draw.choice([0.02, 0.1, 0.3]))
    down = {"weight": np.full((1, 2 * count), -1.0 / radius, np.float32), "bias": np.ones(1, np.float32)}
    d.add("linear", constants=down, **PLAIN)
    relu(d)
    d.hints.append(dict(zip(places, values, strict=True)))
