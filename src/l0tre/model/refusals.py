"""Why some operators that networks often have are not imported: what a list of supported ones would not tell."""

from collections.abc import Mapping

__all__ = ["reason"]

_NORMALISES = (
    "divides by a spread that it computes from its own input; a quotient of two values that both depend on the input "
    "cannot be bounded (batch normalisation can: its spread is a constant)"
)
_ATTENDS = "multiplies values that both depend on the input, which cannot be bounded"

_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("layer_norm", "native_layer_norm", "group_norm", "native_group_norm"), _NORMALISES),
    **dict.fromkeys(("instance_norm", "rms_norm"), _NORMALISES),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization"), _NORMALISES),
    **dict.fromkeys(("RMSNormalization", "LpNormalization", "MeanVarianceNormalization"), _NORMALISES),
    **dict.fromkeys(("scaled_dot_product_attention", "bmm", "Attention"), _ATTENDS),
}


def reason(operator: str) -> str:
    """Why an operator is not imported, continuing the sentence "operation ..."; empty if there is no more to say.

    Args:
        operator: Its name, ``layer_norm`` or ``LayerNormalization``.
    """
    return _REASONS.get(operator, "")
