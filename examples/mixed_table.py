"""A table like a credit office's: numbers, whole numbers, one-hot jobs; which entries would turn a refusal round?

The rows are drawn at random. Run: ``python examples/mixed_table.py [FOLDER]`` (needs the extra ``report``, works
offline). FOLDER becomes a run folder with ``report.html``.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0tre
from l0tre.api.tables import rows_inside
from l0tre.data import from_arrays, select
from l0tre.evaluation.changes import changes
from l0tre.names import Names
from l0tre.report import write_report

JOBS = ("job_clerk", "job_craft", "job_none", "job_sales")
COLUMNS = ("age", "years_of_school", "hours_a_week", "savings", "born_abroad", *JOBS)


def people(count: int) -> tuple[Tensor, Tensor]:
    """Rows of the table, and who was granted a credit."""
    torch.manual_seed(0)
    age, school, hours = (torch.randint(*ends, (count,)).float() for ends in ((18, 75), (6, 18), (0, 60)))
    savings, abroad, job = 30 * torch.rand(count) ** 3, torch.randint(2, (count,)), torch.randint(len(JOBS), (count,))
    points = 0.08 * age + 0.4 * school + 0.1 * hours + 0.08 * savings - 4.0 * (job == 2)
    rows = torch.cat([torch.stack([age, school, hours, savings, abroad], 1), F.one_hot(job, len(JOBS))], 1)
    return rows, (points > points.median()).long()


def network(rows: Tensor, labels: Tensor) -> l0tre.Network:
    """A small dense network, with the normalisation inside."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(rows.shape[1], 16), nn.ReLU(), nn.Linear(16, 2))
    mean, std, optimiser = rows.mean(0), rows.std(0), torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(module((rows - mean) / std), labels).backward()
        optimiser.step()
    return l0tre.load(module, input_shape=(rows.shape[1],), mean=mean.tolist(), std=std.tolist())


def main(folder: Path) -> l0tre.Snapshot:
    """Train on most rows, ask about some of the others, write the report."""
    rows, labels = people(600)
    names = Names(features=COLUMNS, classes=("refused", "granted"))
    data = from_arrays(rows, labels, scale=1, names=names)
    # Only what a person can change, and as it can change: nobody gets younger, nobody has four jobs.
    domain = l0tre.table_domain(
        data, quantile=0.03, fixed=["born_abroad"], integer=["auto"], one_hot=["job_*"], upwards=COLUMNS[:2]
    )
    chosen = select(rows_inside(select(data, indices=range(500, 600)), domain), shuffle=True, limit=6)
    result = l0tre.evaluate(network(rows[:500], labels[:500]), chosen, domain=domain, max_t=2, out=folder)
    print(result)
    for image in result:
        if image.witness is not None:
            told = ", ".join(map(str, changes(image.witness, data.images[image.index], names)))
            print(f"  person {image.index}, {names.label(image.label)} unless {told}")
    print(f"report: {write_report(folder)}")
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "run")
