"""Make a network of what was read: normalisation, device, two classes; checked against its source."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.model.confirm import check_points, differs
from l0tre.model.footprint import sample_bytes
from l0tre.model.graph import Graph, run
from l0tre.model.guarded import check_shape
from l0tre.model.network import Network, exact_float32
from l0tre.model.normalise import Normalisation, prepend
from l0tre.model.rounding import make_round_off
from l0tre.model.simplify import final_softmax, simplify, without_softmax
from l0tre.model.sources import Loaded
from l0tre.model.two_classes import append_two_classes, read_single, two_scores
from l0tre.model.user_code import user_code

__all__ = ["finish"]

# Largest difference between two evaluations of a source that float32 may cause, relative to the largest score.
TOLERANCE = 1e-4


def _in_rows(source: Callable[[Tensor], Tensor], name: str) -> Callable[[Tensor], Tensor]:
    """A network of two scores or more, which gives that many for every input and not one number for some."""

    def scores(x: Tensor) -> Tensor:
        result = source(x)
        check_shape(result, len(x), name)
        return result

    return scores


def _of_two_classes(loaded: Loaded, name: str) -> Loaded:
    """A network that gives one number for two classes as one of two scores; any other one as it is."""
    with user_code(lambda why: f"{name} fails on a batch: {why}"):  # a file can ask torch for anything
        kind = read_single(loaded.source, _unit_points(loaded.input_shape))
    if kind is None:
        whole = loaded.on_device
        return replace(
            loaded,
            source=_in_rows(loaded.source, name),
            on_device=None if whole is None else lambda device: _in_rows(whole(device), name),
        )
    points = _unit_points(loaded.input_shape)
    if loaded.graph is not None and run(loaded.graph, points.double()).shape != (len(points), 1):
        loaded = replace(loaded, graph=None, double=None, note="its only number for each input has no axis of its own")
    place, read = loaded.on_device, kind
    meaning = "a probability (above 0.5: class 1)" if kind == "probability" else "a logit (above 0: class 1)"
    return replace(
        loaded,
        source=two_scores(loaded.source, kind),
        graph=None if loaded.graph is None else append_two_classes(loaded.graph, kind),
        on_device=None if place is None else lambda device: two_scores(place(device), read),
        double=None if loaded.double is None else two_scores(loaded.double, kind),
        reading=f"it gives one number for two classes, read as {meaning}",
    )


def finish(loaded: Loaded, normalisation: Normalisation | None, device: torch.device, name: str) -> Network:
    """The network that a source is, ready to compute on a device and compared with its source."""
    loaded = _of_two_classes(loaded, name)
    source, graph = loaded.source, loaded.graph

    def reference(x: Tensor) -> Tensor:
        return source(x if normalisation is None else normalisation(x))

    forward = reference
    exact: Graph | None = None
    literal: Graph | None = None
    dropped = ""  # an end that the source has and our scores, which are logits, do not
    if graph is not None:
        dropped = final_softmax(graph)
        literal = without_softmax(graph if normalisation is None else prepend(normalisation, graph))
        exact = simplify(literal)
        ready = graph = exact.to(device)

        def forward(x: Tensor) -> Tensor:
            return run(ready, x)

    elif loaded.on_device is not None:
        module = loaded.on_device(device)

        def forward(x: Tensor) -> Tensor:
            return module(x if normalisation is None else normalisation(x))

    else:
        device = torch.device("cpu")  # a function of the user's chooses its own device
    classes = _check(reference, forward, literal, loaded.input_shape, device, name, dropped)
    numbers = "" if normalisation is None else f"{normalisation.mean.tolist()} {normalisation.std.tolist()}"
    fingerprint = hashlib.sha256((loaded.fingerprint + numbers).encode()).hexdigest() if loaded.fingerprint else ""
    cost = sample_bytes(forward, loaded.input_shape, device)
    network = Network(
        forward,
        reference,
        loaded.input_shape,
        classes,
        device,
        graph,
        name,
        fingerprint,
        loaded.note,
        cost,
        exact=exact,
        literal=literal,
        double=_wide_reference(loaded.double, normalisation),
        dropped=dropped,
        thresholds=None if normalisation is not None else loaded.thresholds,
        names=loaded.names,
        reading=loaded.reading,
        takes_bytes=loaded.takes_bytes and normalisation is None,
    )
    reason = "" if exact is None else differs(network, _unit_points(loaded.input_shape))
    return replace(network, exact=None, note=reason) if reason else network


def _wide_reference(
    double: Callable[[Tensor], Tensor] | None, normalisation: Normalisation | None
) -> Callable[[Tensor], Tensor] | None:
    if double is None or normalisation is None:
        return double
    return lambda x: double(normalisation(x))


def _unit_points(shape: tuple[int, ...]) -> Tensor:
    """Points of the usual domain; other domains are looked at when one is given, see ``confirm``."""
    return check_points(torch.zeros(shape), torch.ones(shape))


def _float32_band(literal: Graph, x: Tensor) -> float:
    ends = torch.zeros_like(x[0]), torch.ones_like(x[0])
    band = make_round_off(literal, *ends, None, x.flatten(1)).error({}, 0).band
    return band if math.isfinite(band) else 0.0


@torch.inference_mode()
def _check(
    reference: Callable[[Tensor], Tensor],
    forward: Callable[[Tensor], Tensor],
    literal: Graph | None,
    shape: tuple[int, ...],
    device: torch.device,
    name: str,
    dropped: str,
) -> int:
    """Compare a network with its source, to which the dropped operation belongs; returns the number of classes."""
    x = _unit_points(shape)
    # The file can ask torch for anything.
    with user_code(lambda why: f"{name} fails on a batch of shape {tuple(x.shape)}: {why}"):
        wanted = reference(x)
        check_shape(wanted, len(x), name)
        singles = torch.cat([reference(row[None]) for row in x])
        with exact_float32(device):
            batch, again = forward(x.to(device)).cpu(), forward(x.to(device)).cpu()
        if dropped:
            batch, again = getattr(batch, dropped)(1), getattr(again, dropped)(1)
    usable = torch.isfinite(wanted).all(1)
    # A corner of the domain (all black, say) may be no input for a model; a search that gets there says so.
    if not bool(usable[((x > 0) & (x < 1)).flatten(1).any(1)].all()):
        raise ModelError(
            f"{name} gives NaN or infinite scores for random inputs in [0, 1]: check its weights, and mean and std"
        )
    if not torch.equal(torch.isfinite(batch).all(1), usable):
        raise ModelError(f"{name} was imported with other scores than its source gives (NaN or infinite ones)")
    x, wanted, singles, batch, again = (part[usable] for part in (x, wanted, singles, batch, again))
    size = TOLERANCE * (1 + wanted.abs().max())
    if not bool((batch - again).abs().max() <= size):
        raise ModelError(f"{name} gives different scores for the same input: switch off dropout and other randomness")
    if not bool((wanted - singles).abs().max() <= size):
        raise ModelError(
            f"{name} scores an input differently alone and in a batch: put it in evaluation mode (dynamic "
            "quantisation does so in any mode: use static quantisation, or the network before it)"
        )
    gap = float((batch - wanted).abs().max())
    # Folded constants round otherwise than the source does, in a network with large inner values by much. What that can
    # do costs more than the comparison, and is asked for only where it matters.
    if not gap <= size and not (literal is not None and gap <= _float32_band(literal, x)):
        raise ModelError(f"{name} was imported with other scores than its source gives (largest difference {gap:.3g})")
    return int(wanted.shape[1])
