"""The command line."""

import os
import sys
import traceback
import warnings
from typing import NoReturn

__all__ = ["main"]


def main() -> None:
    """Run ``l0tre``; errors that the user can act on end with one line and exit code 2."""
    try:
        from l0tre.cli.app import Abort, UsageError, app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich", "click"):
            raise
        _fail(f"the command line needs {package}; install it with: pip install 'l0tre[cli]'")
    from l0tre.cli.flags import in_flags
    from l0tre.errors import L0treError, L0treWarning

    warnings.simplefilter("ignore", L0treWarning)  # what they say is printed with the result
    if not sys.argv[1:]:
        sys.argv.append("--help")
    try:
        code = app(prog_name="l0tre", standalone_mode=False)
    except UsageError as error:
        message = error.format_message().rstrip(".")
        _fail(f"{message}; see {'l0tre' if error.ctx is None else error.ctx.command_path} --help")
    except (KeyboardInterrupt, Abort):
        sys.stderr.write("stopped\n")
        sys.exit(130)
    except (L0treError, OSError) as error:
        if os.environ.get("L0TRE_DEBUG"):
            traceback.print_exc()
        _fail(in_flags(str(error)))
    except Exception:  # a defect of ours: exit code 1 would read as an answer of `verify`
        traceback.print_exc()
        _fail("this is a defect in l0tre; please report it with the lines above")
    sys.exit(code)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    sys.exit(2)
