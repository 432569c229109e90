"""How many measurements must change before a tumour's classification changes? A network and a forest on one table.

Run: ``python examples/breast_cancer.py [FOLDER]`` (needs the extras ``data`` and ``report``, works offline). FOLDER
gets a run folder with ``report.html`` for each of the two classifiers.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from torch import nn

import l0tre
from l0tre.data import from_arrays, select
from l0tre.names import Names
from l0tre.report import write_report

SHOWN = 8  # tumours that are looked at


def network(rows: torch.Tensor, labels: torch.Tensor) -> l0tre.Network:
    """A small dense network, with the normalisation inside."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(rows.shape[1], 16), nn.ReLU(), nn.Linear(16, 2))
    mean, std = rows.mean(0), rows.std(0)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02, weight_decay=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(module((rows - mean) / std), labels).backward()
        optimiser.step()
    return l0tre.load(module, input_shape=(rows.shape[1],), mean=mean.tolist(), std=std.tolist())


def main(folder: Path) -> dict[str, l0tre.Snapshot]:
    """Train on every second row, evaluate some of the others, write the reports."""
    table = load_breast_cancer()
    names = Names(features=tuple(map(str, table.feature_names)), classes=tuple(map(str, table.target_names)))
    rows, labels = torch.tensor(table.data, dtype=torch.float32), torch.tensor(table.target)
    data = from_arrays(rows, labels, scale=1, names=names, name="breast cancer (Wisconsin)")

    # Every measurement moves in the range that the table has; how exactly it was measured stays as it is.
    domain = l0tre.table_domain(data, fixed=["*error*"])
    forest = RandomForestClassifier(10, max_depth=4, random_state=0).fit(rows[::2].numpy(), labels[::2].numpy())
    chosen = select(data, indices=range(1, len(rows), 2), shuffle=True, limit=SHOWN)

    results = {}
    for name, model in (("network", network(rows[::2], labels[::2])), ("forest", forest)):
        out = folder / name
        result = l0tre.evaluate(model, chosen, domain=domain, max_t=1, out=out)
        results[name] = result
        print(f"{name}: {result!r}")
        for image in result:
            if image.witness is not None:
                changes = [names.feature(group) for group in image.witness.groups]
                print(f"  tumour {image.index} ({names.label(image.label)}): {', '.join(changes)}")
        print(f"  report: {write_report(out)}")
    return results


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
