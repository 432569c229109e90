"""Messages of the library in the words of the command line.

The library writes arguments as `` `low` `` or `` `resize=True` ``; here they become ``--low`` and ``--resize``.
"""

import re

__all__ = ["FLAGS", "in_flags"]

# Arguments of Python functions whose options have other names.
FLAGS = {
    "attack_queries": "--attack",
    "memory_bytes": "--memory",
    "network": "--model",
    "quantile": "--range",
    "rounding": "--round",
    "sample_ms": "--sample",
}
ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")


def in_flags(message: str) -> str:
    """A message with options in place of the arguments that it names.

    Args:
        message: As the library wrote it.

    Returns:
        The same with every argument as an option: ``--low``, ``--colours corners``, ``--resize``.
    """
    return ARGUMENT.sub(_flag, message)


def _flag(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    flag = FLAGS.get(name, "--" + name.replace("_", "-"))
    return flag if value in (None, "True") else f"{flag} {value.strip(chr(39))}"
