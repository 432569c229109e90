"""Verdicts for other programs."""

from dataclasses import asdict
from typing import Any

from torch import Tensor

from l0tre.api.verify import Verdict
from l0tre.data import Dataset
from l0tre.evaluation.changes import changes
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


def verdict_dict(verdict: Verdict, image: Dataset) -> dict[str, Any]:
    """The verdict on a data set of one, for JSON."""
    witness, names, original = verdict.witness, image.names, image.images[0]
    return {
        "index": image.indices[0],
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
        else {
            "label": witness.label,
            "class": names.label(witness.label),
            "positions": witness.positions.tolist(),
            "values": witness.values.tolist(),
            "changes": [asdict(change) for change in changes(witness, original, names)],
        },
        "seconds": verdict.seconds,
        "queries": verdict.queries,
    }
