"""Verdicts for other programs."""

from typing import Any

from torch import Tensor

from l0tre.api.verify import Verdict
from l0tre.model.network import Network

__all__ = ["verdict_dict", "vnncomp"]


def vnncomp(verdict: Verdict, network: Network, image: Tensor) -> str:
    """The verdict in the words of the VNN-COMP, with the witness as input and output values."""
    if verdict.witness is None:
        return "unsat" if verdict.answer == "safe" else "timeout" if verdict.timed_out else "unknown"
    changed = verdict.witness.apply(image)
    inputs = [f"(X_{place} {value!r})" for place, value in enumerate(changed.flatten().tolist())]
    outputs = [f"(Y_{place} {value!r})" for place, value in enumerate(network.replay(changed).tolist())]
    return "sat\n(" + "\n ".join([*inputs, *outputs]) + ")"


def verdict_dict(verdict: Verdict, index: int) -> dict[str, Any]:
    """The verdict on the image at one position of the data, for JSON."""
    witness = verdict.witness
    return {
        "index": index,
        "answer": verdict.answer,
        "radius": verdict.radius,
        "lower": verdict.lower,
        "upper": verdict.upper,
        "guarantee": verdict.guarantee,
        "arithmetic": verdict.arithmetic,
        "unit": verdict.unit,
        "reason": verdict.reason,
        "share": verdict.share,
        "witness": None
        if witness is None
        else {"label": witness.label, "positions": witness.positions.tolist(), "values": witness.values.tolist()},
        "seconds": verdict.seconds,
        "queries": verdict.queries,
    }
