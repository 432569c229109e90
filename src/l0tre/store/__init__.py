"""Run folders: a SQLite database that survives a crash at any moment, the inputs, and exported files."""

from l0tre.store.checked import CHECKED, read_checked
from l0tre.store.connection import DATABASE, refuse_used
from l0tre.store.levels import read_levels
from l0tre.store.maps import read_maps, write_maps
from l0tre.store.run import (
    INPUTS,
    Inputs,
    Run,
    create_run,
    export_run,
    open_run,
    read_config,
    read_inputs,
    read_snapshot,
)
from l0tre.store.scores import read_scores, score_writes
from l0tre.store.stopping import ask_stop, clear_stop, stop_asked
from l0tre.store.timelines import Moment, read_timelines

__all__ = [
    "CHECKED",
    "DATABASE",
    "INPUTS",
    "Inputs",
    "Moment",
    "Run",
    "ask_stop",
    "clear_stop",
    "create_run",
    "export_run",
    "open_run",
    "read_checked",
    "read_config",
    "read_inputs",
    "read_levels",
    "read_maps",
    "read_scores",
    "read_snapshot",
    "read_timelines",
    "refuse_used",
    "score_writes",
    "stop_asked",
    "write_maps",
]
