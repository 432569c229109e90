"""A public table with words: what would turn the decisions of a network about 1,000 people's credits round?

The table is "German credit" of the UCI repository (Hofmann, 1994). Run: ``python examples/german_credit.py [FILE.csv]
[FOLDER]`` (extras ``tables``, ``data`` and ``report``): the file has a header and the class in its last column; without
one the table comes from OpenML. FOLDER becomes a run folder with ``report.html``.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0tre
from l0tre.evaluation.changes import changes
from l0tre.report import write_report


def table(path: Path | None) -> Any:
    """The table with the class in its last column."""
    if path is not None:
        return pd.read_csv(path)
    from sklearn.datasets import fetch_openml

    return fetch_openml("credit-g", version=1, as_frame=True).frame


def network(rows: Tensor, labels: Tensor) -> l0tre.Network:
    """A small dense network, with the normalisation inside."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(rows.shape[1], 16), nn.ReLU(), nn.Linear(16, 2))
    mean, std = rows.mean(0), rows.std(0).clamp(min=1e-3)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(40):
        optimiser.zero_grad()
        F.cross_entropy(module((rows - mean) / std), labels).backward()
        optimiser.step()
    return l0tre.load(module, input_shape=(rows.shape[1],), mean=mean.tolist(), std=std.tolist())


def main(path: Path | None, folder: Path) -> l0tre.Snapshot:
    """Train on most rows, ask about some of the others, write the report."""
    frame = table(path)
    answer = frame.columns[-1]
    words = [name for name in frame.columns[:-1] if not pd.api.types.is_numeric_dtype(frame[name])]
    data = l0tre.load_data(pd.get_dummies(frame, columns=words, dtype=float), label_column=str(answer))
    # One word of a column at a time, and whole numbers: a changed row is one that the table could hold.
    groups = ["+".join(name for name in data.names.features if name.startswith(f"{word}_")) for word in words]
    domain = l0tre.table_domain(data, integer=["auto"], one_hot=groups)
    rows, labels, most = data.images, data.labels, len(frame) * 4 // 5
    assert labels is not None
    chosen = l0tre.select(data, indices=range(most, len(frame)), shuffle=True, limit=40)
    result = l0tre.evaluate(network(rows[:most], labels[:most]), chosen, domain=domain, max_t=2, out=folder)
    print(result)
    for image in result:
        if image.witness is not None:
            told = ", ".join(map(str, changes(image.witness, rows[image.index], data.names)))
            print(f"  row {image.index}, {data.names.label(image.label)} unless {told}")
    print(f"report: {write_report(folder)}")
    return result


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    main(given[0] if given else None, given[1] if len(given) > 1 else Path(tempfile.mkdtemp()) / "run")
