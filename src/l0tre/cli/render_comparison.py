"""A comparison of networks as text."""

from rich.console import Console
from rich.table import Table

from l0tre.cli.terminal import literal
from l0tre.evaluation.standings import Comparison, Pair

__all__ = ["show_comparison"]


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print what is known of each network, and of every two.

    Args:
        comparison: What to show.
        console: Where to.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for name in ("network", "accuracy", "lower", "upper", "estimate", "exact", "guarantee", "search"):
        left = name in ("network", "guarantee", "search")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for standing in comparison.standings:
        table.add_row(
            literal(standing.network),
            f"{standing.accuracy:.1%}",
            f"{standing.lower:.3f}",
            f"{standing.upper:.3f}",
            f"{standing.estimate:.3f}",
            f"{standing.exact:.1%}",
            standing.guarantee,
            f"t <= {standing.max_t}" if standing.finished else "stopped",
        )
    console.print(table)
    for standing in comparison.standings:
        if standing.misclassified:
            shown = ", ".join(map(str, standing.misclassified[:10]))
            more = f", ... ({len(standing.misclassified)} in all)" if len(standing.misclassified) > 10 else ""
            console.print(f"misclassified by {literal(standing.network)}: {shown}{more}", soft_wrap=True)
    unit = comparison.standings[0].unit if comparison.standings else "group"
    if not comparison.same_groups:
        sizes = ", ".join(f"{s.groups} for {literal(s.network)}" for s in comparison.standings)
        console.print(
            f"[bold]note[/bold]: an input has different numbers of {unit}s ({sizes}): one {unit} is a different part "
            "of it for each, so the radii do not count the same thing",
            soft_wrap=True,
        )
    if comparison.pairs:
        console.print(f"\nMean safe radius, in {unit}s, on the inputs that both classify correctly:")
    for pair in comparison.pairs:
        _show_pair(pair, unit, console)
    for name in comparison.missing:
        console.print(f"not begun: {literal(name)}")


def _show_pair(pair: Pair, unit: str, console: Console) -> None:
    console.print(f"[bold]{literal(pair.words)}[/bold]", soft_wrap=True)
    if not pair.common:
        console.print("  no input is classified correctly by both")
        return
    for name, radius in ((pair.first, pair.first_radius), (pair.second, pair.second_radius)):
        console.print(f"  {literal(name)}: {radius[0]:.3f} to {radius[1]:.3f}", soft_wrap=True)
    low, high = pair.difference
    images = "1 input" if pair.common == 1 else f"{pair.common} inputs"
    console.print(f"  difference: {low:.3f} to {high:.3f} on {images}")
    if pair.order == "open":
        console.print(f"  they overlap by {pair.overlap:.3f}; to settle it: {literal(pair.settle)}", soft_wrap=True)
    elif pair.scope == "the grid":
        console.print("  the lower bounds behind it hold for values of the grid only")
    for split in pair.splits:
        console.print(f"  {literal(split.words(pair.first, pair.second, unit))}", soft_wrap=True)
