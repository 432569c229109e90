"""What values a lower bound is about, in words."""

from l0tre.evaluation.results import Guarantee

__all__ = ["EXACT_STEPS", "scope"]

# How a bound about trees is sound; no other network's is.
EXACT_STEPS = (
    "the ensemble's own scores of float32 inputs: a value of every interval between its thresholds was tried, ties "
    "left open"
)


def scope(guarantee: Guarantee, arithmetic: str) -> str:
    """What values a lower bound is about.

    Trees are certified without a proof about real numbers: between two thresholds they have one score, and every
    float32 number of the domain lies between two thresholds that were tried. A float64 number between two neighbouring
    float32 numbers may lie elsewhere.

    Args:
        guarantee: Its kind.
        arithmetic: What it says of its soundness in floating point.

    Returns:
        A noun, such as ``all real values of the domain``.
    """
    if guarantee == "grid":
        return "grid values"
    if guarantee == "sampled":
        return "nothing"
    return "all float32 values of the domain" if arithmetic == EXACT_STEPS else "all real values of the domain"
