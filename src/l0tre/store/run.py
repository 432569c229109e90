"""Create, record, read and resume a run folder."""

import json
import secrets
import sqlite3
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.errors import StoreError
from l0tre.evaluation.results import Excluded, HistoryPoint, ImageBounds, Snapshot
from l0tre.evaluation.state import State
from l0tre.rules import FREE, Restriction, Rules
from l0tre.store.database import (
    DATABASE,
    FORMAT,
    connect,
    front_bytes,
    guarded,
    ranking_bytes,
    read_bounds,
    read_excluded,
    read_history,
    read_partials,
    read_proofs,
    upgrade,
    witness_columns,
    write_level,
)

__all__ = ["Inputs", "Run", "create_run", "open_run", "read_config", "read_inputs", "read_snapshot"]

INPUTS = "inputs.npz"
RULE_PREFIX = "rules_"
DOMAIN_ARRAYS = ("members", "sizes", "ids", "low", "high")
# Settings whose names did not say their units before format 5, and their names now.
RENAMED = {"memory": "memory_bytes", "sample": "sample_ms", "attack": "attack_queries"}


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run: all images (excluded ones too), labels if there were any, indices, domain."""

    images: Tensor
    labels: Tensor | None
    indices: tuple[int, ...]
    domain: Domain


class Run:
    """A run folder open for writing; :meth:`record` is the recorder of ``l0tre.evaluation.driver.drive``.

    One process writes at a time: opening a run takes it over, and a former owner is stopped at its next step.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self.connection = connection
        self.owner = secrets.token_hex(8)
        self.written: dict[int, ImageBounds] = {}
        with self._transaction():
            upgrade(connection)
            self._set("owner", self.owner)

    def load_state(self) -> State:
        """The recorded state, ready to be driven on."""
        with guarded(self.folder / DATABASE):
            bounds = read_bounds(self.connection)
            self.written = dict(enumerate(bounds))
            return State(
                bounds,
                read_partials(self.connection),
                read_proofs(self.connection),
                _get(self.connection, "seconds", 0.0),
                read_history(self.connection),
                _get(self.connection, "finished", False),
            )

    def record(self, state: State, images: Sequence[int], point: HistoryPoint | None) -> None:
        """Store a step in one transaction; see ``l0tre.evaluation.state.Recorder``."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._transaction():
            taken = "UPDATE meta SET value = value WHERE key = 'owner' AND value = ?"
            if self.connection.execute(taken, (json.dumps(self.owner),)).rowcount != 1:
                raise StoreError(f"another process has taken over {self.folder}: this one stops, nothing is lost")
            for place in images:
                self._write_image(place, state, now)
            if point is not None:
                values = (now, point.seconds, point.t, point.lower, point.upper)
                self.connection.execute(
                    "INSERT INTO history (at, seconds, t, lower, upper) VALUES (?, ?, ?, ?, ?)", values
                )
            self._set("seconds", state.seconds)
            self._set("finished", state.finished)
        self.written.update({place: state.bounds[place] for place in images})

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Store another configuration, for a run that goes further than it began with."""
        with self._transaction():
            self._set("config", dict(config))

    def close(self) -> None:
        """Close the database."""
        self.connection.close()

    def _transaction(self) -> "_Transaction":
        return _Transaction(self.connection, self.folder / DATABASE)

    def _set(self, key: str, value: Any) -> None:
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def _write_image(self, place: int, state: State, now: str) -> None:
        bounds, before = state.bounds[place], self.written.get(place)
        self.connection.execute(
            "INSERT OR REPLACE INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                place,
                bounds.index,
                bounds.label,
                bounds.groups,
                bounds.lower,
                bounds.upper,
                bounds.guarantee,
                bounds.level,
                bounds.blocked,
                bounds.seconds,
                bounds.queries,
                int(bounds.attacked),
            ),
        )
        if before is None or (before.lower, before.upper) != (bounds.lower, bounds.upper):
            self.connection.execute(
                "INSERT INTO bounds (place, at, seconds, t, lower, upper) VALUES (?, ?, ?, ?, ?, ?)",
                (place, now, state.seconds, bounds.level, bounds.lower, bounds.upper),
            )
        if bounds.level > (0 if before is None else before.level):
            write_level(self.connection, place, bounds)
        if bounds.witness is not None and (before is None or before.witness is not bounds.witness):
            columns = {"place": place, "at": now, **witness_columns(bounds.witness)}
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            self.connection.execute(f"INSERT INTO witnesses ({names}) VALUES ({marks})", tuple(columns.values()))
        partial = state.partials.get(place)
        if partial is None:
            self.connection.execute("DELETE FROM partials WHERE place = ?", (place,))
        else:
            self.connection.execute(
                "INSERT OR REPLACE INTO partials VALUES (?, ?, ?, ?, ?)",
                (place, partial.t, partial.position, int(partial.safe[0]), ranking_bytes(partial)),
            )
        proof = state.proofs.get(place)
        if proof is None:
            self.connection.execute("DELETE FROM proofs WHERE place = ?", (place,))
        else:
            self.connection.execute(
                "INSERT OR REPLACE INTO proofs VALUES (?, ?, ?, ?, ?, ?, ?)",
                (place, proof.t, str(proof.proved), str(proof.total), proof.nodes, front_bytes(proof), proof.tree),
            )


class _Transaction:
    """All or nothing, also when an exception or a kill comes in between."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.guard = guarded(path)

    def __enter__(self) -> None:
        self.guard.__enter__()
        self.connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if self.connection.in_transaction:
            self.connection.execute("COMMIT" if kind is None else "ROLLBACK")
        return bool(self.guard.__exit__(kind, error, trace))


def create_run(
    folder: Path, inputs: Inputs, state: State, *, excluded: Sequence[Excluded], config: Mapping[str, Any]
) -> Run:
    """Start a run folder.

    Args:
        folder: A new or empty folder.
        inputs: What is evaluated, excluded inputs too.
        state: The state to begin with.
        excluded: Inputs that have no radius.
        config: How the evaluation is set up, in words and numbers.

    Returns:
        The run, open for writing.

    Raises:
        StoreError: If the folder holds a run or other files, or cannot be written.
    """
    if (folder / DATABASE).exists():
        raise StoreError(f"{folder} holds a run already: continue it (`resume`), or give another `out`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StoreError(f"{folder} is not empty: give a new or empty folder as `out`")
        domain = inputs.domain.to(torch.device("cpu"))
        np.savez_compressed(
            folder / INPUTS,
            images=inputs.images.cpu().numpy(),
            labels=np.empty(0, np.int64) if inputs.labels is None else inputs.labels.cpu().numpy(),
            indices=np.asarray(inputs.indices, np.int64),
            unit=np.asarray(domain.unit),
            **{name: getattr(domain, name).numpy() for name in DOMAIN_ARRAYS},
            **_rule_arrays(domain.rules),
        )
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error}") from error
    run = Run(folder, connect(folder / DATABASE, create=True))
    with run._transaction():
        for left_out in excluded:
            values = (left_out.index, left_out.label, left_out.predicted)
            run.connection.execute("INSERT INTO excluded VALUES (?, ?, ?)", values)
        run._set("config", dict(config))
        run._set("created", datetime.now(UTC).isoformat(timespec="seconds"))
        run._set("format", FORMAT)
    run.record(state, range(len(state.bounds)), None)
    return run


def _rule_arrays(rules: Restriction) -> dict[str, Any]:
    if not isinstance(rules, Rules):
        return {}
    return {RULE_PREFIX + part.name: getattr(rules, part.name).cpu().numpy() for part in fields(Rules)}


def open_run(folder: Path) -> Run:
    """Open a run folder for writing, taking it over from any other process.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    return Run(folder, connect(folder / DATABASE))


def read_inputs(folder: Path) -> Inputs:
    """The inputs of a run.

    Raises:
        StoreError: If the file is missing or damaged.
    """
    try:
        with np.load(folder / INPUTS, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        images = torch.from_numpy(arrays["images"])
        tensors = {name: torch.from_numpy(arrays[name]) for name in DOMAIN_ARRAYS}
        labels = torch.from_numpy(arrays["labels"]) if len(arrays["labels"]) else None
        rules: Restriction = FREE
        if f"{RULE_PREFIX}counts" in arrays:
            rules = Rules(**{part.name: torch.from_numpy(arrays[RULE_PREFIX + part.name]) for part in fields(Rules)})
        domain = Domain(shape=tuple(images.shape[1:]), unit=str(arrays["unit"]), rules=rules, **tensors)
        return Inputs(images, labels, tuple(arrays["indices"].tolist()), domain)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise StoreError(f"{folder / INPUTS} is missing or damaged ({error}): restore it from a copy") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration a run was started with."""
    connection = connect(folder / DATABASE)
    try:
        with guarded(folder / DATABASE):
            return _config(connection)
    finally:
        connection.close()


def read_snapshot(folder: Path) -> Snapshot:
    """The bounds of a run as last recorded; works while another process goes on with it.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    connection = connect(folder / DATABASE)
    try:
        with guarded(folder / DATABASE):
            history = read_history(connection)
            config = _config(connection)
            bounds = read_bounds(connection)
            if not bounds:
                raise StoreError(f"{folder} was left before its first step: remove the folder and start again")
            return Snapshot(
                tuple(bounds),
                read_excluded(connection),
                _get(connection, "seconds", 0.0),
                history[-1].t if history else 0,
                config["domain"]["unit"],
                _get(connection, "finished", False),
                1.0 if _get(connection, "finished", False) else 0.0,
                tuple(history),
                config,
            )
    finally:
        connection.close()


def _config(connection: sqlite3.Connection) -> dict[str, Any]:
    """The configuration, with settings by the names that they have now."""
    config = dict(_get(connection, "config", {}))
    if "settings" in config:
        config["settings"] = {RENAMED.get(name, name): value for name, value in config["settings"].items()}
    return config


def _get(connection: sqlite3.Connection, key: str, default: Any) -> Any:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return default if row is None else json.loads(row["value"])
