"""The command line."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run ``l0tre``; errors that the user can act on end with one line and exit code 2."""
    try:
        from l0tre.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"error: the command line needs {error.name}; install it with: pip install 'l0tre[cli]'")
    from l0tre.errors import L0treError

    try:
        app()
    except (L0treError, OSError) as error:
        if os.environ.get("L0TRE_DEBUG"):
            raise
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
