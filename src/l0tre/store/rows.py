"""The translation between the rows of a run's database and results."""

import io
import json
import sqlite3
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import torch

from l0tre.arrays import read_npz
from l0tre.certify.proof import Proof
from l0tre.certify.regions.leaves import Closed, ClosedNodes, ClosedSets
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes
from l0tre.errors import StoreError
from l0tre.evaluation.results import Excluded, Guarantee, HistoryPoint, ImageBounds, Witness
from l0tre.exhaustive.progress import GridProgress
from l0tre.exhaustive.ranking import Ranking
from l0tre.store.tables import TABLES

__all__ = [
    "LATEST",
    "bounds_row",
    "has_levels",
    "level_row",
    "partial_row",
    "proof_row",
    "read_bounds",
    "read_excluded",
    "read_history",
    "read_level_rows",
    "read_partials",
    "read_proofs",
    "read_witnesses",
    "witness_row",
]

LATEST = "SELECT place, level AS t, lower, upper, blocked, seconds, queries FROM images WHERE level > 0"


def bounds_row(place: int, bounds: ImageBounds) -> dict[str, Any]:
    """The bounds of an image as a row of ``images``."""
    return {"place": place, **{name: getattr(bounds, name) for name in TABLES["images"].columns if name != "place"}}


def level_row(place: int, bounds: ImageBounds) -> dict[str, Any]:
    """The bounds with which an image leaves a level, as a row of ``levels``."""
    names = ("lower", "upper", "blocked", "seconds", "queries")
    return {"place": place, "t": bounds.level, **{name: getattr(bounds, name) for name in names}}


def read_level_rows(connection: sqlite3.Connection) -> dict[tuple[int, int], sqlite3.Row]:
    """The bounds at the end of each level that is over, by place of the image and ``t``."""
    rows = connection.execute("SELECT * FROM levels" if has_levels(connection) else LATEST)
    return {(row["place"], row["t"]): row for row in rows}


def has_levels(connection: sqlite3.Connection) -> bool:
    """Whether a database has a table of levels, which format 2 has not."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'levels'").fetchone()
    return found is not None


def read_witnesses(connection: sqlite3.Connection, level: int | None = None) -> dict[int, Witness]:
    """The best witness of every image, by its place: of all, or of those found up to some level."""
    # All rows in the order of their numbers, as no index is checked against damage; the latest of an image is its best.
    rows = connection.execute("SELECT * FROM witnesses ORDER BY id")
    latest = {row["place"]: row for row in rows if level is None or row["level"] <= level}
    return {place: _witness(row) for place, row in latest.items()}


def read_bounds(connection: sqlite3.Connection) -> list[ImageBounds]:
    """Bounds of every image with the best witness of each.

    Raises:
        StoreError: If they are impossible, whatever was done to them.
    """
    witnesses = read_witnesses(connection)
    rows = connection.execute("SELECT * FROM images ORDER BY place").fetchall()
    bounds = [
        ImageBounds(
            row["index"],
            row["label"],
            row["groups"],
            row["lower"],
            row["upper"],
            row["guarantee"],
            witnesses.get(row["place"]),
            row["level"],
            row["blocked"],
            row["seconds"],
            row["queries"],
            "attacked" in row.keys() and bool(row["attacked"]),  # noqa: SIM118  # a row is no dictionary
        )
        for row in rows
    ]
    _check_possible([row["place"] for row in rows], bounds)
    return bounds


def _check_possible(places: Sequence[int], bounds: Sequence[ImageBounds]) -> None:
    if list(places) != list(range(len(bounds))):
        raise StoreError("its inputs are not numbered one after the other")
    if len({image.index for image in bounds}) != len(bounds):
        raise StoreError("it holds an input twice")
    for image in bounds:
        distance = image.groups + 1 if image.witness is None else image.witness.distance
        if not (
            0 <= image.lower < image.upper == distance <= image.groups + 1
            and image.guarantee in get_args(Guarantee)
            and min(image.index, image.label, image.level, image.blocked, image.queries) >= 0
        ):
            raise StoreError(
                f"it holds impossible bounds of input {image.index} (lower {image.lower}, upper {image.upper}, "
                f"{image.groups} groups, witness of {distance})"
            )


def read_excluded(connection: sqlite3.Connection) -> tuple[Excluded, ...]:
    """The images that were left out."""
    rows = connection.execute('SELECT * FROM excluded ORDER BY "index"')
    return tuple(Excluded(row["index"], row["label"], row["predicted"]) for row in rows)


def read_history(connection: sqlite3.Connection) -> list[HistoryPoint]:
    """Global bounds over time."""
    rows = connection.execute("SELECT * FROM history ORDER BY id")
    return [HistoryPoint(row["seconds"], row["t"], row["lower"], row["upper"]) for row in rows]


def read_partials(connection: sqlite3.Connection) -> dict[int, GridProgress]:
    """Positions inside a level, by place of the image."""
    return {row["place"]: _partial(row) for row in connection.execute("SELECT * FROM partials")}


def read_proofs(connection: sqlite3.Connection) -> dict[int, Proof]:
    """Proofs inside a level, by place of the image; those that cannot be in the middle of one are left out."""
    proofs = {row["place"]: _proof(row) for row in connection.execute("SELECT * FROM proofs")}
    # A complete count beside open nodes, or one that is out of range, must never be taken for a proof.
    return {place: proof for place, proof in proofs.items() if proof.partial}


def _proof(row: sqlite3.Row) -> Proof:
    arrays, t = read_npz(io.BytesIO(row["fronts"])), row["t"]
    proved, total = Fraction(row["proved"]), int(row["total"])
    return Proof(t, proved, total, _fronts(arrays, t), row["nodes"], row["tree"], _closed(arrays, t))


def proof_row(place: int, proof: Proof) -> dict[str, Any]:
    """How far a proof has come, as a row of ``proofs``."""
    return {
        "place": place,
        "t": proof.t,
        "proved": str(proof.proved),
        "total": str(proof.total),
        "nodes": proof.nodes,
        "fronts": _front_bytes(proof),
        "tree": proof.tree,
    }


def _front_bytes(proof: Proof) -> bytes:
    """The open nodes of a proof as an .npz archive."""
    arrays: dict[str, np.ndarray] = {}
    for nodes in proof.fronts:
        kind = "cells" if isinstance(nodes, CellNodes) else "boxes"
        arrays[f"{kind}_cells"] = nodes.cells.numpy().astype(np.int32)
        if isinstance(nodes, BoxNodes):
            arrays |= {f"{kind}_{name}": getattr(nodes, name).numpy() for name in ("low", "high", "depth")}
    arrays |= _closed_arrays(proof.closed)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _closed_arrays(closed: Closed | None) -> dict[str, np.ndarray]:
    """What a proof has closed, for the same archive."""
    if isinstance(closed, ClosedSets):
        return {"leaves": torch.cat([torch.zeros(3, 0, dtype=torch.int64), *closed.leaves], 1).numpy()}
    if closed is None:
        return {}
    arrays: dict[str, np.ndarray] = {"closed": np.array(len(closed.parts))}
    for number, (nodes, bounds) in enumerate(closed.parts):
        arrays |= {f"closed_{number}_cells": nodes.cells.numpy(), f"closed_{number}_bounds": bounds.numpy()}
        if isinstance(nodes, BoxNodes):
            arrays |= {f"closed_{number}_{name}": getattr(nodes, name).numpy() for name in ("low", "high", "depth")}
    return arrays


def _closed(arrays: Mapping[str, np.ndarray], t: int) -> Closed | None:
    if "leaves" in arrays:
        return ClosedSets((torch.from_numpy(arrays["leaves"]),))
    if "closed" not in arrays:
        return None
    parts: list[tuple[Nodes, torch.Tensor]] = []
    for number in range(int(arrays["closed"])):
        own = {
            key.split("_", 2)[2]: torch.from_numpy(value)
            for key, value in arrays.items()
            if key.startswith(f"closed_{number}_")
        }
        cells = own["cells"].reshape(-1, t)
        image = torch.zeros(len(cells), dtype=torch.int64)
        nodes: Nodes = CellNodes(image, cells)
        if "depth" in own:
            nodes = BoxNodes(image, cells, own["low"], own["high"], own["depth"])
        parts.append((nodes, own["bounds"]))
    return ClosedNodes(tuple(parts))


def _fronts(arrays: Mapping[str, np.ndarray], t: int) -> tuple[Nodes, ...]:
    fronts: list[Nodes] = []
    for kind in ("cells", "boxes"):
        if f"{kind}_cells" not in arrays:
            continue
        cells = torch.from_numpy(arrays[f"{kind}_cells"].astype(np.int64)).reshape(-1, t)
        image = torch.zeros(len(cells), dtype=torch.int64)
        if kind == "cells":
            fronts.append(CellNodes(image, cells))
        else:
            low, high, depth = (torch.from_numpy(arrays[f"{kind}_{name}"]) for name in ("low", "high", "depth"))
            fronts.append(BoxNodes(image, cells, low, high, depth))
    return tuple(fronts)


def witness_row(place: int, at: str, witness: Witness) -> dict[str, Any]:
    """A witness as a row of ``witnesses``, without its number: its changed values as pairs of position and value."""
    pairs = list(zip(witness.positions.tolist(), witness.values.tolist(), strict=True))
    return {
        "place": place,
        "at": at,
        "distance": witness.distance,
        "label": witness.label,
        "margin": witness.margin,
        "level": witness.level,
        "groups": json.dumps(witness.groups),
        "changes": json.dumps(pairs),
    }


def _witness(row: sqlite3.Row) -> Witness:
    pairs = json.loads(row["changes"])
    return Witness(
        torch.tensor([position for position, _ in pairs], dtype=torch.int64),
        torch.tensor([value for _, value in pairs], dtype=torch.float32),
        tuple(json.loads(row["groups"])),
        row["label"],
        row["margin"],
        row["level"],
    )


def partial_row(place: int, partial: GridProgress) -> dict[str, Any]:
    """A position inside a level, as a row of ``partials``."""
    return {
        "place": place,
        "t": partial.t,
        "position": partial.position,
        "safe": partial.safe[0],
        "rankings": _ranking_bytes(partial),
    }


def _ranking_bytes(partial: GridProgress) -> bytes:
    """Both rankings of a single image as int64 numbers (float64 values by their bits), ``[2, 3, kept]``."""
    arrays = [
        np.stack(
            [
                ranking.values[0].cpu().double().numpy().view(np.int64),
                ranking.sets[0].cpu().numpy(),
                ranking.points[0].cpu().numpy(),
            ]
        )
        for ranking in (partial.by_score, partial.by_margin)
    ]
    return np.stack(arrays).astype("<i8").tobytes()


def _partial(row: sqlite3.Row) -> GridProgress:
    numbers = np.frombuffer(row["rankings"], dtype="<i8").astype(np.int64).reshape(2, 3, 1, -1)
    rankings = [
        Ranking(
            torch.from_numpy(values.view(np.float64).astype(np.float32)),
            torch.from_numpy(sets.copy()),
            torch.from_numpy(points.copy()),
        )
        for values, sets, points in numbers
    ]
    return GridProgress(row["t"], row["position"], torch.tensor([bool(row["safe"])]), *rankings)
