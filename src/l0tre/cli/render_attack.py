"""What an attack found, as text and for JSON."""

from typing import Any

from rich.console import Console
from rich.table import Table

from l0tre.attacks.attacked import Attacked
from l0tre.cli.render import show_classified
from l0tre.cli.terminal import literal
from l0tre.data import Dataset

__all__ = ["attack_dict", "show_attack"]

ROWS = 25  # images listed on a terminal; the file has them all


def attack_dict(result: Attacked, data: Dataset) -> dict[str, Any]:
    """The result for JSON."""
    return {
        "unit": result.unit,
        "images": len(data.images),
        "found": int(result.changed.sum()),
        "mean": None if result.mean != result.mean else result.mean,
        "median": None if result.median != result.median else result.median,
        "seconds": round(result.seconds, 3),
        "notes": list(result.notes),
        "each": [
            {
                "index": index,
                "label": int(result.labels[row]),
                "decision": int(result.decisions[row]),
                "class": data.names.label(int(result.decisions[row])),
                "found": bool(result.found[row]),
                "distance": int(result.distance[row]),
                "optimal": bool(result.optimal[row]),
                "method": result.methods[row],
                "forwards": int(result.forwards[row]),
                "backwards": int(result.backwards[row]),
            }
            for row, index in enumerate(data.indices)
        ],
    }


def show_attack(result: Attacked, data: Dataset, console: Console, targeted: int | None) -> None:
    """Print one row for each image, and how the attack did."""
    names = data.names
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    wanted = "label" if targeted is None else "target"
    for name in (data.noun, wanted, "becomes", f"{result.unit}s", "optimal", "method", "forwards", "backwards"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row, index in enumerate(data.indices[:ROWS]):
        changed = bool(result.changed[row])
        table.add_row(
            literal(f"{index} {names.inputs[row]}" if names.inputs else str(index)),
            literal(names.label(int(result.labels[row]))),
            literal(names.label(int(result.decisions[row]))) if result.found[row] else "-",
            str(int(result.distance[row])) if result.found[row] else "none",
            "yes" if changed and result.optimal[row] else "",
            result.methods[row] if changed else "as it is" if result.found[row] else "-",
            f"{int(result.forwards[row]):,}",
            f"{int(result.backwards[row]):,}",
        )
    console.print(table)
    total, already = len(data.images), int((result.found & (result.distance == 0)).sum())
    if total > ROWS:
        console.print(f"... and {total - ROWS} more (--out or --json has them all)")
    count = int(result.changed.sum())
    others = f" ({already} need no change)" if already else ""
    console.print()
    if targeted is None:
        show_classified(total - already, total, data.labels is not None, console)
    console.print(f"found     {count} of {total - already} {data.noun}s{others}")
    if count:
        optimal = int((result.optimal & result.changed).sum())
        distance = f"mean {result.mean:.3f}, median {result.median:g} {result.unit}s"
        console.print(f"distance  {distance}; {optimal} proved optimal")
    console.print(f"time      {result.seconds:.1f} s, {result.seconds / total:.3f} s each")
    for note in result.notes:
        console.print(f"note: {literal(note)}", soft_wrap=True)
