"""The command line."""

import gc
import os
import sys
import traceback
import warnings

from l0tre.cli.plain import plain
from l0tre.cli.signals import STOPPED, end_on_signal
from l0tre.errors import Interrupted, L0treError, L0treWarning

__all__ = ["command", "main"]

ERROR = 2  # exit code
MOST = 4000  # characters of an error that are printed: some hold what they were given


def command() -> None:
    """Run ``l0tre`` as a process of its own, which ends with it."""
    try:
        main()
    finally:
        # What torch and its modules hold goes with the process; to look for cycles in it first takes a second.
        gc.freeze()


def main() -> None:
    """Run ``l0tre``; errors that the user can act on end with one line and exit code 2."""
    try:
        with end_on_signal():
            code = _run()
    except Interrupted:
        code = STOPPED
    sys.exit(code)


def _run() -> int:
    """Run the command that was typed; gives the exit code."""
    try:
        from l0tre.cli.app import Abort, UsageError, app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich", "click"):
            raise
        return _fail(f"the command line needs {package}; install it with: pip install 'l0tre[cli]'")
    from l0tre.cli.flags import in_flags

    warnings.simplefilter("ignore", L0treWarning)  # what they say is printed with the result
    if not sys.argv[1:]:
        sys.argv.append("--help")
    try:
        return int(app(prog_name="l0tre", standalone_mode=False) or 0)
    except UsageError as error:
        message = error.format_message().rstrip(".")
        return _fail(f"{message}; see {'l0tre' if error.ctx is None else error.ctx.command_path} --help")
    except (KeyboardInterrupt, Abort):
        sys.stderr.write("stopped\n")
        return STOPPED
    except (L0treError, OSError) as error:
        if os.environ.get("L0TRE_DEBUG"):
            _show(traceback.format_exc())
        return _fail(in_flags(str(error)))
    except MemoryError:
        return _fail("there is not enough memory for this: give a smaller --memory, fewer images or a smaller network")
    except Interrupted:
        raise
    except BaseException as error:  # a defect, or SystemExit: another exit code would read as an answer of `verify`
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):  # typer's answer to it
            return _fail("the output was closed before all of it was written")
        _show(traceback.format_exc())
        return _fail("this is a defect in l0tre; please report it with the lines above")


def _fail(message: str) -> int:
    line = " ".join(message.split())
    _show(f"error: {line if len(line) <= MOST else f'{line[:MOST]} ...'}\n")
    return ERROR


def _show(text: str) -> None:
    sys.stderr.write(plain(text))
