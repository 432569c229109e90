"""Asking a run that another process works on to end."""

from pathlib import Path

__all__ = ["ask_stop", "clear_stop", "stop_asked"]

STOP = "stop"  # an empty file in the run folder


def ask_stop(folder: Path) -> None:
    """Ask whoever works on a run to end as on Ctrl-C: after its current step, with all bounds recorded."""
    (folder / STOP).touch()


def stop_asked(folder: Path) -> bool:
    """Whether somebody asked a run to end."""
    return (folder / STOP).exists()


def clear_stop(folder: Path) -> None:
    """Forget such a wish, for a run that goes on."""
    (folder / STOP).unlink(missing_ok=True)
