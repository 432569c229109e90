"""Ordinary layers with random settings and constants, appended to a draft."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.net import Array, Draft
from fuzz.torch_ops import NOTHING

__all__ = [
    "affine",
    "avg_pool",
    "batch_norm",
    "behind",
    "bend",
    "clip",
    "concat",
    "constants",
    "conv",
    "curve",
    "inner_softmax",
    "layout",
    "leaky_relu",
    "linear",
    "max_pool",
    "mean",
    "normalise",
    "nothing",
    "pad",
    "picture",
    "product",
    "relu",
    "reshape",
    "residual",
    "rounded",
    "take",
    "transpose",
]

# Files of ONNX have these in later versions only, or exporters write them in other operators.
NOT_IN_FILES = ("gelu", "gelu_tanh", "hard_swish", "softplus")


def affine(d: Draft) -> None:
    """A convolution of images, or a dense layer."""
    if len(d.shape) == 3:
        conv(d)
    else:
        linear(d)


def bend(d: Draft) -> None:
    """An activation."""
    d.draw.choice([relu, relu, leaky_relu, clip])(d)


def _window(d: Draft, *, dilated: bool = True) -> dict[str, Any]:
    """Padding, dilation, kernel and stride that fit the images at hand."""
    sides = d.draw.choice(["none", "all", "some"])
    pads = (0,) * 4 if sides == "none" else (1,) * 4 if sides == "all" else tuple(d.draw.choices((0, 1, 1), k=4))
    room = [d.shape[1] + pads[0] + pads[2], d.shape[2] + pads[1] + pads[3]]
    dilation = tuple(d.draw.choice([1, 1, 2]) if dilated else 1 for _ in room)
    kernel = tuple(d.draw.randint(1, min(3, (n - 1) // s + 1)) for n, s in zip(room, dilation, strict=True))
    stride = tuple(d.draw.choice([1, 1, 2]) for _ in room)
    return {"pads": pads, "dilation": dilation, "kernel": kernel, "stride": stride}


def conv(d: Draft, *, pointwise: bool = False) -> None:
    """A convolution with any stride, padding, dilation and groups."""
    channels, window = d.shape[0], _window(d)
    kernel, how = window.pop("kernel"), "plain"
    if pointwise or d.draw.random() < 0.2:
        size = (1, 1) if pointwise else tuple(min(n, 3) for n in d.shape[1:])
        total = [(k - 1) * window["dilation"][axis] for axis, k in enumerate(size)]
        small, large = [n // 2 for n in total], [n - n // 2 for n in total]
        # In a file of ONNX, such a padding has no dilation.
        same = not pointwise and not (d.onnx and max(window["dilation"]) > 1)
        kernel, how = size, "same" if same else "plain"
        window |= {"pads": (*small, *large), "stride": (1, 1)}
    groups = d.draw.choice([1, 1, channels])
    out = channels if groups > 1 else channels if pointwise else d.draw.randint(1, 3)
    constants = {"weight": d.normal(out, channels // groups, *kernel, size=1.5 / math.sqrt(math.prod(kernel)))}
    if d.draw.random() < 0.8:
        constants["bias"] = d.normal(out, size=0.3)
    d.add("conv", constants=constants, groups=groups, how=how, **window)


def linear(d: Draft, width: int = 0) -> None:
    """A dense layer on the last dimension, in one of the ways to write it."""
    inputs, out = d.shape[-1], width or d.draw.randint(2, 6)
    constants = {"weight": d.normal(out, inputs, size=2.0 / math.sqrt(inputs))}
    flat = len(d.shape) == 1
    how = d.draw.choice(["linear", "linear", "matmul", *(["mm", "addmm"] if flat else [])])
    if how == "addmm" or d.draw.random() < 0.8:
        constants["bias"] = d.normal(out, size=0.3)
    alpha, beta = (d.number(0.3, 1.7) if how == "addmm" else 1.0 for _ in range(2))
    d.add("linear", constants=constants, how=how, alpha=alpha, beta=beta)


def relu(d: Draft) -> None:
    """A ReLU."""
    d.add("relu", how="in_place" if d.draw.random() < 0.1 else "plain")


def leaky_relu(d: Draft) -> None:
    """A leaky ReLU, also one that is steeper below zero."""
    d.add("leaky_relu", slope=d.number(0.01, 0.4) if d.draw.random() < 0.9 else 1.5)


def clip(d: Draft) -> None:
    """A clip on one side or on both."""
    how = d.draw.choice(["clamp", "hardtanh", "relu6", "above", "below"])
    low, high = d.number(-1.0, 0.2), d.number(0.3, 2.0)
    if how == "relu6":
        low, high = 0.0, 6.0
    d.add("clip", how=how, low=-math.inf if how == "below" else low, high=math.inf if how == "above" else high)


def curve(kind: str, d: Draft) -> None:
    """A curve behind weights of any size."""
    affine(d)
    if d.draw.random() < 0.3:
        d.add("scale", value=d.number(0.01, 30.0))
    if d.onnx and kind in NOT_IN_FILES:
        kind = "silu"
    if kind == "elu":
        d.add(kind, alpha=d.number(0.2, 1.5))
    else:
        d.add(kind)


def take(d: Draft) -> None:
    """A slice with steps along some dimensions, as shortcuts of residual networks have it, and a layer behind it."""
    if len(d.shape) == 3 and d.draw.random() < 0.5:
        step = d.draw.choice([1, 2, 2])
        cuts = [(0, d.shape[0], 1), *((d.draw.randint(0, min(1, n - 1)), n, step) for n in d.shape[1:])]
    else:
        cuts = []
        for size in d.shape:
            start = d.draw.randint(0, (size - 1) // 2)
            cuts.append((start, d.draw.randint(start + 1, size), d.draw.choice([1, 1, 2])))
    d.add("slice", cuts=tuple(cuts))
    if d.draw.random() < 0.3:
        d.add("pad", padding=(0, 0) * (len(d.shape) - 1) + (1, 1), value=0.0)
    affine(d)
    bend(d)


def behind(write: Callable[[Draft], None], d: Draft) -> None:
    """An activation behind weights."""
    affine(d)
    write(d)


def batch_norm(d: Draft) -> None:
    """A batch normalisation, often behind other layers."""
    if d.draw.random() < 0.7:
        affine(d)
    normalise(d, d.uniform(0.2, 2, d.shape[0]))
    if d.draw.random() < 0.5:
        bend(d)


def normalise(d: Draft, variance: Array) -> None:
    """A batch normalisation of some variance, its mean near that of the values at hand."""
    found = d.values().swapaxes(0, 1).reshape(len(variance), -1)
    mean = found.mean(1) + found.std(1) * d.numbers.uniform(-1, 1, len(variance))
    constants = {"mean": mean.astype(np.float32), "variance": variance.astype(np.float32)}
    if d.draw.random() < 0.8:
        constants |= {"weight": d.uniform(0.5, 2, len(variance)), "bias": d.normal(len(variance))}
    how = "plain" if d.onnx else d.draw.choice(["plain", "plain", "plain", "plain", "native", "legit"])
    d.add("batch_norm", constants=constants, how=how, eps=float(np.float32(d.draw.choice([1e-5, 1e-3]))))


def constants(d: Draft) -> None:
    """Sums, products and quotients with constants, numbers or arrays."""
    for _ in range(d.draw.randint(1, 4)):
        _constant(d, d.draw.choice(["scale", "shift", "minus", "reverse", "divide", "negate"]))


def _constant(d: Draft, kind: str) -> None:
    if kind == "negate":
        d.add(kind)
        return
    settings: dict[str, Any] = {}
    if kind in ("shift", "minus"):
        # ONNX has no such factor; written as a product of two constants it must not round.
        settings["alpha"] = d.draw.choice([1.0, 1.0, 0.5, 2.0 if d.onnx else d.number(0.3, 3.0)])
    if d.draw.random() < 0.5:
        if d.draw.random() < 0.5:
            settings["scalar"] = True
        d.add(kind, value=d.number(0.3, 2.0), **settings)
        return
    shape = d.draw.choice([d.shape, (1,), (d.shape[0], *(1 for _ in d.shape[1:]))])
    d.add(kind, constants={"value": d.uniform(0.3, 2.0, *shape)}, **settings)


def max_pool(d: Draft) -> None:
    """A max pool with any padding and dilation, or over parts of the image."""
    if d.draw.random() < 0.7:
        conv(d)
    _pool(d, "max_pool")


def avg_pool(d: Draft) -> None:
    """An average pool that counts its padding or not."""
    if d.draw.random() < 0.7:
        conv(d)
        bend(d)
    _pool(d, "avg_pool")


def _pool(d: Draft, kind: str) -> None:
    height, width = d.shape[1:]
    if d.draw.random() < 0.25:
        parts = tuple(d.draw.choice([k for k in range(1, n + 1) if n % k == 0]) for n in (height, width))
        kernel = d.draw.choice([parts, (height, width)])
        how = "adaptive" if d.onnx else d.draw.choice(["adaptive", "adaptive_raw"])
        size = (height // kernel[0], width // kernel[1])
        settings: dict[str, Any] = {
            "pads": (0,) * 4,
            "kernel": kernel,
            "stride": kernel,
            "dilation": (1, 1),
            "include": True,
        }
        d.add(kind, how=how, size=size, **settings)
        return
    window = _pool_window(d, dilated=kind == "max_pool")
    top, left, bottom, right = window["pads"]
    ones = np.pad(np.ones((height, width), np.float32), ((top, bottom), (left, right)))
    seen = np.lib.stride_tricks.sliding_window_view(ones, window["kernel"])
    count = seen[:: window["stride"][0], :: window["stride"][1]].sum((2, 3))
    constants = {"count": count} if kind == "avg_pool" else {}
    how = "plain" if d.onnx else d.draw.choice(["plain", "indices"])
    d.add(kind, constants=constants, how=how, include=d.draw.random() < 0.5, **window)


def _pool_window(d: Draft, *, dilated: bool) -> dict[str, Any]:
    """A window that never lies in the padding alone, where there is no largest value and no average."""
    window = _window(d, dilated=dilated)
    kernel, dilation = list(window["kernel"]), list(window["dilation"])
    for axis, size in enumerate(d.shape[1:]):
        padding = window["pads"][axis] + window["pads"][axis + 2]
        if padding:
            kernel[axis] = max(2, kernel[axis])
            if size < 2 or dilation[axis] * (kernel[axis] - 1) >= size + padding:
                kernel[axis], dilation[axis] = 2, 1
    return {**window, "kernel": tuple(kernel), "dilation": tuple(dilation)}


def mean(d: Draft) -> None:
    """A mean over some dimensions."""
    affine(d)
    bend(d)
    dims = tuple(range(1, len(d.shape))) if len(d.shape) > 1 and d.draw.random() < 0.5 else (len(d.shape) - 1,)
    keep = len(d.shape) == len(dims) or d.draw.random() < 0.5
    d.add("mean", dims=dims, keepdim=keep)


def pad(d: Draft) -> None:
    """A border of some value, on one side at least."""
    padding = [d.draw.randint(0, 1) for _ in range(2 * d.draw.randint(1, min(2, len(d.shape))))]
    padding[d.draw.randrange(len(padding))] = 1
    d.add("pad", padding=tuple(padding), value=d.number(-1.0, 1.0))
    affine(d)
    bend(d)


def reshape(d: Draft) -> None:
    """There and back by other shapes."""
    whole, size = d.shape, math.prod(d.shape)
    d.add("reshape", how="flatten", shape=(size,))
    if len(whole) == 1:
        rows = d.draw.choice([n for n in range(1, size + 1) if size % n == 0])
        d.add("reshape", how="unflatten", shape=(rows, size // rows))
        d.add("reshape", how="unsqueeze", shape=(1, rows, size // rows), dim=1)
        if d.draw.random() < 0.5:
            conv(d)
            return
        d.add("reshape", how=d.draw.choice(["squeeze", "squeeze_several"]), shape=(rows, size // rows), dim=1)
        d.add("reshape", how="reshape", shape=whole)
        return
    hows = ["view", "reshape", "unflatten", *([] if d.onnx else ["unsafe_view"])]
    d.add("reshape", how=d.draw.choice(hows), shape=whole)


def transpose(d: Draft) -> None:
    """Dimensions in another order, with a layer in between."""
    order = list(range(len(d.shape)))
    d.draw.shuffle(order)
    d.add("transpose", order=tuple(order), how=d.draw.choice(["permute", "transpose"]))
    affine(d)
    bend(d)


def residual(kind: str, d: Draft) -> None:
    """A layer and a shortcut around it."""
    start = d.here
    if len(d.shape) == 3:
        conv(d, pointwise=True)
    else:
        linear(d, d.shape[-1])
    bend(d)
    d.add(kind, d.here, start, alpha=d.draw.choice([1.0, 1.0, d.number(0.3, 1.5)]))
    relu(d)


def concat(d: Draft) -> None:
    """Two layers beside each other."""
    start = d.here
    parts = []
    for _ in range(2):
        d.here = start
        if len(d.shape) == 3:
            conv(d, pointwise=True)
        else:
            linear(d, d.shape[-1])
        bend(d)
        parts.append(d.here)
    d.add("concat", *d.draw.choice([parts, [*parts, start]]), dim=d.draw.randrange(len(d.shape)))


def nothing(d: Draft) -> None:
    """Operations that change nothing."""
    hows = ["dropout", "clone", "cast", "identity"] if d.onnx else list(NOTHING)
    for how in d.draw.sample(hows, 3):
        d.add("nothing", how=how)


def picture(d: Draft, *, deep: bool) -> None:
    """Small windows on a larger image, then dense layers: where single pixels reach little."""
    for _ in range(d.draw.choice([1, 1, 2])):
        side, channels = min(d.draw.choice([1, 2, 2, 3]), *d.shape[1:]), d.shape[0]
        constants = {"weight": d.normal(2, channels, side, side, size=1.5 / side), "bias": d.normal(2, size=0.3)}
        pads = (side // 2,) * 4 if d.draw.random() < 0.3 else (0,) * 4
        d.add("conv", constants=constants, groups=1, how="plain", pads=pads, dilation=(1, 1), stride=(1, 1))
        if d.draw.random() < 0.25:
            d.add(d.draw.choice(["sigmoid", "tanh", "silu", *([] if d.onnx else ["gelu", "hard_swish"])]))
        else:
            bend(d)
    if min(d.shape[1:]) > 1 and d.draw.random() < 0.3:
        d.add("max_pool", how="plain", kernel=(2, 2), stride=(2, 2), pads=(0,) * 4, dilation=(1, 1))
    if deep:
        d.add("reshape", how="flatten", shape=(math.prod(d.shape),))
        linear(d)
        bend(d)


def product(d: Draft) -> None:
    """A product of two values that both depend on the input."""
    residual("mul", d)


def rounded(d: Draft) -> None:
    """Values in half precision for a moment: no function of real numbers that could be bounded."""
    affine(d)
    d.add("round", to="float16" if d.onnx else d.draw.choice(["float16", "bfloat16"]))


def inner_softmax(kind: str, d: Draft) -> None:
    """A softmax that is not the end."""
    affine(d)
    d.add(kind, dim=len(d.shape) - 1)


def layout(d: Draft) -> None:
    """Images without channels, or with channels last, brought to the usual order."""
    if len(d.shape) == 2:
        d.add("reshape", how="unsqueeze", shape=(1, *d.shape), dim=1)
    elif len(d.shape) == 3 and d.shape[2] <= 4 < d.shape[0]:
        d.add("transpose", order=(2, 0, 1), how="permute")
    affine(d)
    bend(d)
