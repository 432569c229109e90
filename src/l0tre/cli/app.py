"""The command line with all its commands.

Their modules load torch only inside the commands, so that help and errors about options come at once.
"""

from importlib import import_module

from l0tre.cli.root import Abort, UsageError, app

__all__ = ["Abort", "UsageError", "app"]

# In the order of the help; each adds its commands to the app.
for module in (
    "evaluate",
    "verify",
    "attack",
    "compare",
    "compare_attacks",
    "testgen",
    "coverage",
    "saliency",
    "views",
    "serve",
    "reproduce",
    "zoo",
):
    import_module(f"l0tre.cli.{module}")
