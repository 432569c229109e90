"""Text from files on a terminal: what would move its cursor, change its colours or its title is shown, not sent.

Names of files, nodes, classes and data sets are other people's: an escape sequence in one could repaint the screen with
another verdict, and a sign that turns the direction of writing could show a name that it is not.
"""

import re

__all__ = ["plain"]

# Control characters but line ends and tabs, and the signs that turn the direction of writing or are not seen at all.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def plain(text: object) -> str:
    r"""A text with every control character written out, such as ``\x1b``."""
    return HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))
