"""Generated suites and coverage, as text."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from l0tre.cli.terminal import literal
from l0tre.coverage.criteria import CoverageFigure
from l0tre.testgen.suite import Suite

__all__ = ["show_coverage", "show_suite"]

DISTANCES = (0, 1, 2, 3, 4, 8, 20, 100)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def show_suite(suite: Suite, console: Console) -> None:
    """Print what is known of each layer's neurons, and how the suite does."""
    table = _table("layer", "neurons", "covered", "by seeds", "by tests", "dead", "out of reach", "open")
    for row in suite.by_layer():
        counts = [f"{row[name]:,}" for name in ("by seeds", "by tests", "dead", "out of reach", "open")]
        table.add_row(literal(row["layer"]), f"{row['neurons']:,}", f"{100 * row['coverage']:.2f} %", *counts)
    console.print(table)
    console.print()
    facts = suite.to_json()
    seeds = len(suite.seeds.images)
    console.print(f"coverage     {100 * suite.coverage:.2f} % of {suite.neurons:,} neurons ({suite.criterion})")
    sizes = [size for size in DISTANCES if size <= suite.max_l0]
    reached = ", ".join(f"{size}: {100 * suite.within(size):.2f} %" for size in sizes)
    console.print(f"by distance  {reached} ({suite.unit}s)")
    if facts["coverage_of_random"] is not None:
        share = 100 * facts["coverage_of_random"]
        console.print(
            f"by chance    {share:.2f} % with {suite.random_queries:,} random inputs, as many as the search took"
        )
    console.print(f"exact        {suite.exact:,} neurons: no nearer input activates them, proved")
    uncovered = facts["proved_share_of_uncovered"]
    if uncovered is not None:
        console.print(f"uncovered    {100 * uncovered:.1f} % of those uncovered are proved dead or out of reach")
    console.print(
        f"tests        {len(suite):,} from {seeds} seed{'' if seeds == 1 else 's'}; {len(suite.minimal):,} have the "
        f"same coverage; {facts['adversarial']:,} are adversarial"
    )
    console.print(f"entropy      {suite.entropy:.2f} bits, of the tests' labels")
    console.print(f"time         {suite.seconds:.1f} s{'' if suite.complete else ', not complete'}")
    for note in suite.notes:
        console.print(f"note: {literal(note)}", soft_wrap=True)


def show_coverage(figures: Mapping[str, CoverageFigure], console: Console) -> None:
    """Print one row for each criterion, and what each counts."""
    table = _table("criterion", "coverage", "covered", "of", "unit")
    for name, figure in figures.items():
        share = f"{100 * figure.share:.2f} %" if figure.total else "-"
        table.add_row(literal(name), share, f"{figure.covered:,}", f"{figure.total:,}", figure.unit)
    console.print(table)
    console.print()
    for name, figure in figures.items():
        layers = f"{figure.neurons:,} neurons of {', '.join(figure.layers)}"
        console.print(f"{literal(name)}: {literal(figure.definition)}; {literal(layers)}", soft_wrap=True)
    first = next(iter(figures.values()))
    console.print(f"inputs: {first.inputs:,}")
