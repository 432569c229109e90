"""Run folders: a SQLite database that survives a crash at any moment, the inputs, and exported files."""

from l0tre.store.checked import CHECKED, read_checked
from l0tre.store.connection import DATABASE
from l0tre.store.levels import read_levels
from l0tre.store.run import Inputs, Run, create_run, export_run, open_run, read_config, read_inputs, read_snapshot

__all__ = [
    "CHECKED",
    "DATABASE",
    "Inputs",
    "Run",
    "create_run",
    "export_run",
    "open_run",
    "read_checked",
    "read_config",
    "read_inputs",
    "read_levels",
    "read_snapshot",
]
