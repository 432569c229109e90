"""A comparison of attacks, as text and in files."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from l0tre.adapters.attack_picture import write_picture
from l0tre.adapters.attack_summary import Row, common_images, make_rows, write_files
from l0tre.adapters.compare_attacks import AttackComparison
from l0tre.adapters.peers import PEERS
from l0tre.cli.terminal import literal, say, screen
from l0tre.domain import Domain
from l0tre.errors import DataError, MissingExtraError

__all__ = ["list_peers", "show_peers", "why_not", "write_peers"]


def write_peers(result: AttackComparison, folder: Path, domain: Domain) -> list[str]:
    """Write tables, arrays and, where it can be drawn, a picture; gives a line for each."""
    low, high = float(domain.low.min()), float(domain.high.max())
    files = [str(file) for file in write_files(result, folder)]
    try:
        files.append(str(write_picture(result, folder / "compare.png", low, high)))
    except (MissingExtraError, DataError) as error:
        files.append(f"no compare.png was written: {error}")
    return files


def why_not(name: str) -> str:
    """Why an attack cannot be imported; empty if it can."""
    try:
        PEERS[name].load()
    except MissingExtraError as error:
        return str(error)
    return ""


def list_peers(*, as_json: bool) -> None:
    """Print the attacks of other libraries, and whether they can be imported."""
    reasons = {name: why_not(name) for name in PEERS}
    if as_json:
        facts = {
            name: {
                "library": peer.package,
                "unit": peer.unit,
                "gradients": peer.gradients,
                "budget": peer.budget,
                "about": peer.about,
                "missing": reasons[name],
            }
            for name, peer in PEERS.items()
        }
        say(json.dumps(facts, indent=1))
        return
    console = screen()
    table = _table("attack", "library", "unit", "needs", "here", "what it is")
    for name, peer in PEERS.items():
        needs = "gradients" if peer.gradients else "scores"
        table.add_row(name, peer.package, peer.unit, needs, "no" if reasons[name] else "yes", peer.about)
    console.print(table)
    for reason in dict.fromkeys(reason for reason in reasons.values() if reason):
        console.print(literal(reason), soft_wrap=True)


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold underline")
    for name in names:
        table.add_column(name)
    return table


def show_peers(result: AttackComparison, console: Console) -> None:
    """Print one row for each attack, and what the columns mean."""
    table = _table("attack", "library", "found", "mean", "median", "feat.", "fwd", "bwd", "s/img", "l0tre<=")
    for column in table.columns[2:]:
        column.justify = "right"
    rows = make_rows(result)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    shared, unit = int(common_images(result).sum()), result.unit
    for row in rows:
        if row.error:
            console.print(f"{row.name}: {literal(row.error)}", soft_wrap=True)
    console.print(
        f"\n{len(result.images)} inputs, {len(result.excluded)} left out as misclassified; "
        f"budget {result.budget} queries for each\n"
        f"mean, median: changed pixels, feat.: changed values (mean), over the {shared} inputs that all attacks found "
        "(without those that found none)\n"
        "fwd, bwd: forward and backward passes for each input; s/inp: seconds for each\n"
        f"l0tre<=: share of inputs on which l0tre changes at most as many {unit}s",
        soft_wrap=True,
    )


def _cells(row: Row) -> list[str]:
    means = (row.mean_pixels, row.median_pixels, row.mean_features)
    return [
        row.name,
        row.package,
        f"{row.success:.0%}",
        *("-" if value is None else f"{value:.2f}" for value in means),
        f"{row.forwards:,.0f}",
        f"{row.backwards:,.0f}",
        f"{row.seconds:.3g}",
        "-" if row.at_least_as_good is None else f"{row.at_least_as_good:.0%}",
    ]
