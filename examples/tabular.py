"""Bound a classifier of table rows: own units for each column, and a column that never changes.

Run: ``python examples/tabular.py`` (needs the extra ``data``, works offline).
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn

import l0tre
from l0tre.data import from_arrays, select

FROZEN = "proline"  # this column keeps its value


def main() -> l0tre.Snapshot:
    """Train on the wine table, evaluate every twelfth row, print which columns decide."""
    table = load_wine()
    names = list(table.feature_names)
    rows = torch.tensor(table.data, dtype=torch.float32)
    labels = torch.tensor(table.target)
    low, high = rows.amin(0), rows.amax(0)

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(len(names), 16), nn.ReLU(), nn.Linear(16, 3))
    mean, std = rows.mean(0), rows.std(0)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02, weight_decay=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(module((rows - mean) / std), labels).backward()
        optimiser.step()

    # Rows stay in their own units: the normalisation is part of the network. Columns differ in scale, and the grid has
    # one spacing for all, so only the end points of each column's range are tried.
    network = l0tre.load(module, input_shape=(len(names),), mean=mean.tolist(), std=std.tolist())
    mask = torch.tensor([name != FROZEN for name in names])
    domain = l0tre.make_domain((len(names),), low=low, high=high, mask=mask)
    data = select(from_arrays(rows, labels), indices=range(0, len(rows), 12))
    result = l0tre.evaluate(network, data, domain=domain, max_t=3, colours="corners")

    for bounds in result:
        columns = [names[group] for group in bounds.witness.groups] if bounds.witness else ["nothing found"]
        print(f"row {bounds.index}: {bounds.lower} safe, {bounds.upper} change it: {', '.join(columns)}")
    print(f"mean over {len(result)} rows: lower {result.lower:.2f}, upper {result.upper:.2f} of 12 columns")
    return result


if __name__ == "__main__":
    main()
