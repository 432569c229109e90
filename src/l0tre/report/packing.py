"""Data inside a page: compressed where it is long, and never able to end the element that holds it."""

import base64
import json
import zlib
from typing import Any

__all__ = ["embedded", "packed"]


def packed(data: Any) -> str:
    """JSON, deflated, in base64: a browser unpacks it in a moment (``DecompressionStream``)."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def embedded(data: Any) -> str:
    """JSON that can stand in a ``script`` element: no markup in it is ever read as such."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
