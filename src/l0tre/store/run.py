"""Create, record, read and resume a run folder."""

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.arrays import read_npz
from l0tre.domain import Domain
from l0tre.errors import StoreError
from l0tre.evaluation.results import Excluded, HistoryPoint, ImageBounds, Snapshot
from l0tre.evaluation.state import State
from l0tre.files import write_all_whole, write_whole
from l0tre.rules import FREE, Restriction, Rules
from l0tre.store.checked import with_checked
from l0tre.store.connection import (
    DATABASE,
    FORMAT,
    Reading,
    check_rows,
    connect,
    guarded,
    is_sealed,
    reading,
    refuse_used,
    transaction,
)
from l0tre.store.rows import (
    bounds_row,
    level_row,
    partial_row,
    proof_row,
    read_bounds,
    read_excluded,
    read_history,
    read_partials,
    read_proofs,
    witness_row,
)
from l0tre.store.tables import RowWriter, file_digest, seal_of
from l0tre.store.upgrade import upgrade

__all__ = [
    "Inputs",
    "Run",
    "create_run",
    "export_run",
    "open_run",
    "read_config",
    "read_inputs",
    "read_snapshot",
    "snapshot_of",
]

INPUTS = "inputs.npz"
RULE_PREFIX = "rules_"
DOMAIN_ARRAYS = ("members", "sizes", "ids", "low", "high")
# Settings whose names did not say their units before format 5, and their names now.
RENAMED = {"memory": "memory_bytes", "sample": "sample_ms", "attack": "attack_queries"}
Writes = Mapping[Path, Callable[[Path], object]]


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
        with transaction(connection, self.path) as writer:
            writer.set("owner", self.owner)
        self.state = writer.state

    @property
    def path(self) -> Path:
        """The database."""
        return self.folder / DATABASE

    def load_state(self) -> State:
        """The recorded state, ready to be driven on.

        Raises:
            StoreError: If anything is not as it was written.
        """
        with guarded(self.path):
            self.connection.execute("BEGIN")
            try:
                stored = check_rows(self.connection, self.path)
                bounds = read_bounds(self.connection)
                self.written = dict(enumerate(bounds))
                return State(
                    bounds,
                    read_partials(self.connection),
                    read_proofs(self.connection),
                    _get(stored, "seconds", 0.0),
                    read_history(self.connection),
                    _get(stored, "finished", False),
                )
            finally:
                self.connection.execute("ROLLBACK")

    def record(self, state: State, images: Sequence[int], point: HistoryPoint | None) -> None:
        """Store a step in one transaction; see ``l0tre.evaluation.state.Recorder``."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with transaction(self.connection, self.path) as writer:
            self._check_owner()
            for place in images:
                self._write_image(writer, place, state, now)
            if point is not None:
                values = {"seconds": point.seconds, "t": point.t, "lower": point.lower, "upper": point.upper}
                writer.put("history", {"at": now, **values})
            writer.set("seconds", state.seconds)
            writer.set("finished", state.finished)
            writer.step()
        self.state = writer.state
        self.written.update({place: state.bounds[place] for place in images})

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Store another configuration, for a run that goes further than it began with."""
        with transaction(self.connection, self.path) as writer:
            self._check_owner()
            check_rows(self.connection, self.path)
            writer.set_sealed("config", dict(config))
        self.state = writer.state

    def export(self, writes: Writes) -> tuple[Path, ...]:
        """Write files that are made from the state recorded last, unless the run has another owner by now.

        Args:
            writes: What writes each file.

        Returns:
            The files. All appear, or none.

        Raises:
            StoreError: If another process has taken over, or they cannot be written.
        """
        return _written(self.folder, writes, self._exporting())

    @contextmanager
    def _exporting(self) -> Iterator[None]:
        with transaction(self.connection, self.path) as writer:
            self._check_owner()
            writer.set("exported", self.state.step)
            yield

    def close(self) -> None:
        """Close the database."""
        self.connection.close()

    def _check_owner(self) -> None:
        row = self.connection.execute("SELECT value FROM meta WHERE key = 'owner'").fetchone()
        if row is None or row["value"] != json.dumps(self.owner):
            raise StoreError(f"another process has taken over {self.folder}: this one stops, nothing is lost")

    def _write_image(self, writer: RowWriter, place: int, state: State, now: str) -> None:
        bounds, before = state.bounds[place], self.written.get(place)
        writer.put("images", bounds_row(place, bounds))
        if before is None or (before.lower, before.upper) != (bounds.lower, bounds.upper):
            values = {"t": bounds.level, "lower": bounds.lower, "upper": bounds.upper}
            writer.put("bounds", {"place": place, "at": now, "seconds": state.seconds, **values})
        if bounds.level > (0 if before is None else before.level):
            writer.put("levels", level_row(place, bounds))
        if bounds.witness is not None and (before is None or before.witness is not bounds.witness):
            writer.put("witnesses", witness_row(place, now, bounds.witness))
        partial, proof = state.partials.get(place), state.proofs.get(place)
        if partial is None:
            writer.drop("partials", {"place": place})
        else:
            writer.put("partials", partial_row(place, partial))
        if proof is None:
            writer.drop("proofs", {"place": place})
        else:
            writer.put("proofs", proof_row(place, proof))


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
    refuse_used(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error}") from error
    try:
        write_whole(folder / INPUTS, lambda path: _write_inputs(path, inputs))
        return _begin(folder, state, excluded, config)
    except BaseException as error:
        for name in (INPUTS, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):  # so that a second try finds it empty
            (folder / name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(f"{folder} cannot be written: {error}") from error
        raise


def _write_inputs(path: Path, inputs: Inputs) -> None:
    domain = inputs.domain.to(torch.device("cpu"))
    with path.open("wb") as file:  # a file object: savez appends .npz to bare names
        np.savez_compressed(
            file,
            images=inputs.images.cpu().numpy(),
            labels=np.empty(0, np.int64) if inputs.labels is None else inputs.labels.cpu().numpy(),
            indices=np.asarray(inputs.indices, np.int64),
            unit=np.asarray(domain.unit),
            **{name: getattr(domain, name).numpy() for name in DOMAIN_ARRAYS},
            **_rule_arrays(domain.rules),
        )


def _begin(folder: Path, state: State, excluded: Sequence[Excluded], config: Mapping[str, Any]) -> Run:
    connection = connect(folder / DATABASE, create=True)
    try:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        lasting = {"config": dict(config), "created": created, "inputs": file_digest(folder / INPUTS)}
        seal = seal_of({key: json.dumps(value) for key, value in lasting.items()})
        with transaction(connection, folder / DATABASE, seal) as writer:
            for key, value in {**lasting, "format": FORMAT}.items():
                writer.set(key, value)
            for one in excluded:
                writer.put("excluded", {"index": one.index, "label": one.label, "predicted": one.predicted})
        run = Run(folder, connection)
        run.record(state, range(len(state.bounds)), None)
    except BaseException:
        connection.close()
        raise
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
    connection = connect(folder / DATABASE)
    try:
        if not is_sealed(connection):
            upgrade(connection, folder / INPUTS, folder / DATABASE)
        return Run(folder, connection)
    except BaseException:
        connection.close()
        raise


def read_inputs(folder: Path) -> Inputs:
    """The inputs of a run.

    Raises:
        StoreError: If the file is missing, damaged, or not the one that the run began with.
    """
    path = folder / INPUTS
    with reading(folder / DATABASE, rows=False) as stored:
        digest = _get(stored, "inputs", None)
    try:
        if digest is not None and file_digest(path) != digest:
            raise ValueError("it is not the file that the run began with")
        arrays = read_npz(path)
        images = torch.from_numpy(arrays["images"])
        tensors: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in DOMAIN_ARRAYS}
        labels = torch.from_numpy(arrays["labels"]) if len(arrays["labels"]) else None
        rules: Restriction = FREE
        if f"{RULE_PREFIX}counts" in arrays:
            rules = Rules(**{part.name: torch.from_numpy(arrays[RULE_PREFIX + part.name]) for part in fields(Rules)})
        domain = Domain(shape=tuple(images.shape[1:]), unit=str(arrays["unit"]), rules=rules, **tensors)
        return Inputs(images, labels, tuple(arrays["indices"].tolist()), domain)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{path} is missing or damaged ({error}): restore it from a copy") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration a run was started with."""
    with reading(folder / DATABASE, rows=False) as stored:
        return _config(stored)


def read_snapshot(folder: Path) -> Snapshot:
    """The bounds of a run as last recorded; works while another process goes on with it.

    Raises:
        StoreError: If it is not a run folder, or damaged.
    """
    with reading(folder / DATABASE) as stored:
        return snapshot_of(stored, folder)


def snapshot_of(stored: Reading, folder: Path) -> Snapshot:
    """The bounds in a database that is being read."""
    connection = stored.connection
    history, config = read_history(connection), _config(stored)
    bounds = with_checked(folder, read_bounds(connection), config["model"].get("fingerprint", ""))
    if not bounds:
        raise StoreError(f"{folder} was left before its first step: remove the folder and start again")
    finished = _get(stored, "finished", False)
    return Snapshot(
        tuple(bounds),
        read_excluded(connection),
        _get(stored, "seconds", 0.0),
        history[-1].t if history else 0,
        config["domain"]["unit"],
        finished,
        1.0 if finished else 0.0,
        tuple(history),
        config,
        "" if stored.state is None else stored.state.name,
    )


def export_run(folder: Path, writes: Writes, snapshot: Snapshot) -> tuple[Path, ...]:
    """Write files that are made from a snapshot that was read, without owning the run.

    Args:
        folder: The run folder.
        writes: What writes each file.
        snapshot: What they are made from.

    Returns:
        The files. All appear, or none.

    Raises:
        StoreError: If newer ones were written meanwhile.
    """
    # In older formats nobody knows which files are newer.
    newest = _not_older(folder, int(snapshot.state.partition("-")[0])) if snapshot.state else nullcontext()
    return _written(folder, writes, newest)


def _written(folder: Path, writes: Writes, while_renaming: AbstractContextManager[object]) -> tuple[Path, ...]:
    try:
        return write_all_whole(writes, while_renaming)
    except OSError as error:
        raise StoreError(
            f"the files in {folder} cannot be written ({error}): all recorded steps are kept, l0tre report writes the "
            "files when there is room"
        ) from error


@contextmanager
def _not_older(folder: Path, step: int) -> Iterator[None]:
    connection = connect(folder / DATABASE)
    try:
        with transaction(connection, folder / DATABASE) as writer:
            row = connection.execute("SELECT value FROM meta WHERE key = 'exported'").fetchone()
            if row is not None and json.loads(row["value"]) > step:
                raise StoreError(f"{folder} went on meanwhile, and its files are newer: nothing was written")
            writer.set("exported", step)
            yield
    finally:
        connection.close()


def _config(stored: Reading) -> dict[str, Any]:
    """The configuration, with settings by the names that they have now."""
    config = dict(_get(stored, "config", {}))
    if "settings" in config:
        config["settings"] = {RENAMED.get(name, name): value for name, value in config["settings"].items()}
    return config


def _get(stored: Reading, key: str, default: Any) -> Any:
    return json.loads(stored.meta[key]) if key in stored.meta else default
